"""GRPO by hand: every equation between a group of rewards and the gradient of one step.

Two records, `Group` and `Completion`, and pure functions: no model, no file, no process group.

    groups         ->  weigh             ->  A and w of each completion, group by group:
      r_ver (1, G) ->  group_advantages  ->  A (1, G)         "Advantage computation", Section 2
      lengths (G,) ->  row_weights       ->  w (G,)           the normaliser of the chosen loss
    hidden (N, D)  ->  token_logprobs    ->  logp (N,), entropy (N,)
    logp, A, w     ->  correct_mismatch, policy_loss  ->  scalar, backward()

The loss is a weighted sum over response tokens. A completion's weight w depends on the lengths in
its group and on totals over the step. Each rank holds all groups of the step, so neither
micro-batches nor ranks change the gradient.

Shapes: P prompts, G completions of one prompt, B completions of any prompts, N response tokens of
some completions laid end to end (no padding), n a chunk of these, D hidden size, V vocabulary.
"""

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import torch

LOSSES = ("grpo", "dapo", "batch", "constant", "sum")
STDS = ("population", "sample", "none", "mean")
MISMATCHES = ("none", "truncate", "mask")


@dataclass
class Completion:
    """One output o_i of the group o_1 ... o_G of a problem q."""

    ids: list[int]  # its tokens without padding, the stop token included
    logps: list[float]  # log-probs of the tokens when the generator drew them, [] if greedy
    finished: bool  # ended by a stop token, not cut at the token limit
    status: str = ""  # the verdict's, or bad_gold: the reference answer cannot be verified
    reward: float = 0.0  # r_ver, 0 or 1; a custom reward may be between (App. B)
    advantage: float = 0.0  # Â_i
    weight: float = 0.0  # of each of its tokens in the loss

    @property
    def text_ids(self) -> list[int]:
        """Its tokens without the stop token. Other special tokens stay: some mark thinking."""
        return self.ids[:-1] if self.finished else self.ids


@dataclass(eq=False)  # compared by identity
class Group:
    """A problem q and its completions. The sampler fills in one part, then the student the rest."""

    problem: int  # index into the training data
    size: int  # G, the number of completions to draw
    pool: list[int] = field(default_factory=list)  # candidates; by default the problem alone
    utilities: list[float] = field(default_factory=list)  # predicted, of the pool; NaN: unknown
    explored: bool = True  # chosen by the uniform branch, or without a prediction

    prompt_ids: list[int] = field(default_factory=list)
    completions: list[Completion] = field(default_factory=list)

    def __post_init__(self):
        if not self.pool:
            self.pool = [self.problem]
        if not self.utilities:
            self.utilities = [math.nan] * len(self.pool)

    @property
    def utility(self) -> float:
        """The prediction for the problem when it was selected."""
        return self.utilities[self.pool.index(self.problem)]

    @property
    def rewards(self) -> list[float]:
        """The reward of each completion, in [0, 1]."""
        return [completion.reward for completion in self.completions]

    @property
    def successes(self) -> int:
        """How many completions are right: those with a reward of 1."""
        return self.rewards.count(1)

    @property
    def p_hat(self) -> float:
        """The pass rate p̂: the mean reward."""
        return sum(self.rewards) / len(self.completions)

    @property
    def y(self) -> float:
        """The population std of the rewards: √(p̂(1-p̂)) if all are 0 or 1 (Alg. 2, line 4).

        For any rewards in [0, 1] the variance is p̂(1-p̂) less the mean of r(1-r), which is exactly
        0 for 0s and 1s. So √(p̂(1-p̂)) is an upper bound."""
        if not self.live:
            return 0.0
        within = sum(r * (1 - r) for r in self.rewards) / len(self.completions)
        variance = self.p_hat * (1 - self.p_hat) - within
        return max(variance, 0.0) ** 0.5

    @property
    def live(self) -> bool:
        """Whether the rewards differ. A dead group has zero variance."""
        return len({*self.rewards}) > 1

    @property
    def binary_p_hat(self) -> float:
        """The pass rate at which rewards of 0 and 1 have this std, for formulas in p̂: p̂ itself if
        the rewards are 0s and 1s, else the solution of √(p(1-p)) = y on p̂'s side of 1/2."""
        if {*self.rewards} <= {0, 1}:
            return self.p_hat
        distance = max(1 / 4 - self.y**2, 0.0) ** 0.5
        return 1 / 2 + math.copysign(distance, self.p_hat - 1 / 2)


# Section 2, for samplers, metrics and tests. In training Eq. 2's factor results from `weigh`.


def zero_variance_probability(p, G: int):
    """(Eq. 1) P(all G rollouts right or all wrong) = p^G + (1-p)^G; p in [0, 1], also an array."""
    return p**G + (1 - p) ** G


def gradient_norm(p, log_odds_gradient_norm):
    """(Eq. 2) ‖∇L_PG‖ = √(p(1-p)) · ‖∇ log(p/(1-p))‖, p a prompt's pass rate."""
    return (p * (1 - p)) ** 0.5 * log_odds_gradient_norm


def gradient_norm_bound(p, B, T: int):
    """(Eq. 3) ‖∇L_PG‖ ≤ 2BT √(p(1-p)): B bounds a token's score norm, T the tokens."""
    return 2 * B * T * (p * (1 - p)) ** 0.5


def group_factor(p_hat, std: str = "population"):
    """Compute p̂(1-p̂)/s, the scale of a group's gradient if s divides its advantages:
    √(p̂(1-p̂)) for the population std, p̂(1-p̂) for none, 1-p̂ for the mean; 0 if dead.
    `sample` has the factor of `population`; its constant √((G-1)/G) is left out."""
    if std == "mean":
        return (1 - p_hat) * (p_hat > 0)
    variance = p_hat * (1 - p_hat)
    return variance if std == "none" else variance**0.5


def expected_factor(p: float, G: int, std: str = "population") -> float:
    """Compute E[group_factor(p̂)], p̂ ~ Binomial(G, p)/G, which replaces √(p(1-p)) of (Eq. 2).

    With the `sum` loss ‖E ∇L‖ = E[group_factor(p̂)] · ‖∇ log(p/(1-p))‖ exactly (for `sample` times
    √((G-1)/G)), so the mean of the Teacher's target, `sampler.Goldilocks.target`, is the scale of a
    group's gradient (for `mean`, half of it)."""
    return _expectation(lambda p_hat: group_factor(p_hat, std), p, G)


def noise_floor(p: float, G: int) -> float:
    """Compute E|√(p(1-p)) - √(p̂(1-p̂))|, p̂ ~ Binomial(G, p)/G: the mean |f - y| of a teacher that
    knows p and predicts f = √(p(1-p)). It is not 0, because y comes from only G completions.

    It is not a lower bound: the mean |f - y| is smallest if f is the median of y. The Teacher's MSE
    loss aims at E[y], which is below √(p(1-p)). The logged value has p̂ in place of p, so that dead
    groups contribute 0: where most groups are dead, it is several times too low."""
    f = group_factor(p)
    return _expectation(lambda p_hat: abs(f - group_factor(p_hat)), p, G)


def _expectation(function: Callable, p: float, G: int) -> float:
    """Compute E[function(p̂)], p̂ ~ Binomial(G, p)/G."""
    probability = functools.reduce(np.convolve, G * [[1 - p, p]])  # of 0, 1, ..., G right answers
    p_hat = np.arange(G + 1) / G
    return float(probability @ function(p_hat))


def group_advantages(rewards_P_G: torch.Tensor, std: str = "population") -> torch.Tensor:
    """Compute Â = (r - mean(r)) / std(r) within each group (Section 2): (P, G).

    A dead group (all rewards equal) gets exactly 0. No epsilon is added. std: `population` divides
    by G, `sample` by G-1, `none` only centres (Dr. GRPO), `mean` divides by the mean (MaxRL).
    Floats keep their dtype, integers become float32."""
    if std not in STDS:
        raise ValueError(f"std must be one of {STDS}, got {std!r}")
    if not rewards_P_G.is_floating_point():
        rewards_P_G = rewards_P_G.float()
    mean_P_1 = rewards_P_G.mean(dim=1, keepdim=True)
    advantage_P_G = rewards_P_G - mean_P_1
    if std == "mean":
        advantage_P_G = advantage_P_G / mean_P_1
    elif std != "none":
        correction = 0 if std == "population" else 1
        std_P_1 = rewards_P_G.std(dim=1, keepdim=True, correction=correction)
        advantage_P_G = advantage_P_G / std_P_1
    dead_P_1 = dead_groups(rewards_P_G)[:, None]
    return advantage_P_G.masked_fill(dead_P_1, 0)


def dead_groups(rewards_P_G: torch.Tensor) -> torch.Tensor:
    """Find groups whose rewards are all equal ("zero variance", Section 2): (P,) bool."""
    return (rewards_P_G == rewards_P_G[:, :1]).all(dim=1)


def weigh(
    groups: list[Group],
    loss: str,
    *,
    std: str,
    max_completion_tokens: int,
    dead_rows: str,
    truncated_rows: str,
) -> None:
    """Fill in the advantage of each completion of a step, and the weight of its tokens in the loss.

    With the population std right answers get √((1-p̂)/p̂), wrong ones -√(p̂/(1-p̂)). So with the
    loss `sum`, where all have weight 1/(PG), a group's gradient is √(p̂(1-p̂))/P times the mean of
    -∇log π over right answers minus that over wrong ones. The means' expectations are -∇log p and
    -∇log(1-p), so their difference is -∇log(p/(1-p)) (Eq. 2). `grpo` divides by lengths, too.
    dead_rows "out": dead groups leave the loss and P. truncated_rows "out": completions cut at the
    token limit have weight 0, and count only in G and in their group's mean and std."""

    def length(o: Completion) -> int:
        return 0 if truncated_rows == "out" and not o.finished else len(o.ids)

    if dead_rows == "out":
        groups = [group for group in groups if group.live]
    batch_tokens = sum(length(o) for group in groups for o in group.completions)
    for group in groups:
        rewards_1_G = torch.tensor([[o.reward for o in group.completions]])
        lengths_G = torch.tensor([length(o) for o in group.completions])
        advantage_G = group_advantages(rewards_1_G, std)[0]
        weight_G = row_weights(lengths_G, len(groups), loss, batch_tokens, max_completion_tokens)
        for i, completion in enumerate(group.completions):
            completion.advantage = advantage_G[i].item()
            completion.weight = weight_G[i].item()


def row_weights(
    lengths_G: torch.Tensor, P: int, loss: str, batch_tokens: int, max_completion_tokens: int
) -> torch.Tensor:
    """Compute the loss weight of each response token of a group, one of P: by row, (G,) float64.

    grpo:     1 / (P · G · |o_i|)        mean over sequences of the mean over their tokens
    dapo:     1 / (P · Σ_j∈group |o_j|)  mean over groups of the mean over tokens (Section 6)
    batch:    1 / Σ_j∈batch |o_j|        mean over the `batch_tokens` tokens of all P groups
    constant: 1 / (P · G · T)            T: the limit `max_completion_tokens` (Dr. GRPO)
    sum:      1 / (P · G)                mean over sequences of the sum over tokens (theorem)

    Dead groups count in P (not with --dead_rows out): the loss of a live group does not depend on
    how many others are dead. A group's total weight does not depend on its size, so that the
    expected gradient is the mean over prompts; with `constant` and `sum` longer rows have more.
    With `batch` its weight is in proportion to its tokens. A row of length 0 is left out of the
    loss, but counts in G."""
    lengths = lengths_G.double()
    G = len(lengths_G)
    divisors = {
        "grpo": P * G * lengths,
        "dapo": P * lengths.sum(),
        "batch": batch_tokens,
        "constant": P * G * max_completion_tokens,
        "sum": P * G,
    }
    weight_G = torch.ones_like(lengths) / divisors[loss]
    return weight_G.masked_fill(lengths == 0, 0)


# Log-probabilities of the distribution that was sampled


def token_logprobs(
    hidden_N_D: torch.Tensor,
    head_V_D: torch.Tensor,
    targets_N: torch.Tensor,
    temperature: float = 1.0,
    chunk: int | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Compute log π(target) and entropy (nats) of softmax(hidden Wᵀ / temperature): (N,), (N,).

    Both are at least float32. The (N, V) logits exist for `chunk` tokens at a time only (default:
    2^25 logits, 128 MiB in float32). `temperature` must be the one the tokens were sampled at."""
    chunk = chunk or max(1, 2**25 // len(head_V_D))
    return TokenLogprobs.apply(hidden_N_D, head_V_D, targets_N, temperature, chunk)


class TokenLogprobs(torch.autograd.Function):
    """log π(t) and entropy of softmax(h Wᵀ / τ), a part at a time. Backward recomputes the logits.

    With z = h Wᵀ / τ, p = softmax(z) and the target t:

        ∂ log p_t / ∂z = e_t - p,   ∂H / ∂z = -p ⊙ (log p + H)

    Forward takes chunks of tokens. Backward takes chunks, a quarter as large, of the vocabulary
    with all tokens: ∂W then needs no accumulator."""

    @staticmethod
    def forward(ctx, hidden_N_D, head_V_D, targets_N, temperature, chunk):
        parts = []
        for h, target_n in zip(hidden_N_D.split(chunk), targets_N.split(chunk), strict=True):
            z = logits(h, head_V_D).div_(temperature)  # (chunk, V)
            normaliser_n = z.logsumexp(dim=-1)
            log_p = z.sub_(normaliser_n[:, None])  # the same operations as in backward
            logp_n = log_p.gather(1, target_n[:, None])[:, 0]
            entropy_n = -log_p.exp().mul_(log_p).sum(dim=-1)
            parts.append((logp_n, entropy_n, normaliser_n))
        logp_N, entropy_N, normaliser_N = map(torch.cat, zip(*parts, strict=True))
        ctx.save_for_backward(hidden_N_D, head_V_D, targets_N, normaliser_N, entropy_N)
        ctx.set_materialize_grads(False)  # None, not zeros, for an output that the loss ignores
        ctx.temperature = temperature
        # In backward a chunk is a part of the vocabulary, for all tokens: a quarter as many logits.
        ctx.chunk_logits = chunk * len(head_V_D) // 4
        return logp_N, entropy_N

    @staticmethod
    def backward(ctx, grad_logp_N, grad_entropy_N):
        hidden_N_D, head_V_D, targets_N, normaliser_N, entropy_N = ctx.saved_tensors
        if grad_logp_N is None:
            grad_logp_N = torch.zeros_like(entropy_N)
        # The sum over the vocabulary stays in float32: hundreds of bf16 additions lose bits.
        grad_hidden = torch.zeros_like(hidden_N_D, dtype=entropy_N.dtype)
        grad_weight = torch.empty_like(head_V_D)
        chunk = max(1, ctx.chunk_logits // len(targets_N))
        if chunk > 64:
            chunk -= chunk % 64  # cuBLAS is slow with rows that are not aligned
        start = 0  # the chunk's first token of the vocabulary
        for W, grad_W in zip(head_V_D.split(chunk), grad_weight.split(chunk), strict=True):
            z = logits(hidden_N_D, W).div_(ctx.temperature)  # (N, chunk)
            log_p = z.sub_(normaliser_N[:, None])
            grad_z = _minus_p_terms(log_p, entropy_N, grad_logp_N, grad_entropy_N)
            _add_at_targets(grad_z, targets_N - start, grad_logp_N)
            grad_z.div_(ctx.temperature)
            grad_z = grad_z.to(W.dtype)
            torch.mm(grad_z.T, hidden_N_D, out=grad_W)
            grad_hidden += grad_z @ W
            start += chunk
        grad_hidden = grad_hidden.to(hidden_N_D.dtype)
        return grad_hidden, grad_weight, None, None, None


def _minus_p_terms(log_p, entropy_N, grad_logp_N, grad_entropy_N):
    """Compute -p ⊙ (∂L/∂logp + ∂L/∂H · (log p + H)) in place of log_p (N, chunk)."""
    grad_logp_N_1 = grad_logp_N[:, None]
    if grad_entropy_N is None:
        return log_p.exp_().mul_(-grad_logp_N_1)
    p = log_p.exp()
    terms = log_p.add_(entropy_N[:, None])
    terms.mul_(grad_entropy_N[:, None])
    terms.add_(grad_logp_N_1)
    return terms.mul_(p).neg_()


def _add_at_targets(grad_z, target_N, grad_logp_N) -> None:
    """Add e_t · ∂L/∂logp to grad_z (N, chunk); a target outside the chunk adds 0."""
    last = grad_z.shape[1] - 1
    in_chunk_N = (target_N >= 0) & (target_N <= last)
    column_N_1 = target_N.clamp(0, last)[:, None]
    grad_N = grad_logp_N * in_chunk_N
    grad_z.scatter_add_(1, column_N_1, grad_N[:, None])


def logits(hidden_N_D: torch.Tensor, head_V_D: torch.Tensor) -> torch.Tensor:
    """Compute hidden Wᵀ (N, V) in at least float32. bf16 would round 16.06 to 16, for example."""
    dtype = torch.promote_types(hidden_N_D.dtype, torch.float32)
    if hidden_N_D.dtype == dtype:
        return hidden_N_D @ head_V_D.T
    if _mm_returns(dtype, hidden_N_D.dtype, hidden_N_D.device):
        return torch.mm(hidden_N_D, head_V_D.T, out_dtype=dtype)
    # Cast a part of the weight at a time, small enough for a processor's cache: in decoding, a cast
    # of all of it would take longer than the product.
    hidden = hidden_N_D.to(dtype)
    parts = [hidden @ w.T.to(dtype) for w in head_V_D.split(1024)]
    return torch.cat(parts, dim=1)


@functools.cache
def _mm_returns(dtype: torch.dtype, operands: torch.dtype, device: torch.device) -> bool:
    """Whether a device can multiply matrices of dtype `operands` into `dtype`."""
    x = torch.zeros(8, 8, dtype=operands, device=device)
    try:
        return torch.mm(x, x, out_dtype=dtype).dtype == dtype
    except RuntimeError:  # NotImplementedError is one
        return False


def correct_mismatch(
    advantage_N: torch.Tensor,
    gap_N: torch.Tensor,
    row_N: torch.Tensor,
    mismatch: str,
    level: str,
    cap: float,
) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """Correct for a generator that is not quite π_old, as on GPUs in bf16: multiply the advantages,
    and with them each token's objective, by the ratio c = π_old / π_generator.

    gap_N: log π_old - log π_generator of each token; row_N: the row that each token is of.
    level: `token` takes c of each token, `sequence` the product of c over the token's row.
    mismatch: what becomes of c above `cap`: the cap (`truncate`) or 0 (`mask`); `none` is c = 1.

    By sequence and without a cap the losses `constant` and `sum` have the expected gradient of
    samples from π_old, apart from the group's std in Â, which is that of the sample at hand. The
    other losses divide by the lengths of that sample, too. Returns the advantages (N,) and
    statistics, as policy_loss does."""
    stats = {"logp_gap": gap_N.abs().sum()}
    if mismatch == "none":
        return advantage_N, stats
    if level == "sequence":
        n_rows = 1 + int(row_N.max())
        gap_B = gap_N.new_zeros(n_rows).index_add_(0, row_N, gap_N)
        gap_N = gap_B[row_N]
    c_N = gap_N.exp()
    over_N = c_N > cap
    stats["mismatch_over_cap"] = over_N.sum()
    c_N = c_N.masked_fill(over_N, cap if mismatch == "truncate" else 0)
    return c_N * advantage_N, stats


def policy_loss(
    logp_N: torch.Tensor,
    old_logp_N: torch.Tensor,
    advantage_N: torch.Tensor,
    weight_N: torch.Tensor,
    *,
    clip_low: float = 0.2,
    clip_high: float = 0.28,
    ref_logp_N: torch.Tensor | None = None,
    kl_coef: float = 0.0,
    entropy_N: torch.Tensor | None = None,
    entropy_coef: float = 0.0,
) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """L = -Σ w min(ρ Â, clip(ρ, 1-ε_low, 1+ε_high) Â) + kl_coef · Σ w k3 - entropy_coef · Σ w H.

    ρ = π_θ / π_old. Where it is 1, as in a step's first update, the clip has no effect, and the
    gradient of the first sum is -Σ w Â ∇log π_θ. L_DAPO in Section 6 lacks the leading minus.
    k3 = π_ref/π_θ - log(π_ref/π_θ) - 1 ≥ 0 estimates KL(π_θ ‖ π_ref) without bias; its expected
    gradient is that of KL(π_ref ‖ π_θ). H is *subtracted*, to be maximised; Eq. 4 prints +βH.

    All tensors are per response token, (N,). Returns the scalar loss and statistics by name, each a
    sum over the N tokens: train.py logs its mean over the step's tokens."""
    weight_N = weight_N.to(logp_N.dtype)
    ratio_N = (logp_N - old_logp_N).exp()
    objective_N, is_clipped_N = clipped_surrogate(ratio_N, advantage_N, clip_low, clip_high)
    loss = -(weight_N * objective_N).sum()
    stats = {"clip_fraction": is_clipped_N.sum()}
    if kl_coef:
        k3_N = kl_estimate(logp_N, ref_logp_N)
        loss = loss + kl_coef * (weight_N * k3_N).sum()
        stats["kl"] = k3_N.sum()
    if entropy_N is not None:
        stats["entropy"] = entropy_N.sum()
    if entropy_coef:
        loss = loss - entropy_coef * (weight_N * entropy_N).sum()
    return loss, stats


def clipped_surrogate(ratio_N, advantage_N, clip_low: float, clip_high: float):
    """Compute min(ρ Â, clip(ρ, 1-ε_low, 1+ε_high) Â) (Section 6), and which tokens are clipped: the
    clip takes effect (gradient 0) only where it makes the objective smaller."""
    clipped_N = ratio_N.clamp(1 - clip_low, 1 + clip_high)
    unclipped_N = ratio_N * advantage_N
    objective_N = unclipped_N.minimum(clipped_N * advantage_N)
    return objective_N, objective_N < unclipped_N


def kl_estimate(logp_N, ref_logp_N):
    """Compute k3 = π_ref/π_θ - log(π_ref/π_θ) - 1 of each token."""
    log_ratio_N = ref_logp_N - logp_N
    return log_ratio_N.exp() - log_ratio_N - 1

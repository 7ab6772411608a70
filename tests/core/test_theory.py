"""Section 2 and Appendices B and C of the paper, executed: `pytest -v tests/core/test_theory.py`.

The policy is small enough to enumerate: three tokens a, b and $ (end), completions of at most two
tokens, seven in all, float64. Its probabilities are sixteenths, so a group of 16 rollouts can hold
every completion exactly as often as its probability says. For that group p_hat = p, and the
gradient that grpo.py computes in training *is* the paper's population gradient. The gradient under
test always comes from grpo.py, the score functions it is compared with from autograd alone.
"""

import itertools
import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch

import grpo
from sampler import Goldilocks
from tests.helpers.checks import FLOAT64, close
from tests.helpers.groups import solved

VOCABULARY = "ab$"
COMPLETIONS = ["$", "aa", "ab", "a$", "ba", "bb", "b$"]
SIXTEENTHS = torch.tensor([4, 2, 2, 4, 2, 1, 1])  # probability of each completion, times 16
PREFIXES = ["", "a", "b"]
NEXT = [[1 / 2, 1 / 4, 1 / 4], [1 / 4, 1 / 4, 1 / 2], [1 / 2, 1 / 4, 1 / 4]]  # a, b, $ after each
MIRROR = torch.arange(7).repeat_interleave(SIXTEENTHS)[None]  # the group that mirrors the policy

# Which completions the verifier accepts, by success probability: the sum of their sixteenths.
VERIFIERS = {
    1 / 16: ["bb"],
    4 / 16: ["$"],
    5 / 16: ["a$", "bb"],
    8 / 16: ["$", "a$"],
    11 / 16: ["aa", "ab", "ba", "bb", "a$"],
    15 / 16: ["$", "aa", "ab", "a$", "ba", "b$"],
}
every_difficulty = pytest.mark.parametrize("p, right", VERIFIERS.items())


class TablePolicy:
    """softmax(hidden[prefix] Wᵀ): a hidden state for each prefix and an output head, 3 x 3 each."""

    def __init__(self, next_3_V=NEXT):
        generator = torch.Generator().manual_seed(0)
        self.weight_V_D = torch.randn(3, 3, generator=generator, **FLOAT64)
        self.hidden_3_D = torch.tensor(next_3_V, **FLOAT64).log() @ self.weight_V_D.inverse().T
        self.parameters = [self.hidden_3_D.requires_grad_(), self.weight_V_D.requires_grad_()]

    def token_logps(self) -> torch.Tensor:
        """Compute log π of the completions' 12 tokens, end to end, by grpo.py: (12,)."""
        steps = [(o[:t], o[t]) for o in COMPLETIONS for t in range(len(o))]
        hidden_N_D = self.hidden_3_D[[PREFIXES.index(prefix) for prefix, _ in steps]]
        target_N = torch.tensor([VOCABULARY.index(token) for _, token in steps])
        return grpo.token_logprobs(hidden_N_D, self.weight_V_D, target_N)[0]

    def logp(self, completion: str) -> torch.Tensor:
        """Compute log π(o | q) by plain log_softmax."""
        log_p = torch.log_softmax(self.hidden_3_D @ self.weight_V_D.T, dim=-1)
        steps = [(completion[:t], token) for t, token in enumerate(completion)]
        return sum(log_p[PREFIXES.index(prefix), VOCABULARY.index(t)] for prefix, t in steps)

    def success(self, right: list[str]) -> torch.Tensor:
        """p = Pr(r_ver = 1), differentiable."""
        return sum(self.logp(o).exp() for o in right)

    def gradient(self, scalar: torch.Tensor) -> torch.Tensor:
        """∇_θ of a scalar as one vector of 18 numbers."""
        parts = torch.autograd.grad(scalar, self.parameters, retain_graph=True)
        return torch.cat([part.flatten() for part in parts])

    def expected_score(self, given: list[str]) -> torch.Tensor:
        """E[S_θ(o) | o in given], S_θ(o) = ∇ log π(o | q)."""
        probability = [self.logp(o).exp().item() for o in given]
        scores = [w * self.gradient(self.logp(o)) for w, o in zip(probability, given, strict=True)]
        return sum(scores) / sum(probability)

    def log_odds_gradient(self, right: list[str]) -> torch.Tensor:
        """∇ log(p / (1 - p)), by autograd through the log-odds themselves."""
        return self.gradient(torch.logit(self.success(right)))

    def training_gradient(
        self, right, groups_M_G=MIRROR, chance_M=(1,), *, std="population", loss="sum", P=1, **more
    ) -> torch.Tensor:
        """Compute by grpo.py what one of P groups adds to the gradient of a training step: its mean
        over M groups of completion numbers, with these probabilities. more: a `bonus` on rewards,
        the `generator` that drew the groups if it is another policy, and its `correction`."""
        lengths = torch.tensor([len(o) for o in COMPLETIONS])
        bonus = more.pop("bonus", 0)
        generator = more.pop("generator", None)
        correction = more.pop("correction", None)
        advantage_M_G = grpo.group_advantages(rewards(right, groups_M_G) + bonus, std)
        weigh = torch.vmap(lambda lengths_G: grpo.row_weights(lengths_G, P, loss, 28, 2))
        weight_M_G = weigh(lengths[groups_M_G]) * torch.as_tensor(chance_M, **FLOAT64)[:, None]
        # First the first token of all rows, then the second of those with two: (N,).
        first_B = (lengths.cumsum(0) - lengths)[groups_M_G].flatten()
        two_B = lengths[groups_M_G].flatten() == 2
        token_N = torch.cat([first_B, first_B[two_B] + 1])
        logp_N = self.token_logps()[token_N]
        row_B = torch.arange(len(two_B))
        by_row = advantage_M_G.flatten(), weight_M_G.flatten(), row_B
        advantage_N, weight_N, row_N = (torch.cat([x, x[two_B]]) for x in by_row)
        old_logp_N = logp_N.detach()
        if correction:
            gap_N = old_logp_N - generator.token_logps().detach()[token_N]
            advantage_N, _ = grpo.correct_mismatch(advantage_N, gap_N, row_N, **correction)
        return self.gradient(grpo.policy_loss(logp_N, old_logp_N, advantage_N, weight_N, **more)[0])


def rewards(right: list[str], groups_P_G: torch.Tensor = MIRROR) -> torch.Tensor:
    """Reward each completion that the verifier accepts: (P, G)."""
    return torch.tensor([o in right for o in COMPLETIONS], **FLOAT64)[groups_P_G]


def all_groups(G: int, chance_7=SIXTEENTHS / 16) -> tuple[torch.Tensor, torch.Tensor]:
    """List all multisets of G completions (P, G), with their multinomial probabilities (P,)."""
    groups_P_G = torch.tensor(list(itertools.combinations_with_replacement(range(7), G)))
    counts_P_7 = torch.stack([(groups_P_G == k).sum(dim=1) for k in range(7)], dim=1).double()
    log_ways_P = math.lgamma(G + 1) - torch.lgamma(counts_P_7 + 1).sum(dim=1)
    probability_P = (log_ways_P + counts_P_7 @ chance_7.double().log()).exp()
    close(probability_P.sum(), 1.0)
    return groups_P_G, probability_P


@pytest.fixture(scope="module")
def policy():
    policy = TablePolicy()
    close([policy.logp(o).exp().item() for o in COMPLETIONS], SIXTEENTHS / 16)
    return policy


@every_difficulty
def test_section_2_the_advantage_has_two_values(p, right):
    r = rewards(right)
    close(r.mean(), p)
    advantage = grpo.group_advantages(r)
    close(advantage[r == 1], [math.sqrt((1 - p) / p)] * round(16 * p))
    close(advantage[r == 0], [-math.sqrt(p / (1 - p))] * round(16 * (1 - p)))


P_1 = torch.tensor([0.0, 0.05, 0.3, 0.5, 0.7, 0.95, 1.0], **FLOAT64)
every_G = pytest.mark.parametrize("G", [1, 2, 3, 8])


def every_reward_vector(G: int) -> torch.Tensor:
    """List all vectors of G rewards: (2^G, G)."""
    return torch.tensor(list(itertools.product([0.0, 1.0], repeat=G)), **FLOAT64)


@every_G
def test_eq_1_is_the_probability_of_dead_groups(G):
    r = every_reward_vector(G)
    dead = grpo.dead_groups(r)
    successes = r.sum(dim=1)
    probability = P_1[:, None] ** successes * (1 - P_1[:, None]) ** (G - successes)
    close(grpo.zero_variance_probability(P_1, G), probability[:, dead].sum(dim=1))


@every_G
def test_dead_groups_are_those_without_an_advantage(G):
    r = every_reward_vector(G)
    assert torch.equal(grpo.dead_groups(r), (grpo.group_advantages(r) == 0).all(dim=1))


@every_G
def test_eq_1_has_its_minimum_at_one_half_and_is_1_at_both_ends(G):
    values = grpo.zero_variance_probability(P_1, G)
    assert values[0] == 1
    assert values[-1] == 1
    assert values.min() == values[3]
    assert values[3] == 2.0 ** (1 - G)


@every_difficulty
def test_the_verifiers_have_the_pass_rates_of_their_names(policy, p, right):
    close(policy.success(right).item(), p)


@every_difficulty
def test_eq_2_the_training_gradient_is_the_difference_of_expected_scores(policy, p, right):
    wrong = [o for o in COMPLETIONS if o not in right]
    difference = policy.expected_score(right) - policy.expected_score(wrong)
    close(policy.training_gradient(right), -math.sqrt(p * (1 - p)) * difference)


@every_difficulty
def test_eq_2_the_training_gradient_is_the_scaled_one_of_the_log_odds(policy, p, right):
    """Downhill in the loss is uphill in the log-odds."""
    scaled = math.sqrt(p * (1 - p)) * policy.log_odds_gradient(right)
    close(policy.training_gradient(right), -scaled)


@every_difficulty
def test_eq_2_is_the_norm_of_the_training_gradient(policy, p, right):
    norm = grpo.gradient_norm(p, policy.log_odds_gradient(right).norm())
    close(policy.training_gradient(right).norm(), norm)


def test_eq_3_by_hand():
    close(grpo.gradient_norm_bound(0.2, B=3.0, T=7), 16.8)  # 2 * 3 * 7 * 0.4


@every_difficulty
def test_eq_3_bounds_the_gradient_within_a_factor_of_12(policy, p, right):
    log_p = torch.log_softmax(policy.hidden_3_D @ policy.weight_V_D.T, dim=-1)
    B = max(policy.gradient(entry).norm().item() for entry in log_p.flatten())
    bound = grpo.gradient_norm_bound(p, B, T=2)
    norm = policy.training_gradient(right).norm().item()
    assert bound > norm
    assert bound < 12 * norm


def test_p_one_half_maximises_the_bound():
    bounds = [grpo.gradient_norm_bound(k / 16, B=1.0, T=2) for k in range(17)]
    assert max(bounds) == bounds[8]
    assert bounds[0] == 0
    assert bounds[16] == 0


def test_p_one_half_does_not_maximise_every_norm(policy):
    """The paper's "p = 1/2 is best" holds for the scale, but ‖∇ log-odds‖ can outweigh it."""
    subsets = [right for n in (2, 3, 4) for right in itertools.combinations(COMPLETIONS, n)]
    halves = [right for right in subsets if math.isclose(policy.success(right).item(), 0.5)]
    norms = [policy.training_gradient(right).norm().item() for right in halves]
    harder = policy.training_gradient(VERIFIERS[4 / 16]).norm().item()
    assert min(norms) < harder


every_bonus = pytest.mark.parametrize("bonus", [0.5, -3.0, 0.1])


@every_difficulty
@every_bonus
def test_appendix_b_a_constant_added_to_the_reward_changes_no_gradient(policy, p, right, bonus):
    expected = policy.training_gradient(right)
    close(policy.training_gradient(right, bonus=bonus), expected)


@every_bonus
def test_appendix_b_a_constant_makes_no_dead_group_live(policy, bonus):
    assert not policy.training_gradient(COMPLETIONS, bonus=bonus).any()


def test_appendix_b_the_bonus_may_depend_on_the_group():
    r = torch.tensor([[1, 0, 0, 0], [1, 1, 0, 0]], **FLOAT64)
    by_group = r + torch.tensor([[0.3], [-2.0]], **FLOAT64)
    close(grpo.group_advantages(by_group), grpo.group_advantages(r))


def test_appendix_b_the_bonus_may_not_depend_on_the_rollout():
    """A length bonus inside a group is no f(t) of the proposition: it ranks the wrong answers."""
    r = torch.tensor([[1, 0, 0, 0]], **FLOAT64)
    bonus = torch.tensor([0.0, 0.3, 0.0, 0.0], **FLOAT64)
    [advantage] = grpo.group_advantages(r + bonus)
    assert advantage[1] > advantage[2] + 0.5


PASS_RATES = [(1 / 16, 4), (5 / 16, 2), (5 / 16, 8), (8 / 16, 8), (8 / 16, 16)]  # and sizes
every_p_and_G = pytest.mark.parametrize(("p", "G"), PASS_RATES)
every_std = pytest.mark.parametrize("std", ["population", "none", "mean"])


@every_std
@every_p_and_G
def test_finite_groups_have_the_expected_std_as_their_scale(policy, p, G, std):
    """For each divisor of the advantages, over up to 74,613 groups."""
    right = VERIFIERS[p]
    gradient = policy.training_gradient(right, *all_groups(G), std=std)
    scaled = grpo.expected_factor(p, G, std) * policy.log_odds_gradient(right)
    close(gradient, -scaled)


@every_std
@every_p_and_G
def test_the_teachers_expected_target_is_the_scale_of_finite_groups(p, G, std):
    """With `mean` it is half of it."""
    groups_P_G, probability_P = all_groups(G)
    p_hat_P = rewards(VERIFIERS[p], groups_P_G).mean(dim=1).numpy()
    y_P = torch.from_numpy(Goldilocks.target(SimpleNamespace(std=std), p_hat_P))
    scale = grpo.expected_factor(p, G, std)
    close((y_P * probability_P).sum(), scale / 2 if std == "mean" else scale)


@every_p_and_G
def test_the_scale_of_finite_groups_in_closed_form(p, G):
    close(grpo.expected_factor(p, G, "none"), (1 - 1 / G) * p * (1 - p))
    close(grpo.expected_factor(p, G, "mean"), (1 - p) * (1 - (1 - p) ** (G - 1)))


BIAS = [  # correction, of a, cap, bias relative to the gradient's norm
    ("none", "token", 100, 0.376),
    ("truncate", "token", 100, 0.249),  # ignores how likely the prefix was
    ("truncate", "sequence", 100, 0.0),
    ("mask", "sequence", 100, 0.0),  # no ratio is above 100
    ("truncate", "sequence", 1.2, 0.036),
    ("mask", "sequence", 1.2, 1.27),  # drops completions that the generator draws too rarely
]


@pytest.mark.parametrize(("mismatch", "level", "cap", "bias"), BIAS)
def test_mismatch_correction_removes_the_bias_of_another_generator(
    policy, mismatch, level, cap, bias
):
    """Groups of 3 come from a generator that is off. Corrected by sequence, and without a cap that
    takes effect, their mean gradient is the policy's own."""
    right = VERIFIERS[5 / 16]
    generator = TablePolicy([[0.45, 0.25, 0.3], [0.28, 0.27, 0.45], [0.45, 0.28, 0.27]])
    chance_7 = torch.stack([generator.logp(o) for o in COMPLETIONS]).detach().exp()
    own = policy.training_gradient(right, *all_groups(3), std="none")
    gradient = policy.training_gradient(
        right,
        *all_groups(3, chance_7),
        std="none",
        generator=generator,
        correction={"mismatch": mismatch, "level": level, "cap": cap},
    )
    close((gradient - own).norm() / own.norm(), bias, 1e-9 if bias == 0 else 1e-2)


def test_groups_of_unlike_size_give_the_mean_over_prompts(policy):
    """Over all groups of 2 for one prompt and all groups of 5 for another. Without the std a group
    gives (1 - 1/G) p(1-p) ∇ log-odds, whose factor only tends to the population's p(1-p)."""
    gradients = []
    expected = []
    for p, G in ((5 / 16, 2), (11 / 16, 5)):
        right = VERIFIERS[p]
        gradients.append(policy.training_gradient(right, *all_groups(G), std="none", P=2))
        factor = (1 - 1 / G) * p * (1 - p)
        expected.append(-factor * policy.log_odds_gradient(right))
    close(sum(gradients), sum(expected) / 2)


def binomial(n: int, p: float) -> list[float]:
    """Compute the probabilities of 0, 1, ..., n right answers."""
    return [math.comb(n, k) * p**k * (1 - p) ** (n - k) for k in range(n + 1)]


@pytest.mark.parametrize("p, g, G", [(1 / 4, 2, 4), (1 / 16, 2, 8), (0.9, 4, 16)])
def test_a_screen_biases_the_pass_rate_of_the_completions_it_selects_on(p, g, G):
    """A problem whose first g completions are neither all right nor all wrong gets G - g more."""
    # Each outcome: k right among the first g, j among the later G - g.
    k, j = (grid.ravel() for grid in np.mgrid[: g + 1, : G - g + 1])
    probability = np.outer(binomial(g, p), binomial(G - g, p)).ravel()
    kept = np.array([solved(0, right, of=g).live for right in k.tolist()])

    def mean_of_kept(x):
        return (x * probability)[kept].sum() / probability[kept].sum()

    first = g * (p - p**g) / (1 - p**g - (1 - p) ** g)  # 1 if g = 2: one right, one wrong
    close(mean_of_kept((k + j) / G), (first + (G - g) * p) / G)
    assert abs(first / g - p) > 0.1
    close(mean_of_kept(j / (G - g)), p)


# "a$" and "bb" are right; the one-token completion "$" is wrong
UNLIKE_LENGTHS = VERIFIERS[5 / 16]


def test_the_theorem_does_not_hold_for_a_length_normalised_loss(policy):
    gradient = policy.training_gradient(UNLIKE_LENGTHS, loss="grpo")
    of_sum = policy.training_gradient(UNLIKE_LENGTHS, loss="sum")
    cosine = torch.nn.functional.cosine_similarity(gradient, of_sum, dim=0)
    assert cosine > 0.5
    assert cosine < 0.999


@pytest.mark.parametrize(("loss", "tokens"), [("dapo", 28), ("batch", 28), ("constant", 32)])
def test_the_theorem_holds_for_losses_that_weigh_all_tokens_alike(policy, loss, tokens):
    """One group: a token's weight is 1/28; with `constant` 1/(16 · 2), as the limit is 2."""
    gradient = policy.training_gradient(UNLIKE_LENGTHS, loss=loss)
    of_sum = policy.training_gradient(UNLIKE_LENGTHS, loss="sum")
    close(gradient * tokens / 16, of_sum)

"""Section 2 and Appendices B and C of the paper, executed: run `pytest tests/test_theory.py -v` and read the names.

The policy is small enough to enumerate: three tokens a, b and $ (end), completions of at most two tokens, seven
completions in all, float64. Its probabilities are sixteenths, so that a group of 16 rollouts can hold
every completion exactly as often as the policy says; for that group p_hat = p, and the gradient that grpo.py computes
in training *is* the paper's population gradient. The gradient under test always comes from grpo.py's
group_advantages, row_weights and policy_loss; the score functions that it is compared with come from autograd alone.
"""

import itertools
import math

import pytest
import torch

import grpo
from sampler import utility_target

FLOAT64 = {"dtype": torch.float64}
VOCABULARY = "ab$"
T = 2  # the longest completion
COMPLETIONS = ["$", "aa", "ab", "a$", "ba", "bb", "b$"]
SIXTEENTHS = [4, 2, 2, 4, 2, 1, 1]  # probability of each completion, times 16
PREFIXES = {
    "": [1 / 2, 1 / 4, 1 / 4],
    "a": [1 / 4, 1 / 4, 1 / 2],
    "b": [1 / 2, 1 / 4, 1 / 4],
}  # next: a, b, $

# Which completions the verifier accepts, by success probability: the sum of their sixteenths.
VERIFIERS = {
    "1/16": ["bb"],
    "2/16": ["ab"],
    "4/16": ["$"],
    "5/16": ["a$", "bb"],
    "8/16": ["$", "a$"],
    "11/16": ["aa", "ab", "ba", "bb", "a$"],
    "14/16": ["$", "aa", "ab", "a$", "ba"],
    "15/16": ["$", "aa", "ab", "a$", "ba", "b$"],
}
every_difficulty = pytest.mark.parametrize(
    "right", VERIFIERS.values(), ids=[f"p={name}" for name in VERIFIERS]
)


def close(actual, expected, tolerance=1e-9):
    """Equal to within 1e-9, absolute and relative, in float64."""
    actual, expected = torch.as_tensor(actual, **FLOAT64), torch.as_tensor(expected, **FLOAT64)
    torch.testing.assert_close(actual, expected, rtol=tolerance, atol=tolerance)


class TablePolicy:
    """softmax(hidden[prefix] Wᵀ): a hidden state for each prefix and an output head, 3 x 3 parameters each."""

    def __init__(self):
        generator = torch.Generator().manual_seed(0)
        self.weight_V_D = torch.randn(3, 3, generator=generator, **FLOAT64)
        logits = torch.tensor(list(PREFIXES.values()), **FLOAT64).log()
        self.hidden_3_D = logits @ torch.linalg.inv(self.weight_V_D).T
        self.parameters = [self.hidden_3_D.requires_grad_(), self.weight_V_D.requires_grad_()]

    def token_logps(self, completions: list[str]) -> torch.Tensor:
        """log π of every token of the completions, end to end, as in training: (N,)."""
        prefixes, targets = [], []
        for o in completions:
            prefixes += [list(PREFIXES).index(o[:t]) for t in range(len(o))]
            targets += [VOCABULARY.index(token) for token in o]
        return grpo.token_logprobs(
            self.hidden_3_D[prefixes], self.weight_V_D, torch.tensor(targets)
        )[0]

    def logp(self, completion: str) -> torch.Tensor:
        """log π(o | q), by plain log_softmax."""
        log_p = torch.log_softmax(self.hidden_3_D @ self.weight_V_D.T, dim=-1)
        steps = enumerate(completion)
        return sum(
            log_p[list(PREFIXES).index(completion[:t]), VOCABULARY.index(token)]
            for t, token in steps
        )

    def p(self, right: list[str]) -> torch.Tensor:
        """Pr(r_ver = 1), differentiable."""
        return sum(self.logp(o).exp() for o in right)

    def gradient(self, scalar: torch.Tensor) -> torch.Tensor:
        """∇_θ of a scalar as one vector of 18 numbers."""
        return torch.cat(
            [g.flatten() for g in torch.autograd.grad(scalar, self.parameters, retain_graph=True)]
        )

    def score(self, completion: str) -> torch.Tensor:
        """S_θ(o) = Σ_t ∇ log π(o_t | q, o_<t)."""
        return self.gradient(self.logp(completion))

    def expected_score(self, given: list[str]) -> torch.Tensor:
        """E[S_θ(o) | o in given]."""
        probability = {o: self.logp(o).exp().item() for o in given}
        return sum(probability[o] * self.score(o) for o in given) / sum(probability.values())

    def log_odds_gradient(self, right: list[str]) -> torch.Tensor:
        """∇ log(p / (1 - p)), by autograd through the log-odds themselves."""
        p = self.p(right)
        return self.gradient(torch.log(p / (1 - p)))


@pytest.fixture(scope="module")
def policy():
    """The policy of this file; no test changes it."""
    return TablePolicy()


def wrong_of(right: list[str]) -> list[str]:
    return [o for o in COMPLETIONS if o not in right]


def training_loss(
    policy,
    groups_P_G: torch.Tensor,
    right,
    probability_P=None,
    std="population",
    loss="sum",
    bonus=0.0,
):
    """The loss of one training step on P groups of completion numbers, through the functions that train.py calls.

    With `probability_P`, the expectation of the one-group loss over groups that have these probabilities.
    """
    P, G = groups_P_G.shape
    rewards_P_G = torch.tensor([o in right for o in COMPLETIONS], **FLOAT64)[groups_P_G] + bonus
    lengths_P_G = torch.tensor([len(o) for o in COMPLETIONS])[groups_P_G]
    advantage_P_G = grpo.group_advantages(rewards_P_G, std)
    weight_P_G = grpo.row_weights(lengths_P_G, loss)  # 1/P of a group's own weight
    if probability_P is not None:
        weight_P_G = weight_P_G * P * probability_P[:, None]
    # The 12 tokens of the 7 completions once, then every row's share of them: (N,) tokens end to end.
    logp = policy.token_logps(COMPLETIONS)
    start = torch.tensor([0, *itertools.accumulate(len(o) for o in COMPLETIONS)])
    rows_N = torch.arange(P * G).repeat_interleave(lengths_P_G.flatten())
    first_N = torch.cat([torch.ones(1, dtype=torch.bool), rows_N[1:] != rows_N[:-1]])
    logp_N = logp[start[groups_P_G.flatten()[rows_N]] + (~first_N).long()]
    value, _ = grpo.policy_loss(
        logp_N, logp_N.detach(), advantage_P_G.flatten()[rows_N], weight_P_G.flatten()[rows_N]
    )
    return value


def mirror_group() -> torch.Tensor:
    """The group of 16 that holds every completion as often as the policy says: (1, 16)."""
    return torch.arange(7).repeat_interleave(torch.tensor(SIXTEENTHS))[None]


def all_groups(G: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Every multiset of G completions (P, G) with its multinomial probability (P,)."""
    groups_P_G = torch.tensor(list(itertools.combinations_with_replacement(range(7), G)))
    counts_P_7 = torch.stack([(groups_P_G == k).sum(dim=1) for k in range(7)], dim=1).double()
    log_p_7 = (torch.tensor(SIXTEENTHS, **FLOAT64) / 16).log()
    log_ways_P = math.lgamma(G + 1) - torch.lgamma(counts_P_7 + 1).sum(dim=1)
    return groups_P_G, (log_ways_P + counts_P_7 @ log_p_7).exp()


# ----------------------------------------------------------------------------------------------------
# The stage


def test_the_policy_has_the_probabilities_written_above(policy):
    close([policy.logp(o).exp().item() for o in COMPLETIONS], torch.tensor(SIXTEENTHS) / 16)
    for name, right in VERIFIERS.items():
        close(policy.p(right).item(), int(name.split("/")[0]) / 16)


def test_all_groups_are_all_groups():
    for G in (2, 4, 8):
        groups_P_G, probability_P = all_groups(G)
        assert len(groups_P_G) == math.comb(G + 6, 6)
        close(probability_P.sum(), 1.0)


# ----------------------------------------------------------------------------------------------------
# Section 2: advantage computation, zero-variance batches


@every_difficulty
def test_section_2_the_advantage_has_two_values(policy, right):
    p = policy.p(right).item()
    group = mirror_group()
    rewards = torch.tensor([o in right for o in COMPLETIONS], **FLOAT64)[group]
    close(rewards.mean(), p)
    close(rewards.std(correction=0), math.sqrt(p * (1 - p)))
    advantage = grpo.group_advantages(rewards)
    close(advantage[rewards == 1], [(1 - p) / math.sqrt(p * (1 - p))] * round(16 * p))
    close(advantage[rewards == 0], [-p / math.sqrt(p * (1 - p))] * round(16 * (1 - p)))


@every_difficulty
@pytest.mark.parametrize("G", [2, 4, 8])
def test_eq_1_is_the_total_probability_of_dead_groups(policy, right, G):
    groups_P_G, probability_P = all_groups(G)
    rewards_P_G = torch.tensor([o in right for o in COMPLETIONS])[groups_P_G]
    dead_P = grpo.dead_groups(rewards_P_G)
    close(grpo.zero_variance_probability(policy.p(right).item(), G), probability_P[dead_P].sum())
    assert torch.equal(dead_P, (grpo.group_advantages(rewards_P_G) == 0).all(dim=1))


@pytest.mark.parametrize("G", [2, 4, 8, 16])
def test_eq_1_over_every_reward_vector_has_its_minimum_at_one_half(G):
    rewards = torch.tensor(list(itertools.product([0.0, 1.0], repeat=G)), **FLOAT64)
    dead, successes = grpo.dead_groups(rewards), rewards.sum(dim=1)
    values = []
    for p in (0.0, 0.05, 0.3, 0.5, 0.7, 0.95, 1.0):
        value = grpo.zero_variance_probability(p, G)
        close(value, (p**successes * (1 - p) ** (G - successes))[dead].sum())
        values.append(value)
    assert values[0] == values[-1] == 1.0
    assert values[3] == min(values) == 2.0 ** (1 - G)


@every_difficulty
def test_eq_1_is_the_frequency_of_dead_groups_among_sampled_ones(policy, right):
    n, generator = 20_000, torch.Generator().manual_seed(0)
    draws = torch.multinomial(
        torch.tensor(SIXTEENTHS, **FLOAT64), n * 16, replacement=True, generator=generator
    )
    rewards_P_G = torch.tensor([o in right for o in COMPLETIONS])[draws.reshape(n, 16)]
    expected = grpo.zero_variance_probability(policy.p(right).item(), 16)
    assert abs(grpo.dead_groups(rewards_P_G).double().mean() - expected) < 4 * math.sqrt(
        expected / n
    )


@pytest.mark.parametrize("std", grpo.STDS)
def test_section_2_the_gradient_of_a_dead_group_is_exactly_zero(policy, std):
    for right in ([], COMPLETIONS):
        gradient = policy.gradient(training_loss(policy, mirror_group(), right, std=std))
        assert torch.equal(gradient, torch.zeros(18, **FLOAT64))


# ----------------------------------------------------------------------------------------------------
# Appendix C and Eq. 2


def test_appendix_c_the_expected_score_is_zero(policy):
    assert max(policy.score(o).norm() for o in COMPLETIONS) > 1
    close(policy.expected_score(COMPLETIONS), torch.zeros(18))


@every_difficulty
def test_appendix_c_grad_p_is_p_times_the_mean_score_of_successes(policy, right):
    p = policy.p(right)
    close(policy.gradient(p), p.item() * policy.expected_score(right))


@every_difficulty
def test_appendix_c_the_mean_score_of_failures_is_minus_grad_p_over_1_minus_p(policy, right):
    p = policy.p(right)
    close(policy.expected_score(wrong_of(right)), -policy.gradient(p) / (1 - p.item()))


@every_difficulty
def test_appendix_c_the_log_odds_gradient_is_grad_p_over_p_times_1_minus_p(policy, right):
    p = policy.p(right)
    close(policy.log_odds_gradient(right), policy.gradient(p) / (p * (1 - p)).item())


@every_difficulty
def test_appendix_c_the_training_gradient_is_minus_the_mean_of_score_times_advantage(policy, right):
    p = policy.p(right).item()
    expected = torch.zeros(18, **FLOAT64)
    for o, sixteenths in zip(COMPLETIONS, SIXTEENTHS, strict=True):
        expected -= sixteenths / 16 * policy.score(o) * ((o in right) - p) / math.sqrt(p * (1 - p))
    close(policy.gradient(training_loss(policy, mirror_group(), right)), expected)


@every_difficulty
def test_eq_2_first_form_decomposes_the_norm_into_std_and_difference_of_mean_scores(policy, right):
    p = policy.p(right).item()
    difference = policy.expected_score(right) - policy.expected_score(wrong_of(right))
    gradient = policy.gradient(training_loss(policy, mirror_group(), right))
    close(gradient, -math.sqrt(p * (1 - p)) * difference)
    close(gradient.norm(), math.sqrt(p * (1 - p)) * difference.norm())


@every_difficulty
def test_eq_2_second_form_is_std_times_the_norm_of_the_log_odds_gradient(policy, right):
    p = policy.p(right).item()
    log_odds_gradient = policy.log_odds_gradient(right)
    gradient = policy.gradient(training_loss(policy, mirror_group(), right))
    close(
        gradient, -math.sqrt(p * (1 - p)) * log_odds_gradient
    )  # downhill in the loss is uphill in the log-odds
    close(gradient.norm(), grpo.gradient_norm(p, log_odds_gradient.norm()))


# ----------------------------------------------------------------------------------------------------
# Eq. 3


def largest_token_score(policy) -> float:
    """B of Eq. 3: the largest ‖∇ log π(o_t | q, o_<t)‖ over every prefix and token."""
    log_p = torch.log_softmax(policy.hidden_3_D @ policy.weight_V_D.T, dim=-1)
    return max(policy.gradient(entry).norm().item() for entry in log_p.flatten())


@every_difficulty
def test_eq_3_bounds_the_gradient_and_how_loosely(policy, right):
    bound = grpo.gradient_norm_bound(policy.p(right).item(), largest_token_score(policy), T)
    norm = policy.gradient(training_loss(policy, mirror_group(), right)).norm().item()
    print(f"‖∇L‖ = {norm:.3f}, bound {bound:.3f}: {bound / norm:.1f} times as large")
    assert 1 < bound / norm < 12


def test_eq_3_proof_no_completion_has_a_score_beyond_b_times_t(policy):
    B = largest_token_score(policy)
    norms = {o: policy.score(o).norm().item() for o in COMPLETIONS}
    assert all(norms[o] <= B * len(o) for o in COMPLETIONS)
    assert max(norms.values()) > 0.6 * B * T  # and BT is not absurdly large


def test_eq_3_is_attained_by_a_single_coin_flip():
    # One token, two outcomes, p = 1/2: scores are +-(1/2, -1/2), B = 1/sqrt(2), and the gradient is 2B * 1 * 1/2.
    theta = torch.zeros(1, 2, **FLOAT64, requires_grad=True)
    logp_2 = grpo.token_logprobs(theta.expand(2, 2), torch.eye(2, **FLOAT64), torch.tensor([0, 1]))[
        0
    ]
    advantage = grpo.group_advantages(torch.tensor([[1.0, 0.0]], **FLOAT64)).flatten()
    weight = grpo.row_weights(torch.ones(1, 2), "sum").flatten()
    loss, _ = grpo.policy_loss(logp_2, logp_2.detach(), advantage, weight)
    (gradient,) = torch.autograd.grad(loss, theta)
    close(gradient.norm(), math.sqrt(0.5))
    close(grpo.gradient_norm_bound(0.5, B=math.sqrt(0.5), T=1), math.sqrt(0.5))


def test_eq_3_the_gradient_vanishes_as_p_tends_to_0_or_1():
    # A policy that has all but settled: logit x against 0 and p = sigmoid(x); ∇ log-odds = 1, so ‖∇L‖ = sqrt(p(1-p)).
    for x, norm in ((0.0, 0.5), (8.0, 0.01831), (-8.0, 0.01831), (20.0, 4.54e-5)):
        theta = torch.tensor(x, **FLOAT64, requires_grad=True)
        p = torch.sigmoid(theta)
        (log_odds_gradient,) = torch.autograd.grad(torch.log(p / (1 - p)), theta)
        close(grpo.gradient_norm(p.item(), log_odds_gradient.abs()), norm, 1e-3)


def test_p_one_half_maximises_the_bound_but_not_every_norm(policy):
    """The paper's "p = 1/2 is best" holds for the scale; ‖∇ log-odds‖ can outweigh it (design.md, section 4)."""
    halves = [right for n in (2, 3, 4) for right in itertools.combinations(COMPLETIONS, n)]
    halves = [right for right in halves if math.isclose(policy.p(right).item(), 0.5)]
    norms = [
        policy.gradient(training_loss(policy, mirror_group(), right)).norm().item()
        for right in halves
    ]
    harder = policy.gradient(training_loss(policy, mirror_group(), VERIFIERS["4/16"])).norm().item()
    print(f"p = 1/2: ‖∇L‖ from {min(norms):.3f} to {max(norms):.3f}; p = 1/4: {harder:.3f}")
    assert min(norms) < harder
    bounds = [grpo.gradient_norm_bound(k / 16, B=1.0, T=T) for k in range(17)]
    assert bounds[8] == max(bounds) and bounds[0] == bounds[16] == 0


# ----------------------------------------------------------------------------------------------------
# Appendix B: composite rewards


@every_difficulty
@pytest.mark.parametrize("constant", [0.5, -3.0, 0.1])
def test_appendix_b_a_constant_added_to_the_reward_changes_no_advantage_and_no_gradient(
    policy, right, constant
):
    rewards = torch.tensor([o in right for o in COMPLETIONS], **FLOAT64)[mirror_group()]
    close(grpo.group_advantages(rewards + constant), grpo.group_advantages(rewards))
    with_bonus = policy.gradient(training_loss(policy, mirror_group(), right, bonus=constant))
    close(with_bonus, policy.gradient(training_loss(policy, mirror_group(), right)))


def test_appendix_b_a_dead_group_stays_dead_under_a_constant_bonus():
    assert grpo.group_advantages(torch.full((1, 7), 1.0 + 0.1)).tolist() == [[0.0] * 7]


def test_appendix_b_the_bonus_may_depend_on_the_group_but_not_on_the_rollout():
    rewards = torch.tensor([[1, 0, 0, 0], [1, 1, 0, 0]], **FLOAT64)
    per_group = rewards + torch.tensor([[0.3], [-2.0]], **FLOAT64)
    close(grpo.group_advantages(per_group), grpo.group_advantages(rewards))
    # A length bonus that differs inside a group is no f(t) of the proposition: wrong answers are ranked by it.
    per_rollout = rewards + torch.tensor([[0.0, 0.3, 0.0, 0.0], [0.0, 0.0, 0.0, 0.0]], **FLOAT64)
    advantage = grpo.group_advantages(per_rollout)[0]
    assert advantage[1] > advantage[2] + 0.5


# ----------------------------------------------------------------------------------------------------
# What Eq. 2 becomes with G rollouts: the teacher's regression target is the scale of the gradient


@pytest.mark.parametrize(
    "right", [VERIFIERS[p] for p in ("1/16", "5/16", "8/16")], ids=["p=1/16", "p=5/16", "p=8/16"]
)
@pytest.mark.parametrize("G", [2, 4, 8, 16])
def test_finite_groups_the_expected_training_gradient_is_expected_std_times_log_odds_gradient(
    policy, right, G
):
    groups_P_G, probability_P = all_groups(G)  # 28 groups for G = 2, 74,613 for G = 16
    gradient = policy.gradient(training_loss(policy, groups_P_G, right, probability_P))
    p, log_odds_gradient = policy.p(right).item(), policy.log_odds_gradient(right)
    close(gradient, -grpo.expected_group_std(p, G) * log_odds_gradient)
    close(gradient.norm(), grpo.expected_group_std(p, G) * log_odds_gradient.norm())
    # ... and that factor is the mean of what the teacher learns to predict, y = sqrt(p_hat (1 - p_hat)).
    p_hat_P = torch.tensor([o in right for o in COMPLETIONS], **FLOAT64)[groups_P_G].mean(dim=1)
    y_P = torch.tensor(
        [float(utility_target(p_hat)) for p_hat in p_hat_P.unique().tolist()], **FLOAT64
    )
    mean_y = (y_P[torch.searchsorted(p_hat_P.unique(), p_hat_P)] * probability_P).sum()
    close(mean_y, grpo.expected_group_std(p, G))


@pytest.mark.parametrize("G", [2, 4, 8])
def test_finite_groups_under_the_other_stds_have_another_scale(policy, G):
    right = VERIFIERS["5/16"]
    groups_P_G, probability_P = all_groups(G)
    p, direction = policy.p(right).item(), policy.log_odds_gradient(right)
    # Sample std is larger by sqrt(G/(G-1)); centring alone gives E[p_hat(1-p_hat)] = (G-1)/G p(1-p).
    scales = {
        "sample": grpo.expected_group_std(p, G) * math.sqrt((G - 1) / G),
        "none": (G - 1) / G * p * (1 - p),
    }
    for std, scale in scales.items():
        gradient = policy.gradient(training_loss(policy, groups_P_G, right, probability_P, std))
        close(gradient, -scale * direction)


@pytest.mark.parametrize("loss", ["grpo", "dapo"])
def test_the_theorem_is_about_the_sum_loss_length_normalised_losses_point_elsewhere(policy, loss):
    right = VERIFIERS["5/16"]  # "a$" and "bb" are right; the one-token completion "$" is wrong
    gradient = policy.gradient(training_loss(policy, mirror_group(), right, loss=loss))
    cosine = torch.nn.functional.cosine_similarity(
        -gradient, policy.log_odds_gradient(right), dim=0
    ).item()
    if loss == "grpo":
        assert 0.5 < cosine < 0.999
    else:  # one group: every token has the same weight, only the length of the gradient differs
        close(cosine, 1.0)
        close(gradient * 28 / 16, policy.gradient(training_loss(policy, mirror_group(), right)))

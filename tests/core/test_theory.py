"""Section 2 and Appendix C of the paper, executed: `pytest -v tests/core/test_theory.py`.

The policy is small enough to enumerate: three tokens a, b and $ (end), completions of at most two
tokens, seven in all. θ are its logits. A completion's probability is a number of sixteenths, so a
group of 16 can hold each completion exactly as often as its probability says. For that group
p̂ = p, and the gradient that grpo.py computes in training *is* the paper's population gradient. The
gradient under test always comes from grpo.py, what it is compared with from autograd alone.
"""

import itertools
import math

import pytest
import torch

import grpo
from grpo import Group
from tests.helpers.checks import FLOAT64, close
from tests.helpers.groups import completion

COMPLETIONS = ["$", "aa", "ab", "a$", "ba", "bb", "b$"]
SIXTEENTHS = [4, 2, 2, 4, 2, 1, 1]  # the probability of each, times 16
PREFIXES = ["", "a", "b"]
NEXT = [
    [1 / 2, 1 / 4, 1 / 4],
    [1 / 4, 1 / 4, 1 / 2],
    [1 / 2, 1 / 4, 1 / 4],
]  # of a, b, $ after each
THETA_3_V = torch.tensor(NEXT, **FLOAT64).log().requires_grad_()
# Of the completions' 13 tokens, end to end: the completion, its tokens before, and the token.
ROW_N = torch.tensor([i for i, o in enumerate(COMPLETIONS) for _ in o])
PREFIX_N = torch.tensor([PREFIXES.index(o[:t]) for o in COMPLETIONS for t in range(len(o))])
TOKEN_N = torch.tensor(["ab$".index(token) for token in "".join(COMPLETIONS)])
MIRROR = [i for i, n in enumerate(SIXTEENTHS) for _ in range(n)]  # the group that mirrors π

# Which completions the verifier accepts, by success probability: the sum of their sixteenths.
VERIFIERS = {
    1 / 16: ["bb"],
    5 / 16: ["a$", "bb"],
    8 / 16: ["$", "a$"],
    15 / 16: ["$", "aa", "ab", "a$", "ba", "b$"],
}
every_difficulty = pytest.mark.parametrize("p, right", VERIFIERS.items())


def is_right(right: list[str]) -> torch.Tensor:
    """Return the reward of each completion: (7,)."""
    return torch.tensor([o in right for o in COMPLETIONS], **FLOAT64)


def gradient(scalar: torch.Tensor) -> torch.Tensor:
    """∇_θ of a scalar: (3, V), a row for each prefix."""
    return torch.autograd.grad(scalar, THETA_3_V)[0]


def logps() -> torch.Tensor:
    """Compute log π(o | q) of each completion by plain log_softmax: (7,)."""
    logp_N = THETA_3_V.log_softmax(dim=-1)[PREFIX_N, TOKEN_N]
    return torch.zeros(7, **FLOAT64).index_add(0, ROW_N, logp_N)


def success(right: list[str]) -> torch.Tensor:
    """p = Pr(r_ver = 1), differentiable."""
    return logps().exp() @ is_right(right)


def log_odds_gradient(right: list[str]) -> torch.Tensor:
    """∇ log(p / (1 - p)), through the log-odds themselves."""
    return gradient(torch.logit(success(right)))


def expected_score(given: list[str]) -> torch.Tensor:
    """E[S_θ(o) | o in given], S_θ(o) = ∇ log π(o | q)."""
    chance_7 = logps().exp().detach() * is_right(given)
    return gradient(chance_7 @ logps() / chance_7.sum())


def token_logps(theta_3_V=THETA_3_V) -> torch.Tensor:
    """Compute log π of the 13 tokens by grpo.py; hidden states are the logits."""
    return grpo.token_logprobs(theta_3_V[PREFIX_N], torch.eye(3, **FLOAT64), TOKEN_N)[0]


def loss_gradient(weighted_advantage_N: torch.Tensor) -> torch.Tensor:
    """Compute the gradient of grpo.py's loss at ratio 1, where it is linear in the product of a
    token's weight and advantage."""
    logp_N = token_logps()
    loss, _ = grpo.policy_loss(logp_N, logp_N.detach(), weighted_advantage_N, torch.ones(13))
    return gradient(loss)


def training_gradient(
    right,
    groups=((MIRROR, 1.0),),
    loss="sum",
    std="population",
    correct=lambda advantage_N: advantage_N,
) -> torch.Tensor:
    """Compute the expected gradient of a step with one group, by grpo.py. groups: the numbers of
    each group's completions, with its probability."""
    sum_7 = torch.zeros(7, **FLOAT64)
    settings = {"max_completion_tokens": 2, "dead_rows": "in", "truncated_rows": "in"}
    for numbers, chance in groups:
        drawn = [completion(COMPLETIONS[i] in right, ids=COMPLETIONS[i]) for i in numbers]
        grpo.weigh([Group(0, len(drawn), completions=drawn)], loss, std=std, **settings)
        for i, each in zip(numbers, drawn, strict=True):
            sum_7[i] += chance * each.weight * each.advantage
    return loss_gradient(correct(sum_7[ROW_N]))


@pytest.mark.parametrize(("p", "G"), [(0.0, 2), (1 / 4, 2), (0.3, 8)])
def test_eq_1_is_the_probability_of_groups_without_an_advantage(p, G):
    """Over all vectors of G rewards; for p = 1/4 and G = 2 it is 1/16 + 9/16."""
    r = torch.tensor([*itertools.product([0.0, 1.0], repeat=G)], **FLOAT64)
    dead = (grpo.group_advantages(r) == 0).all(dim=1)
    probability = (r * p + (1 - r) * (1 - p)).prod(dim=1)
    close(grpo.zero_variance_probability(p, G), probability[dead].sum())


@every_difficulty
def test_eq_2_the_training_gradient_is_the_scaled_one_of_the_log_odds(p, right):
    """And the difference of expected scores. Downhill in the loss is uphill in the log-odds."""
    close(success(right).detach(), p)
    wrong = [o for o in COMPLETIONS if o not in right]
    difference = expected_score(right) - expected_score(wrong)
    of_log_odds = log_odds_gradient(right)
    scale = math.sqrt(p * (1 - p))
    close(training_gradient(right), -scale * difference, 1e-6)
    close(training_gradient(right), -scale * of_log_odds, 1e-6)
    close(grpo.gradient_norm(p, of_log_odds.norm()), scale * of_log_odds.norm())


@every_difficulty
def test_eq_3_bounds_the_gradient(p, right):
    """A token's score is e - π, whose norm is largest for a token with π = 1/4."""
    B = math.sqrt((3 / 4) ** 2 + (1 / 2) ** 2 + (1 / 4) ** 2)
    norm = training_gradient(right).norm().item()
    assert norm < grpo.gradient_norm_bound(p, B, T=2) < 5 * norm


def test_p_one_half_maximises_the_bound():
    """2 · B · T √(p(1-p)): with B = 1 and T = 2 it is 2 there."""
    bounds = [grpo.gradient_norm_bound(p, B=1.0, T=2) for p in (0, 0.2, 0.5, 0.9, 1)]
    close(bounds, [0, 1.6, 2, 1.2, 0])


def test_p_one_half_does_not_maximise_every_norm():
    """The paper's "p = 1/2 is best" holds for the scale, but ‖∇ log-odds‖ can outweigh it."""
    half = ["$", "aa", "ba"]
    close(success(half).detach(), 1 / 2)
    assert training_gradient(half).norm() < 0.9 * training_gradient(["$"]).norm()


FACTORS = {  # p = 5/16, G = 3
    "population": 2**0.5 * 5 / 16 * 11 / 16,  # 3p(1-p) of the groups are live, with y = √2/3
    "none": 5 / 16 * 11 / 16 * 2 / 3,  # p(1-p) (G-1)/G
    "mean": 11 / 16 * (1 - (11 / 16) ** 2),  # (1-p) (1 - (1-p)^(G-1))
}


@pytest.mark.parametrize("std", FACTORS)
def test_finite_groups_have_the_expected_factor_as_their_scale(std):
    """For each divisor of the advantages."""
    right = VERIFIERS[5 / 16]
    scale = FACTORS[std]
    groups = [
        (numbers, math.prod(SIXTEENTHS[i] / 16 for i in numbers))
        for numbers in itertools.product(range(7), repeat=3)
    ]
    actual = training_gradient(right, groups, std=std)
    close(actual, -scale * log_odds_gradient(right), 1e-6)
    close(grpo.expected_factor(5 / 16, 3, std), scale)


GENERATOR = torch.tensor([[0.45, 0.25, 0.3], [0.28, 0.27, 0.45], [0.45, 0.28, 0.27]], **FLOAT64)


def pairs(logp_N: torch.Tensor) -> list:
    """Return all groups of two completions, with their probability if tokens have these logps."""
    chance_7 = torch.zeros(7, **FLOAT64).index_add(0, ROW_N, logp_N).exp()
    return [((i, j), chance_7[i] * chance_7[j]) for i in range(7) for j in range(7)]


def bias(loss: str, *correction) -> float:
    """Compute how far the expected gradient is from the policy's own, relative to it, where another
    generator draws the completions. Without a std in the advantages."""
    right = VERIFIERS[5 / 16]
    own_logp_N = token_logps().detach()
    generator_logp_N = token_logps(GENERATOR.log())

    def correct(advantage_N):
        gap_N = own_logp_N - generator_logp_N
        return grpo.correct_mismatch(advantage_N, gap_N, ROW_N, *correction)[0]

    own = training_gradient(right, pairs(own_logp_N), loss, "none")
    actual = training_gradient(right, pairs(generator_logp_N), loss, "none", correct)
    return ((actual - own).norm() / own.norm()).item()


@pytest.mark.parametrize("loss", ["sum", "constant"])
def test_mismatch_correction_removes_the_bias_of_another_generator(loss):
    """By sequence, if no cap takes effect. By token it ignores how likely the prefix was. `mask`
    with a tight cap drops completions that the generator draws too rarely."""
    assert bias(loss, "truncate", "sequence", 100) < 1e-6
    none = bias(loss, "none", "token", 100)
    assert 0.1 < bias(loss, "truncate", "token", 100) < none
    assert (
        bias(loss, "truncate", "sequence", 1.2) < 0.1 < none < bias(loss, "mask", "sequence", 1.2)
    )


@pytest.mark.parametrize("loss", ["grpo", "dapo", "batch"])
def test_mismatch_correction_leaves_a_bias_where_lengths_divide(loss):
    """Scores over lengths do not have mean 0, so the generator's mean reward stays in."""
    assert 0.005 < bias(loss, "truncate", "sequence", 100) < bias(loss, "none", "token", 100)


# One group, in which "$", a wrong answer, has one token and all others have two. A token's weight
# is 1/28 with `dapo` and `batch`; with `constant` 1/(16 · 2), as the limit is 2.
@pytest.mark.parametrize(("loss", "tokens"), [("dapo", 28), ("batch", 28), ("constant", 32)])
def test_the_theorem_holds_for_losses_that_weigh_all_tokens_alike(loss, tokens):
    """And not for `grpo`, which is normalised by length."""
    right = VERIFIERS[5 / 16]
    of_sum = training_gradient(right, loss="sum")
    close(training_gradient(right, loss=loss) * tokens / 16, of_sum, 1e-6)
    of_grpo = training_gradient(right, loss="grpo")
    assert 0.5 < torch.cosine_similarity(of_grpo.flatten(), of_sum.flatten(), dim=0) < 0.999

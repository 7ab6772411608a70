"""Section 2 and Appendices B and C of the paper, executed: `pytest -v tests/core/test_theory.py`.

The policy is small enough to enumerate: three tokens a, b and $ (end), completions of at most two
tokens, seven in all, float64. Its probabilities are sixteenths, so a group of 16 rollouts can hold
every completion exactly as often as its probability says. For that group p_hat = p, and the
gradient that grpo.py computes in training *is* the paper's population gradient. The gradient under
test always comes from grpo.py, the score functions it is compared with from autograd alone.
"""

import itertools
import math

import pytest
import torch

import grpo
from sampler import Goldilocks
from tests.helpers.checks import FLOAT64, close
from tests.helpers.samplers import Numbers, build

VOCABULARY = "ab$"
COMPLETIONS = ["$", "aa", "ab", "a$", "ba", "bb", "b$"]
SIXTEENTHS = torch.tensor([4, 2, 2, 4, 2, 1, 1])  # probability of each completion, times 16
PREFIXES = ["", "a", "b"]
NEXT = [[1 / 2, 1 / 4, 1 / 4], [1 / 4, 1 / 4, 1 / 2], [1 / 2, 1 / 4, 1 / 4]]  # a, b, $ after each
MIRROR = torch.arange(7).repeat_interleave(SIXTEENTHS)[None]  # the group that mirrors the policy
LENGTH_7 = torch.tensor([len(o) for o in COMPLETIONS])
# Of the completions' 13 tokens, end to end: the completion, its tokens before, and the token.
ROW_N = torch.arange(7).repeat_interleave(LENGTH_7)
PREFIX_N = torch.tensor([PREFIXES.index(o[:t]) for o in COMPLETIONS for t in range(len(o))])
TOKEN_N = torch.tensor([VOCABULARY.index(token) for o in COMPLETIONS for token in o])

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
        """Compute log π of the 13 tokens by grpo.py."""
        return grpo.token_logprobs(self.hidden_3_D[PREFIX_N], self.weight_V_D, TOKEN_N)[0]

    def next_logps(self) -> torch.Tensor:
        """Compute log π of each token after each prefix by plain log_softmax: (3, V)."""
        return torch.log_softmax(self.hidden_3_D @ self.weight_V_D.T, dim=-1)

    def logps(self) -> torch.Tensor:
        """Compute log π(o | q) of each completion from these: (7,)."""
        zeros_7 = torch.zeros(7, **FLOAT64)
        return zeros_7.index_add(0, ROW_N, self.next_logps()[PREFIX_N, TOKEN_N])

    def success(self, right: list[str]) -> torch.Tensor:
        """p = Pr(r_ver = 1), differentiable."""
        return self.logps().exp() @ is_right(right)

    def gradient(self, scalar: torch.Tensor) -> torch.Tensor:
        """∇_θ of a scalar as one vector of 18 numbers."""
        parts = torch.autograd.grad(scalar, self.parameters, retain_graph=True)
        return torch.cat([part.flatten() for part in parts])

    def expected_score(self, given: list[str]) -> torch.Tensor:
        """E[S_θ(o) | o in given], S_θ(o) = ∇ log π(o | q)."""
        chance_7 = self.logps().exp().detach() * is_right(given)
        return self.gradient(chance_7 @ self.logps() / chance_7.sum())

    def log_odds_gradient(self, right: list[str]) -> torch.Tensor:
        """∇ log(p / (1 - p)), by autograd through the log-odds themselves."""
        return self.gradient(torch.logit(self.success(right)))

    def training_gradient(
        self, right, groups_M_G=MIRROR, chance_M=None, std="population", loss="sum", P=1, **more
    ) -> torch.Tensor:
        """Compute by grpo.py what one of P groups adds to the gradient of a training step: its mean
        over M groups of completion numbers, with these probabilities. more: a `bonus` on rewards,
        the `generator` that drew the groups if it is another policy, and its `correction`.

        At ratio 1 the gradient is linear in weight times advantage, so that each of the completions
        is computed once, with the sum of these over all groups."""
        reward_M_G = is_right(right)[groups_M_G] + more.get("bonus", 0)
        advantage_M_G = grpo.group_advantages(reward_M_G, std)
        weigh = torch.vmap(lambda lengths_G: grpo.row_weights(lengths_G, P, loss, 28, 2))
        coefficient_M_G = weigh(LENGTH_7[groups_M_G]) * advantage_M_G
        if chance_M is not None:
            coefficient_M_G *= chance_M[:, None]
        sum_7 = torch.zeros(7, **FLOAT64)
        sum_7.index_add_(0, groups_M_G.flatten(), coefficient_M_G.flatten())
        sum_N = sum_7[ROW_N]
        logp_N = self.token_logps()
        if "generator" in more:
            gap_N = (logp_N - more["generator"].token_logps()).detach()
            sum_N, _ = grpo.correct_mismatch(sum_N, gap_N, ROW_N, *more["correction"])
        loss, _ = grpo.policy_loss(logp_N, logp_N.detach(), sum_N, torch.ones(13))
        return self.gradient(loss)


def is_right(right: list[str]) -> torch.Tensor:
    """Return the reward of each completion: (7,)."""
    return torch.tensor([o in right for o in COMPLETIONS], **FLOAT64)


def all_groups(G: int, chance_7=SIXTEENTHS / 16) -> tuple[torch.Tensor, torch.Tensor]:
    """List all multisets of G completions (M, G), with their multinomial probabilities (M,)."""
    groups_M_G = torch.tensor([*itertools.combinations_with_replacement(range(7), G)])
    counts_M_7 = torch.nn.functional.one_hot(groups_M_G, 7).sum(dim=1).double()
    log_ways_M = math.lgamma(G + 1) - torch.lgamma(counts_M_7 + 1).sum(dim=1)
    probability_M = (log_ways_M + counts_M_7 @ chance_7.double().log()).exp()
    close(probability_M.sum(), 1.0)
    return groups_M_G, probability_M


@pytest.fixture(scope="module")
def policy():
    policy = TablePolicy()
    close(policy.logps().exp().detach(), SIXTEENTHS / 16)
    return policy


@pytest.mark.parametrize("G", [1, 2, 3, 8])
@pytest.mark.parametrize("p", [0.0, 0.3, 0.5, 1.0])
def test_eq_1_is_the_probability_of_groups_without_an_advantage(p, G):
    """Over all vectors of G rewards."""
    r = torch.tensor([*itertools.product([0.0, 1.0], repeat=G)], **FLOAT64)
    dead = (grpo.group_advantages(r) == 0).all(dim=1)
    assert torch.equal(grpo.dead_groups(r), dead)
    probability = (r * p + (1 - r) * (1 - p)).prod(dim=1)
    close(grpo.zero_variance_probability(p, G), probability[dead].sum())


@every_difficulty
def test_eq_2_the_training_gradient_is_the_scaled_one_of_the_log_odds(policy, p, right):
    """And the difference of expected scores. Downhill in the loss is uphill in the log-odds."""
    close(policy.success(right).item(), p)
    wrong = [o for o in COMPLETIONS if o not in right]
    difference = policy.expected_score(right) - policy.expected_score(wrong)
    gradient = policy.training_gradient(right)
    close(gradient, -math.sqrt(p * (1 - p)) * difference)
    close(gradient, -math.sqrt(p * (1 - p)) * policy.log_odds_gradient(right))
    close(gradient.norm(), grpo.gradient_norm(p, policy.log_odds_gradient(right).norm()))


@every_difficulty
def test_eq_3_bounds_the_gradient_within_a_factor_of_12(policy, p, right):
    B = max(policy.gradient(logp).norm().item() for logp in policy.next_logps().flatten())
    bound = grpo.gradient_norm_bound(p, B, T=2)
    assert 1 < bound / policy.training_gradient(right).norm().item() < 12


def test_p_one_half_maximises_the_bound():
    bounds = [grpo.gradient_norm_bound(k / 16, B=1.0, T=2) for k in range(17)]
    assert (bounds[0], bounds[8], bounds[16]) == (0, max(bounds), 0)
    close(grpo.gradient_norm_bound(0.2, B=3.0, T=7), 16.8)  # 2 * 3 * 7 * 0.4


def test_p_one_half_does_not_maximise_every_norm(policy):
    """The paper's "p = 1/2 is best" holds for the scale, but ‖∇ log-odds‖ can outweigh it."""
    subsets = [right for n in (2, 3, 4) for right in itertools.combinations(COMPLETIONS, n)]
    halves = [right for right in subsets if math.isclose(policy.success(right).item(), 0.5)]
    norms = [policy.training_gradient(right).norm().item() for right in halves]
    assert min(norms) < policy.training_gradient(VERIFIERS[4 / 16]).norm().item()


@every_difficulty
def test_appendix_b_a_constant_added_to_the_reward_changes_no_gradient(policy, p, right):
    """Nor does it make a dead group live."""
    for bonus in (0.5, -3.0, 0.1):
        close(policy.training_gradient(right, bonus=bonus), policy.training_gradient(right))
        assert not policy.training_gradient(COMPLETIONS, bonus=bonus).any()


def test_appendix_b_the_bonus_may_depend_on_the_group_but_not_on_the_rollout():
    """A length bonus inside a group is no f(t) of the proposition: it ranks the wrong answers."""
    r = torch.tensor([[1, 0, 0, 0], [1, 1, 0, 0]], **FLOAT64)
    by_group = r + torch.tensor([[0.3], [-2.0]], **FLOAT64)
    close(grpo.group_advantages(by_group), grpo.group_advantages(r))
    by_rollout = r + torch.tensor([0.0, 0.3, 0.0, 0.0], **FLOAT64)
    advantage = grpo.group_advantages(by_rollout)[0]
    assert advantage[1] > advantage[2] + 0.5


@pytest.mark.parametrize("std", ["population", "none", "mean"])
@pytest.mark.parametrize(("p", "G"), [(1 / 16, 4), (5 / 16, 8), (1 / 2, 16)])
def test_finite_groups_have_the_expected_std_as_their_scale(policy, p, G, std):
    """For each divisor of the advantages, over up to 74,613 groups. The Teacher's target has this
    mean, or half of it for `mean`."""
    right = VERIFIERS[p]
    groups_M_G, probability_M = all_groups(G)
    scale = grpo.expected_factor(p, G, std)
    gradient = policy.training_gradient(right, groups_M_G, probability_M, std)
    close(gradient, -scale * policy.log_odds_gradient(right))
    p_hat_M = is_right(right)[groups_M_G].mean(dim=1)
    y_M = build(Goldilocks, Numbers(9), advantage_std=std).target(p_hat_M)
    close(y_M @ probability_M, scale / 2 if std == "mean" else scale)


def test_the_scale_of_finite_groups_in_closed_form():
    """Without a std it is p(1-p)(G-1)/G, divided by the mean (1-p) (1 - (1-p)^(G-1))."""
    close(grpo.expected_factor(1 / 4, 3, "none"), 3 / 16 * 2 / 3)
    close(grpo.expected_factor(1 / 4, 3, "mean"), 3 / 4 * (1 - 9 / 16))


BIAS = {  # correction, of a, cap -> bias relative to the gradient's norm
    ("none", "token", 100): 0.376,
    ("truncate", "token", 100): 0.249,  # ignores how likely the prefix was
    ("truncate", "sequence", 100): 0.0,
    ("mask", "sequence", 100): 0.0,  # no ratio is above 100
    ("truncate", "sequence", 1.2): 0.036,
    ("mask", "sequence", 1.2): 1.27,  # drops completions that the generator draws too rarely
}


@pytest.mark.parametrize("correction", BIAS)
def test_mismatch_correction_removes_the_bias_of_another_generator(policy, correction):
    """Groups of 3 come from a generator that is off. Corrected by sequence, and without a cap that
    takes effect, their mean gradient is the policy's own."""
    right = VERIFIERS[5 / 16]
    generator = TablePolicy([[0.45, 0.25, 0.3], [0.28, 0.27, 0.45], [0.45, 0.28, 0.27]])
    chance_7 = generator.logps().exp().detach()
    own = policy.training_gradient(right, *all_groups(3), std="none")
    drawn = {"generator": generator, "correction": correction}
    gradient = policy.training_gradient(right, *all_groups(3, chance_7), std="none", **drawn)
    bias = BIAS[correction]
    close((gradient - own).norm() / own.norm(), bias, 1e-9 if bias == 0 else 1e-2)


def test_groups_of_unlike_size_give_the_mean_over_prompts(policy):
    """Over all groups of 2 for one prompt and all groups of 5 for another. Without the std a group
    gives (1 - 1/G) p(1-p) ∇ log-odds, whose factor only tends to the population's p(1-p)."""
    gradient = expected = 0
    for p, G in ((5 / 16, 2), (11 / 16, 5)):
        right = VERIFIERS[p]
        gradient += policy.training_gradient(right, *all_groups(G), std="none", P=2)
        expected -= (1 - 1 / G) * p * (1 - p) * policy.log_odds_gradient(right) / 2
    close(gradient, expected)


# One group, in which "$", a wrong answer, has one token and all others have two. A token's weight
# is 1/28 with `dapo` and `batch`; with `constant` 1/(16 · 2), as the limit is 2.
@pytest.mark.parametrize(("loss", "tokens"), [("dapo", 28), ("batch", 28), ("constant", 32)])
def test_the_theorem_holds_for_losses_that_weigh_all_tokens_alike(policy, loss, tokens):
    """And not for `grpo`, which is normalised by length."""
    right = VERIFIERS[5 / 16]
    of_sum = policy.training_gradient(right, loss="sum")
    close(policy.training_gradient(right, loss=loss) * tokens / 16, of_sum)
    of_grpo = policy.training_gradient(right, loss="grpo")
    assert 0.5 < torch.nn.functional.cosine_similarity(of_grpo, of_sum, dim=0) < 0.999

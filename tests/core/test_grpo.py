"""grpo.py: values computed by hand, and gradients against autograd through the formula."""

import math
import statistics

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import grpo
from grpo import Group, correct_mismatch, group_advantages, policy_loss, row_weights, token_logprobs
from plumbing import logprobs
from tests.helpers.checks import FLOAT64, close
from tests.helpers.groups import completion, group

# The records


def test_p_hat_of_a_group_is_the_share_of_right_completions():
    one = group(7, rewards=[0, 1, 1, 0, 0])
    assert one.successes == 2
    assert one.p_hat == 0.4


def test_y_of_a_group_is_the_std_of_its_rewards():
    rewards = [0, 1, 0, 0, 0]
    assert group(7, rewards).y == pytest.approx(0.4)  # √(0.2 · 0.8)
    assert group(7, rewards).y == pytest.approx(statistics.pstdev(rewards))


@pytest.mark.parametrize(("rewards", "live"), [([0, 1], True), ([0, 0], False), ([1, 1], False)])
def test_a_group_is_live_if_it_has_right_and_wrong_completions(rewards, live):
    assert group(7, rewards).live == live
    assert (group(7, rewards).y > 0) == live


def test_a_group_is_counted_live_as_completions_come():
    one = group(7, rewards=[0])
    assert not one.live
    one.completions.append(completion(reward=1))
    assert one.live
    assert one.p_hat == 1 / 2


def test_a_groups_utility_is_the_prediction_for_its_problem():
    chosen = Group(7, size=2, pool=[5, 7, 9], utilities=[0.1, 0.3, 0.2])
    assert chosen.utility == 0.3


def test_a_group_without_a_pool_has_its_problem_alone_without_a_prediction():
    alone = Group(7, size=2)
    assert alone.pool == [7]
    assert math.isnan(alone.utility)


def test_two_groups_of_one_problem_are_different():
    assert Group(7, size=2) != Group(7, size=2)


# Advantages and normalisers


@pytest.mark.parametrize(
    ("dtype", "expected"), [(torch.float64, torch.float64), (torch.bool, torch.float32)]
)
def test_one_right_of_four(dtype, expected):
    # mean 1/4, population std sqrt(3)/4: the right one gets (3/4)/(sqrt(3)/4) = sqrt(3).
    advantage = group_advantages(torch.tensor([[0, 1, 0, 0]], dtype=dtype))
    close(advantage, [[-1 / 3**0.5, 3**0.5, -1 / 3**0.5, -1 / 3**0.5]], 1e-6)
    assert advantage.dtype == expected


# Deviations +-1/2; population std 1/2; sample std sqrt(4 * (1/4) / 3) = 1/sqrt(3).
@pytest.mark.parametrize(
    "std, size", [("population", 1), ("sample", 3**0.5 / 2), ("none", 0.5), ("mean", 1)]
)
def test_two_right_of_four_under_each_std(std, size):
    advantage = group_advantages(torch.tensor([[1, 1, 0, 0]], **FLOAT64), std)
    close(advantage, [[size, size, -size, -size]])


@pytest.mark.parametrize("std", grpo.STDS)
@pytest.mark.parametrize("reward", [0.0, 1.0, 0.1])
def test_dead_groups_get_exactly_zero(std, reward):
    # 0.1 is no binary fraction: no std may amplify the rounding error of the mean of seven.
    rewards = torch.tensor([[reward] * 7, [0, 1, 0, 0, 0, 0, 0]])
    dead, live = group_advantages(rewards, std)
    assert torch.equal(dead, torch.zeros(7))
    assert live[1] > 0.5
    assert grpo.dead_groups(rewards).tolist() == [True, False]


WEIGHTS = {
    "grpo": ([1 / 4, 1 / 12], [1 / 12, 1 / 36, 1 / 24]),  # 1 / (2 groups * 2 or 3 rows * length)
    "dapo": ([1 / 8, 1 / 8], [1 / 24, 1 / 24, 1 / 24]),  # 1 / (2 groups * 4 or 12 tokens)
    "batch": ([1 / 16, 1 / 16], [1 / 16, 1 / 16, 1 / 16]),  # 1 / 16 tokens
    "constant": ([1 / 40, 1 / 40], [1 / 60, 1 / 60, 1 / 60]),  # 1 / (2 * 2 or 3 rows * limit 10)
    "sum": ([1 / 4, 1 / 4], [1 / 6, 1 / 6, 1 / 6]),  # 1 / (2 groups * 2 or 3 rows)
}


@pytest.mark.parametrize("loss", grpo.LOSSES)
def test_row_weights_by_hand(loss):
    """Two groups of unlike size, with 4 and 12 tokens."""
    of_two, of_three = WEIGHTS[loss]
    limits = {"batch_tokens": 16, "max_completion_tokens": 10}
    first = row_weights(torch.tensor([1, 3]), 2, loss, **limits)
    second = row_weights(torch.tensor([2, 6, 4]), 2, loss, **limits)
    close(first, of_two)
    close(second, of_three)
    assert first.dtype == torch.float64


WITHOUT_A_ROW = {"grpo": 1 / 12, "dapo": 1 / 6, "batch": 1 / 15, "constant": 1 / 40, "sum": 1 / 4}


@pytest.mark.parametrize("loss", grpo.LOSSES)
def test_a_row_of_length_0_is_left_out_of_the_loss_but_counts_in_G(loss):
    limits = {"batch_tokens": 15, "max_completion_tokens": 10}
    weights = row_weights(torch.tensor([0, 3]), 2, loss, **limits)
    close(weights, [0, WITHOUT_A_ROW[loss]])


Y_AT_1_4 = 3**0.5 / 4  # what a teacher that knows p = 1/4 predicts
NOISE_FLOORS = {  # p, G -> the mean |prediction - y|
    (0.5, 1): 0.5,  # y is always 0, and 1/2 is predicted
    (0.25, 2): Y_AT_1_4 * 10 / 16 + (0.5 - Y_AT_1_4) * 6 / 16,  # y is 1/2 with 6/16, else 0
    (0.5, 2): 0.25,  # |1/2 - y| is 1/2 half of the time
    (0, 2): 0,  # dead for sure
    (1, 2): 0,
    (0.5, 2000): 1 / 8000,  # about p(1-p)/G for a large G
}


@pytest.mark.parametrize(("p", "G"), NOISE_FLOORS)
def test_noise_floor_by_hand(p, G):
    close(grpo.noise_floor(p, G), NOISE_FLOORS[p, G], 1e-6)


# Log-probabilities


def head(N=11, D=5, V=7, dtype=torch.float64):
    """Make random hidden states, a head weight, and targets that cover the vocabulary."""
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(N, D, generator=generator, **FLOAT64).to(dtype)
    weight = torch.randn(V, D, generator=generator, **FLOAT64).to(dtype)
    return hidden.requires_grad_(), weight.requires_grad_(), torch.arange(N) % V


def plain(hidden, weight, targets, temperature):
    """Compute log-probs and entropy from all logits at once, by log_softmax."""
    log_p = torch.log_softmax(hidden @ weight.T / temperature, dim=-1)
    return log_p[range(len(targets)), targets], -(log_p.exp() * log_p).sum(dim=-1)


def test_logprob_and_entropy_by_hand():
    # Logits (0, ln 3) / 2 at temperature 1/2 are (0, ln 3): probabilities (1/4, 3/4).
    hidden = torch.ones(2, 1, **FLOAT64)
    weight = torch.tensor([[0], [math.log(3) / 2]], **FLOAT64)
    logp, entropy = token_logprobs(hidden, weight, torch.tensor([0, 1]), temperature=0.5)
    close(logp, [math.log(1 / 4), math.log(3 / 4)])
    close(entropy, [-(0.25 * math.log(0.25) + 0.75 * math.log(0.75))] * 2)


every_chunk = pytest.mark.parametrize("chunk", [1, 4, 11, None])


@every_chunk
def test_values_equal_plain_log_softmax(chunk):
    hidden, weight, targets = head()
    logp, entropy = token_logprobs(hidden, weight, targets, 0.7, chunk)
    expected_logp, expected_entropy = plain(hidden, weight, targets, 0.7)
    close(logp, expected_logp)
    close(entropy, expected_entropy)


@every_chunk
@pytest.mark.parametrize(("on_logp", "on_entropy"), [(1, 0), (0, 1), (1, 1)])
def test_gradients_equal_those_of_plain_log_softmax(chunk, on_logp, on_entropy):
    """Of a random weighted sum of log-probs, of entropies, and of both."""
    hidden, weight, targets = head()
    a, b = torch.randn(2, len(targets), generator=torch.Generator().manual_seed(1), **FLOAT64)

    def gradients(logp, entropy):
        value = on_logp * (a * logp).sum() + on_entropy * (b * entropy).sum()
        return torch.autograd.grad(value, (hidden, weight))

    actual = gradients(*token_logprobs(hidden, weight, targets, 0.7, chunk))
    expected = gradients(*plain(hidden, weight, targets, 0.7))
    for x, y in zip(actual, expected, strict=True):
        assert y.abs().max() > 1e-3
        close(x, y)


def test_bf16_weights_give_float32_values_and_accurate_gradients_over_many_chunks():
    hidden, weight, targets = head(N=600, dtype=torch.bfloat16)
    exact = [x.detach().double().requires_grad_() for x in (hidden, weight)]
    # All of one sign and for one word: the sum grows, and bf16 additions would stall at 256.
    targets = torch.zeros_like(targets)
    logp, entropy = token_logprobs(hidden, weight, targets, 0.7, chunk=1)
    assert logp.dtype == torch.float32
    assert entropy.dtype == torch.float32
    exact_logp, _ = plain(*exact, targets, 0.7)
    gradients = torch.autograd.grad(logp.sum(), (hidden, weight))
    expected = torch.autograd.grad(exact_logp.sum(), exact)
    for gradient, x in zip(gradients, expected, strict=True):
        assert gradient.dtype == torch.bfloat16
        assert (gradient - x).norm() < 0.01 * x.norm()


class Largest(TorchDispatchMode):
    """Finds the size of the largest tensor that an operation makes."""

    size = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        out = function(*args, **(kwargs or {}))
        tensors = [x for x in (out if isinstance(out, tuple) else (out,)) if torch.is_tensor(x)]
        self.size = max([self.size, *(x.numel() for x in tensors)])
        return out


def test_logits_of_bf16_states_are_the_float32_product_over_a_vocabulary_of_several_parts():
    torch.manual_seed(0)
    hidden = torch.randn(5, 64).bfloat16()
    weight = torch.randn(2500, 64).bfloat16()
    logits = logprobs.logits(hidden, weight)
    assert logits.dtype == torch.float32
    assert torch.allclose(logits, hidden.float() @ weight.float().T, rtol=1e-6, atol=1e-5)


@pytest.fixture
def ieee_products():
    """torch's setting of float32 products on a CPU, here at "ieee"."""
    setting = torch.backends.mkldnn.matmul
    before = setting.fp32_precision
    setting.fp32_precision = "ieee"
    yield setting
    setting.fp32_precision = before


def test_bf16_logits_leave_the_precision_of_float32_products_as_it_was(ieee_products):
    logprobs.logits(torch.randn(5, 64).bfloat16(), torch.randn(2500, 64).bfloat16())
    assert ieee_products.fp32_precision == "ieee"


def test_the_logits_of_all_tokens_never_exist_at_once():
    """300 tokens of 2 numbers, 50 words: 15,000 logits, but no tensor is larger than a chunk."""
    hidden, weight, targets = head(N=300, D=2, V=50)
    with Largest() as forward:
        logp, entropy = token_logprobs(hidden, weight, targets, chunk=24)
    with Largest() as backward:
        torch.autograd.grad((logp + entropy).sum(), (hidden, weight))
    assert forward.size == 24 * 50
    assert backward.size == 300 * 2  # the hidden states


# The loss

TWICE = math.log(2.0)  # the old probability
HALF = math.log(0.5)


def loss_and_gradient(logp, old_logp, advantage, weight, **options):
    """Call policy_loss on lists of numbers: (loss, gradient for logp, stats)."""
    logp = torch.tensor(logp, **FLOAT64, requires_grad=True)
    others = (torch.tensor(x, **FLOAT64) for x in (old_logp, advantage, weight))
    loss, stats = policy_loss(logp, *others, **options)
    loss.backward()
    return loss.item(), logp.grad.tolist(), stats


@pytest.mark.parametrize(
    "log_ratio, advantage, loss, gradient, bites",
    [
        (0.0, +1.5, -1.5, -1.5, 0),  # on policy: minus the advantage
        (TWICE, +1.0, -1.28, 0.0, 1),  # right, and already far likelier: no more credit
        (TWICE, -1.0, +2.0, +2.0, 0),  # wrong, but likelier: pushed down
        (HALF, +1.0, -0.5, -0.5, 0),  # right, but rarer: pushed up
        (HALF, -1.0, +0.8, 0.0, 1),  # wrong, and already rarer: no more blame
        (math.log(1.27), +1.0, -1.27, -1.27, 0),  # inside the range
        (math.log(0.81), -1.0, +0.81, +0.81, 0),
        (TWICE, 0.0, 0.0, 0.0, 0),  # nothing to clip
    ],
)
def test_clipping_by_sign_and_side(log_ratio, advantage, loss, gradient, bites):
    value, grad, stats = loss_and_gradient([log_ratio - 3], [-3.0], [advantage], [1.0])
    close([value, *grad], [loss, gradient])
    assert stats["clip_fraction"] == bites


def test_kl_by_hand():
    # ref/pi = 2: k3 = 2 - ln 2 - 1, and its derivative for log pi is 1 - 2.
    options = {"ref_logp_N": torch.tensor([TWICE, 0.0], **FLOAT64), "kl_coef": 0.5}
    zero = [0.0, 0.0]
    value, gradient, stats = loss_and_gradient(zero, zero, zero, [0.1, 0.1], **options)
    close(value, 0.5 * 0.1 * (1 - math.log(2)))
    close(gradient, [0.5 * 0.1 * -1, 0.0])
    close(stats["kl"], 1 - math.log(2))


def test_without_correction_the_gap_is_only_measured():
    gap_N = torch.tensor([0.5, -0.25], **FLOAT64)
    advantage_N = torch.tensor([1.0, -2.0], **FLOAT64)
    corrected_N, stats = correct_mismatch(
        advantage_N, gap_N, torch.tensor([0, 1]), "none", "token", 3
    )
    assert corrected_N is advantage_N
    assert stats == {"logp_gap": 0.5 + 0.25}


@pytest.mark.parametrize(
    "mismatch, level, correction, over",
    [
        ("truncate", "token", [2, 2, 1], 0),
        ("truncate", "sequence", [3, 3, 1], 2),  # 4 is above the cap of 3
        ("mask", "sequence", [0, 0, 1], 2),
    ],
)
def test_mismatch_correction_by_hand(mismatch, level, correction, over):
    """Both tokens of row 0 are twice as likely under the policy as under the generator."""
    gap_N = torch.tensor([TWICE, TWICE, 0.0], **FLOAT64)
    row_N = torch.tensor([0, 0, 1])
    advantage_N = torch.tensor([1.0, 1.0, -2.0], **FLOAT64)
    corrected_N, stats = correct_mismatch(advantage_N, gap_N, row_N, mismatch, level, cap=3)
    close(corrected_N, [correction[0], correction[1], -2 * correction[2]])
    assert stats["mismatch_over_cap"] == over


def test_a_step_on_the_entropy_term_raises_the_entropy():
    logits = torch.tensor([[0, math.log(3)]], **FLOAT64)  # probabilities 1/4, 3/4
    entropies = []
    zero = torch.zeros(1, **FLOAT64)
    target = torch.tensor([0])
    for _ in range(2):
        logits = logits.detach().requires_grad_()
        logp, entropy = token_logprobs(logits, torch.eye(2, **FLOAT64), target)
        bonus = {"entropy_N": entropy, "entropy_coef": 0.3}
        loss, _ = policy_loss(logp, logp.detach(), zero, zero + 0.5, **bonus)
        close(loss, -0.3 * 0.5 * entropy.item())
        entropies.append(entropy.item())
        logits = logits - torch.autograd.grad(loss, logits)[0]
    before, after = entropies
    assert after > before + 0.01
    assert after < math.log(2)

"""grpo.py: values computed by hand, and gradients against autograd through the formula."""

import math
from unittest.mock import Mock

import pytest
import torch

import grpo
from grpo import Group, correct_mismatch, group_advantages, policy_loss, row_weights, token_logprobs
from tests.helpers.checks import FLOAT64, close
from tests.helpers.groups import group, solved

# The records


PARTIAL = {  # rewards -> p̂, y, right ones, and the p at which 0s and 1s have this y
    (0, 0.6, 0.6, 0): (0.3, 0.3, 0, 0.1),  # 0.3 = √(0.1 · 0.9)
    (0.4, 1, 1, 0.4): (0.7, 0.3, 2, 0.9),
    (0.1,) * 7: (0.1, 0, 0, 0),  # dead
    (0.9, 0.9): (0.9, 0, 0, 1),
}


@pytest.mark.parametrize("rewards", PARTIAL)
def test_p_hat_and_y_of_a_group_are_the_mean_and_the_std_of_partial_rewards(rewards):
    one = group(7, rewards)
    actual = one.p_hat, one.y, one.successes, one.binary_p_hat
    assert actual == pytest.approx(PARTIAL[rewards])
    assert one.live == (one.y > 0)


@pytest.mark.parametrize("G", [1, 2, 3, 5, 7, 16, 49, 64, 250])
def test_of_0s_and_1s_y_is_the_papers_to_the_last_bit(G):
    """Alg. 2, lines 3 and 4, for any number of right completions."""
    for right in range(G + 1):
        one = solved(7, right, of=G)
        p_hat = right / G
        assert (one.successes, one.p_hat, one.binary_p_hat) == (right, p_hat, p_hat)
        assert one.y == (p_hat * (1 - p_hat)) ** 0.5
        assert one.live == (0 < right < G)


def test_two_groups_of_one_problem_are_different():
    assert Group(7, size=2) != Group(7, size=2)


# Advantages and normalisers


ADVANTAGES = {  # right ones of four, std -> advantage of a right and of a wrong one
    # mean 1/4, population std √3/4: a right one gets (3/4) / (√3/4) = √3
    (1, "population"): (3**0.5, -1 / 3**0.5),
    # deviations ±1/2; population std 1/2; sample std √(4 · (1/4) / 3) = 1/√3
    (2, "population"): (1, -1),
    (2, "sample"): (3**0.5 / 2, -(3**0.5) / 2),
    (2, "none"): (1 / 2, -1 / 2),
    (1, "mean"): (3, -1),
}


@pytest.mark.parametrize("case", ADVANTAGES)
def test_one_or_two_right_of_four_by_hand(case):
    """Rewards that are no floats give float32."""
    n, std = case
    right, wrong = ADVANTAGES[case]
    rewards = torch.tensor([[True] * n + [False] * (4 - n)])
    advantages = group_advantages(rewards, std)
    assert advantages.dtype == torch.float32
    close(advantages, [[right] * n + [wrong] * (4 - n)], 1e-6)


@pytest.mark.parametrize("std", grpo.STDS)
def test_dead_groups_get_exactly_zero(std):
    """0.1 is no binary fraction: no std may amplify the rounding error of the mean of seven."""
    rewards = torch.tensor([[0.0] * 7, [1.0] * 7, [0.1] * 7, [0, 1, 0, 0, 0, 0, 0]])
    assert grpo.dead_groups(rewards).tolist() == [True, True, True, False]
    advantages = group_advantages(rewards, std)
    assert advantages.any(dim=1).tolist() == [False, False, False, True]


def test_a_constant_term_of_the_reward_changes_no_advantage():
    """App. B: r_ver in one row; 3/4 of it plus 1/4 for a format that every completion has."""
    r_ver = torch.tensor([[1.0, 0, 0, 0], [1, 1, 1, 0]])
    composite = 0.75 * r_ver + 0.25
    close(group_advantages(composite), group_advantages(r_ver), 1e-6)
    assert group(7, composite[0].tolist()).y == pytest.approx(0.75 * (3 / 16) ** 0.5)


# Two groups, with rows of 1 and 3 tokens, and of 0, 6 and 4; a row of length 0 counts in G alone.
WEIGHTS = {
    "grpo": ([1 / 4, 1 / 12], [0, 1 / 36, 1 / 24]),  # 1 / (2 groups * 2 or 3 rows * length)
    "dapo": ([1 / 8, 1 / 8], [0, 1 / 20, 1 / 20]),  # 1 / (2 groups * 4 or 10 tokens)
    "batch": ([1 / 14, 1 / 14], [0, 1 / 14, 1 / 14]),  # 1 / 14 tokens
    "constant": ([1 / 40, 1 / 40], [0, 1 / 60, 1 / 60]),  # 1 / (2 * 2 or 3 rows * limit 10)
    "sum": ([1 / 4, 1 / 4], [0, 1 / 6, 1 / 6]),  # 1 / (2 groups * 2 or 3 rows)
}


@pytest.mark.parametrize("loss", grpo.LOSSES)
def test_row_weights_by_hand(loss):
    for lengths, expected in zip(([1, 3], [0, 6, 4]), WEIGHTS[loss], strict=True):
        close(row_weights(torch.tensor(lengths), 2, loss, 14, max_completion_tokens=10), expected)


# Settings -> the weights of the tokens of a live group, in rows of 1, 2, 4 and 6 tokens, and of a
# dead one, in rows of 3 and 1.
STEP_WEIGHTS = {
    "1 / (2 groups · 4 or 2 rows · row)": ({}, [1 / 8, 1 / 16, 1 / 32, 1 / 48, 1 / 12, 1 / 4]),
    "1 / (1 group · 4 rows · row)": ({"dead_rows": "out"}, [1 / 4, 1 / 8, 1 / 16, 1 / 24, 0, 0]),
    "1 / (17 tokens)": ({"loss": "batch"}, [1 / 17] * 6),
    "1 / (11 tokens)": (
        {"loss": "batch", "truncated_rows": "out"},
        [1 / 11, 1 / 11, 1 / 11, 0, 1 / 11, 1 / 11],
    ),
}


@pytest.mark.parametrize("case", STEP_WEIGHTS)
def test_weigh_two_groups_by_hand(case):
    """The row of 6 tokens is truncated. One right of four: √3 and -1/√3, whether truncated rows are
    in the loss or out."""
    settings, weights = STEP_WEIGHTS[case]
    live, dead = group(1, rewards=[1, 0, 0, 0]), group(2, rewards=[0, 0])
    rows = live.completions + dead.completions
    for row, length in zip(rows, (1, 2, 4, 6, 3, 1), strict=True):
        row.ids = [2] * length
        row.finished = length != 6
    all_in = {"loss": "grpo", "dead_rows": "in", "truncated_rows": "in"}
    grpo.weigh([live, dead], std="population", max_completion_tokens=9, **all_in | settings)
    assert [row.weight for row in rows] == pytest.approx(weights)
    assert [row.advantage for row in rows] == pytest.approx([3**0.5, *[-(3**-0.5)] * 3, 0, 0])


Y_AT_1_4 = 3**0.5 / 4  # what a teacher that knows p = 1/4 predicts
NOISE_FLOORS = {  # p, G -> the mean |prediction - y|
    (0.25, 2): Y_AT_1_4 * 10 / 16 + (0.5 - Y_AT_1_4) * 6 / 16,  # y is 1/2 with 6/16, else 0
    (1, 2): 0,  # dead for sure
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


def test_logprob_and_entropy_by_hand():
    """Logits (0, ln 3) / 2 at temperature 1/2 are (0, ln 3): probabilities (1/4, 3/4)."""
    weight = torch.tensor([[0], [math.log(3) / 2]], **FLOAT64)
    [logp], [entropy] = token_logprobs(torch.ones(1, 1, **FLOAT64), weight, torch.tensor([1]), 0.5)
    close(logp.exp(), 3 / 4)
    close(entropy, -(0.25 * math.log(0.25) + 0.75 * math.log(0.75)))


@pytest.mark.parametrize("chunk", [1, 4, None])
def test_chunks_give_the_values_of_log_softmax_and_gradients_that_are_their_derivatives(chunk):
    """gradcheck moves each number of the states and of the weight. The loss may use one output
    alone, or both."""
    hidden, weight, targets = head()

    def outputs(hidden_N_D, head_V_D):
        logp, entropy = token_logprobs(hidden_N_D, head_V_D, targets, 0.7, chunk)
        return logp, entropy, logp + entropy

    logp, entropy, _ = outputs(hidden, weight)
    log_p = torch.log_softmax(hidden @ weight.T / 0.7, dim=-1)
    close(logp, log_p[range(len(targets)), targets])
    close(entropy, -(log_p.exp() * log_p).sum(dim=-1))
    assert torch.autograd.gradcheck(outputs, (hidden, weight))


def test_log_probs_of_bf16_states_and_their_gradients_are_accurate():
    """Logits are float32, and so is the sum over 800 chunks: in bf16 it would lose bits at each."""
    hidden, weight, targets = head(N=200, V=2000, dtype=torch.bfloat16)
    exact = hidden.detach().double().requires_grad_()
    logp, _ = token_logprobs(hidden, weight, targets, chunk=1)
    expected_logp, _ = token_logprobs(exact, weight.double(), targets)
    close(logp, expected_logp, 1e-5)
    [gradient] = torch.autograd.grad(logp.sum(), hidden)
    [expected] = torch.autograd.grad(expected_logp.sum(), exact)
    assert (gradient - expected).norm() < 0.005 * expected.norm()


def test_the_logits_of_all_tokens_never_exist_at_once(monkeypatch):
    """300 tokens, 50 words: 15,000 logits. A chunk has those of 24 tokens at most."""
    logits = Mock(wraps=grpo.logits)
    monkeypatch.setattr(grpo, "logits", logits)
    hidden, weight, targets = head(N=300, D=2, V=50)
    token_logprobs(hidden, weight, targets, chunk=24)[0].sum().backward()
    sizes = [len(hidden) * len(weight) for (hidden, weight), _ in logits.call_args_list]
    assert max(sizes) == 24 * 50


# The loss

CLIPPED = {  # ρ, Â -> loss, its derivative in log π
    (2.0, 1.0): (-1.28, 0.0),  # right, and already far likelier: no more credit
    (2.0, -1.0): (2.0, 2.0),  # wrong, but likelier: pushed down
    (0.5, 1.0): (-0.5, -0.5),  # right, but rarer: pushed up
    (0.5, -1.0): (0.8, 0.0),  # wrong, and already rarer: no more blame
    (1.27, 1.0): (-1.27, -1.27),  # inside the range
    (2.0, 0.0): (0.0, 0.0),  # nothing to clip
}


@pytest.mark.parametrize("case", CLIPPED)
def test_clipping_by_sign_and_side(case):
    ratio_1, advantage_1 = torch.tensor(case, **FLOAT64)[:, None]
    logp_1 = ratio_1.log().requires_grad_()
    loss, stats = policy_loss(logp_1, torch.zeros(1), advantage_1, torch.ones(1))
    [derivative] = torch.autograd.grad(loss, logp_1)
    close(torch.stack([loss, derivative[0]]), CLIPPED[case])
    assert stats["clip_fraction"] == (derivative == 0 and advantage_1 != 0)


def test_kl_and_entropy_by_hand():
    """π_ref/π = 2: k3 = 2 - ln 2 - 1, whose derivative for log π is 1 - 2. The loss falls as the
    entropy rises."""
    logp_1 = torch.zeros(1, requires_grad=True)
    entropy_1 = torch.tensor([0.6], requires_grad=True)
    zero = torch.zeros(1)
    loss, stats = policy_loss(
        logp_1,
        zero,
        zero,
        weight_N=torch.tensor([0.5]),
        ref_logp_N=torch.tensor([math.log(2)]),
        kl_coef=0.2,
        entropy_N=entropy_1,
        entropy_coef=0.3,
    )
    close(loss, 0.5 * (0.2 * (1 - math.log(2)) - 0.3 * 0.6), 1e-6)
    close(stats["kl"], 1 - math.log(2), 1e-6)
    kl_gradient, entropy_gradient = torch.autograd.grad(loss, (logp_1, entropy_1))
    close(kl_gradient, [0.5 * 0.2 * -1], 1e-6)
    close(entropy_gradient, [0.5 * -0.3], 1e-6)


MISMATCH = {  # correction, of a, cap -> c of three tokens, how many are above the cap
    ("none", "token", 3): ([1, 1, 1], None),
    ("truncate", "token", 3): ([2, 2, 1], 0),
    ("truncate", "sequence", 5): ([4, 4, 1], 0),  # 2 · 2 for each token of the row
    ("truncate", "sequence", 3): ([3, 3, 1], 2),
    ("mask", "sequence", 3): ([0, 0, 1], 2),
}


@pytest.mark.parametrize("case", MISMATCH)
def test_mismatch_correction_by_hand(case):
    """Both tokens of row 0 are twice as likely under the policy as under the generator."""
    c, over = MISMATCH[case]
    gap_3 = torch.tensor([2.0, 2, 1], **FLOAT64).log()
    advantage_3, row_3 = torch.full((3,), -5.0), torch.tensor([0, 0, 1])
    corrected_3, stats = correct_mismatch(advantage_3, gap_3, row_3, *case)
    close(corrected_3 / -5, c)
    assert stats.get("mismatch_over_cap") == over
    close(stats["logp_gap"], 2 * math.log(2))

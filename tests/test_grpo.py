"""grpo.py: numbers that can be checked by hand, invariances, and gradients against autograd and finite differences."""

import itertools
import math
import warnings

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode

import grpo
from grpo import group_advantages, policy_loss, row_weights, token_logprobs

FLOAT64 = {"dtype": torch.float64}


def close(actual, expected, tolerance=1e-12):
    """Equal to within `tolerance`, absolute and relative, in float64."""
    actual, expected = torch.as_tensor(actual, **FLOAT64), torch.as_tensor(expected, **FLOAT64)
    torch.testing.assert_close(actual, expected, rtol=tolerance, atol=tolerance)


# ----------------------------------------------------------------------------------------------------
# Section 2 as functions


@pytest.mark.parametrize("G", [1, 2, 3, 4, 7])
@pytest.mark.parametrize("p", [0.0, 0.1, 0.5, 0.75, 1.0])
def test_zero_variance_probability_is_the_total_probability_of_the_dead_outcomes(p, G):
    dead = 0.0
    for outcome in itertools.product([0, 1], repeat=G):
        if len(set(outcome)) == 1:
            dead += math.prod(p if r else 1 - p for r in outcome)
    close(grpo.zero_variance_probability(p, G), dead)


def test_zero_variance_probability_takes_floats_arrays_and_tensors():
    assert grpo.zero_variance_probability(0.5, 4) == 2 * 0.5**4
    np.testing.assert_allclose(
        grpo.zero_variance_probability(np.array([0.0, 0.5, 1.0]), 2), [1, 0.5, 1]
    )
    close(grpo.zero_variance_probability(torch.tensor([0.25, 0.5], **FLOAT64), 2), [0.625, 0.5])


def test_gradient_norm_and_its_bound_by_hand():
    close(grpo.gradient_norm(0.2, 5.0), 2.0)  # sqrt(0.16) * 5
    close(grpo.gradient_norm_bound(0.2, B=3.0, T=7), 16.8)  # 2 * 3 * 7 * 0.4
    close(grpo.gradient_norm(torch.tensor([0.5, 1.0], **FLOAT64), 3.0), [1.5, 0.0])
    close(grpo.gradient_norm_bound(np.array([0.5, 0.0]), B=1.0, T=1), [1.0, 0.0])


def test_expected_group_std_by_hand():
    p = 0.3
    assert grpo.expected_group_std(p, 1) == 0  # one rollout has no variance
    close(grpo.expected_group_std(p, 2), 2 * p * (1 - p) * 0.5)  # one right of two: std 1/2
    one_or_two_of_three = 3 * p * (1 - p) ** 2 + 3 * p**2 * (1 - p)
    close(grpo.expected_group_std(p, 3), one_or_two_of_three * math.sqrt(2) / 3)
    assert grpo.expected_group_std(0.0, 8) == grpo.expected_group_std(1.0, 8) == 0


def test_expected_group_std_rises_to_the_bernoulli_std_of_eq_2():
    for p in (0.05, 0.3, 0.5):
        limit = math.sqrt(p * (1 - p))
        values = [grpo.expected_group_std(p, G) for G in (2, 4, 8, 16, 64, 512)]
        assert all(a < b for a, b in itertools.pairwise(values))
        assert 0.98 * limit < values[-1] < limit


# ----------------------------------------------------------------------------------------------------
# Advantages


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int64, torch.bool])
def test_one_right_of_four(dtype):
    # mean 1/4, population std sqrt(3)/4: the right one gets (3/4)/(sqrt(3)/4) = sqrt(3).
    advantage = group_advantages(torch.tensor([[0, 1, 0, 0]], dtype=dtype))
    close(advantage, [[-1 / 3**0.5, 3**0.5, -1 / 3**0.5, -1 / 3**0.5]], 1e-6)
    assert advantage.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)


@pytest.mark.parametrize(
    "std, right, wrong",
    [
        ("population", 1.0, -1.0),
        ("sample", math.sqrt(3) / 2, -math.sqrt(3) / 2),
        ("none", 0.5, -0.5),
    ],
)
def test_two_right_of_four_under_each_std(std, right, wrong):
    # Deviations +-1/2; population std 1/2; sample std sqrt(4 * (1/4) / 3) = 1/sqrt(3).
    close(
        group_advantages(torch.tensor([[1.0, 1.0, 0.0, 0.0]], **FLOAT64), std),
        [[right, right, wrong, wrong]],
    )


@pytest.mark.parametrize("successes", range(1, 16))
def test_sixteen_rollouts_have_the_two_values_of_section_2_with_no_epsilon(successes):
    p_hat = successes / 16
    rewards = torch.tensor([[1.0] * successes + [0.0] * (16 - successes)])
    right, wrong = math.sqrt((1 - p_hat) / p_hat), -math.sqrt(p_hat / (1 - p_hat))
    close(group_advantages(rewards), [[right] * successes + [wrong] * (16 - successes)], 1e-6)


@pytest.mark.parametrize("std", grpo.STDS)
@pytest.mark.parametrize("reward", [0.0, 1.0, 0.1, -2.7, 1e4])
def test_dead_groups_get_exactly_zero(std, reward):
    # 0.1 is no binary fraction: the mean of seven of them is off by a rounding error that no std may blow up.
    rewards = torch.tensor([[reward] * 7, [0, 1, 0, 0, 0, 0, 0]])
    advantage = group_advantages(rewards, std)
    assert torch.equal(advantage[0], torch.zeros(7))
    assert advantage[1, 1] > 0.5
    assert grpo.dead_groups(rewards).tolist() == [True, False]


@pytest.mark.parametrize("std", grpo.STDS)
def test_a_group_of_one_is_dead(std):
    with warnings.catch_warnings():
        warnings.simplefilter(
            "ignore"
        )  # torch warns of a sample std of one number; the answer must still be 0
        assert group_advantages(torch.tensor([[1.0], [0.0]]), std).tolist() == [[0.0], [0.0]]


def test_the_other_groups_of_the_batch_do_not_matter():
    rewards = torch.tensor([[1, 0, 0, 0], [1, 1, 1, 1], [1, 1, 0, 0]], **FLOAT64)
    alone = torch.cat([group_advantages(row[None]) for row in rewards])
    close(group_advantages(rewards), alone)


@given(
    st.lists(st.lists(st.integers(0, 1), min_size=6, max_size=6), min_size=1, max_size=5),
    st.permutations(range(6)),
)
def test_advantages_are_centred_scaled_and_follow_their_rollouts(rewards, order):
    rewards = torch.tensor(rewards, **FLOAT64)
    population, sample, none = (group_advantages(rewards, std) for std in grpo.STDS)
    alive = (~grpo.dead_groups(rewards)).double()
    for advantage in (population, sample, none):
        close(advantage.sum(dim=1), torch.zeros(len(rewards)))
    close((population**2).mean(dim=1), alive)
    close((sample**2).sum(dim=1) / 5, alive)
    close((none**2).mean(dim=1), rewards.mean(dim=1) * (1 - rewards.mean(dim=1)))
    assert torch.equal(none > 0, population > 0)
    close(group_advantages(rewards[:, order]), population[:, order])


@pytest.mark.parametrize("dtype", [torch.int64, torch.float32])
@pytest.mark.parametrize("std", grpo.STDS)
def test_rewards_are_not_changed_even_through_a_view(dtype, std):
    base = torch.tensor([[1, 9, 0, 9], [0, 9, 0, 9], [1, 9, 1, 9]], dtype=dtype)
    before = base.clone()
    rewards = base[:, ::2]
    group_advantages(rewards, std)
    grpo.dead_groups(rewards)
    assert torch.equal(base, before)


def test_a_transposed_view_gives_the_same_advantages():
    rewards = torch.tensor([[1.0, 0.0, 0.0, 0.0], [1.0, 1.0, 1.0, 0.0]])
    assert torch.equal(group_advantages(rewards.T.contiguous().T), group_advantages(rewards))


def test_an_unknown_std_or_loss_is_an_error_that_names_the_choices():
    with pytest.raises(ValueError, match=r"population.*unbiased"):
        group_advantages(torch.ones(1, 2), "unbiased")
    with pytest.raises(ValueError, match=r"dapo.*'ppo'"):
        row_weights(torch.ones(1, 2), "ppo")


# ----------------------------------------------------------------------------------------------------
# Normalisers

LENGTHS = torch.tensor([[1, 3], [2, 6]])  # two groups of two rows, 12 tokens in all


@pytest.mark.parametrize(
    "loss, expected",
    [
        ("grpo", [[1 / 4, 1 / 12], [1 / 8, 1 / 24]]),  # 1 / (4 rows * length)
        ("dapo", [[1 / 8, 1 / 8], [1 / 16, 1 / 16]]),  # 1 / (2 groups * 4 or 8 tokens)
        ("sum", [[1 / 4, 1 / 4], [1 / 4, 1 / 4]]),  # 1 / 4 rows
    ],
)
def test_row_weights_by_hand(loss, expected):
    weights = row_weights(LENGTHS, loss)
    close(weights, expected)
    assert weights.dtype == torch.float64
    assert LENGTHS.tolist() == [[1, 3], [2, 6]]


@given(
    st.lists(st.lists(st.integers(1, 50), min_size=3, max_size=3), min_size=1, max_size=5).map(
        torch.tensor
    ),
)
def test_normalised_weights_add_up_to_one_over_all_tokens(lengths):
    close((row_weights(lengths, "grpo") * lengths).sum(), 1.0)
    close((row_weights(lengths, "dapo") * lengths).sum(), 1.0)
    close((row_weights(lengths, "sum") * lengths).sum(), lengths.double().mean())


# ----------------------------------------------------------------------------------------------------
# Log-probs and entropy


def head(N=11, D=5, V=7, seed=0, **kind):
    """Random hidden states, head weight and targets; every token of the vocabulary is a target where N >= V."""
    generator = torch.Generator().manual_seed(seed)
    kind = FLOAT64 | kind
    hidden = torch.randn(N, D, generator=generator, **FLOAT64).to(kind["dtype"])
    weight = torch.randn(V, D, generator=generator, **FLOAT64).to(kind["dtype"])
    return hidden.requires_grad_(), weight.requires_grad_(), torch.arange(N) % V


def plain(hidden, weight, targets, temperature):
    """The same by the book: all logits at once, log_softmax, autograd."""
    log_p = torch.log_softmax(hidden @ weight.T / temperature, dim=-1)
    return log_p[range(len(targets)), targets], -(log_p.exp() * log_p).sum(dim=-1)


def test_logprob_and_entropy_by_hand_at_temperature_one_half():
    # Logits (0, ln 3) / 2 at temperature 1/2 are (0, ln 3): probabilities (1/4, 3/4).
    hidden, weight = (
        torch.tensor([[1.0], [1.0]], **FLOAT64),
        torch.tensor([[0.0], [math.log(3) / 2]], **FLOAT64),
    )
    logp, entropy = token_logprobs(hidden, weight, torch.tensor([0, 1]), temperature=0.5)
    close(logp, [math.log(1 / 4), math.log(3 / 4)])
    close(entropy, [-(0.25 * math.log(0.25) + 0.75 * math.log(0.75))] * 2)


@pytest.mark.parametrize("temperature", [0.3, 0.7, 1.0, 2.0])
@pytest.mark.parametrize("chunk", [1, 2, 4, 11, 1000, None])
def test_values_and_gradients_equal_plain_log_softmax_for_any_chunk(temperature, chunk):
    hidden, weight, targets = head()
    a, b = torch.randn(2, len(targets), generator=torch.Generator().manual_seed(1), **FLOAT64)
    actual = token_logprobs(hidden, weight, targets, temperature, chunk)
    expected = plain(hidden, weight, targets, temperature)
    for x, y in zip(actual, expected, strict=True):
        close(x, y)
    for outputs in ((0,), (1,), (0, 1)):  # log-prob alone, entropy alone, both
        gradients = [
            torch.autograd.grad(
                sum(((a, b)[k] * out[k]).sum() for k in outputs),
                (hidden, weight),
                retain_graph=True,
            )
            for out in (actual, expected)
        ]
        for x, y in zip(*gradients, strict=True):
            assert y.abs().max() > 1e-3
            close(x, y)


def test_gradients_equal_finite_differences():
    hidden, weight, targets = head(N=5, D=3, V=4)
    assert torch.autograd.gradcheck(
        lambda h, w: token_logprobs(h, w, targets, 0.7, chunk=2), (hidden, weight)
    )


@pytest.mark.parametrize("frozen", [0, 1])
def test_the_gradient_is_the_same_when_only_one_side_learns(frozen):
    tensors = head()
    expected = torch.autograd.grad(token_logprobs(*tensors, 0.7)[0].sum(), tensors[:2])[1 - frozen]
    tensors[frozen].requires_grad_(False)
    close(
        torch.autograd.grad(token_logprobs(*tensors, 0.7)[0].sum(), tensors[1 - frozen])[0],
        expected,
    )


def test_probabilities_of_all_targets_add_up_to_one():
    hidden, weight, _ = head(N=1, V=9)
    logp, _ = token_logprobs(hidden.expand(9, -1), weight, torch.arange(9), 0.7, chunk=4)
    close(logp.exp().sum(), 1.0)


def test_a_uniform_distribution_has_entropy_log_V_and_a_certain_one_zero():
    weight = torch.tensor([[1.0], [0.0], [0.0], [0.0]], **FLOAT64)
    _, entropy = token_logprobs(
        torch.tensor([[0.0], [1e4]], **FLOAT64), weight, torch.tensor([0, 0])
    )
    close(entropy, [math.log(4), 0.0])


def test_inputs_are_not_changed_forward_or_backward():
    tensors = head()
    before = [x.detach().clone() for x in tensors]
    logp, entropy = token_logprobs(*tensors, 0.7, chunk=3)
    grad = torch.ones(11, **FLOAT64), torch.ones(11, **FLOAT64)
    torch.autograd.backward((logp, entropy), grad)
    assert all(torch.equal(x, y) for x, y in zip(tensors, before, strict=True))
    assert all(torch.equal(g, torch.ones(11, **FLOAT64)) for g in grad)


def test_bf16_weights_give_float32_values_and_keep_the_gradient_of_many_chunks():
    hidden, weight, targets = head(N=600, dtype=torch.bfloat16)
    exact = [x.detach().double().requires_grad_() for x in (hidden, weight)]
    # All advantages of one sign and one token only: the sum grows, and bf16 additions would stall at 256.
    targets = torch.zeros_like(targets)
    logp, entropy = token_logprobs(hidden, weight, targets, 0.7, chunk=1)
    assert logp.dtype == entropy.dtype == torch.float32
    exact_logp, exact_entropy = plain(*exact, targets, 0.7)
    assert (logp - exact_logp).abs().max() < 0.1  # logits of size about 10 are rounded to 8 bits
    assert (entropy - exact_entropy).abs().max() < 0.1
    gradients = torch.autograd.grad(logp.sum(), (hidden, weight))
    expected = torch.autograd.grad(exact_logp.sum(), exact)
    for gradient, x in zip(gradients, expected, strict=True):
        assert gradient.dtype == torch.bfloat16
        assert (gradient - x).norm() < 0.01 * x.norm()


def test_the_logits_of_all_tokens_are_never_kept_for_backward():
    hidden, weight, targets = head(N=300, D=2, V=50)
    kept = []
    with torch.autograd.graph.saved_tensors_hooks(
        lambda x: kept.append(x.numel()) or x, lambda x: x
    ):
        token_logprobs(hidden, weight, targets, chunk=10)
    assert kept and max(kept) == 300 * 2  # the hidden states; the logits would be 300 * 50


def test_nothing_in_backward_is_larger_than_what_it_returns():
    hidden, weight, targets = head(N=300, D=2, V=50)
    logp, entropy = token_logprobs(hidden, weight, targets, chunk=24)
    made = []

    class Sizes(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            out = function(*args, **(kwargs or {}))
            made.extend(
                x.numel() for x in (out if isinstance(out, tuple) else (out,)) if torch.is_tensor(x)
            )
            return out

    with Sizes():
        torch.autograd.grad((logp + entropy).sum(), (hidden, weight))
    assert (
        max(made) == 300 * 2
    )  # the hidden states; the logits of one word are 300, and 24 * 50 / 4 allows no more


def test_no_token_at_all_is_an_error():
    with pytest.raises(ValueError, match="at least one"):
        token_logprobs(torch.zeros(0, 3), torch.zeros(4, 3), torch.zeros(0, dtype=torch.int64))


# ----------------------------------------------------------------------------------------------------
# The loss

HIGH, LOW = math.log(2.0), math.log(0.5)


def loss_and_gradient(logp, old_logp, advantage, weight, **options):
    """policy_loss on lists of numbers: (loss, gradient for logp, stats)."""
    logp = torch.tensor(logp, **FLOAT64, requires_grad=True)
    others = (torch.tensor(x, **FLOAT64) for x in (old_logp, advantage, weight))
    loss, stats = policy_loss(logp, *others, **options)
    loss.backward()
    return loss.item(), logp.grad.tolist(), stats


@pytest.mark.parametrize(
    "ratio, advantage, loss, gradient, bites",
    [
        (HIGH, +1.0, -1.28, 0.0, 1),  # already far likelier than it was: no more credit
        (
            HIGH,
            -1.0,
            +2.0,
            +2.0,
            0,
        ),  # has become likelier though it was wrong: pushed down with full weight
        (LOW, +1.0, -0.5, -0.5, 0),  # has become rarer though it was right: pushed up
        (LOW, -1.0, +0.8, 0.0, 1),  # already rarer: no more blame
    ],
)
def test_clipping_two_by_two(ratio, advantage, loss, gradient, bites):
    value, grad, stats = loss_and_gradient([ratio - 3], [-3.0], [advantage], [1.0])
    close(value, loss)
    close(grad, [gradient])
    assert stats["clipped"] == bites


def test_clipped_counts_tokens_and_not_those_inside_the_range_or_without_advantage():
    inside = [math.log(1.27), math.log(0.81), 0.0]
    logp = [HIGH, LOW, HIGH, LOW, *inside, HIGH, LOW]
    advantage = [1.0, -1.0, -1.0, 1.0, 1.0, -1.0, 1.0, 0.0, 0.0]
    _, _, stats = loss_and_gradient(logp, [0.0] * 9, advantage, [1.0] * 9)
    assert stats["clipped"] == 2


def test_the_two_sides_of_the_clip_range_are_separate():
    # ratio 1.5 with A = 1 is cut at 1 + clip_high, ratio 0.7 with A = -1 at 1 - clip_low.
    value, _, _ = loss_and_gradient(
        [math.log(1.5)], [0.0], [1.0], [1.0], clip_low=0.0, clip_high=0.4
    )
    close(value, -1.4)
    value, _, _ = loss_and_gradient(
        [math.log(0.7)], [0.0], [-1.0], [1.0], clip_low=0.1, clip_high=9.0
    )
    close(value, 0.9)


def test_on_policy_the_gradient_is_minus_weight_times_advantage():
    logp = [-1.0, -2.0, -0.5]
    value, gradient, stats = loss_and_gradient(logp, logp, [1.5, -0.5, 0.0], [0.1, 0.2, 0.3])
    close(value, -(0.1 * 1.5 - 0.2 * 0.5))
    close(gradient, [-0.15, 0.1, 0.0])
    assert stats["clipped"] == 0 and stats["kl"] == 0


def test_kl_by_hand_and_summed_without_weights_in_the_stats():
    # ref/pi = 2: k3 = 2 - ln 2 - 1, and its derivative for log pi is 1 - 2.
    options = {"ref_logp_N": torch.tensor([HIGH, 0.0], **FLOAT64), "kl_coef": 0.5}
    value, gradient, stats = loss_and_gradient(
        [0.0, 0.0], [0.0, 0.0], [0.0, 0.0], [0.1, 0.1], **options
    )
    close(value, 0.5 * 0.1 * (1 - math.log(2)))
    close(gradient, [0.5 * 0.1 * -1, 0.0])
    close(stats["kl"], 1 - math.log(2))
    assert not stats["kl"].requires_grad


def categorical(seed):
    """Logits of a small categorical distribution, and the reference's log-probs."""
    generator = torch.Generator().manual_seed(seed)
    theta = torch.randn(5, generator=generator, **FLOAT64).requires_grad_()
    return theta, torch.log_softmax(torch.randn(5, generator=generator, **FLOAT64), 0)


def expected_kl_loss(theta, ref):
    """E over y ~ pi of the KL term, the sampling distribution held fixed, as training does."""
    logp, zero = torch.log_softmax(theta, 0), torch.zeros(5, **FLOAT64)
    return policy_loss(logp, logp.detach(), zero, logp.detach().exp(), ref_logp_N=ref, kl_coef=1.0)[
        0
    ]


@pytest.mark.parametrize("seed", range(5))
def test_k3_is_unbiased_for_the_kl_divergence(seed):
    theta, ref = categorical(seed)
    logp = torch.log_softmax(theta, 0)
    close(expected_kl_loss(theta, ref), (logp.exp() * (logp - ref)).sum())


@pytest.mark.parametrize("seed", range(5))
def test_descending_k3_brings_the_policy_to_the_reference(seed):
    theta, ref = categorical(seed)
    (gradient,) = torch.autograd.grad(expected_kl_loss(theta, ref), theta)
    close(
        gradient, torch.softmax(theta, 0) - ref.exp()
    )  # the gradient of KL(ref || pi): 0 only at pi = ref
    logp = torch.log_softmax(theta, 0)
    (true,) = torch.autograd.grad((logp.exp() * (logp - ref)).sum(), theta)
    assert gradient @ true > 0  # it goes down KL(pi || ref) as well


def test_a_step_on_the_entropy_term_raises_the_entropy_and_by_its_weight():
    hidden, weight, targets = head(N=1, seed=1)
    entropies = []
    for _ in range(2):
        logp, entropy = token_logprobs(hidden, weight, targets, 0.7)
        nothing = torch.zeros(1, **FLOAT64)
        options = {"entropy_N": entropy, "entropy_coef": 0.3}
        loss, _ = policy_loss(logp, logp.detach(), nothing, nothing + 0.5, **options)
        close(loss, -0.3 * 0.5 * entropy.item())
        entropies.append(entropy.item())
        hidden = (hidden - 0.1 * torch.autograd.grad(loss, hidden)[0]).detach().requires_grad_()
    assert entropies[0] + 0.01 < entropies[1] < math.log(7)


def rollout_tokens(seed=0):
    """Tokens of a step of 3 groups of 4 rows of unequal lengths, policy moved away from the one that sampled."""
    generator = torch.Generator().manual_seed(seed)
    rewards = torch.tensor([[1, 0, 0, 0], [1, 1, 1, 1], [0, 1, 1, 0]])
    lengths = torch.randint(1, 6, (3, 4), generator=generator)
    rows = torch.arange(12).repeat_interleave(lengths.flatten())
    old = -torch.rand(len(rows), generator=generator, **FLOAT64)
    new = old + 0.6 * torch.randn(len(rows), generator=generator, **FLOAT64)
    ref = old + 0.3 * torch.randn(len(rows), generator=generator, **FLOAT64)
    return rewards, lengths, rows, old, new, ref


def printed_loss(loss, rewards, lengths, rows, old, new, advantage):
    """The surrogate as the papers print it: loops over groups, rows and tokens, each with its own mean."""
    P, G = rewards.shape
    term = [
        min((n - o).exp() * a, (n - o).exp().clamp(0.8, 1.28) * a)
        for n, o, a in zip(new, old, advantage.flatten()[rows], strict=True)
    ]
    row = [sum(term[t] for t in range(len(rows)) if rows[t] == b) for b in range(P * G)]
    if loss == "grpo":
        return -sum(row[b] / lengths.flatten()[b] for b in range(P * G)) / (P * G)
    if loss == "dapo":
        return -sum(sum(row[i * G : i * G + G]) / lengths[i].sum() for i in range(P)) / P
    return -sum(row) / (P * G)


@pytest.mark.parametrize("loss", grpo.LOSSES)
def test_weights_and_surrogate_together_are_the_printed_loss(loss):
    rewards, lengths, rows, old, new, _ = rollout_tokens()
    advantage = group_advantages(rewards.double())
    weight = row_weights(lengths, loss).flatten()[rows]
    value, stats = policy_loss(new, old, advantage.flatten()[rows], weight)
    close(value, printed_loss(loss, rewards, lengths, rows, old, new, advantage))
    assert (
        0 < stats["clipped"] < len(rows)
    )  # some tokens are clipped, or this would say nothing about the clip


@settings(max_examples=30)
@given(st.sampled_from(grpo.LOSSES), st.lists(st.integers(0, 4), min_size=12, max_size=12))
def test_any_split_into_micro_batches_gives_the_same_loss_gradient_and_stats(loss, batch_of_row):
    rewards, lengths, rows, old, new, ref = rollout_tokens()
    new.requires_grad_()
    advantage = group_advantages(rewards.double()).flatten()[rows]
    weight = row_weights(lengths, loss).flatten()[rows]

    def run(tokens):
        entropy = -new[tokens] * new[tokens].exp()
        data = (x[tokens] for x in (new, old, advantage, weight))
        options = {
            "ref_logp_N": ref[tokens],
            "kl_coef": 0.2,
            "entropy_N": entropy,
            "entropy_coef": 0.1,
        }
        return policy_loss(*data, **options)

    whole, whole_stats = run(torch.arange(len(rows)))
    tokens_of = [(torch.tensor(batch_of_row)[rows] == k).nonzero()[:, 0] for k in set(batch_of_row)]
    parts = [run(tokens) for tokens in tokens_of]
    close(sum(part for part, _ in parts), whole)
    for key in ("clipped", "kl"):
        close(sum(stats[key] for _, stats in parts), whole_stats[key])
    (expected,) = torch.autograd.grad(whole, new)
    close(sum(torch.autograd.grad(part, new)[0] for part, _ in parts), expected)


def test_rows_of_dead_groups_may_be_left_out_of_the_sum():
    rewards, lengths, rows, old, new, _ = rollout_tokens()
    advantage = group_advantages(rewards.double()).flatten()[rows]
    weight = row_weights(lengths, "grpo").flatten()[rows]
    live = advantage != 0
    assert not live.all()
    whole = policy_loss(new, old, advantage, weight)[0]
    close(policy_loss(new[live], old[live], advantage[live], weight[live])[0], whole)


def test_policy_loss_changes_none_of_its_arguments():
    _, _, rows, old, new, ref = rollout_tokens()
    arguments = [new.requires_grad_(), old, torch.ones_like(old), torch.ones(len(rows))]
    before = [x.detach().clone() for x in arguments]
    policy_loss(*arguments, ref_logp_N=ref, kl_coef=1.0, entropy_N=new * 2, entropy_coef=1.0)[
        0
    ].backward()
    assert all(torch.equal(x, y) for x, y in zip(arguments, before, strict=True))

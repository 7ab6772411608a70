"""sampler.py: values computed by hand, drawing without replacement, selection, --sampler."""

from types import SimpleNamespace
from unittest.mock import Mock

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import sampler as s
from grpo import noise_floor
from plumbing.errors import InputError
from tests.helpers.samplers import Numbers, build, outcomes


def three() -> s.Selections:
    """Three pools of two; the second row explored."""
    pools, chosen_N = np.array([[1, 2], [3, 4], [5, 6]]), np.array([1, 0, 0])
    utilities = np.array([[0.1, 0.3], [0.5, 0.2], [0.4, 0.4]])
    return s.Selections(pools, utilities, chosen_N, np.array([False, True, False]))


def test_selections_by_hand():
    one = three()
    assert one.index_N.tolist() == [2, 3, 5] and one.utility_N.tolist() == [0.3, 0.5, 0.4]
    assert one.rows(2) == [2, 2, 3, 3, 5, 5]
    one.completions_N, one.again = np.array([1, 3, 2]), True
    assert one.rows(2) == [2, 3, 3, 3, 5, 5]
    row = {"step": 7, "round": 1, "pool": [3, 4], "utilities": [0.5, 0.2], "chosen": 3}
    row |= {"explored": True, "completions": 10, "successes": 2, "y": 0.4}
    assert one.lines(outcomes([2, 3, 5], [1, 2, 0], [1, 10, 2], step=7), round=1)[1] == row
    for index_N, G_N in (([4, 4], None), ([4, -1], None), ([4, 5], None), ([4], [0]), ([4], [2.0])):
        with pytest.raises(InputError, match="proposes a problem twice, a bad index, or 0 co"):
            s.Selections.unscored(index_N, completions_N=G_N).rows(2, n_problems=5)


def test_outcomes_by_hand():
    o = outcomes([4, 1, 3, 8], [5, 0, 5, 4], [25, 3, 10, 4])
    assert o.p_hat_N.tolist() == [0.2, 0, 0.5, 1]
    assert o.live_N.tolist() == [True, False, True, False]
    assert o.y_N == pytest.approx([0.4, 0, 0.5, 0])
    assert o.positions([2, -4, 0]).tolist() == [0, 2]
    with pytest.raises(InputError, match="proposed no problem"):
        outcomes([], [], []).positions([])


def test_dynamic_sampling_ends_with_enough():
    inner, one = Mock(), s.Selections.unscored
    inner.propose.side_effect = [*(one([2 * i, 2 * i + 1]) for i in range(9)), one([0], again=True)]
    sampler = s.DynamicSampling(inner, rounds=2)

    def step(*live):
        """Take a step; live: groups of each round. Return the number of problems of each round."""
        sizes, again = [], True
        while again:
            selections = sampler.propose(2)
            index_N, again = selections.index_N, selections.again
            successes = [1] * live[len(sizes)] + [0] * len(index_N) if len(index_N) else []
            sampler.observe(outcomes(index_N, successes))
            sizes.append(len(index_N))
        return sizes

    assert step(2) == [2, 0] and step(1, 1) == [2, 2, 0]  # it learns too late that it has enough
    assert step(1, 0, 0) == step(0, 0, 2) == [2, 2, 2]  # counted anew in each step
    observed = [call.args[0].index_N.tolist() for call in inner.observe.call_args_list]
    assert observed == [[2 * i, 2 * i + 1] for i in range(9)]  # no empty round
    with pytest.raises(InputError, match="--resample_rounds: this sampler asks for rounds itself"):
        sampler.propose(2)
    groups = outcomes(range(5), [0, 1, 16, 3, 0])  # live: the second and the fourth
    for n, chosen in ((1, [1]), (3, [0, 1, 3]), (9, [0, 1, 2, 3, 4])):
        assert sampler.train_on(groups, n).tolist() == chosen


def test_dynamic_sampling_adds_up_a_problems_rounds():
    """Problem 0 is live after 1 right of 16, and still after 3 of 32: one live group, not two.
    Problem 1 has 16 right of 48 after three rounds: live, though each of them is dead."""
    inner = Mock()
    inner.propose.side_effect = [s.Selections.unscored([0, 1]) for _ in range(5)]
    sampler, again = s.DynamicSampling(inner, rounds=9), []
    for right in ([1, 0], [2, 0], [0, 16]):
        again.append(sampler.propose(2).again)
        sampler.observe(outcomes([0, 1], right))
    last = sampler.propose(2)
    assert again == [True, True, True]
    assert (len(last.index_N), last.again) == (0, False)
    sampler.observe(outcomes([], []))
    assert sampler.propose(2).again  # the next step counts anew
    sampler.observe(outcomes([0, 1], [1, 0]))
    assert len(sampler.propose(2).index_N) == 2


SIZES = {"n": st.integers(1, 30), "k": st.integers(1, 8), "seed": st.integers(0, 99)}


@given(**SIZES, too_long=st.sets(st.integers(0, 29), max_size=8), data=st.data())
def test_draws_are_distinct_unseen_and_fit(n, k, seed, too_long, data):
    """A problem drawn and not taken returns; a pass ends only where too few problems are left."""
    fits = set(range(n)) - too_long
    sampler = build(s.Uniform, Numbers(n), lambda i: i in fits, seed=seed)
    if len(fits) < k:
        with pytest.raises(InputError, match=f"only {len(fits)} of {n} fit --max"):
            sampler.draw(k)
        return
    left, passes = fits, 1
    for _ in range(6):
        drawn = sampler.draw(k).tolist()
        if sampler.passes > passes:
            assert len(left) < k
            left, passes = fits, passes + 1
        assert len(set(drawn)) == k and set(drawn) <= left
        taken = drawn[: data.draw(st.integers(0, k))]
        sampler.take(np.array(taken, dtype=np.int64))
        left = left - set(taken)


def test_draw_is_uniform():
    sampler = build(s.Uniform, Numbers(6))
    counts = np.bincount(np.concatenate([sampler.draw(2) for _ in range(6000)]), minlength=6)
    assert np.abs(counts - 2000).max() < 5 * np.sqrt(2000 * 2 / 3)  # five standard deviations


def test_epsilon_greedy_by_hand():
    """Of three rows with K = 3 the first and third draw below ε = 0.2: they explore."""
    draws = {"random": lambda n: np.array([0.1, 0.2, 0.19])}
    draws["integers"] = lambda high, size: {(3, 3): np.array([2, 2, 0])}[high, size]
    utilities = np.array([[0.1, 0.4, 0.2], [0.1, 0.4, 0.2], [0.5, 0.4, 0.2]])
    chosen, explored = s.epsilon_greedy(utilities, 0.2, SimpleNamespace(**draws))
    assert chosen.tolist() == [2, 1, 0] and explored.tolist() == [True, False, True]


def test_goldilocks_takes_the_best_of_each_pool_and_never_twice():
    sampler, seen = build(s.Goldilocks, Numbers(200)), []
    for _ in range(5):
        made = sampler.propose(4)
        assert made.index_N.tolist() == made.pool_N_K.max(axis=1).tolist()
        assert made.utility_N == pytest.approx(made.index_N / 1000)
        seen += made.index_N.tolist()
    assert len(set(seen)) == 20


def test_goldilocks_sends_outcomes_to_the_teacher_in_order():
    sampler = build(s.Goldilocks, Numbers(200))
    sampler.observe(outcomes([7, 3], [4, 0], [20, 5]))
    calls = sampler.teacher.update.call_args_list
    assert [call.args for call in calls] == [("7", 4, 20), ("3", 0, 5)]
    assert [call.kwargs["target"](0.2) for call in calls] == pytest.approx([0.4, 0.4])


def test_step_metrics_by_hand():
    o = outcomes([2, 3, 5], [5, 0, 2], 10)
    m = s.step_metrics([(three(), o)], o)
    by_hand = {"reward_mean": 7 / 30, "reward_std_group": (0.5 + 0 + 0.4) / 3, "groups": 3}
    by_hand |= {"reward_std_batch": np.std([1] * 7 + [0] * 23), "completions": 30}
    by_hand |= {"zero_variance": 1 / 3, "zero_variance_easy": 0, "zero_variance_hard": 1 / 3}
    by_hand |= {"teacher_mae": (abs(0.3 - 0.5) + abs(0.5 - 0) + abs(0.4 - 0.4)) / 3}
    by_hand |= {"teacher_mae_explore": 0.5, "teacher_mae_dead": 0.5, "teacher_mu": 1.9 / 6}
    by_hand |= {"teacher_sigma": np.std([0.1, 0.3, 0.5, 0.2, 0.4, 0.4])}
    by_hand |= {"teacher_noise_floor": (noise_floor(0.5, 10) + noise_floor(0.2, 10)) / 3}
    assert m == pytest.approx(by_hand)
    o = outcomes([2, 3, 5], [10, 8, 2], 10)
    m = s.step_metrics([(three(), o)], o)
    assert m["zero_variance_easy"] == 1 / 3 and m["teacher_mae_dead"] == 0.3


def test_step_metrics_of_two_rounds_on_one_problem_and_an_empty_one():
    """The teacher's errors are counted in each round, the rewards in groups of the step."""
    one = s.Selections(np.array([[7, 9]]), np.array([[0.3, 0.1]]), np.array([0]), np.array([False]))
    rounds = [(one, outcomes([7], [0], 2)), (one, outcomes([7], [4], 8))]
    rounds.append((s.Selections.unscored([]), outcomes([], [])))
    m = s.step_metrics(rounds, outcomes([7], [4], 10))
    assert (m["groups"], m["completions"], m["reward_mean"], m["zero_variance"]) == (1, 10, 0.4, 0)
    assert m["teacher_mae"] == pytest.approx((0.3 + 0.2) / 2) and m["teacher_mae_dead"] == 0.3
    assert m["teacher_mu"] == pytest.approx(0.2)
    assert m["teacher_noise_floor"] == noise_floor(0.4, 10)

"""sampler.py: values computed by hand, drawing without replacement, selection, --sampler."""

from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import sampler as s
from plumbing.errors import InputError
from tests.helpers.ranks import parse
from tests.helpers.samplers import Numbers, build, same


def three() -> s.Selections:
    """Three pools of two; the second row explored."""
    pools, chosen_N = np.array([[1, 2], [3, 4], [5, 6]]), np.array([1, 0, 0])
    utilities = np.array([[0.1, 0.3], [0.5, 0.2], [0.4, 0.4]])
    return s.Selections(pools, utilities, chosen_N, np.array([False, True, False]))


def test_utility_target_by_hand():
    assert s.utility_target(0.5) == 0.5
    assert s.utility_target(np.array([0, 0.2, 1])) == pytest.approx([0, 0.4, 0])


def test_selections_by_hand():
    one = three()
    assert one.index_N.tolist() == [2, 3, 5] and one.utility_N.tolist() == [0.3, 0.5, 0.4]
    parts = [s.Selections(*(x[rows] for x in vars(one).values())) for rows in ([2, 0], [1])]
    both = parts[0] + parts[1]
    assert both.index_N.tolist() == [5, 2, 3] and both.explored_N.tolist() == [False, False, True]
    row = {"step": 7, "pool": [3, 4], "utilities": [0.5, 0.2], "chosen": 3, "explored": True}
    assert one.lines(7, np.array([5, 2, 0]), 10)[1] == row | {"successes": 2, "y": 0.4}
    assert same(s.Selections.from_state(one.state_dict()), one) and not same(both, one)


SIZES = {"n": st.integers(1, 30), "k": st.integers(1, 8), "seed": st.integers(0, 99)}


@given(**SIZES, too_long=st.sets(st.integers(0, 29), max_size=8), data=st.data())
def test_draws_are_distinct_unseen_and_fit(n, k, seed, too_long, data):
    """A problem drawn and not taken returns; a pass ends only where too few problems are left."""
    fits = set(range(n)) - too_long
    sampler = build(s.Uniform, Numbers(n), lambda i: i in fits, seed=seed)
    if len(fits) < k:
        with pytest.raises(InputError, match=f"but only {len(fits)} of {n} fit the prompt limit"):
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


def test_a_prompt_is_measured_when_drawn_and_an_overlong_one_once():
    measured = []
    sampler = build(s.Uniform, Numbers(20), lambda i: measured.append(i) or i >= 5)
    sampler.propose(3)
    assert 3 <= len(measured) <= 8
    for _ in range(4):
        sampler.propose(3)
    assert sampler.metrics() == {"passes": 1, "coverage": 1, "overlong": 5}  # 15 of 15 that fit
    sampler.propose(3)
    assert sampler.metrics() == {"passes": 2, "coverage": 0.2, "overlong": 5}
    assert sum(i < 5 for i in measured) == 5


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
    sampler.observe(np.array([7, 3]), np.array([4, 0]), 20)
    calls = sampler.teacher.update.call_args_list
    assert [call.args for call in calls] == [("7", 4, 20), ("3", 0, 20)]
    assert [call.kwargs["target"](0.2) for call in calls] == pytest.approx([0.4, 0.4])


def test_noise_floor_by_hand():
    # G = 1: y is always 0, and a perfect teacher predicts √(p(1-p)).
    assert s.noise_floor(np.array([0.5]), 1) == pytest.approx(0.5)
    # p = 1/4: y is 1/2 with 6/16, else 0, and a perfect teacher predicts √3/4.
    expected = 0.433013 * 10 / 16 + (0.5 - 0.433013) * 6 / 16
    assert s.noise_floor(np.array([0.25]), 2) == pytest.approx(expected, abs=1e-6)
    # p = 1/2: |0.5 - y| is 0.5 half of the time; dead for sure: 0. Their mean is 0.25 / 3.
    assert s.noise_floor(np.array([0.5, 0.0, 1.0]), 2) == pytest.approx(0.25 / 3)


def test_outcome_metrics_by_hand():
    m = s.outcome_metrics(three(), np.array([5, 0, 2]), 10)
    by_hand = {"reward_mean": 7 / 30, "reward_std_group": (0.5 + 0 + 0.4) / 3, "groups": 3}
    by_hand |= {"reward_std_batch": np.std([1] * 7 + [0] * 23)}
    by_hand |= {"zero_variance": 1 / 3, "zero_variance_easy": 0, "zero_variance_hard": 1 / 3}
    by_hand |= {"live_hard": 1 / 3, "live_easy": 0}
    by_hand |= {"teacher_mae": (abs(0.3 - 0.5) + abs(0.5 - 0) + abs(0.4 - 0.4)) / 3}
    by_hand |= {"teacher_mae_explore": 0.5, "teacher_mae_dead": 0.5, "teacher_mu": 1.9 / 6}
    by_hand |= {"teacher_sigma": np.std([0.1, 0.3, 0.5, 0.2, 0.4, 0.4])}
    by_hand |= {"teacher_noise_floor": s.noise_floor(np.array([0.5, 0, 0.2]), 10)}
    assert m == pytest.approx(by_hand)
    m = s.outcome_metrics(three(), np.array([10, 8, 2]), 10)
    assert m["zero_variance_easy"] == m["live_easy"] == 1 / 3 and m["teacher_mae_dead"] == 0.3
    unscored = s.Selections.unscored(np.array([4, 1, 3]))
    m = s.outcome_metrics(unscored, np.array([5, 0, 2]), 10)
    assert {m[name] for name in m if name.startswith("teacher_")} == {None}


def test_a_class_in_a_file_is_a_sampler_and_names_the_run_directory():
    config = parse("--preset", "demo", "--sampler", "samplers/success_rate.py:SuccessRate")
    assert config.out == "runs/demo-successrate-seed0"

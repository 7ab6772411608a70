"""sampler.py: values computed by hand, drawing without replacement, selection, --sampler."""

import math
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from grpo import Group, noise_floor
from plumbing.errors import InputError
from plumbing.plugins import check_proposals
from sampler import (
    DynamicSampling,
    Goldilocks,
    Pooled,
    Sampler,
    Uniform,
    best,
    deal,
    epsilon_greedy,
    step_metrics,
)
from tests.helpers.groups import problems_of, solved
from tests.helpers.samplers import Numbers, build, take_step

# The protocol


class InFileOrder(Sampler):
    """A sampler with `propose` only."""

    def propose(self, n):
        return self.untried(range(n))


def test_a_sampler_needs_propose_only():
    sampler = build(InFileOrder, Numbers(4), group_size=3)
    step = take_step(sampler, 2, solve=lambda problem, drawn: 1)
    assert step.rounds == [{0: 3, 1: 3}]
    assert sampler.train_on(step.groups, 2) == step.groups
    assert sampler.metrics() == {}


def test_the_base_class_saves_the_state_of_its_random_numbers():
    saved = build(InFileOrder, Numbers(4))
    saved.rng.random(5)
    resumed = build(InFileOrder, Numbers(4))
    resumed.load_state_dict(saved.state_dict())
    assert resumed.rng.random() == saved.rng.random()


class Counting(InFileOrder):
    learned = {"counts": np.array([1, 2])}
    per_problem = {"visits": np.int8(3)}


def test_learned_attributes_begin_with_copies_of_their_values():
    build(Counting, Numbers(4)).counts[0] = 9
    assert build(Counting, Numbers(4)).counts.tolist() == [1, 2]


def test_per_problem_arrays_begin_with_one_value():
    visits = build(Counting, Numbers(4)).visits
    assert visits.tolist() == [3, 3, 3, 3]
    assert visits.dtype == np.int8


def test_a_subclass_learns_what_its_base_class_does():
    class Timing(Counting):
        learned = {"seconds": 0.0}

    state = build(Timing, Numbers(4)).state_dict()
    assert {"counts", "visits", "seconds"} < state.keys()


def test_the_base_class_resumes_with_copies_of_all_that_is_learned():
    saved = build(Counting, Numbers(4))
    saved.counts[1] = 7
    resumed = build(Counting, Numbers(4))
    resumed.load_state_dict(saved.state_dict())
    saved.counts[0] = 9
    saved.visits[0] = 9
    assert resumed.counts.tolist() == [1, 7]
    assert resumed.visits.tolist() == [3, 3, 3, 3]


@pytest.mark.parametrize("problem", [-1, 5, 2.0, "2"])
def test_a_proposed_problem_must_be_an_index(problem):
    message = f"proposes problem {problem!r}: must be an index below 5"
    with pytest.raises(InputError, match=message):
        check_proposals([Group(0, 16), Group(problem, 16)], n_problems=5)


@pytest.mark.parametrize("size", [0, -1, 2.0])
def test_a_proposed_group_must_draw_completions(size):
    message = f"proposes problem 4 with size {size!r}: must be a whole number above 0"
    with pytest.raises(InputError, match=message):
        check_proposals([Group(4, size)], n_problems=5)


def test_a_continued_group_must_be_larger_than_before():
    continued = solved(4, right=1, of=8)
    with pytest.raises(
        InputError, match="proposes problem 4 with size 8: must be a whole number above 8"
    ):
        check_proposals([continued], n_problems=5)
    continued.size = 9
    check_proposals([continued], n_problems=5)


def test_a_round_must_not_propose_a_problem_twice():
    with pytest.raises(InputError, match="proposes a problem twice in a round"):
        check_proposals([Group(4, 16), Group(3, 16), Group(4, 16)], n_problems=5)


def test_problems_and_sizes_may_be_numpy_integers():
    check_proposals([Group(np.int64(4), np.int32(16))], n_problems=5)


# Drawing


SIZES = {"n": st.integers(1, 30), "k": st.integers(1, 8), "seed": st.integers(0, 99)}
TOO_LONG = st.sets(st.integers(0, 29), max_size=8)


@given(**SIZES, too_long=TOO_LONG, data=st.data())
def test_draws_are_distinct_unseen_and_fit(n, k, seed, too_long, data):
    """A problem drawn and not taken returns; a pass ends only where too few problems are left."""
    fitting = set(range(n)) - too_long
    sampler = build(Uniform, Numbers(n), lambda index: index in fitting, seed=seed)
    if len(fitting) < k:
        with pytest.raises(InputError, match=f"only {len(fitting)} of {n} fit --max"):
            sampler.draw(k)
        return
    left = fitting
    passes = 1
    for _ in range(6):
        drawn = sampler.draw(k).tolist()
        if sampler.passes > passes:
            assert len(left) < k
            left = fitting
            passes += 1
        assert len(set(drawn)) == k
        assert set(drawn) <= left
        taken = drawn[: data.draw(st.integers(0, k))]
        sampler.take(np.array(taken, dtype=np.int64))
        left = left - set(taken)


def test_draw_is_uniform():
    sampler = build(Uniform, Numbers(6))
    drawn = np.concatenate([sampler.draw(2) for _ in range(6000)])
    counts = np.bincount(drawn, minlength=6)
    five_deviations = 5 * np.sqrt(2000 * 2 / 3)
    assert counts.tolist() == pytest.approx([2000] * 6, abs=five_deviations)


def test_uniform_proposes_groups_of_the_group_size_without_predictions():
    [proposed] = build(Uniform, Numbers(1), group_size=4).propose(1)
    assert proposed.problem == 0
    assert proposed.size == 4
    assert proposed.pool == [0]
    assert math.isnan(proposed.utility)
    assert proposed.explored


# Selection


def test_epsilon_greedy_by_hand():
    """Of three rows with K = 3 the first and third draw below ε = 0.2: they explore."""
    rng = SimpleNamespace(
        random=lambda n: np.array([0.1, 0.2, 0.19]),
        integers=lambda high, size: {(3, 3): np.array([2, 2, 0])}[high, size],
    )
    utilities = np.array([[0.1, 0.4, 0.2], [0.1, 0.4, 0.2], [0.5, 0.4, 0.2]])
    chosen, explored = epsilon_greedy(utilities, 0.2, rng)
    assert chosen.tolist() == [2, 1, 0]
    assert explored.tolist() == [True, False, True]


def test_deal_gives_each_pool_one_candidate_in_turn():
    """Positions in the order of rank are 3, 1, 4, 0, 5, 2."""
    dealt = deal(np.array([0.4, 0.2, 0.9, 0.1, 0.3, 0.5]), n=2)
    assert dealt.tolist() == [[3, 4, 5], [1, 0, 2]]


def test_deal_keeps_the_order_of_ties():
    assert deal(np.zeros((2, 2)), n=2).tolist() == [[0, 2], [1, 3]]


def test_best_keeps_the_order_of_the_step_and_of_ties():
    first, second, third, fourth = (solved(i, right) for i, right in enumerate((1, 8, 1, 4)))
    groups = [first, second, third, fourth]
    kept = best(groups, 3, key=lambda one: one.successes)
    assert kept == [first, second, fourth]


def test_best_returns_all_of_a_short_step():
    groups = [solved(0, 1), solved(1, 2)]
    assert best(groups, 3, key=lambda one: one.successes) == groups


def test_goldilocks_takes_the_best_of_each_pool_and_never_twice():
    sampler = build(Goldilocks, Numbers(200))  # its teacher predicts i/1000
    seen = []
    for _ in range(5):
        for proposed in sampler.propose(4):
            assert proposed.problem == max(proposed.pool)
            assert proposed.utility == proposed.problem / 1000
            assert not proposed.explored
            seen.append(proposed.problem)
    assert len(set(seen)) == 20


def test_goldilocks_sends_groups_to_the_teacher_in_order():
    sampler = build(Goldilocks, Numbers(200))
    sampler.observe([solved(7, right=4, of=20), solved(3, right=0, of=5)])
    first, second = sampler.teacher.updates
    assert first == ("7", pytest.approx(0.4))  # √(0.2 · 0.8)
    assert second == ("3", 0)


def test_goldilocks_teaches_the_factor_of_the_runs_advantages():
    sampler = build(Goldilocks, Numbers(200), advantage_std="none")
    sampler.observe([solved(7, right=4, of=20)])
    [update] = sampler.teacher.updates
    assert update.y == pytest.approx(0.16)  # 0.2 · 0.8


class Scoring(Pooled):
    """Scores problem i as i/1000."""

    def score(self, pool_N_K):
        return pool_N_K / 1000


class Exploring(Scoring):
    """The same, with --epsilon."""

    flags = ("candidates", "epsilon")


@pytest.mark.parametrize("cls", [Scoring, Exploring])
def test_only_a_sampler_that_takes_epsilon_explores(cls):
    [proposed] = build(cls, Numbers(200), epsilon=1.0).propose(1)
    assert proposed.explored == (cls is Exploring)


BAD_SCORES = {  # of 2 pools of 8
    "`score` is NaN or infinite": np.full((2, 8), np.nan),
    "`score` has shape .2, 1.: must have that of the pool, .2, 8.": np.zeros((2, 1)),
    "`score` returns no numbers": [["high"] * 8] * 2,
}


@pytest.mark.parametrize("message", BAD_SCORES)
def test_a_score_that_is_not_a_number_for_each_candidate_is_rejected(message):
    sampler = build(Goldilocks, Numbers(200), candidates=8)
    sampler.score = lambda pool_N_K: BAD_SCORES[message]
    with pytest.raises(InputError, match=message):
        sampler.propose(2)


def test_a_problem_that_is_no_index_is_an_error():
    """It would be rounded to another problem."""
    with pytest.raises(TypeError, match="integer"):
        build(Uniform, Numbers(9)).untried([1.5])


# DAPO's resampling


class Pairs(Sampler):
    """Proposes problems 0 and 1, then 2 and 3, and so on."""

    def __init__(self, context):
        super().__init__(context)
        self.next = 0
        self.observed = []

    def propose(self, n):
        self.next += n
        return self.untried(range(self.next - n, self.next))

    def observe(self, groups):
        self.observed.append(problems_of(groups))


def resampling(live: set[int], rounds: int):
    """Return a DynamicSampling, its inner sampler, and a `solve` that makes these problems live."""
    inner = build(Pairs, Numbers(20), group_size=2)
    sampler = DynamicSampling(inner, rounds)
    return sampler, inner, lambda problem, drawn: int(problem in live)


RESAMPLED = {  # live problems -> problems of each round
    "enough live at once": ({0, 1}, [2]),
    "enough live after two rounds": ({0, 2}, [2, 2]),
    "too few live": ({0}, [2, 2, 2]),
    "live in the last round alone": ({4, 5}, [2, 2, 2]),
}


@pytest.mark.parametrize("case", RESAMPLED)
def test_dynamic_sampling_ends_with_enough_live_groups_or_after_its_rounds(case):
    live, sizes = RESAMPLED[case]
    sampler, _, solve = resampling(live, rounds=2)
    assert take_step(sampler, 2, solve).sizes() == sizes


def test_dynamic_sampling_counts_anew_in_each_step():
    sampler, inner, solve = resampling({0, 1, 8}, rounds=2)
    assert take_step(sampler, 2, solve).rounds == [{0: 2, 1: 2}]
    assert take_step(sampler, 2, solve).rounds == [{2: 2, 3: 2}, {4: 2, 5: 2}, {6: 2, 7: 2}]
    assert inner.observed == [[0, 1], [2, 3], [4, 5], [6, 7]]


def test_dynamic_sampling_trains_on_live_groups_before_dead_ones():
    groups = [solved(problem, right) for problem, right in enumerate((0, 1, 16, 3, 0))]
    assert problems_of(DynamicSampling.train_on(groups, 1)) == [1]
    assert problems_of(DynamicSampling.train_on(groups, 3)) == [0, 1, 3]
    assert problems_of(DynamicSampling.train_on(groups, 9)) == [0, 1, 2, 3, 4]


class Revisiting(Sampler):
    """Proposes problem 7 in every round."""

    def propose(self, n):
        return self.untried([7])


def test_two_groups_of_one_problem_are_two_groups_under_dapo():
    sampler = DynamicSampling(build(Revisiting, Numbers(8), group_size=2), rounds=2)
    step = take_step(sampler, 1, solve=lambda problem, drawn: 0)
    assert problems_of(step.groups) == [7, 7, 7]
    assert [len(each.completions) for each in step.groups] == [2, 2, 2]
    assert len(sampler.train_on(step.groups, 2)) == 2


# Metrics of a step


def three(*successes) -> list[Group]:
    """Groups of ten with pools of two; the second one explored."""
    right_2, right_3, right_5 = successes
    return [
        solved(2, right_2, of=10, pool=[1, 2], utilities=[0.1, 0.3], explored=False),
        solved(3, right_3, of=10, pool=[3, 4], utilities=[0.5, 0.2], explored=True),
        solved(5, right_5, of=10, pool=[5, 6], utilities=[0.4, 0.4], explored=False),
    ]


def test_step_metrics_of_rewards_by_hand():
    metrics = step_metrics(three(5, 0, 2), [])
    assert metrics["reward_mean"] == 7 / 30
    assert metrics["reward_std_group"] == pytest.approx((0.5 + 0 + 0.4) / 3)
    assert metrics["reward_std_batch"] == pytest.approx(np.std([1] * 7 + [0] * 23))
    assert metrics["zero_variance"] == 1 / 3
    assert metrics["zero_variance_easy"] == 0
    assert metrics["zero_variance_hard"] == 1 / 3
    assert metrics["groups"] == 3
    assert metrics["completions"] == 30


def test_step_metrics_of_the_teacher_by_hand():
    """y is 0.5, 0 and 0.4; the predictions were 0.3, 0.5 and 0.4."""
    metrics = step_metrics(three(5, 0, 2), [])
    assert metrics["teacher_mae"] == pytest.approx((0.2 + 0.5 + 0) / 3)
    assert metrics["teacher_mae_explore"] == 0.5
    assert metrics["teacher_mae_dead"] == 0.5
    floors = [noise_floor(0.5, 10), noise_floor(0, 10), noise_floor(0.2, 10)]
    assert metrics["teacher_noise_floor"] == pytest.approx(sum(floors) / 3)
    candidates = [0.1, 0.3, 0.5, 0.2, 0.4, 0.4]
    assert metrics["teacher_mu"] == pytest.approx(np.mean(candidates))
    assert metrics["teacher_sigma"] == pytest.approx(np.std(candidates))


def test_step_metrics_of_an_easy_group():
    metrics = step_metrics(three(10, 8, 2), [])
    assert metrics["zero_variance_easy"] == 1 / 3
    assert metrics["zero_variance_hard"] == 0
    assert metrics["teacher_mae_dead"] == 0.3  # predicted for the easy one


def test_step_metrics_without_predictions():
    metrics = step_metrics([solved(7, 4, of=8), solved(9, 0, of=8)], [])
    teacher = [name for name in metrics if name.startswith("teacher_")]
    assert [metrics[name] for name in teacher] == [None] * 6
    assert metrics["reward_mean"] == 0.25


def test_step_metrics_where_some_groups_have_predictions():
    """Such as a round of a sampler that scores only some of its problems; it scores 0.3 and 0.1."""
    scored = solved(7, 8, pool=[7, 9], utilities=[0.3, 0.1])
    metrics = step_metrics([scored, solved(3, 0)], [])
    assert metrics["teacher_mae"] == pytest.approx(0.2)
    assert metrics["teacher_mae_dead"] is None
    assert metrics["teacher_mu"] == pytest.approx(0.2)
    assert metrics["teacher_sigma"] == pytest.approx(0.1)


def test_step_metrics_weigh_groups_by_their_sizes_in_the_mean_reward_alone():
    metrics = step_metrics([solved(1, 1, of=2), solved(2, 0, of=8)], [])
    assert metrics["reward_mean"] == 0.1  # of 10 completions
    assert metrics["reward_std_group"] == 0.25  # of 2 groups


def test_step_metrics_of_the_groups_that_are_trained_on():
    """As with DAPO, whose update leaves out dead ones."""
    groups = three(5, 0, 0)
    assert step_metrics(groups, groups[:2])["trained_live"] == 0.5
    assert step_metrics(groups, [])["trained_live"] is None

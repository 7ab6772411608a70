"""sampler.py: values computed by hand, drawing without replacement, selection, rounds."""

from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from plumbing.plugins import sampler_settings
from sampler import (
    Goldilocks,
    Sampler,
    Uniform,
    check_enough,
    epsilon_greedy,
    find_sampler,
    join,
)
from tests.helpers.checkpoints import through_file
from tests.helpers.checks import rejected
from tests.helpers.groups import group, problems_of, solved
from tests.helpers.samplers import Numbers, build, take_step, train_on

# The base class


class Pairs(Sampler):
    """Proposes problems 0 and 1, then 2 and 3, and so on: a sampler with `propose` alone."""

    def __init__(self, context, width=0.5):
        super().__init__(context)
        self.width = width
        self.next = 0
        self.seen = {"counts": np.zeros(2)}
        self._cache = object()  # could not be saved

    def propose(self, P):
        self.next += P
        return self.new_groups(range(self.next - P, self.next))


def test_a_sampler_needs_propose_alone():
    sampler = build(Pairs, Numbers(4), group_size=3)
    [groups] = rounds = take_step(sampler, solve=lambda problem, size: 1)
    assert [(group.problem, group.size) for group in groups] == [(0, 3), (1, 3)]
    assert train_on(sampler, rounds) == groups
    assert sampler.metrics() == {}


def test_a_resume_has_all_attributes_but_those_given_or_made_again():
    saved = build(Pairs, Numbers(4))
    saved.propose(2)
    saved.seen["counts"][1] = 7
    state = through_file(saved.state_dict())
    assert state.keys() == {"rng", "next", "seen", "P", "G", "resample_rounds"}
    resumed = build(Pairs, Numbers(4))
    resumed.load_state_dict(state)
    assert problems_of(resumed.propose(2)) == [2, 3]
    assert resumed.seen["counts"].tolist() == [0, 7]


def test_a_setting_is_state_only_if_the_sampler_has_changed_it():
    """Else a resume would have the default of the code that wrote the checkpoint."""
    sampler = build(Pairs, Numbers(4), settings={"width": 0.9}, sampler_args="width=0.9")
    assert "width" not in sampler.state_dict()
    sampler.width = 0.8
    assert sampler.state_dict()["width"] == 0.8


def test_a_sampler_that_reads_a_column_says_that_it_needs_one():
    with rejected("needs --column"):
        build(Uniform, Numbers(9), column="").categories()


# DAPO's resampling

RESAMPLED = {  # live problems -> proposals of the step
    (0, 1): 1,
    (0, 2): 2,
    (0,): 3,  # too few are live
    (4, 5): 3,
}


@pytest.mark.parametrize("live", RESAMPLED)
def test_resampling_ends_with_enough_live_groups_or_after_its_rounds(live):
    """Also in a second step, whose problems are dead: it counts anew."""
    sampler = build(Pairs, Numbers(20), resample_rounds=2)
    steps = [take_step(sampler, lambda problem, size: int(problem in live)) for _ in range(2)]
    assert [len(rounds) for rounds in steps] == [RESAMPLED[live], 3]


@pytest.mark.parametrize("resample_rounds", [0, 2])
def test_a_sampler_that_proposes_fewer_problems_has_as_many_rounds(resample_rounds):
    """Two of P = 3 problems; all are dead."""
    sampler = build(Pairs, Numbers(20), resample_rounds=resample_rounds, prompts_per_step=3)
    assert len(take_step(sampler, lambda problem, size: 0)) == 1 + resample_rounds


def test_resampling_trains_on_live_groups_before_dead_ones():
    """In the order of the step; a dead one only where live ones are too few."""
    groups = [solved(*each) for each in enumerate((0, 1, 16, 3, 0))]
    sampler = build(Pairs, Numbers(20), resample_rounds=1, prompts_per_step=3)
    assert problems_of(train_on(sampler, [groups])) == [0, 1, 3]


def test_join_merges_the_groups_of_a_problem_in_their_order():
    """The groups of the step stay as they are, to be logged."""
    first, other, second = solved(7, 1, of=4), solved(5, 0, of=4), solved(7, 3, of=12)
    seven, five = join([first, other, second])
    assert (seven.problem, seven.size, five.problem) == (7, 16, 5)
    assert seven.completions == first.completions + second.completions
    assert (first.size, len(first.completions)) == (4, 4)


# Drawing


@given(
    n=st.integers(1, 30),
    k=st.integers(1, 8),
    too_long=st.sets(st.integers(0, 29), max_size=8),
)
def test_draws_are_distinct_unseen_and_fit(n, k, too_long):
    """A pass ends only where too few problems are left."""
    fitting = set(range(n)) - too_long
    assume(len(fitting) >= k)
    sampler = build(Uniform, Numbers(n), fits=fitting.__contains__)
    left = set(fitting)
    for _ in range(6):
        drawn = sampler.draw(k).tolist()
        if len(left) < k:
            left = set(fitting)
        assert len(set(drawn)) == k
        assert left.issuperset(drawn)
        left -= set(drawn)


def test_a_draw_of_more_problems_than_fit_is_rejected():
    sampler = build(Uniform, Numbers(9), fits=lambda index: index < 5)
    with rejected("6 distinct problems, only 5 of 9 fit --max_prompt_tokens"):
        sampler.draw(6)


def test_draw_is_uniform():
    sampler = build(Uniform, Numbers(6))
    drawn = np.concatenate([sampler.draw(2) for _ in range(6000)])
    five_deviations = 5 * np.sqrt(2000 * 2 / 3)
    assert np.bincount(drawn).tolist() == pytest.approx([2000] * 6, abs=five_deviations)


# Selection


def test_epsilon_greedy_by_hand():
    """Of three rows with K = 3 the first and third draw below ε = 0.2: they explore."""
    rng = SimpleNamespace(
        random=lambda P: np.array([0.1, 0.2, 0.19]),
        integers=lambda high, size: {(3, 3): np.array([2, 2, 0])}[high, size],
    )
    utilities = np.array([[0.1, 0.4, 0.2], [0.1, 0.4, 0.2], [0.5, 0.4, 0.2]])
    chosen, explored = epsilon_greedy(utilities, 0.2, rng)
    assert chosen.tolist() == [2, 1, 0]
    assert explored.tolist() == [True, False, True]


def test_goldilocks_takes_the_best_of_each_pool():
    sampler = build(Goldilocks, Numbers(200))  # its teacher predicts i/1000
    for chosen in sampler.propose(4):
        assert chosen.problem == max(chosen.pool)
        assert chosen.utility == chosen.problem / 1000
        assert not chosen.explored


def test_a_candidate_that_is_not_chosen_returns_in_the_next_pass_like_the_others():
    """Four steps of ten candidates are a pass over 40 problems. If rejected ones returned sooner,
    the fourth step would choose among them alone."""
    sampler = build(Goldilocks, Numbers(40), candidates=5)
    for passes in (1, 2):
        drawn = []
        for coverage in (0.25, 0.5, 0.75, 1):
            for chosen in sampler.propose(2):
                drawn += chosen.pool
            assert sampler.metrics().items() >= {"passes": passes, "coverage": coverage}.items()
        assert sorted(drawn) == [*range(40)]


DRAWS = {  # sampler, --candidates, --sampler_args -> problems that a step of 2 prompts draws
    ("goldilocks", 4, ""): 8,
    ("goldilocks", "auto", ""): 2,
    ("uniform", 4, ""): 2,
    ("knapsack", 4, ""): 2,
    ("speed", 4, ""): 8,  # four times P by default
    ("speed", 4, "factor=3"): 6,
}


@pytest.mark.parametrize(("name", "candidates", "args"), DRAWS)
def test_fewer_problems_than_a_step_draws_are_rejected_with_both_numbers(name, candidates, args):
    """And so many are enough for a step."""
    needed = DRAWS[name, candidates, args]
    cls = find_sampler(name)
    config = {"sampler": name, "candidates": candidates, "sampler_args": args, "epsilon": 0.5}
    sampler = build(cls, Numbers(20), settings=sampler_settings(cls, args), **config)
    context = sampler.context
    context.fits = lambda index: index < needed
    check_enough(context)
    assert sampler.propose(2)
    context.fits = lambda index: index < needed - 1
    with rejected(f"{needed} distinct problems, only {needed - 1} of 20 fit"):
        check_enough(context)


@pytest.mark.parametrize(("n_problems", "warns"), [(15, True), (16, False)])
def test_a_step_that_chooses_from_most_problems_is_warned_of(n_problems, warns, capsys):
    """Of 2 prompts with 4 candidates each."""
    sampler = build(Goldilocks, Numbers(n_problems), candidates=4)
    check_enough(sampler.context)
    assert (f"chooses from 8 of {n_problems} problems" in capsys.readouterr().out) is warns


TARGETS = {"population": 0.4, "none": 0.16, "mean": 0.4}  # of p̂ = 1/5; half of 4/5 for the mean


@pytest.mark.parametrize("std", TARGETS)
def test_goldilocks_teaches_the_factor_of_the_runs_advantages(std):
    """√(0.2 · 0.8) by default; groups in their order."""
    sampler = build(Goldilocks, Numbers(200), advantage_std=std)
    sampler.observe([solved(7, right=4, of=20), solved(3, right=0, of=5)])
    [first, (question, y)] = sampler.teacher.updates
    assert first == ("7", pytest.approx(TARGETS[std]))
    assert (question, y) == ("3", 0)


def test_goldilocks_teaches_the_std_of_rewards_between_0_and_1():
    """Also a subclass, whose `target` knows only p̂: of halves and 0s, std 1/4; of a dead group."""
    for name in ("goldilocks", "headroom"):
        sampler = build(find_sampler(name), Numbers(200))
        sampler.observe([group(7, [0.5, 0, 0.5, 0]), group(3, [0.1, 0.1])])
        p = 0.5 - (3 / 16) ** 0.5  # p(1-p) = 1/16
        left_to_gain = 1 - p if name == "headroom" else 1
        targets = [y for _, y in sampler.teacher.updates]
        assert targets == pytest.approx([left_to_gain / 4, 0])


def test_a_target_that_no_prediction_can_reach_is_rejected(monkeypatch):
    """Its predictions would all go to 1/2, where they rank noise."""
    monkeypatch.setattr(Goldilocks, "target", lambda self, p_hat: 1 - p_hat)
    with rejected("`target` returns array(0.8)"):
        build(Goldilocks, Numbers(200)).observe([solved(7, right=1, of=5)])

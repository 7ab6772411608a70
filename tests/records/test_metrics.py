"""records/metrics.py: the numbers of a step, by hand."""

import numpy as np
import pytest

from grpo import Group, noise_floor
from records.metrics import History, completion_metrics, reward_metrics, step_metrics
from tests.helpers.groups import completion, group, solved
from tests.helpers.samplers import Numbers


def history(tried) -> History:
    """Steps that tried these problems, of which nothing else is known."""
    rows = [{"step": 1, "chosen": problem, "successes": 0, "completions": 0} for problem in tried]
    return History(rows, Numbers(10))


def test_step_metrics_by_hand():
    """Groups of ten with pools of two; the second one explored. y is 0.5, 0, 0.4 and 0; the
    predictions were 0.3, 0.5, 0.4 and 0.1."""
    groups = [
        solved(2, 5, of=10, pool=[1, 2], utilities=[0.1, 0.3], explored=False),
        solved(2, 0, of=10, pool=[2, 4], utilities=[0.5, 0.2]),
        solved(2, 2, of=10, pool=[2, 6], utilities=[0.4, 0.4], explored=False),
        solved(2, 10, of=10, pool=[2, 8], utilities=[0.1, 0.1], explored=False),
    ]
    candidates = [0.1, 0.3, 0.5, 0.2, 0.4, 0.4, 0.1, 0.1]
    expected = {
        "trained_live": 2 / 3,
        "reward_mean": 17 / 40,
        "reward_std_group": (0.5 + 0 + 0.4 + 0) / 4,
        "reward_std_batch": np.std([1] * 17 + [0] * 23),
        "tried_before": 0,
        "live_but_flat": None,
        "zero_variance": 2 / 4,
        "zero_variance_easy": 1 / 4,
        "zero_variance_hard": 1 / 4,
        "groups": 4,
        "completions": 40,
        "teacher_mae": (0.2 + 0.5 + 0 + 0.1) / 4,
        "teacher_mae_explore": 0.5,
        "teacher_mae_dead": (0.5 + 0.1) / 2,
        "teacher_noise_floor": (noise_floor(0.5, 10) + noise_floor(0.2, 10)) / 4,
        "teacher_mu": np.mean(candidates),
        "teacher_sigma": np.std(candidates),
    }
    metrics = step_metrics(groups, groups[:3], history(tried=()))
    assert {name: metrics[name] for name in expected} == pytest.approx(expected)


def test_reward_metrics_of_rewards_between_0_and_1_by_hand():
    """A live group; one with the format alone; one that is right without it."""
    metrics = reward_metrics([group(1, [0, 0.5]), group(2, [0.1, 0.1]), group(3, [0.9, 0.9])])
    assert metrics == pytest.approx(
        {
            "reward_mean": 2.5 / 6,
            "reward_std_group": 0.25 / 3,
            "reward_std_batch": np.std([0, 0.5, 0.1, 0.1, 0.9, 0.9]),
            "zero_variance": 2 / 3,
            "zero_variance_easy": 1 / 3,
            "zero_variance_hard": 1 / 3,
            "groups": 3,
            "completions": 6,
        }
    )


FLAT = {  # right of 16 in each of n groups, earlier and later -> whether the value is flat
    "not risen": ([1] * 16 + [1] * 16, True),
    # 16 and 34 of 256: the difference is 0.070, 2 errors are 2 √(0.0977 · 0.9023 · 2 / 256) = 0.052
    "risen": ([1] * 16 + [2] * 15 + [4], False),
    # 16 and 28: 0.047, 2 errors are 0.049
    "risen within the error": ([1] * 16 + [2] * 12 + [1] * 4, True),
    "fallen": ([9] * 16 + [1] * 16, True),
    "never right": ([0] * 32, True),
    "too few groups": ([1] * 31, False),
}


@pytest.mark.parametrize("case", FLAT)
def test_a_value_is_flat_if_its_pass_rate_has_not_risen(case):
    rights, flat = FLAT[case]
    outcomes = History([], Numbers(3, values=(0, 1, 0)), "value")
    for n, right in enumerate(rights):
        outcomes.add([solved([0, 2][n % 2], right)])
    assert outcomes.is_flat(0) is outcomes.is_flat(2) is flat
    assert outcomes.is_flat(1) is False  # of another value


def test_live_but_flat_by_hand():
    """Problems 0 and 2 are of a flat value; of four groups one of theirs is live."""
    outcomes = History([], Numbers(3, values=(0, 1, 0)), "value")
    for _ in range(32):
        outcomes.add([solved(0, 1), solved(1, 1)])
    for _ in range(32):
        outcomes.add([solved(1, 9)])
    groups = [solved(0, 3), solved(2, 0), solved(1, 3), solved(1, 0)]
    assert step_metrics(groups, groups, outcomes)["live_but_flat"] == 1 / 4


def test_a_pair_with_few_groups_is_judged_by_the_value_of_the_first_column():
    """32 groups of `mod`, of either size 16, have not risen; those of `sums` have. Of 16 more of
    `mod, 3` that pair has, from 16 to 30 right of 256, but not `mod`, from 24 to 38 of 384."""
    names = ("mod, 3", "mod, 4", "sums, 3", "sums, 4")
    outcomes = History([], Numbers(4, values=names), "family,size")
    for right in [1] * 8 + [9] * 8:
        outcomes.add([solved(0, 1), solved(1, 1), solved(2, right), solved(3, right)])
    assert [outcomes.is_flat(problem) for problem in range(4)] == [True, True, False, False]
    for right in [2] * 14 + [1] * 2:
        outcomes.add([solved(0, right)])
    assert [outcomes.is_flat(problem) for problem in (0, 1)] == [False, True]


def test_step_metrics_are_over_the_groups_that_have_predictions():
    """Without any they are None."""
    without = solved(9, 0)
    metrics = step_metrics([without], [], history(tried=()))
    assert {metrics[name] for name in metrics if name.startswith("teacher_")} == {None}
    scored = solved(7, 8, pool=[7, 9], utilities=[0.3, 0.1])
    metrics = step_metrics([scored, without], [], history(tried=()))
    assert (metrics["teacher_mae"], metrics["teacher_mu"]) == pytest.approx((0.2, 0.2))


def test_the_teachers_errors_are_on_problems_that_no_earlier_step_tried():
    """In any pass. y is 0.5 for both; the mean over candidates is over all."""
    groups = [
        solved(problem, 8, pool=[problem], utilities=[f]) for problem, f in ((3, 0.4), (4, 0))
    ]
    metrics = step_metrics(groups, groups, history(tried={4, 5}))
    assert (metrics["tried_before"], metrics["teacher_mu"]) == (0.5, 0.2)
    assert metrics["teacher_mae"] == metrics["teacher_mae_explore"] == pytest.approx(0.1)
    metrics = step_metrics(groups, groups, history(tried={3, 4}))
    assert metrics["teacher_mae"] is metrics["teacher_noise_floor"] is None


def test_completion_metrics_by_hand():
    """Of four completions one has each status; the second one, of three tokens, is cut off."""
    statuses = ("correct", "no_box", "bad_gold", "timeout")
    one = Group(7, size=4, prompt_ids=[5, 6])
    one.completions = [completion(status=status) for status in statuses]
    one.completions[1].ids = [10, 13, 14]
    one.completions[1].finished = False
    assert completion_metrics([one]) == {
        "truncated": 1 / 4,
        "no_box": 1 / 4,
        "bad_gold": 1 / 4,
        "verify_failures": 1 / 4,
        "completion_tokens": 6,
        "total_tokens": 4 * 2 + 6,
    }

"""step: floors by hand, and the pairs of --trl, with two sides that are not timed."""

import pytest

from benchmarks import step
from benchmarks.memory import shape_of
from tests.helpers.groups import group


def test_a_ratio_is_taken_pair_by_pair():
    """Ratios 0.5, 0.75 and 0.25; the ratio of the medians is 0.75."""
    ours = iter([{"seconds": x, "forwarded_rows": 9} for x in (1.0, 3.0, 4.0)])
    theirs = iter([{"seconds": x} for x in (2.0, 4.0, 16.0)])
    rows, trl_rows = map(list, zip(*step.measured_pairs(ours, theirs, n=3), strict=True))
    table = step.steps_table("title", "ours", rows, "TRL", trl_rows)
    assert "| of a step | ours | TRL | ours / TRL |" in table
    assert "| seconds | 3 (1 to 4) | 4 (2 to 16) | 0.5 (0.25 to 0.75) |" in table
    assert "| forwarded_rows | 9 (9 to 9) | - | - |" in table


def test_floors_by_hand():
    """A group of two rows, one prompt token and one new token each: 3 tokens are forwarded, and if
    the group is live trained on. The rollout reads the weights once, for one new token."""
    shape = shape_of("10m")
    weights = shape.matrices + shape.head
    least = step.floors(shape, (float("inf"), 1e9), [group(0, [1, 0])], ranks=2, size=4)
    assert least["rollout_s"] == pytest.approx(2 * 3 * weights / 2e9)
    assert least["train_s"] == pytest.approx(6 * 3 * weights / 2e9)
    slow = step.floors(shape, (1e6, float("inf")), [group(0, [1, 1])], ranks=1, size=4)
    assert slow["rollout_s"] == pytest.approx(4 * weights / 1e6)
    assert slow["train_s"] == pytest.approx(36 * shape.parameters / 1e6)


@pytest.mark.slow
def test_a_table_of_one_step_with_a_teacher_in_the_process(capfd):
    """With scripted rewards, half of the groups dead."""
    flags = ["--warmup", "0", "--repeats", "1", "--dead", "0.5", "--prompts_per_step", "4"]
    step.main([*flags, "--group_size", "4", "--candidates", "2"])
    table = capfd.readouterr().out
    assert "4 x 4 completions, ranks: 1 student + 0 teacher" in table
    assert "| zero_variance | 0.5 (0.5 to 0.5) | - | - |" in table
    assert table.count("| rollout_s | ") == 1

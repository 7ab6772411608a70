"""step: floors by hand, and the pairs of --trl, with two sides that are not timed."""

import pytest

from benchmarks import step
from benchmarks.memory import Shape, model_config
from tests.helpers.groups import group


def test_a_ratio_is_taken_pair_by_pair_after_the_warm_up():
    """Two sides whose later steps take longer."""
    ours = ({"seconds": 2.0**i, "forwarded_rows": 9} for i in range(9))
    theirs = ({"seconds": 3 * 2.0**i} for i in range(9))
    columns = step.measured_pairs(ours, theirs, warmup=2, repeats=3)
    own, trl, ratios = columns.values()
    assert [row["seconds"] for row in own] == [4, 8, 16]
    assert [row["seconds"] for row in trl] == [12, 24, 48]
    assert ratios == [{"seconds": 1 / 3}] * 3


def test_floors_by_hand():
    """A group of two rows, one prompt token and one new token each: 3 tokens are forwarded, and if
    the group is live trained on. The rollout reads the weights once, for one new token."""
    shape = Shape(model_config("10m"))
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

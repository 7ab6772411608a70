"""step: floors by hand, and the pairs of --trl, with two sides that are counted, not timed."""

import itertools

import pytest

from benchmarks import step
from benchmarks.memory import Shape, model_config
from tests.helpers.groups import group


def sides():
    """Two sides that log their names when asked for a step. Later steps take longer, and TRL's are
    counted from its first, which is not measured."""
    asked = []

    def side(name: str, seconds: float, first: int):
        for number in itertools.count(first):
            asked.append(name)
            yield {"seconds": seconds * 2.0**number, "step": number}

    return side("ours", 1.0, first=1), side("TRL", 2.0, first=0), asked


def test_a_ratio_is_taken_pair_by_pair_after_the_warm_up():
    ours, theirs, _ = sides()
    own, trl, ratios = step.measured_pairs(ours, theirs, warmup=2, repeats=3).values()
    assert [row["seconds"] for row in ratios] == [0.5] * 3
    assert [row["step"] for row in own] == [row["step"] for row in trl] == [3, 4, 5]


def test_the_side_that_goes_first_alternates():
    ours, theirs, asked = sides()
    step.measured_pairs(ours, theirs, warmup=0, repeats=2)
    assert asked[1:] == ["ours", "TRL", "TRL", "ours"]  # TRL's first step is its start


def test_each_pair_prints_its_seconds_and_ratio(capsys):
    ours, theirs, _ = sides()
    step.measured_pairs(ours, theirs, warmup=0, repeats=2)
    assert capsys.readouterr().out.splitlines()[-1] == "ours 4.00 s, TRL 8.00 s, ratio 0.500"


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

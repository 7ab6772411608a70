"""step: the pairs of --trl, with two sides that are not timed, and the table."""

from types import SimpleNamespace

import pytest

from benchmarks import step


def test_sides_alternate():
    order = []
    lengths = {"train": {"completions/mean_length": [20.0]}}
    trainer = SimpleNamespace(_metrics=lengths, args=SimpleNamespace(generation_batch_size=4))
    turns = step.TakeTurns((order.append("ours") for _ in range(3)), trainer)
    turns.on_train_begin()
    for _ in range(3):
        order.append("TRL")
        turns.on_step_end()
    assert order == ["ours", "TRL", "TRL", "ours", "ours", "TRL"]
    assert [row["completion_tokens"] for row in turns.rows["TRL"]] == [80, 80, 80]


def test_a_ratio_is_taken_pair_by_pair():
    """Ratios 0.5, 0.75 and 0.25; the ratio of the medians is 0.75."""
    sides = {"ours": (1.0, 3.0, 4.0), "TRL": (2.0, 4.0, 16.0)}
    rows = {name: [{"seconds": x} for x in seconds] for name, seconds in sides.items()}
    *_, line = step.steps_table(rows).splitlines()
    assert " ".join(line.split()) == "seconds 3 1 4 4 2 16 0.5 0.25 0.75"


@pytest.mark.slow
def test_a_table_of_one_step_with_a_teacher_in_the_process(capfd):
    """With scripted rewards, half of the groups dead."""
    flags = "--warmup 0 --repeats 1 --dead 0.5 --prompts_per_step 4 --group_size 4 --candidates 2"
    step.main(flags.split())
    words = " ".join(capfd.readouterr().out.split())
    assert "4 x 4 completions" in words
    assert " zero_variance 0.5 0.5 0.5 " in words
    assert words.count("rollout_s") == 1

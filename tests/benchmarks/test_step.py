"""step: the pairs of --trl, with two sides that are not timed, and the table."""

import pytest

from benchmarks import step


def test_sides_alternate_and_a_ratio_is_taken_pair_by_pair():
    """Ratios 0.5, 0.75 and 0.25; the ratio of the medians is 0.75."""
    order = []

    def side(name, *seconds):
        for x in seconds:
            order.append(name)
            yield {"seconds": x}

    rows = step.take_turns(side("ours", 1.0, 3.0, 4.0), side("TRL", 2.0, 4.0, 16.0), n=3)
    assert order == ["ours", "TRL", "TRL", "ours", "ours", "TRL"]
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

"""The pairs of trl_speed, with two sides that are counted instead of timed."""

import itertools

from benchmarks.trl_speed import DEAD, measured_pairs

KINDS = len(DEAD)


def sides():
    """Two sides that log their names when asked for a step. Later steps take longer, and TRL's are
    counted from its first, which is not measured."""
    asked = []

    def side(name: str, seconds: float, first: int):
        for step in itertools.count(first):
            asked.append(name)
            yield {"seconds": seconds * 2.0**step, "step": step}

    return side("ours", 1.0, first=1), side("TRL", 2.0, first=1 - KINDS), asked


def test_a_ratio_is_taken_pair_by_pair():
    ours, theirs, _ = sides()
    pairs = measured_pairs(ours, theirs, warmup=0, repeats=3)
    ratios = [pair[2]["seconds"] for rows in pairs.values() for pair in rows]
    assert ratios == [0.5] * 3 * KINDS


def test_warm_up_steps_are_taken_and_not_measured():
    ours, theirs, _ = sides()
    pairs = measured_pairs(ours, theirs, warmup=2, repeats=1)
    first = pairs[DEAD[0]][0][0]
    assert first["step"] == 1 + 2 * KINDS


def test_the_side_that_goes_first_alternates():
    ours, theirs, asked = sides()
    measured_pairs(ours, theirs, warmup=0, repeats=2)
    pairs = asked[KINDS:]  # TRL's first steps are its start
    assert pairs == ["ours", "TRL"] * KINDS + ["TRL", "ours"] * KINDS


def test_each_pair_prints_its_seconds_and_ratio(capsys):
    ours, theirs, _ = sides()
    measured_pairs(ours, theirs, warmup=0, repeats=2)
    lines = capsys.readouterr().out.splitlines()
    assert lines[-1] == "pair 2 of 2, 0% dead: ours 16.00 s, TRL 32.00 s, ratio 0.500"

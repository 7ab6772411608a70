"""Timing beside TRL, with its side replaced; agreement with TRL, where it is installed."""

import importlib.util
import itertools

import pytest

from benchmarks import step, trl_agreement, trl_speed
from tests.helpers.ranks import script


def test_sides_take_turns_and_ratios_are_of_pairs(monkeypatch, capsys):
    order = []

    def steps(side: str, seconds: float):
        for i in itertools.count(1):
            order.append(side)
            yield {"seconds": seconds * i, "cpu_s": seconds, "completion_tokens": 8}

    monkeypatch.setattr(step, "measured_steps", lambda *_, **__: steps("a", 1.0))
    monkeypatch.setattr(trl_speed, "trl_steps", lambda *_: steps("b", 4.0))
    assert trl_speed.main(["--repeats", "2", "--warmup", "1"]) == 0
    # TRL's first two steps, one per share of dead groups, are not measured.
    assert "".join(order) == "bb" + "abab" + "baba" + "abab"
    # The second and third round of the first share: ours 3 and 5 s, TRL's its 5th and 7th step.
    ratios = step.median_range([3 / 20, 5 / 28])
    assert f"| 4 (3 to 5) | 24 (20 to 28) | {ratios} |" in capsys.readouterr().out


@pytest.mark.slow
def test_numbers_agree_with_trl_or_one_line_says_how_to_install_it(tmp_path):
    done = script(trl_agreement.main, tmp_path)
    if importlib.util.find_spec("trl"):
        assert done.statuses == [0], done.out + done.err
        assert done.out.count("intended: ") == 9 and "DISAGREES" not in done.out
    else:
        assert done.statuses == [2] and done.err.count("\n") == 1
        assert "pip install" in done.err and "trl==" in done.err

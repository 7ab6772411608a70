"""fuzz_verifier finds no fault in verify.py, and counts verdicts that are none."""

import pandas

from plumbing.files import write_lines
from tests.helpers.ranks import script
from tests.stress import fuzz_verifier


def test_the_verifier_gives_no_bad_verdict(tmp_path):
    """In a fork: fuzz_verifier measures its largest child, and pytest has had larger ones."""
    golds = tmp_path / "golds.jsonl"
    write_lines(golds, [{"expected_answer": gold} for gold in (r"\frac{1}{2}", "x+1", "}")])
    done = script(fuzz_verifier.main, tmp_path, "--answers", 400, "--golds", golds)
    assert done.statuses == [0], done.out + done.err
    assert "bad verdicts: 0" in done.out


def test_a_hack_that_earns_1_is_a_bad_verdict(capsys):
    case = {"family": "hack", "expected": 0, "status": "correct", "seconds": 0.1, "case": "5 or 6"}
    assert not fuzz_verifier.holds(pandas.DataFrame([case]))
    assert "hack, correct, 5 or 6" in capsys.readouterr().out

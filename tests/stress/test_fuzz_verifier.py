"""fuzz_verifier passes on verify.py and reports the faults of verifiers that have one."""

import sys
from unittest.mock import MagicMock

import pytest

from plumbing.files import write_lines
from tests.helpers.ranks import script
from tests.stress import fuzz_verifier
from verify import Verdict


def test_the_verifier_gives_no_bad_verdict(tmp_path):
    """In a fork: fuzz_verifier measures its largest child, and pytest has had larger ones."""
    golds = tmp_path / "golds.jsonl"
    write_lines(golds, [{"expected_answer": gold} for gold in (r"\frac{1}{2}", "x+1", "}")])
    done = script(fuzz_verifier.main, tmp_path, "--answers", 400, "--calls", 20, "--golds", golds)
    assert done.statuses == [0], done.out + done.err
    assert "right, respelled" in done.out
    assert "bad verdicts: 0" in done.out


@pytest.mark.parametrize(
    ("status", "family"), [("correct", "hack"), ("wrong", "right, respelled"), ("crash", "noise")]
)
def test_a_verifier_with_one_status_for_all_answers_fails(monkeypatch, capsys, status, family):
    verifier = MagicMock()
    verifier.__enter__.return_value = verifier
    verifier.grade.return_value = [Verdict(float(status == "correct"), status)]
    verifier.check_golds = lambda golds: [True] * len(golds)
    monkeypatch.setattr(fuzz_verifier, "Verifier", lambda **settings: verifier)
    monkeypatch.setattr(sys, "argv", ["fuzz_verifier", "--answers", "40", "--calls", "1"])
    assert fuzz_verifier.main() == 1
    assert f"{family}, {status}, gold " in capsys.readouterr().out

"""fuzz_verify: it finds nothing in verify.py, and finds the fault in a verifier that has one."""

import sys
from unittest.mock import MagicMock

import pytest

from plumbing.files import write_lines
from tests.helpers.ranks import script
from tests.stress import fuzz_verifier
from verify import Verdict


def test_nothing_is_found(tmp_path):
    """In a fork: it measures its largest child, and pytest has had larger ones."""
    golds = tmp_path / "golds.jsonl"
    write_lines(golds, [{"expected_answer": gold} for gold in (r"\frac{1}{2}", "x+1", "}")])
    done = script(fuzz_verifier.main, tmp_path, "--answers", 400, "--calls", 20, "--golds", golds)
    assert done.statuses == [0], done.out + done.err
    assert "right, respelled" in done.out and "bad verdicts: 0" in done.out


@pytest.mark.parametrize(
    ("status", "found"), [("correct", "hack"), ("wrong", "right, respelled"), ("crash", "noise")]
)
def test_a_verifier_that_always_says_the_same_is_found(monkeypatch, capsys, status, found):
    verifier = MagicMock()
    verifier.__enter__.return_value = verifier
    verifier.grade.return_value = [Verdict(float(status == "correct"), status)]
    verifier.check_golds = lambda golds: [True] * len(golds)
    monkeypatch.setattr(fuzz_verifier, "Verifier", lambda workers: verifier)
    monkeypatch.setattr(sys, "argv", ["fuzz_verify", "--answers", "40", "--calls", "1"])
    assert fuzz_verifier.main() == 1
    assert f"{found}, {status}, gold " in capsys.readouterr().out


def test_a_file_without_golds_is_refused(tmp_path):
    done = script(fuzz_verifier.main, tmp_path, "--golds", "/dev/null")
    assert done.statuses == [2] and "no line of it has expected_answer" in done.err

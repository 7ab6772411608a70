"""fuzz_verify: it finds nothing in verify.py, and finds the fault in a verifier that has one."""

import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from scripts import fuzz_verify
from verify import Verdict

ROOT = Path(__file__).resolve().parent.parent


def run(monkeypatch, *options) -> int:
    monkeypatch.setattr(sys, "argv", ["fuzz_verify", *map(str, options)])
    return fuzz_verify.main()


def test_nothing_is_found(tmp_path):
    """In a process of its own: it measures its largest child, and pytest has had larger ones."""
    golds = [{"expected_answer": gold} for gold in (r"\frac{1}{2}", "x+1", "}")]
    (tmp_path / "golds.jsonl").write_text("".join(json.dumps(gold) + "\n" for gold in golds))
    command = [sys.executable, "-m", "scripts.fuzz_verify", "--answers", "99", "--calls", "20"]
    command += ["--golds", str(tmp_path / "golds.jsonl")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "right, respelled" in done.stdout and "bad verdicts: 0" in done.stdout


class Constant(fuzz_verify.Verifier):
    """Says the same of everything, without a worker."""

    def __init__(self, status: str):
        self.status, self.pool = status, SimpleNamespace(settle=lambda: None)

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        pass

    def grade(self, completions, golds):
        return [Verdict(float(self.status == "correct"), self.status)] * len(golds)

    def check_golds(self, golds):
        return [True] * len(golds)


@pytest.mark.parametrize(("status", "found"), [("correct", "hack"), ("wrong", "right, respelled")])
def test_a_verifier_that_always_says_the_same_is_found(monkeypatch, capsys, status, found):
    monkeypatch.setattr(fuzz_verify, "Verifier", lambda workers: Constant(status))
    assert run(monkeypatch, "--answers", 40, "--calls", 1) == 1
    assert f"{found}, {status}, gold " in capsys.readouterr().out


def test_a_file_without_golds_is_refused(monkeypatch, capsys, tmp_path):
    (tmp_path / "empty.jsonl").write_text('{"question": "1+1"}\n')
    with pytest.raises(SystemExit, match="2"):
        run(monkeypatch, "--golds", tmp_path / "empty.jsonl")
    assert "it needs lines with expected_answer" in capsys.readouterr().err

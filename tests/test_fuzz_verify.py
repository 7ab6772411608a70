"""fuzz_verify: it finds nothing in verify.py, and finds the fault in a verifier that has one."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "scripts"))
import fuzz_verify

from verify import Verdict


def run(monkeypatch, *options) -> int:
    monkeypatch.setattr(sys, "argv", ["fuzz_verify", *map(str, options)])
    return fuzz_verify.main()


def test_nothing_is_found(tmp_path):
    """In a process of its own: it measures the largest child of its process, and pytest has had larger ones."""
    golds = tmp_path / "golds.jsonl"
    golds.write_text(
        "".join(
            json.dumps({"expected_answer": gold}) + "\n" for gold in (r"\frac{1}{2}", "x+1", "}")
        )
    )
    command = [sys.executable, fuzz_verify.__file__, "--answers", "99", "--calls", "20"]
    done = subprocess.run([*command, "--golds", str(golds)], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "right, respelled" in done.stdout and "bad verdicts: 0" in done.stdout


class Constant(fuzz_verify.Verifier):
    """Says the same of everything, without a worker."""

    def __init__(self, status: str):
        super().__init__()
        self.verdict = Verdict(float(status == "correct"), status)

    def __enter__(self):
        return self

    def grade(self, completions, golds):
        return [self.verdict] * len(golds)

    def check_golds(self, golds):
        return [True] * len(golds)


@pytest.mark.parametrize(
    ("status", "found"), [("correct", "hack: gold"), ("wrong", "right, respelled: gold")]
)
def test_a_verifier_that_always_says_the_same_is_found(monkeypatch, capsys, status, found):
    monkeypatch.setattr(fuzz_verify, "Verifier", lambda workers: Constant(status))
    assert run(monkeypatch, "--answers", 40, "--calls", 1) == 1
    assert found in capsys.readouterr().out


def test_a_file_without_golds_is_refused(monkeypatch, capsys, tmp_path):
    (tmp_path / "empty.jsonl").write_text('{"question": "1+1"}\n')
    with pytest.raises(SystemExit, match="2"):
        run(monkeypatch, "--golds", tmp_path / "empty.jsonl")
    assert "it needs lines with expected_answer" in capsys.readouterr().err

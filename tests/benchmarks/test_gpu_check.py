"""gpu_check: failing commands."""

import pytest

from benchmarks import gpu_check


def test_a_command_that_fails_or_hangs_is_an_error(monkeypatch):
    with pytest.raises(gpu_check.CheckError, match="-c 'exit\\(3\\)': status 3"):
        gpu_check.run("-c 'exit(3)'")
    monkeypatch.setattr(gpu_check, "MINUTES", 0.01)
    with pytest.raises(gpu_check.CheckError, match=r"stopped after 0\.01 minutes"):
        gpu_check.run("-c 'import time; time.sleep(60)'")


def test_a_part_that_fails_does_not_stop_the_others(monkeypatch, capsys):
    lines = {"tests": ["-c 'exit(1)'"], "step": ["-c 'print()'"]}
    monkeypatch.setattr(gpu_check, "commands", lambda part, dry, runs: lines[part])
    assert gpu_check.main(["--dry", "tests", "step"]) == 1
    out = capsys.readouterr().out
    assert "tests: FAILED: -c 'exit(1)': status 1\nstep: passed\n" in out

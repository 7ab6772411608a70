"""gpu_check: failing commands."""

import pytest

from benchmarks import gpu_check


def test_a_command_that_fails_or_hangs_is_reported_with_its_error(tmp_path, monkeypatch):
    with pytest.raises(gpu_check.CheckError, match=r"status 3: error: full \(see .*x.log\)"):
        gpu_check.run(tmp_path / "x.log", "-c", "print('error: full\\nmore'); exit(3)")
    monkeypatch.setattr(gpu_check, "MINUTES", 0.01)
    with pytest.raises(gpu_check.CheckError, match=r"stopped after 0\.01 minutes"):
        gpu_check.run(tmp_path / "y.log", "-c", "import time; time.sleep(60)")


def test_a_part_that_fails_does_not_stop_the_others(tmp_path, monkeypatch, capsys):
    def broken(args):
        raise gpu_check.CheckError("no")

    monkeypatch.setattr(gpu_check, "PARTS", {"broken": broken, "whole": lambda args: "fine"})
    assert gpu_check.main(["--dry", "--out", str(tmp_path)]) == 1
    out = capsys.readouterr().out
    assert "broken, 0 s, FAILED: no" in out
    assert "whole, 0 s, passed: fine" in out

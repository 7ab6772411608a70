"""gpu_check: failing commands, and parts at dry sizes."""

import re

import pytest

from benchmarks import gpu_check


def test_a_command_that_fails_or_hangs_is_reported_with_its_error(tmp_path, monkeypatch):
    with pytest.raises(gpu_check.CheckError, match=r"status 3: error: full \(see .*x.log\)"):
        gpu_check.run(tmp_path / "x.log", "-c", "print('error: full\\nmore'); exit(3)")
    log = tmp_path / "y.log"
    log.write_text("began\n")  # not by the command: its Python may start too late
    monkeypatch.setattr(gpu_check, "MINUTES", 0.01)
    with pytest.raises(gpu_check.CheckError, match=r"stopped after 0\.01 minutes: began"):
        gpu_check.run(log, "-c", "import time; time.sleep(60)")


@pytest.mark.slow
def test_counts_are_of_one_step(tmp_path):
    """Without a card nothing is captured; the demo decodes a token with some hundred operations."""
    counts = gpu_check.counts(tmp_path, dry=True)
    assert counts.startswith("captures 0, cudaMallocs 0, host synchronisations 0; ")
    operations = int(re.search(r"a decoded token (\d+)", counts)[1])
    assert operations > 100
    assert operations < 400


@pytest.mark.slow
def test_step_and_memory_run_at_dry_sizes(tmp_path):
    assert gpu_check.step(tmp_path, dry=True).count("x floor") == 4
    assert "measured" in gpu_check.memory(tmp_path, dry=True)

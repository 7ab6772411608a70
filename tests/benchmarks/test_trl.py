"""Agreement with TRL, where it is installed."""

import importlib.util
import subprocess
import sys

import pytest

from tests.helpers.models import ROOT


@pytest.mark.slow
@pytest.mark.skipif(not importlib.util.find_spec("trl"), reason="needs TRL")
def test_numbers_agree_with_trl():
    line = [sys.executable, "-m", "benchmarks.trl_agreement"]
    done = subprocess.run(line, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "All agree" in done.stdout

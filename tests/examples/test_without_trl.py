"""The example where TRL is missing."""

import importlib.util
import subprocess
import sys

import pytest

from tests.helpers.models import ROOT


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("trl") is not None, reason="TRL is installed")
def test_without_trl_one_line_says_how_to_install_it():
    command = [sys.executable, "-m", "examples.trl_demo"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert "pip install -r requirements.txt trl==" in done.stderr

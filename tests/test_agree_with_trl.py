"""TRL is installed for this comparison alone: where it is missing, one line says how to get it."""

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.slow
def test_ours_and_trl_agree_or_one_line_says_what_is_missing():
    command = [sys.executable, "-m", "scripts.agree_with_trl"]
    root = Path(__file__).resolve().parent.parent
    done = subprocess.run(command, capture_output=True, text=True, cwd=root)
    if importlib.util.find_spec("trl"):
        assert done.returncode == 0, done.stdout + done.stderr
        assert done.stdout.count("intended: ") == 9 and "DISAGREES" not in done.stdout
    else:
        assert done.returncode == 2 and done.stderr.count("\n") == 1
        assert "pip install" in done.stderr and "trl==" in done.stderr

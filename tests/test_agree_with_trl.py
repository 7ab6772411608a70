"""TRL is installed for this comparison alone: where it is missing, the script must say how to get it."""

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parent.parent / "scripts/agree_with_trl.py"
HAS_TRL = importlib.util.find_spec("trl") is not None


def run() -> subprocess.CompletedProcess:
    return subprocess.run([sys.executable, str(SCRIPT)], capture_output=True, text=True)


@pytest.mark.skipif(HAS_TRL, reason="TRL is installed here")
def test_without_trl_one_line_says_how_to_install_it():
    done = run()
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert "pip install" in done.stderr and "trl==" in done.stderr


@pytest.mark.slow
@pytest.mark.skipif(not HAS_TRL, reason="needs TRL, in a virtual environment made for it")
def test_ours_and_trl_agree():
    done = run()
    assert done.returncode == 0, done.stdout + done.stderr
    assert "intended" in done.stdout and "DISAGREES" not in done.stdout

"""TRL is installed for this comparison alone: where it is missing, one line says how to get it."""

import importlib.util

import pytest
from ranks import script


@pytest.mark.slow
def test_ours_and_trl_agree_or_one_line_says_what_is_missing():
    done = script("agree_with_trl")
    if importlib.util.find_spec("trl"):
        assert done.returncode == 0, done.stdout + done.stderr
        assert done.stdout.count("intended: ") == 9 and "DISAGREES" not in done.stdout
    else:
        assert done.returncode == 2 and done.stderr.count("\n") == 1
        assert "pip install" in done.stderr and "trl==" in done.stderr

"""TRL is installed for this comparison alone: where it is missing, one line says how to get it."""

import importlib.util

import pytest

from benchmarks import agree_with_trl
from tests.helpers.ranks import script


@pytest.mark.slow
def test_ours_and_trl_agree_or_one_line_says_what_is_missing(tmp_path):
    done = script(agree_with_trl.main, tmp_path)
    if importlib.util.find_spec("trl"):
        assert done.statuses == [0], done.out + done.err
        assert done.out.count("intended: ") == 9 and "DISAGREES" not in done.out
    else:
        assert done.statuses == [2] and done.err.count("\n") == 1
        assert "pip install" in done.err and "trl==" in done.err

"""Agreement with TRL, where it is installed."""

import importlib.util

import pytest

from benchmarks import trl_agreement
from tests.helpers.ranks import script


@pytest.mark.slow
def test_numbers_agree_with_trl_or_one_line_says_how_to_install_it(tmp_path):
    done = script(trl_agreement.main, tmp_path)
    if importlib.util.find_spec("trl"):
        assert done.statuses == [0], done.out + done.err
        assert done.out.count("intended: ") == 9 and "DISAGREES" not in done.out
    else:
        assert done.statuses == [2] and done.err.count("\n") == 1
        assert "pip install" in done.err and "trl==" in done.err

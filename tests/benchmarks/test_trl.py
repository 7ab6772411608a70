"""Agreement with TRL, where it is installed."""

import importlib.util

import pytest

from benchmarks import trl_agreement
from tests.helpers.ranks import script

TRL = importlib.util.find_spec("trl")


@pytest.mark.slow
@pytest.mark.skipif(not TRL, reason="needs TRL")
def test_numbers_agree_with_trl(tmp_path):
    done = script(trl_agreement.main, tmp_path)
    assert done.statuses == [0], done.out + done.err
    assert "All agree" in done.out


@pytest.mark.slow
@pytest.mark.skipif(TRL is not None, reason="TRL is installed")
def test_without_trl_one_line_says_how_to_install_it(tmp_path):
    done = script(trl_agreement.main, tmp_path)
    assert done.statuses == [2]
    assert done.err.count("\n") == 1
    assert "pip install" in done.err
    assert "trl==" in done.err

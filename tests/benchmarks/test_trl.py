"""Agreement with TRL, where it is installed."""

import importlib.util

import pytest

from benchmarks import trl_agreement
from tests.helpers.ranks import script


@pytest.mark.slow
@pytest.mark.skipif(not importlib.util.find_spec("trl"), reason="needs TRL")
def test_numbers_agree_with_trl(tmp_path):
    done = script(trl_agreement.main, tmp_path)
    assert done.statuses == [0], done.out + done.err
    assert "All agree" in done.out

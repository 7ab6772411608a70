"""docs/walkthrough.md is what the code prints today."""

import re
from decimal import Decimal

import pytest

from experiments import walkthrough
from tests.helpers.models import ROOT
from tests.helpers.ranks import script

TEXT = (ROOT / "docs/walkthrough.md").read_text(encoding="utf-8")
DECIMAL = r"-?\d+\.\d+(?:e[-+]\d+)?"


def test_page_is_what_the_code_prints_today(tmp_path):
    """If this fails, regenerate the page and read it."""
    done = script(walkthrough.main, tmp_path)
    assert done.statuses == [0], done.err[-2000:]
    assert re.sub(DECIMAL, "#", TEXT) == re.sub(DECIMAL, "#", done.out)
    for page, code in zip(*(re.findall(DECIMAL, text) for text in (TEXT, done.out)), strict=True):
        # Another CPU may round otherwise: 0.1%, or two last digits.
        last = 10.0 ** Decimal(page).as_tuple().exponent
        assert float(code) == pytest.approx(float(page), rel=1e-3, abs=2.1 * last)

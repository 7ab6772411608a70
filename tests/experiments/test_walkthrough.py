"""docs/walkthrough.md is what the code prints today, and its numbers follow from each other."""

import math
import re
from decimal import Decimal

import pytest

from experiments import walkthrough
from tests.helpers.models import ROOT
from tests.helpers.ranks import script

TEXT = (ROOT / "docs/walkthrough.md").read_text(encoding="utf-8")
DECIMAL = r"-?\d+\.\d+(?:e[-+]\d+)?"


def rows(head: str) -> list[list[str]]:
    """The cells of the table that begins with `head`, without its first two lines."""
    lines = TEXT[TEXT.index(head) :].split("\n\n")[0].splitlines()[2:]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def find(pattern: str) -> list[float]:
    """The numbers where the page matches; # stands for a number, a space for any white space."""
    pattern = re.escape(pattern).replace(r"\#", rf"({DECIMAL}|-?\d+)").replace(r"\ ", r"\s+")
    match = re.search(pattern, TEXT)
    assert match, pattern
    return [float(x) for x in match.groups()]


def test_page_is_what_the_code_prints_today(tmp_path):
    """If this fails, regenerate the page and read it."""
    done = script(walkthrough.main, tmp_path)
    assert done.statuses == [0], done.err[-2000:]
    assert re.sub(DECIMAL, "#", TEXT) == re.sub(DECIMAL, "#", done.out)
    for page, code in zip(*(re.findall(DECIMAL, text) for text in (TEXT, done.out)), strict=True):
        # Another CPU may round otherwise: 0.1%, or two last digits.
        last = 10.0 ** Decimal(page).as_tuple().exponent
        assert float(code) == pytest.approx(float(page), rel=1e-3, abs=2.1 * last)


def test_group_from_its_verdicts_to_its_loss():
    (right, G, p), (B,) = find("so p̂ = #/# = #."), find("so B = P · G = #.")
    y, group = math.sqrt(p * (1 - p)), [list(map(float, r)) for r in rows("| first | times | r")]
    assert G == sum(row[1] for row in group)
    assert right == sum(row[1] * row[2] for row in group) == p * G
    assert find("√(p̂(1 - p̂)) = #.")[0] == pytest.approx(y, abs=1e-4)
    assert find("For p = # that is #, for")[1] == pytest.approx(p**G + (1 - p) ** G, abs=2e-6)
    values = find("gets (1 - p̂)/y = #, a wrong one -p̂/y = #.")
    assert values == pytest.approx([(1 - p) / y, -p / y], abs=1e-4)
    for _, _, r, tokens, A, w, before, ratio, after in group:
        assert (before, after) == pytest.approx((-A / B, -A / B * ratio), abs=3e-6)
        assert (A, w * B * tokens) == pytest.approx(((r - p) / y, 1), abs=1e-4)
    for column, words in ((6, "shares, is # by"), (8, "`grpo.policy_loss` gives #. Below")):
        total = sum(row[1] * row[column] for row in group)
        assert find(words)[0] == pytest.approx(total, abs=1e-5)
    assert find("autograd gives #.")[0] == pytest.approx(-group[0][5] * group[0][4], rel=1e-3)

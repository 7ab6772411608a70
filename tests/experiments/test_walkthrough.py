"""docs/walkthrough.md is what the code prints today, and its numbers follow from each other."""

import difflib
import math
import re

import pytest

from experiments import walkthrough
from tests.helpers.models import ROOT
from tests.helpers.ranks import script

TEXT = (ROOT / "docs/walkthrough.md").read_text(encoding="utf-8")
NUMBER = r"-?\d+(?:\.\d+)?(?:e[-+]\d+)?"


def drift(old: str, new: str) -> list[str]:
    """The differences beyond rounding: any in words and whole numbers; in decimals, more than 0.1%
    and two last digits."""
    decimal = r"-?\d+\.\d+(?:e[-+]\d+)?"
    lines = [re.sub(decimal, "#", text).splitlines() for text in (old, new)]
    differences = list(difflib.unified_diff(*lines, "page", "code", n=0, lineterm=""))
    for x, y in zip(*(re.findall(decimal, text) for text in (old, new)), strict=False):
        mantissa, _, exponent = x.partition("e")
        last = 10.0 ** (int(exponent or 0) - len(mantissa.partition(".")[2]))
        if abs(float(x) - float(y)) > max(2.1 * last, 1e-3 * abs(float(x))):
            differences.append(f"{x} on the page, {y} from the code")
    return differences


def rows(head: str) -> list[list[str]]:
    """The cells of the table that begins with `head`, without its first two lines."""
    lines = TEXT[TEXT.index(head) :].split("\n\n")[0].splitlines()[2:]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def find(pattern: str) -> list[float]:
    """The numbers where the page matches; # stands for a number, a space for any white space."""
    pattern = re.escape(pattern).replace(r"\#", f"({NUMBER})").replace(r"\ ", r"\s+")
    match = re.search(pattern, TEXT)
    assert match, pattern
    return [float(x) for x in match.groups()]


def test_page_is_what_the_code_prints_today(tmp_path):
    done = script(walkthrough.main, tmp_path)
    assert done.statuses == [0], done.err[-2000:]
    differences = drift(TEXT, done.out)
    assert not differences, "\n".join(["regenerate the page and read it:", *differences])


def test_group_from_its_choice_to_its_loss():
    problem, f = max(rows("| problem | text |"), key=lambda row: float(row[2]))[::2]
    assert find("prediction wins: problem # with f = #. With") == [float(problem), float(f)]
    named = re.search(r"in this step\s+for prompts ([\d, ]+), the choice", TEXT)[1].split(", ")
    assert named == [row[0] for row in rows("| prompt |") if row[2] == "explored"]
    right, G, p = find("so p̂ = #/# = #.")
    y, (B,) = math.sqrt(p * (1 - p)), find("so B = P · G = #.")
    assert find("√(p̂(1 - p̂)) = #.")[0] == pytest.approx(y, abs=1e-4)
    assert find("For p = # that is #, for")[1] == pytest.approx(p**G + (1 - p) ** G, abs=2e-6)
    values = find("gets (1 - p̂)/y = #, a wrong one -p̂/y = #.")
    assert values == pytest.approx([(1 - p) / y, -p / y], abs=1e-4)
    group = [list(map(float, row)) for row in rows("| first | times | r")]
    rewards = re.search(r"The\s+rewards are ([01 ]+), so", TEXT)[1].split()
    assert all(row[2] == float(rewards[int(row[0]) - 1]) for row in group)
    assert rewards.count("1") == sum(row[1] * row[2] for row in group) == right == p * G
    assert len(rewards) == sum(row[1] for row in group) == G
    for _, _, r, tokens, A, w, before, ratio, after in group:
        shares = -A / B, -A / B * ratio
        assert (before, after) == pytest.approx(shares, abs=3e-6)
        assert (A, w * B * tokens) == pytest.approx(((r - p) / y, 1), abs=1e-4)
    for column, words in ((6, "shares, is # by"), (8, "`grpo.policy_loss` gives #. Below")):
        total = sum(row[1] * row[column] for row in group)
        assert find(words)[0] == pytest.approx(total, abs=1e-5)
    assert find("autograd gives #.")[0] == pytest.approx(-group[0][5] * group[0][4], rel=1e-3)


def test_dead_groups_and_the_teachers_error():
    groups = rows("| prompt |")
    k = [int(row[4]) for row in groups]
    counts = find("In this step # of the # groups are dead, # all wrong and # all right:")
    assert counts == [k.count(0) + k.count(16), len(k), k.count(0), k.count(16)]
    before, y, after = ([float(row[column]) for row in groups] for column in (3, 5, 6))
    errors = [sum((f - t) ** 2 for f, t in zip(fs, y, strict=True)) for fs in (before, after)]
    errors = [error / len(k) for error in errors]
    assert find("is # before the update and # after it.") == pytest.approx(errors, abs=2e-4)

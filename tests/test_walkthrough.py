"""docs/walkthrough.md is what the code does today, and its sums are right: read back from the page and done again."""

import math
import re
import subprocess
import sys
from pathlib import Path

import pytest
from named import assert_exists

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs/walkthrough.md"
TEXT = PAGE.read_text(encoding="utf-8")
NUMBER = r"-?\d+(?:\.\d+)?(?:e[-+]\d+)?"


def drift(old: str, new: str) -> list[str]:
    """Lines that differ in more than rounding: words and whole numbers at all, decimals by 0.1% or two last digits."""

    def differ(x: str, y: str) -> bool:
        if x.isdigit():
            return x != y
        mantissa, _, exponent = x.partition("e")
        last = 10.0 ** (int(exponent or 0) - len(mantissa.partition(".")[2]))
        return abs(float(x) - float(y)) > max(2.1 * last, 1e-3 * abs(float(x)))

    def differ_in(a: str, b: str) -> bool:
        pairs = zip(re.findall(NUMBER, a), re.findall(NUMBER, b), strict=False)
        return re.sub(NUMBER, "#", a) != re.sub(NUMBER, "#", b) or any(
            differ(x, y) for x, y in pairs
        )

    a, b = old.splitlines(), new.splitlines()
    lines = [f"page: {x}\ncode: {y}" for x, y in zip(a, b, strict=False) if differ_in(x, y)]
    return lines + [f"{len(a)} lines on the page, {len(b)} from the code"] * (len(a) != len(b))


def rows(head: str) -> list[list[str]]:
    """The cells of the table that begins with `head`, without its first two lines."""
    lines = TEXT[TEXT.index(head) :].split("\n\n")[0].splitlines()[2:]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def find(pattern: str) -> list[float]:
    """The numbers where the text of the page matches; # stands for a number, a space for any white space."""
    pattern = re.escape(pattern).replace(r"\#", f"({NUMBER})").replace(r"\ ", r"\s+")
    match = re.search(pattern, TEXT)
    assert match, pattern
    return [float(x) for x in match.groups()]


def test_page_is_what_the_code_writes_today(tmp_path):
    out = tmp_path / "walkthrough.md"
    command = [sys.executable, str(ROOT / "scripts/walkthrough.py"), "--out", str(out)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    found = drift(TEXT, out.read_text(encoding="utf-8"))
    assert not found, "\n".join(
        ["run python scripts/walkthrough.py and read what changed:", *found]
    )


def test_drift_is_noticed():
    assert drift(TEXT, TEXT) == []
    line = "| 1 | 0 | 22 | -0.5774 | 1.5783e-04 | right |"
    assert not drift(line, line.replace("0.5774", "0.5775"))
    for old, new in (
        ("0.5774", "0.5790"),
        ("22", "23"),
        ("right", "wrong"),
        ("1.5783", "1.5800"),
        ("-0.5", "0.5"),
    ):
        assert drift(line, line.replace(old, new)), new
    assert drift("a\nb", "a")


def test_choice_is_the_argmax_of_its_pool():
    pool = [
        (int(i), float(cell.split()[0]), "chosen" in cell)
        for i, _, cell in rows("| problem | text |")
    ]
    best = max(pool, key=lambda row: row[1])
    assert best[2] and [row[2] for row in pool].count(True) == 1
    assert find("problem # with f = #") == list(best[:2])
    draw, epsilon = find("r = # was drawn. It is not below ε = #")
    assert draw >= epsilon
    explored = [i + 1 for i, row in enumerate(rows("| prompt |")) if row[2] == "explored"]
    named = re.findall(r"(\d+) \(r = ([\d.]+)\)", TEXT)
    assert [int(i) for i, _ in named] == explored and all(float(r) < epsilon for _, r in named)


def test_rewards_utility_and_eq_1():
    rewards = [int(r) for r in re.search(r"Rewards:\n\n    ([01 ]+)\n", TEXT)[1].split()]
    right, G, p = find("So p̂ = #/# = #.")
    assert (sum(rewards), len(rewards)) == (right, G) and p == pytest.approx(right / G, abs=1e-4)
    assert [int(row[1]) for row in rows("| completion | r |")[:-1]] == rewards
    assert find("√(p̂(1 - p̂)) = #.")[0] == pytest.approx(math.sqrt(p * (1 - p)), abs=1e-4)
    assert find(f"For p = {p:.4f} that is #.")[0] == pytest.approx(p**G + (1 - p) ** G, abs=2e-6)
    half, hard = find("For p = 0.5 it is #, for p = 0.01 it is #.")
    assert (half, hard) == pytest.approx((2 * 0.5**G, 0.01**G + 0.99**G), abs=2e-6)


def test_advantages_weights_and_loss_of_the_group():
    p = find("So p̂ = #/# = #.")[2]
    y, (B,) = math.sqrt(p * (1 - p)), find("so B = P · G = #;")
    assert find("right: (1 - p̂)/y. By hand: #/# = #. The code has #.")[2:] == pytest.approx(
        [(1 - p) / y] * 2, abs=2e-4
    )
    assert find("wrong: -p̂/y. By hand: -#/# = #. The code has #.")[2:] == pytest.approx(
        [-p / y] * 2, abs=2e-4
    )
    *group, _ = [
        [float(cell or "nan") if cell != "sum" else cell for cell in row]
        for row in rows("| completion | r |")
    ]
    for _, r, tokens, A, w, before, ratio, after in group:
        assert pytest.approx((r - p) / y, abs=1e-4) == A
        assert w == pytest.approx(1 / (B * tokens), rel=1e-4)
        assert (before, after) == pytest.approx(
            (-tokens * w * A, -tokens * w * A * ratio), abs=3e-6
        )
    for column, words in (
        (5, "`grpo.policy_loss` gives #, and"),
        (7, "`grpo.policy_loss` gives #. Tokens clipped: 0."),
    ):
        assert find(words)[0] == pytest.approx(sum(row[column] for row in group), abs=1e-5)
    assert find("for the whole batch, is #.") == [0]
    assert find("autograd left #.")[0] == pytest.approx(-group[0][4] * group[0][3], rel=1e-3)


def test_dead_groups_and_the_teacher():
    groups = rows("| prompt |")
    k = [int(row[4]) for row in groups]
    dead, P, wrong, right = find(
        "# of the # groups of this step are dead, # all wrong and # all right."
    )
    assert (wrong, right, P, dead) == (k.count(0), k.count(16), len(k), k.count(0) + k.count(16))
    assert ["dead" in row[7] for row in groups] == [x in (0, 16) for x in k]
    assert find("`zero_variance` in metrics.jsonl is #.")[0] == pytest.approx(dead / P, abs=1e-4)
    assert find("`forwarded_rows` is #")[0] == (P - dead) * 16
    before, y, after = ([float(row[column]) for row in groups] for column in (3, 5, 6))
    assert y == pytest.approx([math.sqrt(x / 16 * (1 - x / 16)) for x in k], abs=1e-4)
    errors = [[(f - t) ** 2 for f, t in zip(fs, y, strict=True)] for fs in (before, after)]
    assert find("is # before and # after, when") == pytest.approx(
        [sum(e) / P for e in errors], abs=2e-4
    )
    mae = sum(abs(f - t) for f, t in zip(before, y, strict=True)) / P
    assert find("(`sampler.outcome_metrics`, Section 5.4) is #.")[0] == pytest.approx(mae, abs=2e-4)
    pushed, now, size, held, holds = find(
        "# samples so far, # with this step's. The buffer keeps the latest #: it held # and now holds #."
    )
    assert (now, held, holds) == (pushed + P, min(pushed, size), min(now, size))
    (counted,) = find("the teacher counted #.")
    assert counted == sum(
        4 * math.ceil(min(at, size) / 16)
        for at in range(int(pushed) + 1, int(now) + 1)
        if at % 4 == 0
    )


def test_named_functions_exist():
    names = re.findall(r"`((?:grpo|rollout|sampler|teacher|train|verify)\.\w+(?:\.\w+)?)`", TEXT)
    assert len(set(names)) > 15
    for name in names:
        assert_exists(name)

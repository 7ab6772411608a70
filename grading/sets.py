"""Sets of real numbers: unions, intersections, differences and systems of inequalities.

`simplify` writes each as a union of intervals and points in ascending order: "x<1∨x>4" and
"(4,∞)∪(-∞,1)" become "x∈(-∞,1)∪(4,∞)" and "(-∞,1)∪(4,∞)".
"""

import functools
import re

from sympy import Expr, oo

from grading.structure import NAME, RELATIONS, is_bounded, split, structure_of
from grading.values import equal_values, values

_INFINITE = {"-∞": -oo, "∞": oo}
_COMBINED = re.compile("[∪∩∖≠∉]|¬∈|[∈<>≤≥].*[,;∧∨]|[,;∧∨].*[∈<>≤≥]|⦃.*[|:]")
_COMPREHENSION = re.compile(r"⦃ ?([a-zA-Z])(?:∈\(-∞,∞\))?[|:](.*)⦄")


class _Line:
    """The real line, cut at the ends of intervals. With n ends, position 2k+1 is the end number k,
    2k the gap before it. A region is a set of positions."""

    def __init__(self):
        self.values: dict[str, Expr] = {}
        self.ends: list[str] = []  # ascending, one text for each value
        self.is_sorted = False

    def add(self, text: str) -> int:
        """Note an end; return its position among those known so far. Raises ValueError."""
        if text in _INFINITE:
            return 0 if text == "-∞" else 2 * len(self.ends)
        if text not in self.values:
            value = [v for v in values(text) if v.is_real]
            if len(value) != 1:
                raise ValueError(f"{text} is not a real number")
            self.values[text] = value[0]
        below = [end for end in self.ends if not self._is_at_least(end, text)]
        return 2 * len(below) + 1

    def _is_at_least(self, first: str, second: str) -> bool:
        a, b = self.values[first], self.values[second]
        return equal_values(a, b) or bool(a > b)

    def sort(self) -> None:
        """Order the ends noted so far, and drop those that have the value of another."""
        self.is_sorted = True
        for text in sorted(self.values, key=self.values.get):
            if not self.ends or not self._is_at_least(self.ends[-1], text):
                self.ends.append(text)

    @property
    def everything(self) -> set[int]:
        return {*range(2 * len(self.ends) + 1)}

    def interval(self, brackets: str, low: str, high: str) -> set[int]:
        """Return the region of an interval. Raises ValueError if low >= high."""
        first, last = self.add(low), self.add(high)
        if not self.is_sorted:
            return set()
        first += low != "-∞" and brackets[0] == "("
        last -= high != "∞" and brackets[1] == ")"
        if first > last or (first == last and first % 2):
            raise ValueError(f"({low},{high}) is no interval")
        return {*range(first, last + 1)}

    def text(self, region: set[int]) -> str:
        """Write a region as a union."""
        pieces, ends = [], ["-∞", *self.ends, "∞"]
        for position in sorted(region):
            if position - 1 not in region:
                first = position
            if position + 1 in region:
                continue
            low = "[(", ends[(first + 1) // 2]
            high = "])", ends[position // 2 + 1]
            is_point = first == position and first % 2
            interval = f"{low[0][first % 2 == 0]}{low[1]},{high[1]}{high[0][position % 2 == 0]}"
            pieces.append(f"⦃{low[1]}⦄" if is_point else interval)
        return "∪".join(pieces) or "⦃⦄"


def _checked(name: str) -> str:
    if not NAME.fullmatch(name):
        raise ValueError(f"{name} is not a name")
    return name


def _common_name(names: set[str]) -> str:
    """Return the only name, "" if there is none. Raises ValueError if there are several."""
    if len(names - {""}) > 1:
        raise ValueError(f"several names: {names}")
    return max(names, default="")


def _system(text: str, line: _Line) -> tuple[str, set[int]]:
    """Return the name and the region of relations: "x<1∨x>4", "x>2∧x<5", "x≠1,2"."""
    for separators in ("∨", "∧", ",;"):
        parts = split(text, separators)[::2]
        if len(parts) > 1:
            break
    else:
        return _relation(text, line)
    if separators == ",;":  # x≠1,2 is x≠1,x≠2
        first, *rest = parts
        unequal = re.match(r"[^≠]*≠", first)
        parts = [first] + [unequal[0] + p if unequal and not RELATIONS & {*p} else p for p in rest]
    if not all(RELATIONS & {*part} for part in parts):
        raise ValueError(f"{text} is a list")
    names, regions = zip(*(_system(part, line) for part in parts), strict=True)
    union, common = set().union(*regions), line.everything.intersection(*regions)
    # A comma is "and", but "x<1, x>4" must be "or".
    either = separators == "∨" or (separators == ",;" and not common)
    return _common_name({*names}), union if either else common


def _relation(text: str, line: _Line) -> tuple[str, set[int]]:
    """Return the name and the region of one relation, "x>3" or "x∈(1,2)", or of a set."""
    if text.startswith(r"\forall "):
        raise ValueError("a quantifier")
    if set_of := _COMPREHENSION.fullmatch(text):
        return "", _system(set_of[2], line)[1]
    name, membership, members = [*re.split("(∈|∉|¬∈)", text, maxsplit=1), "", ""][:3]
    if membership:
        region = _region(members, line)
        return _checked(name), region if membership == "∈" else line.everything - region
    if "≠" in text:
        name, points = text.split("≠", 1)
        points = [points.replace("±", sign, 1) for sign in ("", "-")[: 1 + points.count("±")]]
        return _checked(name), line.everything - {line.add(point) for point in points}
    return structure_of(text).name, _region(text, line)


def _region(text: str, line: _Line) -> set[int]:
    """Return the region of a set: "(1,2)∪⦃3⦄", "(-∞,∞)∖⦃1⦄"."""
    for sign, combine in (("∪", set.union), ("∩", set.intersection), ("∖", set.difference)):
        parts = split(text, sign)[::2]
        if len(parts) > 1:
            return combine(*(_region(part, line) for part in parts))
    _, kind, parts = structure_of(text)
    if kind in ("()", "(]", "[)", "[]") and len(parts) == 2:
        return line.interval(kind, *parts)
    if kind == "set":
        return {line.add(part) for part in parts}
    if kind == "value" and (text[:1] == "⦃" or "=" in text):
        return {line.add(parts[0])}
    raise ValueError(f"{text} is not a set of real numbers")


@functools.lru_cache(maxsize=256)
def simplify(text: str) -> str:
    """Write a canonical text as a union. Return it as it is if it is no combination of sets."""
    text = re.sub(r"(?<=[)\]])(?:-⦃|∖[{⦃])([^{}⦃⦄]*)[}⦄]", r"∖⦃\1⦄", text)
    if not _COMBINED.search(text) or not is_bounded(text):
        return text
    line = _Line()
    try:
        _system(text, line)
        line.sort()
        name, region = _system(text, line)
    except ValueError:
        return text
    if region and all(position % 2 for position in region):  # points alone are a list
        return text
    return f"{name}∈" * bool(name) + line.text(region)

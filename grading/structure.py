r"""Structure of an answer: a value, or the parts of a list, set, tuple, interval, matrix, relation.

The guards of equality.py compare structures before values: answers of different structure are
never equal, whatever the numbers in them.
"""

import re
from typing import NamedTuple

from grading.units import split_unit

RELATIONS = "=<>≤≥≠∈"
FLIP = str.maketrans("<>≤≥", "><≥≤")
_LETTER = (
    r"(?:\\(?:angle|triangle|vec|overline)[ {]*)?(?:\\(?!log|ln)[a-zA-Z]{2,7} ?|[A-Z]{1,4}|[a-z])"
    r"(?:_\{[\w\\ ]+\})?'*\}?(?:(?:\^\{-1\})?\([\w,-]+\))?"
)
# One side of "=" that only names the other side: x, f(2), P(X), S_{ABC}, |AB|, (p,q), NO/BO.
_NAME = re.compile(
    rf"[|(\[]?m?{_LETTER}(?:[,/:]{_LETTER})*[|)\]]?|\\frac\{{{_LETTER}\}}\{{{_LETTER}\}}"
)
_CONDITION = re.compile(r"\|[a-y](?:_\{\w+\})?\||\[[a-z](?:_\{\w+\})?\]")
# A first side that the problem asks for: m+n in m+n=8, ab, |z-w|, f(1)+f(2), P(X=2), \cos A. Not
# 2m+n, which may be a condition of the problem.
_COMBINATION = re.compile(r"\|?[a-zA-Z](?:[-+*]?[a-zA-Z])+\|?|[a-z]\(\w\)\+[a-z]\(\w\)")
_ASKED = re.compile(
    rf"[PE][(\[][^()]*[)\]]|\\(?:sin|cos|tan|det|dim|deg) ?(?!\\pi){_LETTER}|{_COMBINATION.pattern}"
)
_MATRIX = re.compile(r"\\begin\{matrix\}((?:(?!\\end).)*?)(?:\\\\)?\\end\{matrix\}")
_INTERVALS = {"()", "(]", "[)", "[]"}


class Structure(NamedTuple):
    """kind: "value", "list", "or" (a list too), "set", "∪", "∨", ":" (ratio or time), "matrix 2 2",
    brackets such as "(]" (tuple or interval), or relations such as "=" or "<≤". name: "x" in "x=5",
    or "". unit: of all parts."""

    kind: str
    parts: list[str]
    name: str = ""
    unit: str = ""


def is_name(text: str) -> bool:
    """Whether one side of "=" only names the other. |x|=3 and [x]=3 are conditions on x, unlike the
    length |AB| or the area [ABC]; and |z| is asked for."""
    return bool(_NAME.fullmatch(text)) and not _CONDITION.fullmatch(text)


def is_condition(part: str) -> bool:
    """Whether one of several parts is an equation for a sum, product or ratio of letters. Then they
    are a system of the problem: x+y=3, x-y=5 does not answer (3,5)."""
    structure = structure_of(part)
    if {*structure.kind} == {"="}:
        return bool(_COMBINATION.fullmatch(structure.parts[0]))
    return bool(re.search("[/:]|frac", structure.name))


def is_asked(text: str) -> bool:
    """Whether the first side of "a=b" only names what the problem asks for."""
    return is_name(text) or bool(_ASKED.fullmatch(text))


def split(text: str, separators: str) -> tuple[list[str], str]:
    """Return the parts between separators outside brackets, and these: "a=b" -> a, b and "="."""
    parts = [""]
    signs = ""
    depth = 0
    for character in text:
        if character in "([{⦃":
            depth += 1
        elif character in ")]}⦄":
            depth -= 1
        if depth == 0 and character in separators:
            signs += character
            parts.append("")
        else:
            parts[-1] += character
    return parts, signs


def _interval(structure: Structure) -> str:
    """Return the text of an interval: (] 1, 2 -> "(1,2]"."""
    left, right = structure.kind
    return left + ",".join(structure.parts) + right


def _alternatives(text: str) -> Structure | None:
    """Answers that "or" links. "x=2∨x=3" is a list, but no tuple, "x<1∨x>4" a union. Others are
    free: only the same alternatives are equal to "red∨blue" or to "x=1∨y=2"."""
    parts, links = split(text, "∨")
    if not links:
        return None
    structures = [structure_of(part) for part in parts]
    names = {structure.name for structure in structures}
    kinds = {structure.kind for structure in structures}
    are_numbers = all(re.search(r"[\d∞]|\\pi", part) for part in parts)
    is_mixed = kinds & {*_INTERVALS, *"<≤≠∈"} and kinds - _INTERVALS  # x>0∨x≠1
    if len(names - {""}) > 1 or not are_numbers or is_mixed:
        return Structure("∨", parts)
    name = structures[0].name
    if not name or not kinds <= _INTERVALS:
        return Structure("or", parts)
    return Structure("∪", [*map(_interval, structures)], name)


def _list(text: str) -> Structure | None:
    parts, commas = split(text, ",;∧")
    return Structure("list", parts) if commas else None


def _relation(text: str) -> Structure | None:
    r"""A named structure, "k=(1,2)"; a solved inequality; or the sides of another relation:
    "x+y=3" -> = x+y, 3."""
    text = re.sub(r"^-([a-zA-Z])([<>≤≥])-([^-+<>≤≥]*)$", r"\3\2\1", text)  # -x<-1 is 1<x
    text = re.sub(r"^-([a-zA-Z])([<>≤≥])([^<>≤≥]*)$", r"-(\3)\2\1", text)  # -x<1 is -1<x
    sides, signs = split(text, RELATIONS)
    if not signs:
        return None
    if signs[0] in ">≥":
        sides.reverse()
        signs = signs[::-1].translate(FLIP)
    if signs == "=" and is_name(sides[1]) and not is_name(sides[0]):
        sides.reverse()
    if signs in ("=", "∈") and is_name(sides[0]):
        name, value = sides
        return structure_of(value)._replace(name=name)
    return _solved(sides, signs) or Structure(signs, sides)


def _solved(sides: list[str], signs: str) -> Structure | None:
    """The interval of an inequality solved for a name: "1≤x<3" -> x, [) 1, 3."""
    if len(signs) == 1:
        if is_name(sides[0]):
            sides = ["-∞", *sides]
            signs = "<" + signs
        else:
            sides = [*sides, "∞"]
            signs += "<"
    if len(signs) != 2 or not {*signs} <= {"<", "≤"}:
        return None
    low, name, high = sides
    is_absolute = name.startswith(("|", "["))  # |x|<5 is not x<5
    if is_absolute or not is_name(name):
        return None
    left = "[" if signs[0] == "≤" else "("
    right = "]" if signs[1] == "≤" else ")"
    return Structure(left + right, [low, high], name)


def _bracketed(text: str) -> Structure | None:
    """A union, set, tuple or interval: "⦃1,2⦄" -> set 1, 2; "(1,2]" -> (] 1, 2."""
    members, unions = split(text, "∪")
    if unions:
        return Structure("∪", members)
    inside, closings = split(text, ")]}⦄")
    if text[:1] not in ("(", "[", "⦃") or inside[0] != text[:-1]:
        return None
    parts, _ = split(text[1:-1], ",;")
    if parts == [""]:
        parts = []
    if text[0] == "⦃":
        is_single = len(parts) == 1 and not parts[0].startswith("⦃")  # {{1}} is not {1}
        return structure_of(parts[0]) if is_single else Structure("set", parts)
    if len(parts) < 2:
        return None
    return Structure(text[0] + closings, parts)


def _matrix(text: str) -> Structure | None:
    match = _MATRIX.fullmatch(text)
    if not match:
        return None
    kind = "matrix"
    entries = []
    for line in match[1].split(r"\\"):
        row = line.split("&")
        kind += f" {len(row)}"
        entries += row
    return Structure(kind, entries)


def _value(text: str) -> Structure:
    """A ratio or time, "7:32" -> : 7, 32; the values of "±"; or one value."""
    sides, colons = split(text, ":")
    if colons:
        return Structure(":", sides)
    first, *others = text.split("±")
    if len(others) not in (1, 2):
        return Structure("value", [text])
    values = [first]
    for term in others:
        values = [value + sign + term for value in values for sign in "+-"]
    return Structure("list", [value.removeprefix("+") for value in values])


def structure_of(text: str) -> Structure:
    """Return the structure of a canonical text, from the first parser that recognizes it."""
    if structure := _alternatives(text) or _list(text):
        return structure
    body, unit = split_unit(text)
    structure = _relation(body) or _bracketed(body) or _matrix(body) or _value(body)
    percent = "%" if body.endswith("%") else ""
    return structure._replace(unit=unit or structure.unit or percent)

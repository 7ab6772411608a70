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
    r"(?:\\(?:angle|triangle|vec|overline)[ {]*)?(?:\\[a-zA-Z]{2,7} ?|[A-Z]{1,4}|[a-z])"
    r"(?:_\{[\w\\ ]+\})?'*\}?(?:\([\w,-]+\))?"
)
# One side of "=" that only names the other side: x, f(2), P(X), S_{ABC}, |AB|, (p,q), NO/BO.
_NAME = re.compile(
    rf"[|(\[]?m?{_LETTER}(?:[,/:]{_LETTER})*[|)\]]?|\\frac\{{{_LETTER}\}}\{{{_LETTER}\}}"
)
# A first side that the problem asks for: m+n in m+n=8, ab, |z-w|, f(1)+f(2). Not 2m+n, which may
# be a condition of the problem.
_ASKED = re.compile(r"\|?[a-zA-Z](?:[-+*]?[a-zA-Z])+\|?|[a-z]\(\w\)\+[a-z]\(\w\)")
_MATRIX = re.compile(r"\\begin\{matrix\}((?:(?!\\end).)*?)(?:\\\\)?\\end\{matrix\}")
_INTERVALS = ("()", "(]", "[)", "[]")


class Structure(NamedTuple):
    """name: "x" in "x=5", or "". kind: "value", "list", "set", "∪", "∨", ":" (ratio or time),
    "matrix 2 2", brackets such as "(]" (tuple or interval), or relations such as "=" or "<≤".
    unit: of all parts."""

    name: str
    kind: str
    parts: list[str]
    unit: str = ""


def is_name(text: str) -> bool:
    """Whether one side of "=" only names the other."""
    return bool(_NAME.fullmatch(text))


def is_asked(text: str) -> bool:
    """Whether the first side of "a=b" only names what the problem asks for."""
    return is_name(text) or bool(_ASKED.fullmatch(text))


def split(text: str, separators: str) -> list[str]:
    """Split at characters outside brackets and keep them: "a=b" -> ["a", "=", "b"]."""
    parts = [""]
    depth = 0
    for character in text:
        if character in "([{⦃":
            depth += 1
        elif character in ")]}⦄":
            depth -= 1
        if depth == 0 and character in separators:
            parts += [character, ""]
        else:
            parts[-1] += character
    return parts


def _alternatives(text: str) -> Structure | None:
    """Answers that "or" links. "x=2∨x=3" is the list of both, "x<1∨x>4" a union. Others are free:
    only the same alternatives are equal to "red∨blue" or to "x=1∨y=2"."""
    parts = split(text, "∨")[::2]
    if len(parts) == 1:
        return None
    structures = [structure_of(part) for part in parts]
    names = {structure.name for structure in structures}
    are_numbers = all(re.search(r"[\d∞]|\\pi", part) for part in parts)
    if len(names) > 1 or not are_numbers:
        return Structure("", "∨", parts)
    [name] = names
    are_intervals = all(structure.kind in _INTERVALS for structure in structures)
    if not name or not are_intervals:
        return Structure("", "list", parts)
    intervals = [s.kind[0] + ",".join(s.parts) + s.kind[1] for s in structures]
    return Structure(name, "∪", intervals)


def _list(text: str) -> Structure | None:
    parts = split(text, ",;∧")[::2]
    return Structure("", "list", parts) if len(parts) > 1 else None


def _relation(text: str) -> Structure | None:
    r"""A named structure, "k=(1,2)"; a solved inequality; or the sides of another relation:
    "x+y=3" -> = x+y, 3."""
    text = re.sub(r"^-([a-zA-Z])([<>≤≥])([^<>≤≥]*)$", r"-(\3)\2\1", text)  # -x<1 is -1<x
    sides = split(text, RELATIONS)
    if len(sides) == 1:
        return None
    if sides[1] in ">≥":
        sides = [side.translate(FLIP) for side in reversed(sides)]
    signs = "".join(sides[1::2])
    if signs == "=" and is_name(sides[2]) and not is_name(sides[0]):
        sides.reverse()
    if signs in ("=", "∈") and is_name(sides[0]):
        return structure_of(sides[2])._replace(name=sides[0])
    return _solved(sides) or Structure("", signs, sides[::2])


def _solved(sides: list[str]) -> Structure | None:
    """The interval of an inequality solved for a name: "1≤x<3" -> x, [) 1, 3."""
    if len(sides) == 3:
        sides = ["-∞", "<", *sides] if is_name(sides[0]) else [*sides, "<", "∞"]
    if len(sides) != 5:
        return None
    low, first, name, second, high = sides
    is_absolute = name[:1] in ("|", "[")  # |x|<5 is not x<5
    if not {first, second} <= {"<", "≤"} or not is_name(name) or is_absolute:
        return None
    left = "[" if first == "≤" else "("
    right = "]" if second == "≤" else ")"
    return Structure(name, left + right, [low, high])


def _bracketed(text: str) -> Structure | None:
    """A union, set, tuple or interval: "⦃1,2⦄" -> set 1, 2; "(1,2]" -> (] 1, 2."""
    members = split(text, "∪")[::2]
    if len(members) > 1:
        return Structure("", "∪", members)
    if text[:1] not in ("(", "[", "⦃") or split(text, ")]}⦄")[1:] != [text[-1], ""]:
        return None
    parts = [part for part in split(text[1:-1], ",;")[::2] if part]
    is_set = text[0] == "⦃"
    if len(parts) < 2 and not is_set:
        return None
    if len(parts) == 1 and parts != ["⦃⦄"]:
        return structure_of(parts[0])
    kind = "set" if is_set else text[0] + text[-1]
    return Structure("", kind, parts)


def _matrix(text: str) -> Structure | None:
    if not (match := _MATRIX.fullmatch(text)):
        return None
    rows = [row.split("&") for row in match[1].split(r"\\")]
    kind = "matrix " + " ".join(str(len(row)) for row in rows)
    return Structure("", kind, [entry for row in rows for entry in row])


def _value(text: str) -> Structure:
    """A ratio or time, "7:32" -> : 7, 32; the values of "±"; or one value."""
    sides = split(text, ":")[::2]
    if len(sides) > 1:
        return Structure("", ":", sides)
    terms = text.split("±")
    if len(terms) not in (2, 3):
        return Structure("", "value", [text])
    values = terms[:1]
    for term in terms[1:]:
        values = [value + sign + term for value in values for sign in "+-"]
    return Structure("", "list", [value.removeprefix("+") for value in values])


def structure_of(text: str) -> Structure:
    """Return the structure of a canonical text, from the first parser that recognizes it."""
    if structure := _alternatives(text) or _list(text):
        return structure
    body, unit = split_unit(text)
    structure = _relation(body) or _bracketed(body) or _matrix(body) or _value(body)
    is_percent = body.endswith("%")
    return structure._replace(unit=unit or structure.unit or "%" * is_percent)

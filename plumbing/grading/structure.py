"""What an answer is made of: name, kind and parts of a text, its spelling canonical."""

import re
from typing import NamedTuple

_LETTER = (
    r"(?:\\(?:angle|overline|vec|sin|cos|tan)[ {]*)*"
    r"(?:\\text\{[a-zA-Z ]+\}|\\[a-zA-Z]{2,7}|[A-Z]{2,5}|[a-zA-Z])"
    r"(?:_(?:\w|\{\w+\}))?'*(?:\([\w,]+\))?\}?"
)
# What may stand on one side of "=" without making a claim: x, f(2), S_{ABC}, |AB|, (p,q), NO/BO.
_NAME = re.compile(
    rf"[|(]?{_LETTER}(?:[,/:]{_LETTER})*[|)]?|\\frac\{{d?{_LETTER}\}}\{{d?{_LETTER}\}}"
)
FLIP = str.maketrans("<>≤≥", "><≥≤")


class Shape(NamedTuple):
    """kind: "list", "set", "matrix [2, 2]", ":", "value", brackets such as "(]", or relations
    such as "=" or "<≤". name: what the parts are said to be, if anything."""

    name: str
    kind: str
    parts: list[str]


def split(text: str, marks: str) -> list[str]:
    """Cut at the characters `marks` outside brackets, which stay: "a=b" -> ["a", "=", "b"]."""
    if not any(mark in text for mark in marks):
        return [text]
    parts, depth = [""], 0
    for character in text:
        depth += (character in "([{⦃") - (character in ")]}⦄")
        if depth == 0 and character in marks:
            parts += [character, ""]
        else:
            parts[-1] += character
    return parts


def _brackets(text: str) -> str:
    """Those around the whole text: "(1,2]" -> "(]", "(1)(2)" -> ""."""
    if text[:1] in ("(", "[", "⦃") and split(text, ")]}⦄")[1:] == [text[-1], ""]:
        return text[0] + text[-1]
    return ""


def _collection(kind: str, parts: list[str]) -> Shape:
    """Of parts in which "±" means both signs; a collection of one thing is that thing."""
    signs = {True: ("+", "+-"), False: ("",)}
    parts = [part.replace("±", sign) for part in parts for sign in signs["±" in part]]
    return structure_of(parts[0]) if len(parts) == 1 and parts != ["⦃⦄"] else Shape("", kind, parts)


def _union(text: str) -> Shape | None:
    """A union: "⦃1,2⦄∪(3,4)" -> set 1, 2, (3,4)."""
    members = split(text, "∪")[::2]
    if len(members) > 1:
        parts = []
        for member in members:
            shape = structure_of(member)
            parts += shape.parts if shape.kind == "set" else [member]
        return _collection("set", parts)


def _list(text: str) -> Shape | None:
    """A list or set: "1,2" -> list 1, 2; "⦃1,2⦄" -> set 1, 2; "1±2" -> list 1+2, 1+-2."""
    if _brackets(text) == "⦃⦄":
        return _collection("set", [part for part in split(text[1:-1], ",;")[::2] if part])
    parts = split(text, ",;")[::2]
    if len(parts) > 1 or ("±" in text and not _brackets(text)):
        return _collection("list", parts)


def _tuple(text: str) -> Shape | None:
    """A tuple, point or interval: "(1,2]" -> (] 1, 2."""
    parts = split(text[1:-1], ",;")[::2]
    if _brackets(text) and len(parts) > 1:
        return Shape("", _brackets(text), parts)


def _sides(text: str) -> list[str]:
    """The sides of relations, a name first: "5=x" -> ["x", "=", "5"]."""
    sides = split(text, "=∈<>≤≥≠")
    if sides[1:2] == ["="] and len(sides) == 3 and _NAME.fullmatch(sides[2]):
        return sides if _NAME.fullmatch(sides[0]) else sides[::-1]
    return sides


def _named(text: str) -> Shape | None:
    """What a name is said to be: "k=7:32" -> k: : 7, 32; "x=1=y" -> x: = 1, y."""
    name, *rest = _sides(text)
    if rest and set(rest[::2]) <= {"=", "∈"} and _NAME.fullmatch(name):
        if len(rest) > 2:
            return Shape(name, "".join(rest[2::2]), rest[1::2])
        return structure_of(rest[1])._replace(name=name)


def _interval(text: str) -> Shape | None:
    """An inequality solved for a name: "3>x≥1" -> x: [) 1, 3; "-x<3" -> x: () -(3), ∞."""
    sides = _sides(re.sub(r"^-([a-zA-Z])([<>≤≥])(.*)", r"-(\3)\2\1", text))
    if len(sides) > 1 and sides[1] in ">≥":
        sides = [side.translate(FLIP) for side in reversed(sides)]
    if len(sides) == 3:
        sides = ["-∞", "<", *sides] if _NAME.fullmatch(sides[0]) else [*sides, "<", "∞"]
    if len(sides) == 5 and {sides[1], sides[3]} <= {"<", "≤"} and _NAME.fullmatch(sides[2]):
        around = "(["[sides[1] == "≤"] + ")]"[sides[3] == "≤"]
        return Shape(sides[2], around, [sides[0], sides[4]])


def _relation(text: str) -> Shape | None:
    """Any other relation: "x+y=3" -> = x+y, 3."""
    sides = _sides(text)
    if len(sides) > 1:
        return Shape("", "".join(sides[1::2]), sides[::2])


def _matrix(text: str) -> Shape | None:
    r"""A matrix: "\begin{matrix}1&2\\3&4\end{matrix}" -> matrix [2, 2] 1, 2, 3, 4."""
    if matrix := re.fullmatch(r"\\begin\{matrix\}(.*)\\end\{matrix\}", text):
        rows = [row.split("&") for row in matrix[1].split("\\\\")]
        entries = [entry for row in rows for entry in row]
        return Shape("", f"matrix {[len(row) for row in rows]}", entries)


def _ratio(text: str) -> Shape:
    """A ratio or time, "7:32" -> : 7, 32; or one value, "5" -> value 5."""
    parts = split(text, ":")[::2]
    return Shape("", ":" if len(parts) > 1 else "value", parts)


def structure_of(text: str) -> Shape:
    """What the text is made of, by the first of these that knows it."""
    readers = _union, _list, _tuple, _named, _interval, _relation, _matrix, _ratio
    return next(filter(None, (reader(text) for reader in readers)))

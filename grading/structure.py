"""Structure of answers: a canonical text is split into a name, a kind and parts."""

import re
from itertools import accumulate, chain, product
from typing import NamedTuple

_LETTER = (
    r"(?:m?\\(?:angle|over[a-z]+|vec|sin|cos|tan)[ {]*)*"
    r"(?:\\text\{[a-zA-Z ]+\}|\\[a-zA-Z]{2,7}|[A-Z]{2,5}|[a-zA-Z𝐀-𝐳])"
    r"(?:_(?:\w|\{[\w\\ ]+\}))?'*"
    r"(?:\([\w,]+\)|(?<![a-z][a-z])(?<=[fghpFGHP}'])(?:\^\{-1\})?\((?:[^()]|\([^()]*\))+\))?\}?"
)
# One side of "=" that only names the other side: x, f(2), S_{ABC}, [ABC], |AB|, (p,q), NO/BO.
NAME = re.compile(
    rf"\([a-zA-Z]∘[a-zA-Z]\)\(\w+\)|[|([]?{_LETTER}(?:[,/:]{_LETTER})*[|)\]]?|\\frac\{{d?{_LETTER}\}}\{{d?{_LETTER}\}}"
)
RELATIONS = {*"=∈∉<>≤≥≠"}
FLIP = str.maketrans("<>≤≥", "><≥≤")
# Bounds that hold on any machine; the parser's time grows exponentially with nesting and towers.
MAX_LENGTH, MAX_NESTING, MAX_BARS, MAX_SIGNS = 400, 8, 12, 4
_TOWER = re.compile(r"(?:\^-?(?:[a-zA-Z]|\d+|\\[a-z]+ ?)){5}")


_PLAIN = {0x1D400 + i: 65 + i for i in range(26)} | {0x1D41A + i: 97 + i for i in range(26)}


class Structure(NamedTuple):
    """name: "x" in "x=5", or "". kind: "list", "set", "value", ":" (ratio), "matrix [2, 2]",
    brackets such as "(]" (tuple or interval), relations such as "=" or "<≤", or "∧" and "∨" between
    parts that are not solutions: "p∧q" is not "p∨q", but "x=1∨x=2" is the list of both."""

    name: str
    kind: str
    parts: list[str]


def is_bounded(text: str) -> bool:
    """Whether a text is short and flat enough to be parsed."""
    depth = max(accumulate((c in "([{") - (c in ")]}") for c in text), default=0)
    is_flat = depth <= MAX_NESTING and text.count("|") <= MAX_BARS and not _TOWER.search(text)
    return is_flat and len(text) <= MAX_LENGTH


def plain(text: str) -> str:
    """Replace bold letters: "𝐀𝐱" -> "Ax"."""
    return text.translate(_PLAIN)


def split(text: str, separators: str) -> list[str]:
    """Split at characters outside brackets and keep them: "a=b" -> ["a", "=", "b"]."""
    parts, depth = [""], 0
    for character in text:
        depth += (character in "([{⦃") - (character in ")]}⦄")
        if depth == 0 and character in separators:
            parts += [character, ""]
        else:
            parts[-1] += character
    return parts


def _collection(kind: str, parts: list[str]) -> Structure:
    """Replace a part by the values of its "±"; a collection of one part is that part."""
    pieces = [part.split("±") if part.count("±") <= MAX_SIGNS else [part] for part in parts]
    parts = [
        first + "".join(map("".join, zip(signs, rest, strict=True)))
        for first, *rest in pieces
        for signs in product(("+", "+-"), repeat=len(rest))
    ]
    is_single = len(parts) == 1 and parts != ["⦃⦄"]
    return structure_of(parts[0]) if is_single else Structure("", kind, parts)


def _union(text: str) -> Structure | None:
    """A union: "⦃1,2⦄∪(3,4)" -> set 1, 2, (3,4)."""
    members = split(text, "∪")[::2]
    if len(members) > 1:
        parts = [s.parts if (s := structure_of(m)).kind == "set" else [m] for m in members]
        return _collection("set", [*chain(*parts)])


def _bracketed(text: str) -> Structure | None:
    """A set, tuple or interval: "⦃1,2⦄" -> set 1, 2; "(1,2]" -> (] 1, 2."""
    is_enclosed = text[:1] in ("(", "[", "⦃") and split(text, ")]}⦄")[1:] == [text[-1], ""]
    brackets = text[0] + text[-1] if is_enclosed else ""  # not in (1)(2)
    parts = split(text[1:-1], ",;")[::2]
    if brackets == "⦃⦄":
        return _collection("set", [part for part in parts if part])
    if brackets == "()" and len(parts) > 1 and text.count("±") == 1:  # (±5,0): two points
        return _collection("list", [text])
    if brackets and len(parts) > 1:
        return Structure("", brackets, parts)
    if brackets == "()" and len(split(text[1:-1], "∧∨")) > 1:
        return structure_of(text[1:-1])


def _list(text: str) -> Structure | None:
    """A list: "1,2" -> list 1, 2; "1±2" -> list 1+2, 1+-2; "x=1,y=2∨x=3,y=4" -> two tuples."""
    parts = split(text, ",;∧∨")[::2]
    names = [_sides(part)[0] for part in parts if "=" in part]
    if 1 < (k := len({*names})) < len(parts) and names == names[:k] * (len(parts) // k):
        parts = [f"({','.join(parts[i : i + k])})" for i in range(0, len(parts), k)]
    elif connected := _connected(text):
        return connected
    if len(parts) > 1 or 0 < text.count("±") <= MAX_SIGNS:
        return _collection("list", parts)


def _connected(text: str) -> Structure | None:
    """Statements with "∧" or "∨", which binds less: "p∧q∨r" -> ∨ p∧q, r. Also "A∩B"."""
    for sign in "∨∧∩":
        parts = split(text, sign)[::2]
        if len(parts) > 1 and not _are_solutions(parts, sign):
            return Structure("", sign, parts)


def _are_solutions(parts: list[str], sign: str) -> bool:
    """Whether "and" and "or" mean the same between parts: "3∧5", "x=1∨x=2", "x=1∧y=2"."""
    names = {_sides(part)[0] for part in parts if "=" in part}
    is_value = [bool(re.search(r"\d|=|\\(?:pi|sqrt)", part)) for part in parts]
    is_formula = any(RELATIONS - {*"=∈"} & {*part} or "¬" in part for part in parts)
    is_nested = any(len(split(part.strip("()"), "∧∨")) > 1 for part in parts)
    return all(is_value) and not is_formula and not is_nested and (sign == "∧" or len(names) < 2)


def _sides(text: str) -> list[str]:
    """The sides and signs of relations, with a name moved to the left: "5=x" -> ["x", "=", "5"]."""
    sides = split(text, "=∈<>≤≥≠")
    if len(sides) > 1 and sides[1] in ">≥":
        sides = [side.translate(FLIP) for side in reversed(sides)]
    is_equation = len(sides) == 3 and sides[1] in "=≠"
    is_reversed = is_equation and NAME.fullmatch(sides[2]) and not NAME.fullmatch(sides[0])
    return sides[::-1] if is_reversed else sides


def _named(text: str) -> Structure | None:
    """A name and its value: "k=7:32" -> name k, : 7, 32; "x=1=y" -> name x, = 1, y."""
    name, *rest = _sides(text)
    if rest and set(rest[::2]) <= {"=", "∈"} and NAME.fullmatch(name):
        if len(rest) > 2:
            return Structure(plain(name), "".join(rest[2::2]), rest[1::2])
        return structure_of(rest[1])._replace(name=plain(name))


def _interval(text: str) -> Structure | None:
    """An inequality solved for a name: "3>x≥1" -> name x, [) 1, 3; "x≠3" -> x, set of two."""
    sides = _sides(re.sub(r"^-([a-zA-Z])([<>≤≥])(.*)", r"-(\3)\2\1", text))
    if len(sides) == 3 and sides[1] == "≠" and NAME.fullmatch(sides[0]):
        return Structure(sides[0], "set", [f"(-∞,{sides[2]})", f"({sides[2]},∞)"])
    if len(sides) == 3:
        sides = ["-∞", "<", *sides] if NAME.fullmatch(sides[0]) else [*sides, "<", "∞"]
        if re.match(r"\||\[|\\(?:sin|cos|tan)", sides[2]):  # |x|<5 is not x<5
            return None
    if len(sides) == 5 and {sides[1], sides[3]} <= {"<", "≤"} and NAME.fullmatch(sides[2]):
        brackets = "(["[sides[1] == "≤"] + ")]"[sides[3] == "≤"]
        return Structure(sides[2], brackets, [sides[0], sides[4]])


def _matrix(text: str) -> Structure | None:
    r"""A matrix: "\begin{matrix}1&2\\3&4\end{matrix}" -> matrix [2, 2] 1, 2, 3, 4."""
    matrix = r"(-?[^-+:]*?)\\begin\{matrix\}((?:(?!\\end).)*)\\end\{matrix\}"
    if match := re.fullmatch(matrix, text):
        factor, rows = match[1], [row.split("&") for row in match[2].split("\\\\")]
        entries = [rf"{factor}\frac{{{x}}}{{1}}" if factor else x for row in rows for x in row]
        return Structure("", f"matrix {[len(row) for row in rows]}", entries)


def _relation(text: str) -> Structure:
    """Another relation, "x+y=3" -> = x+y, 3; a ratio or time, "7:32" -> : 7, 32; or one value."""
    sides = _sides(text)
    if len(sides) == 1:
        sides = split(text, ":")
    return Structure("", "".join(sides[1::2]) or "value", sides[::2])


def structure_of(text: str) -> Structure:
    """Return the structure of a canonical text, from the first parser below that recognizes it."""
    parsers = _union, _bracketed, _list, _named, _interval, _matrix, _relation
    return next(filter(None, (parser(text) for parser in parsers)))

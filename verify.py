r"""The verified reward r_ver(o) in {0, 1}: does the last \boxed{} of completion o say what the gold answer says?

1. `Verifier`, in the trainer, cuts the box out of the completion and hands answer and gold, as strings, to workers.
2. A worker, `python verify.py --worker ...`, imports no torch and no trainer. It is a warm template that forks the
   process which compares; that one has limits on CPU time and memory and may die: the template says so and forks
   the next. A template that dies is replaced. A crash is tried once more.
3. `same(gold, answer)` compares. math-verify alone is too generous for a reward that is optimised against: it solves
   equations, so that repeating the question pays; it takes 1/2^99 for 1/2^98, "5 6" for 11 and 1=2=5 for 5. So the
   answer must first have the gold's shape: one value for one value, as many parts as the gold has, the same kind of
   brackets, every side of an equation true. Values are read by math-verify's parser and compared exactly where they
   are rational, else to 60 digits, with letters at random points. math-verify's own `verify` judges what is left
   (sums, integrals, binomials of letters, set algebra) and each whole answer that holds such a thing.
"""

from __future__ import annotations

import collections
import contextlib
import functools
import json
import logging
import math
import multiprocessing.connection
import operator
import os
import re
import resource
import signal
import subprocess
import sys
import time
import unicodedata
import zlib
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path

import mpmath

MAX_ANSWER = 2000  # characters of a box; longer ones are not read (status too_long)
MAX_BITS = 200_000  # size of an exact number: 60,000 digits
TRIALS = 6  # random points at which expressions in letters are compared; none of the first half is negative
RETIRE = 500  # comparisons after which a worker goes on in a fresh process
RETIRED, NO_MEMORY = 3, 4  # exit statuses of that process


@dataclass(frozen=True)
class Verdict:
    """`reward` is 1.0 iff `status` is "correct"; the others are wrong, no_box, too_long, timeout, memory, crash."""

    reward: float
    status: str


def extract_boxed(text: str) -> str | None:
    r"""The content of the last `\boxed{...}`, stripped; None if there is none, or it is empty or never closed."""
    start = len(text)
    while (start := text.rfind("\\boxed", 0, start)) >= 0:
        if opening := re.compile(r"\\boxed\s*\{").match(text, start):
            break
    else:
        return None
    depth = 1
    for brace in re.compile(r"\\.|[{}]", re.DOTALL).finditer(text, opening.end()):
        depth += {"{": 1, "}": -1}.get(brace[0], 0)  # an escaped brace is neither
        if depth == 0:
            return text[opening.end() : brace.start()].strip() or None
    return None


# --- one spelling for each thing ---------------------------------------------------------------------------------

_UNICODE = str.maketrans(
    {"−": "-", "–": "-", "×": "*", "·": "*", "÷": "/", "π": r"\pi ", "√": r"\sqrt ", "°": r"\degree ", "½": r"\frac12 "}
    | {digit: f"^{unicodedata.digit(digit)}" for digit in "⁰¹²³⁴⁵⁶⁷⁸⁹"}
)
# One character for each relation, set operation and bracket, so that texts can be cut at them.
_COMMANDS = {
    command: spelling
    for spelling, commands in {
        **{"≤": "le leq leqslant", "≥": "ge geq geqslant", "≠": "ne neq", "<": "lt", ">": "gt", "≈": "approx simeq"},
        **{"∈": "in", "∪": "cup", "±": "pm", "∓": "mp", "∞": "infty", "⦃": "lbrace", "⦄": "rbrace", "⦃⦄": "emptyset"},
        **{"*": "cdot times ast", "/": "div", ":": "colon", "…": "ldots cdots dots", "°": "degree", "(": "langle"},
        **{")": "rangle", "|": "vert lvert rvert", ",": "lor land vee wedge", r"\frac": "dfrac tfrac cfrac"},
        **{"": "left right mleft mright displaystyle textstyle limits", " ": "quad qquad", "⦃⦄ ": "varnothing"},
        **{r"\text": "textbf textit textrm textnormal textsf mbox mathrm mathbf mathit mathsf operatorname"},
    }.items()
    for command in commands.split()
}
# Words beside a number that change what it claims; any others are taken for its unit.
_CLAIMS = re.compile(
    r"\b(?:[iex]|or|and|not?|non|if|when|unless|except|maybe|n?either|is|are|was|to|from|than|then|plus|minus|times|over"
    r"|half|double|twice|dozen|score|hundred|thousand|[mb]illion|trillion|zero|one|two|three|four|five|six|seven|eight"
    r"|nine|ten|eleven|twelve|twenty|thirty|pi|mod|base|wrong|false|incorrect|but|vs|versus|also|else|at|least|most|more"
    r"|less|only)\b",
    re.IGNORECASE,
)
_END = r"(?=\s*(?:$|[,;=≈)⦄]))"  # units stand at the end of a part


def _unit(m: re.Match) -> str:
    return m[0] if _CLAIMS.search(m[1]) else ""


def _mixed(m: re.Match) -> str:
    """11 5/6 is 11 + 5/6; 4 10/3 is no number at all."""
    return f"({m[1]}+\\frac{{{m[2]}}}{{{m[3]}}})" if int(m[2]) < int(m[3]) else "␣"


_SPELLING = [
    (re.compile(pattern), replacement)
    for pattern, replacement in [
        (r"\s+", " "),
        (r"(?<=\d)(?:\{,\}|,? ?\\!|\\[,; ]|~)(?:\\!| )*(?=\d{3}(?!\d))", ""),  # thousands, whatever separates them
        (r"(?<!\\)\\[,;:!> ]|~|\\?\$|[€£¥]", " "),
        (r"(?<!\\)\\\{", "⦃"),
        (r"(?<!\\)\\\}", "⦄"),
        (r"\^ ?\{? ?\\circ ?\}?", "°"),
        (r"\\mathbb ?\{R\}|\\R(?![a-zA-Z])", "(-∞,∞)"),
        (r"\\[bB]igg?[lr]?(?![a-zA-Z])", ""),
        (r"\\([a-zA-Z]+)", lambda m: _COMMANDS.get(m[1], m[0])),
        (r"<=", "≤"),
        (r">=", "≥"),
        (r"!=", "≠"),
        (r"\.\.\.", "…"),
        (r"\+ ?∞", "∞"),
        (r"° ?(?:[CF](?![a-zA-Z])|\\text ?\{ ?[CF] ?\})", "°"),
        (r"\[? ?\\begin\{(?:[pbB]?matrix|array)\}(?:\{[lcr| ]*\})?", r"\\begin{matrix}"),
        (r"(?:\\\\ ?)?\\end\{(?:[pbB]?matrix|array)\} ?\]?", r"\\end{matrix}"),
        (r"(?<![a-zA-Z\\])(sqrt|sin|cos|tan|cot|sec|csc|log|ln|pi)(?![a-zA-Z])", r"\\\1 "),
        (r"\\text ?\{([^{}]*?)\b(?:and|or)\b([^{}]*)\}", r"\\text{\1},\\text{\2}"),
        (r"(?<![a-zA-Z\\{]) ?(?:and|or)(?![a-zA-Z])", ","),
        (r"\\text ?\{ ?\}", " "),
        (r" ?\\text ?\{ ?(?:percent(?:age)?|pct) ?\}| ?(?<![a-zA-Z])(?:percent(?:age)?|pct)(?![a-zA-Z])| ?\\?%", "%"),
        (
            r"(?<=[\d}]) ?(?:[ckm]m|kg|ft|inch(?:es)?|(?:milli|centi|kilo)?met(?:er|re)s?|miles?|feet|degrees?|"
            rf"dollars?|cents?|units?|hours?|minutes?|seconds?|days?|years?)(?: ?\^ ?\{{?[23]\}}?)?{_END}",
            "",
        ),
        (rf"(?<=[^ ,;=({{⦃]) ?\\text ?\{{ ?([A-Za-z][A-Za-z/. -]*?) ?\}}(?: ?\^ ?\{{?[23]\}}?)?{_END}", _unit),
        (r"\\text ?\{ ?([-+]?[\d./]+|\(?[A-Za-z]\)?|[A-Z](?:, ?[A-Z])+) ?\}", r" \1 "),
        (r"\\text ?\{ ?([^{}]*?) ?\}", lambda m: f"\\text{{{m[1]}}}".replace(" ", "␠")),
        (r"(?<![\d.,])(\d+) (\d+) ?/ ?(\d+)(?![\d.])", r"\1\\frac{\2}{\3}"),
        (r"(?<![\d.])\d{1,3}(?: \d{3})+(?!\d)", lambda m: m[0].replace(" ", "")),
        (r"\\frac ?(\d) ?(?=[\d{\\])", r"\\frac{\1}"),
        (r"(\\frac\{[^{}]*\}) ?(\d)", r"\1{\2}"),
        (r"\\sqrt ?(\d+)|\\sqrt ?\(([^()]*)\)", lambda m: rf"\sqrt{{{m[1] or m[2]}}}"),
        (r"(?<![\d.,}])(\d+) ?\\frac\{(\d+)\}\{(\d+)\}", _mixed),
        (r"(?<!\d)\.(?=\d)", "0."),
        (r"(?<=\d) (?=[\d.])", "␣"),  # two numbers side by side are no product
        (r"(\\[a-zA-Z]+) (?=[a-zA-Z])", r"\1␠"),
        (r" ", ""),
        (r"(?<=[\w)}\]%])\.$", ""),
        (r"␠", " "),
        (r"^\(?([A-Z])\)?$", r"\1"),  # a choice
        (r"^[-+]?\d{1,3}(?:,\d{3})+(?=(?:\.\d+)?%?$)", lambda m: m[0].replace(",", "")),
    ]
]


def canonical(text: str) -> str:
    """One spelling of `text`: thousands, units, synonyms of commands and spaces are gone."""
    text = unicodedata.normalize("NFKC", text.translate(_UNICODE))
    # An unseen character must not glue what it separates: 4<NUL>2 is not 42.
    text = "".join(" " if unicodedata.category(character)[0] == "C" else character for character in text)
    for pattern, replacement in _SPELLING:
        text = pattern.sub(replacement, text)
    return text


# --- the value of an expression ----------------------------------------------------------------------------------


class Unreadable(ValueError):
    """Not an expression with one value, or one too big to be computed."""


class Undecided(Exception):
    """The gold is beyond arithmetic and lists: math-verify is to judge."""


_FUNCTIONS = {"sin", "cos", "tan", "cot", "sec", "csc", "asin", "acos", "atan", "sinh", "cosh", "tanh", "log"}
_PLAIN = re.compile(r"([+-]?)(?:(\d+(?:\.\d*)?)|\\frac\{(-?\d+)\}\{(-?\d+)\}|(\d+)/(\d+))")


@functools.lru_cache(maxsize=256)  # the completions of a group share their gold
def _parse(text: str):
    """A Fraction for a plain number, else the sympy tree of math-verify's parser. Raises Unreadable."""
    if plain := _PLAIN.fullmatch(text):
        bottom = int(plain[4] or plain[6] or 1)
        if not bottom:
            raise Unreadable("division by zero")
        number = Fraction(plain[2] or int(plain[3] or plain[5])) / bottom
        return -number if plain[1] == "-" else number
    if not text or re.search(r"[^ -~°]|\\\\|\d_|\\text|(?<!\\sqrt)\[|['=<>,;:&%]", text):
        raise Unreadable("not one value")
    while (inner := re.sub(r"\(\(([^()]*)\)\)", r"(\1)", text)) != text:
        text = inner  # redundant brackets take the parser exponential time
    text = text.replace("°", r"\cdot\frac{\pi}{180}" if re.search(r"\\(?:sin|cos|tan|cot|sec|csc)", text) else "")
    text = re.sub(r"(?<![\d.^_])(\d[\d.]*)(?=\()", r"\1*", text).replace("*", r"\cdot ")  # 7(8) is no mixed number
    from latex2sympy2_extended.latex2sympy2 import ConversionConfig, latex2sympy

    config = ConversionConfig(interpret_as_mixed_fractions=False, lowercase_symbols=False)
    try:
        return latex2sympy(text, is_real=False, normalization_config=None, conversion_config=config)
    except MemoryError:
        raise
    except Exception as error:  # the parser raises all kinds, bare Exception among them
        raise Unreadable(str(error)) from error


def _wide(x):
    """Fraction -> mpmath complex number; others unchanged."""
    return mpmath.mpc(mpmath.mpf(x.numerator) / x.denominator) if isinstance(x, Fraction) else x


def _bits(x: Fraction) -> int:
    return max(x.numerator.bit_length(), x.denominator.bit_length())


def _combine(operation, a, b):
    """Exact on two Fractions, else on two mpmath numbers."""
    if isinstance(a, Fraction) and isinstance(b, Fraction):
        if _bits(a) + _bits(b) > MAX_BITS:
            raise Unreadable("too big a number")
        return operation(a, b)
    return operation(_wide(a), _wide(b))


def _power(base, exponent):
    """base ** exponent, exact where it can be; Unreadable before it grows too big."""
    if isinstance(base, Fraction) and isinstance(exponent, Fraction):
        if exponent.denominator == 1:
            if _bits(base) * abs(exponent) > MAX_BITS and abs(base) not in (0, 1):
                raise Unreadable("too big a power")
            return base ** int(exponent)
        if base < 0 and exponent.numerator == 1 and exponent.denominator % 2:
            return -_power(-base, exponent)  # the odd root of a negative number is the real one
    base, exponent = _wide(base), _wide(exponent)
    if base == 0:
        return Fraction(0)
    if abs(mpmath.log(abs(base))) * abs(exponent) > MAX_BITS:
        raise Unreadable("too big a power")
    return mpmath.power(base, exponent)


def _letter(name: str, trial: int) -> Fraction:
    """A value for a letter that depends on its name and the trial only: 0.2 to 2.3, of either sign in later trials."""
    draw = zlib.crc32(f"{trial} {name}".encode())
    sign = -1 if trial >= TRIALS // 2 and draw >> 16 & 1 else 1
    return sign * Fraction(draw % 1009 + 101, 487)


def _value(tree, trial: int = 0):
    """The value of a parsed expression: a Fraction where it is rational, else an mpmath complex number."""
    if isinstance(tree, Fraction):
        return tree
    kind = type(tree).__name__
    if tree.is_Rational:
        return Fraction(int(tree.p), int(tree.q))
    if tree.is_Float:
        return Fraction(repr(float(tree)))
    name = tree.name if tree.is_Symbol else kind
    constants = {"Pi": mpmath.pi, "Exp1": mpmath.e, "e": mpmath.e, "ImaginaryUnit": 1j, "i": 1j}
    if name in constants:
        return mpmath.mpc(constants[name])
    if tree.is_Symbol:
        return _letter(name, trial)
    values = [_value(argument, trial) for argument in tree.args]
    if kind in ("Add", "Mul"):
        operation = operator.add if kind == "Add" else operator.mul
        return functools.reduce(functools.partial(_combine, operation), values)
    if kind == "Pow":
        return _power(*values)
    if kind == "exp":
        return _power(mpmath.mpc(mpmath.e), values[0])
    if kind == "UnevaluatedExpr":
        return values[0]
    if kind == "Abs":
        return abs(values[0])
    if kind == "factorial" and isinstance(values[0], Fraction) and values[0] in range(5001):
        return Fraction(math.factorial(int(values[0])))
    if kind in _FUNCTIONS and all(abs(value) < MAX_BITS for value in values):
        return mpmath.mpc(getattr(mpmath, kind)(*map(_wide, values)))
    raise Unreadable(kind)


def _uses_functions(tree) -> bool:
    return not isinstance(tree, Fraction) and (
        type(tree).__name__ in _FUNCTIONS or any(map(_uses_functions, tree.args))
    )


def _places(gold: str, answer: str) -> int | None:
    """The decimal places if just one of the two is a decimal number, of at least six places and significant digits."""
    found = [re.fullmatch(r"-?(\d*)\.(\d+)", text) for text in (gold, answer)]
    decimal = found[0] or found[1]
    if all(found) or not decimal or min(len(decimal[2]), len((decimal[1] + decimal[2]).lstrip("0"))) < 6:
        return None
    return len(decimal[2])


def _close(a, b, places: int | None = None) -> bool:
    """Equal: exactly if both are rational, else to 60 digits; `places`: one is the endless other, rounded."""
    ends = all(isinstance(x, Fraction) and 10**400 % x.denominator == 0 for x in (a, b))
    if isinstance(a, Fraction) and isinstance(b, Fraction) and (places is None or ends):
        return a == b
    a, b = _wide(a), _wide(b)
    error, size = abs(a - b), max(abs(a), abs(b))
    if places is not None:
        return error <= max(mpmath.mpf(10) ** -places / 2, size * mpmath.mpf(10) ** -12)
    return error <= mpmath.mpf(10) ** -60 * (size if a != 0 and b != 0 else 1)


def _equal_values(gold: str, answer: str) -> bool:
    """Whether two single values are equal at every trial point. Raises Undecided if the gold cannot be computed."""
    try:
        gold_tree = _parse(gold)
        golds = [_value(gold_tree, trial) for trial in range(TRIALS)]
    except (Unreadable, ZeroDivisionError) as error:
        raise Undecided from error
    compared = 0
    with contextlib.suppress(Unreadable):
        answer_tree = _parse(answer)
        if _uses_functions(answer_tree) and not _uses_functions(gold_tree):
            return False  # log_2(8) repeats the question; it does not answer 3
        for trial, value in enumerate(golds):
            try:
                other = _value(answer_tree, trial)
            except ZeroDivisionError:
                continue
            if trial >= TRIALS // 2 and compared and (_wide(value).imag != 0 or _wide(other).imag != 0):
                continue  # roots of negative letters have several readings
            if not _close(value, other, _places(gold, answer)):
                return False
            compared += 1
    return compared > TRIALS // 2 - 1


# --- the comparison ----------------------------------------------------------------------------------------------

_NAME = (
    r"(?:\\(?:angle|overline|vec|sin|cos|tan|cot|triangle)[ {]*)*"
    r"(?:\\text\{[a-zA-Z ]+\}|\\(?:alpha|beta|gamma|theta|lambda|mu|phi|omega|sigma|rho|Delta|ell)|[A-Z]{2,5}|[a-zA-Z])"
    r"(?:_(?:\w|\{\w+\}))?'*(?:\([\w,]+\))?\}?"
)
# What may stand on one side of "=" without making a claim: x, f(2), S_{ABC}, |AB|, (p,q), NO/BO, S:T.
_QUANTITY = re.compile(
    rf"{_NAME}|\|{_NAME}\||\((?:{_NAME},)+{_NAME}\)|\\frac\{{{_NAME}\}}\{{{_NAME}\}}|{_NAME}[:/]{_NAME}"
)
_FLIP = str.maketrans("<>≤≥", "><≥≤")


def _split(text: str, marks: str) -> list[str]:
    """`text` cut at the characters `marks` outside brackets, which stay in the list: "a=b" -> ["a", "=", "b"]."""
    parts, depth = [""], 0
    for character in text:
        depth += (character in "([{⦃") - (character in ")]}⦄")
        if depth == 0 and character in marks:
            parts += [character, ""]
        else:
            parts[-1] += character
    return parts


def _inside(text: str, opening: str, closing: str) -> str | None:
    """What stands between the first and the last character if those are a pair of brackets of the given kinds."""
    depth = 0
    for at, character in enumerate(text):
        depth += (character in "([{⦃") - (character in ")]}⦄")
        if depth == 0:
            whole = at == len(text) - 1 and text[0] in opening and text[-1] in closing
            return text[1:-1] if whole else None
    return None


def _members(text: str) -> tuple[list[str], bool]:
    """The parts of a list, set or union, with ± written out, and whether it is marked as a set."""
    text = re.sub(rf"^(?:{_NAME})∈", "", text)
    union = _split(text, "∪")[::2]
    if len(union) > 1:
        return [member for part in union for member in _members(part)[0]], True
    inner = _inside(text, "⦃", "⦄")
    if inner is not None and (builder := re.fullmatch(rf"(?:{_NAME})(?:\\mid|:|\|)(.*)", inner)):
        return [builder[1]], True  # {x | x>3}
    members = []
    for part in _split(text if inner is None else inner, ",;")[::2]:
        plus, minus = part.replace("±", "+").replace("∓", "-"), part.replace("±", "-").replace("∓", "+")
        members += [re.sub(r"(^|[=(])\+", r"\1", plus), minus] if "±" in part else [part] if part else []
    return members, inner is not None


def _named(part: str) -> tuple[str | None, str]:
    sides = _split(part, "=")
    return (sides[0], sides[2]) if len(sides) == 3 and _QUANTITY.fullmatch(sides[0]) else (None, part)


def _same_lists(golds: list[str], answers: list[str], ordered: bool) -> bool:
    """As many parts, equal one by one. Their order counts if `ordered`, or if it alone tells x from y."""
    if len(golds) != len(answers) or len(golds) > 64:
        return False
    gold_pairs, answer_pairs = [_named(gold) for gold in golds], [_named(answer) for answer in answers]
    gold_names, answer_names = ({name for name, _ in pairs if name} for pairs in (gold_pairs, answer_pairs))
    if not (len(gold_names) > 1 and len(answer_names) > 1):
        golds, answers = [value for _, value in gold_pairs], [value for _, value in answer_pairs]
        if gold_names and answer_names and gold_names != answer_names:
            return False
        if ordered or len(gold_names) > 1 or len(answer_names) > 1:
            return all(map(same, golds, answers))
    left = list(answers)
    for gold in golds:
        match = next((at for at, answer in enumerate(left) if same(gold, answer)), None)
        if match is None:
            return False
        del left[match]
    return True


def _interval(text: str) -> tuple[str, str] | None:
    """A solved inequality as (name, interval): "x≤5" -> ("x", "(-∞,5]"); None for any other text."""
    parts = _split(text, "<>≤≥=≠")
    turned = len(parts) == 3 and not _QUANTITY.fullmatch(parts[0].removeprefix("-"))
    if turned or (len(parts) == 5 and parts[1] in ">≥"):
        parts = [part.translate(_FLIP) for part in reversed(parts)]
    if len(parts) == 3 and parts[0].startswith("-"):
        parts = [parts[0][1:], parts[1].translate(_FLIP), f"-({parts[2]})"]
    if len(parts) == 3 and parts[1] in "<>≤≥":
        name, sign, bound = parts
        low, high = (
            (f"(-∞,{bound}", ")" if sign == "<" else "]")
            if sign in "<≤"
            else (f"{'(' if sign == '>' else '['}{bound},∞", ")")
        )
    elif len(parts) == 5 and parts[1] in "<≤" and parts[3] in "<≤":
        name = parts[2]
        low, high = f"{'(' if parts[1] == '<' else '['}{parts[0]},{parts[4]}", ")" if parts[3] == "<" else "]"
    else:
        return None
    return (name, low + high) if _QUANTITY.fullmatch(name) else None


def _multiples(golds: list[str], answers: list[str]) -> bool:
    """Whether two relations [left, sign, right] are one: left - right differs by a constant factor only."""
    try:
        trees = [_parse(side) for side in golds[::2] + answers[::2]]
        points = [[_wide(_value(tree, trial)) for tree in trees] for trial in range(TRIALS)]
    except (Unreadable, ZeroDivisionError) as error:
        raise Undecided from error
    if any(a == b or c == d for a, b, c, d in points):
        return False
    factors = [(a - b) / (c - d) for a, b, c, d in points]
    sign = answers[1].translate(_FLIP) if factors[0].real < 0 else answers[1]
    return sign == golds[1] and factors[0].imag == 0 and all(_close(factor, factors[0]) for factor in factors)


def _same_relations(gold: str, answer: str) -> bool:
    """At least one of the two holds =, ≠ or an inequality that is not solved."""
    golds, answers = _split(gold, "=<>≤≥≠"), _split(answer, "=<>≤≥≠")
    two_sides = len(golds) == len(answers) == 3
    if set(golds[1::2] + answers[1::2]) != {"="}:
        if golds[1::2] == answers[1::2] and all(map(same, golds[::2], answers[::2])):
            return True
        return two_sides and not _interval(gold) and _multiples(golds, answers)
    if len(answers) == 3 and not _QUANTITY.fullmatch(answers[0]) and _QUANTITY.fullmatch(answers[2]):
        answers.reverse()  # 5=x
    (gold_name, gold_value), (name, values) = (
        (sides[0], sides[2::2]) if len(sides) > 1 and _QUANTITY.fullmatch(sides[0]) else (None, sides[::2])
        for sides in (golds, answers)
    )
    if len(gold_value) > 1:  # no value answers an equation
        return two_sides and _multiples(golds, answers)
    if gold_name and not name and len(values) > 1:  # y=2x+1 is answered by 2x-y+1=0, but x=5 not by 2x+3=13
        return two_sides and bool(re.search("[a-zA-Z]", gold_value[0])) and _multiples(golds, answers)
    return (not gold_name or name in (None, gold_name)) and all(same(gold_value[0], value) for value in values)


def _same_rounded(gold: str, answer: str) -> bool:
    """An exact value with its approximations, each of which must be that value rounded: sqrt(3)/3 ≈ 0.577."""
    exact, *rounded = _split(answer, "≈")[::2]
    exact = _named(exact)[1]
    try:
        value = _wide(_value(_parse(exact)))
        for side in rounded:
            places = len(re.fullmatch(r"-?\d+(?:\.(\d*))?", side)[1] or "")
            if abs(value - _wide(_parse(side))) > mpmath.mpf(10) ** -places / 2:
                return False
    except (Unreadable, TypeError, ZeroDivisionError):  # TypeError: not a decimal number
        return False
    return same(gold, exact) or ("." in gold and same(gold, rounded[-1]))


def _same_matrices(gold: str, answer: str) -> bool:
    found = [re.fullmatch(r"\\begin\{matrix\}(.*)\\end\{matrix\}", text) for text in (gold, answer)]
    if not found[0]:
        raise Undecided
    if not found[1]:
        return False
    golds, answers = ([row.split("&") for row in matrix[1].split("\\\\")] for matrix in found)
    if [len(row) for row in golds] != [len(row) for row in answers]:
        return False
    return all(all(map(same, *rows)) for rows in zip(golds, answers, strict=True))


def _same_single(gold: str, answer: str) -> bool:
    """Two things that are neither lists nor relations: percentages, words, or values."""
    if gold.endswith("%") or answer.endswith("%"):  # 28% is answered by 28 and by 0.28, and the other way round
        number, other = gold.removesuffix("%"), answer.removesuffix("%")
        return same(number, other) or (
            gold[-1] != answer[-1]
            and same(*(f"({text[:-1]})/100" if text.endswith("%") else text for text in (gold, answer)))
        )
    if "\\text" in gold or re.fullmatch(r"[a-zA-Z]{3,}|.*(?:\d_|[…␣∞]).*", gold):
        # Words; also a numeral in another base: 204_5 is not answered by 54.
        words = [re.sub(r"\\text|[{} ]", "", text) for text in (gold, answer)]
        return bool(words[0]) and (
            words[0] == words[1] or (len(words[0]) > 1 and words[0].casefold() == words[1].casefold())
        )
    return _equal_values(gold, answer)


def same(gold: str, answer: str) -> bool:
    """Whether two canonical strings say the same. Raises Undecided where math-verify is to judge the whole answer."""
    (golds, gold_set), (answers, answer_set) = _members(gold), _members(answer)
    inner = [_inside(text, "(", ")") for text in (gold, answer)]
    tuples = [text is not None and len(_split(text, ",;")) > 1 for text in inner]
    if len(golds) != 1 or len(answers) != 1:
        if tuples[0] and not answer_set:  # (3,1) is answered by 3,1 in this order
            return _same_lists(_split(inner[0], ",;")[::2], answers, ordered=True)
        if tuples[1] and not gold_set:
            return _same_lists(golds, _split(inner[1], ",;")[::2], ordered=True)
        return _same_lists(golds, answers, ordered=False)
    gold, answer = golds[0], answers[0]
    if "≈" in answer and "≈" not in gold:
        return _same_rounded(gold, answer)
    solved = [_interval(text) for text in (gold, answer)]
    if all(solved) and solved[0][0] != solved[1][0]:
        return False
    gold, answer = (interval[1] if interval else text for interval, text in zip(solved, (gold, answer), strict=True))
    if len(_split(gold + answer, "=<>≤≥≠")) > 1:
        return _same_relations(gold, answer)
    spans = [_inside(text, "([", ")]") for text in (gold, answer)]
    parts = [_split(span or "", ",;")[::2] for span in spans]
    if max(map(len, parts)) > 1:
        return (
            gold[0] + gold[-1] == answer[0] + answer[-1] and len(parts[0]) == len(parts[1]) and all(map(same, *parts))
        )
    ratios = [_split(text, ":")[::2] for text in (gold, answer)]
    if max(map(len, ratios)) > 1:
        return len(ratios[0]) == len(ratios[1]) and all(map(same, *ratios))
    return (_same_matrices if r"\begin{matrix}" in gold else _same_single)(gold, answer)


def compare(gold: str, answer: str, trusting: bool = True) -> bool:
    """Whether `answer` says what `gold` says (contents of a box). `trusting`: equal texts do, understood or not."""
    from math_verify import LatexExtractionConfig, parse, verify
    from sympy import Set
    from sympy.core.relational import Relational

    texts = canonical(gold), canonical(answer)
    if trusting and texts[0] == texts[1] != "":
        return True
    with mpmath.workdps(80):
        try:
            if "\\setminus" not in texts[1]:
                return same(*texts)
        except Undecided:
            pass
    # The limits of the worker bound math-verify; its own use SIGALRM and are off.
    latex = [LatexExtractionConfig(boxed_match_priority=0)]  # the whole box or nothing, no number found in it
    how = {"fallback_mode": "no_fallback", "extraction_mode": "first_match", "parsing_timeout": None}
    trees = [parse(rf"\boxed{{{text}}}", latex, **how) for text in (gold, answer)]
    if not all(trees) or any(isinstance(trees[0][0], t) != isinstance(trees[1][0], t) for t in (Set, Relational)):
        return False
    return verify(trees[0], trees[1], timeout_seconds=None)


# --- the worker's side -------------------------------------------------------------------------------------------


def _serve(reply: int, cpu_seconds: float) -> None:
    """Answer JSON lines [gold, answer, trusting], each with its status, until the trainer closes the pipe."""
    for _ in range(RETIRE):
        if not (line := sys.stdin.buffer.readline()):
            os._exit(0)
        signal.setitimer(signal.ITIMER_PROF, cpu_seconds)  # CPU time: a loaded machine changes no verdict
        try:
            status = b"correct\n" if compare(*json.loads(line)) else b"wrong\n"
        except RecursionError:
            status = b"wrong\n"  # nested deeper than any answer
        except MemoryError:
            os._exit(NO_MEMORY)
        signal.setitimer(signal.ITIMER_PROF, 0)
        os.write(reply, status)
    os._exit(RETIRED)


def _worker(cpu_seconds: float, memory_bytes: int) -> None:
    """The template: loads what comparing needs, then forks one comparing process after the other."""
    reply = os.dup(1)
    os.dup2(2, 1)  # what a library prints must not be taken for a verdict
    logging.disable(logging.CRITICAL)  # math-verify warns that its time limits are off
    compare(r"\sum_{k=1}^n k", r"\frac{n(n+1)}{2}")  # loads and warms the parser and math-verify
    resource.setrlimit(resource.RLIMIT_AS, (memory_bytes, memory_bytes))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    os.write(reply, b"ready\n")
    while True:
        if (child := os.fork()) == 0:
            _serve(reply, cpu_seconds)
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        if status == 0:
            return
        if status != RETIRED:  # SIGABRT: the big-number library found no memory
            died = {-signal.SIGPROF: b"timeout\n", NO_MEMORY: b"memory\n", -signal.SIGABRT: b"memory\n"}
            os.write(reply, died.get(status, b"crash\n"))


# --- the trainer's side ------------------------------------------------------------------------------------------


class _Process:
    """One worker, in a process group of its own: Ctrl-C does not reach it and killing it leaves nothing behind."""

    def __init__(self, cpu_seconds: float, memory_bytes: int):
        command = [sys.executable, str(Path(__file__).resolve()), "--worker", str(cpu_seconds), str(memory_bytes)]
        pipe, environment = subprocess.PIPE, {**os.environ, "PYTHONHASHSEED": "0"}
        self.process = subprocess.Popen(command, stdin=pipe, stdout=pipe, env=environment, start_new_session=True)
        self.replies = self.process.stdout

    def wait_ready(self) -> None:
        """Raises RuntimeError if the worker does not start (math-verify missing, no memory, or 120 s gone)."""
        if not multiprocessing.connection.wait([self.replies], 120):
            self.process.kill()
        if self.replies.readline() != b"ready\n":
            raise RuntimeError(f"the verifier's worker did not start: exit status {self.process.wait()}")

    def send(self, job: tuple[str, str, bool]) -> None:
        with contextlib.suppress(BrokenPipeError):  # a dead worker shows as the end of its replies
            self.process.stdin.write(json.dumps(job).encode() + b"\n")
            self.process.stdin.flush()

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        self.replies.close()
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.close()


class Verifier:
    """A pool of worker processes that grade completions; a context manager.

    workers: processes, about 100 MB each. cpu_seconds: CPU time that one sample may take; it decides `timeout`.
    wall_seconds: after so long a worker is killed whatever it does; as only a starved one gets so far, its sample is
    tried once more. memory_bytes: address space of a worker.
    """

    def __init__(
        self, workers: int = 2, cpu_seconds: float = 1.0, wall_seconds: float = 3.0, memory_bytes: int = 1 << 30
    ):
        if workers < 1:
            raise ValueError(f"workers is {workers}: at least 1 is needed")
        self.workers, self.wall_seconds, self.limits = workers, wall_seconds, (cpu_seconds, memory_bytes)
        self.pool: list[_Process] = []

    def __enter__(self) -> Verifier:
        self.pool = [_Process(*self.limits) for _ in range(self.workers)]
        try:
            for worker in self.pool:
                worker.wait_ready()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *exception) -> None:
        self.close()

    def close(self) -> None:
        """Kill the workers."""
        while self.pool:
            self.pool.pop().kill()

    def grade(self, completions: list[str], golds: list[str]) -> list[Verdict]:
        """One verdict for each completion (the text after the prompt, never the prompt itself), in order.

        Raises ValueError if the lists differ in length, RuntimeError outside `with` or if a worker cannot start.
        """
        if len(completions) != len(golds):
            raise ValueError(f"{len(completions)} completions for {len(golds)} golds")
        answers = [extract_boxed(completion) for completion in completions]
        statuses = {at: "no_box" if answer is None else "too_long" for at, answer in enumerate(answers)}
        jobs = {
            at: (gold, answer, True)
            for at, (gold, answer) in enumerate(zip(golds, answers, strict=True))
            if answer is not None and max(len(gold), len(answer)) <= MAX_ANSWER
        }
        statuses |= self._run(jobs)
        return [Verdict(float(status == "correct"), status) for _, status in sorted(statuses.items())]

    def check_golds(self, golds: list[str]) -> list[bool]:
        """For each gold whether it can be verified against itself: it fits a box, is understood and found equal."""
        boxed = [extract_boxed(rf"\boxed{{{gold}}}") == gold.strip() for gold in golds]
        jobs = {at: (g, g, False) for at, g in enumerate(golds) if boxed[at] and len(g) <= MAX_ANSWER}
        statuses = self._run(jobs)
        return [statuses.get(at) == "correct" for at in range(len(golds))]

    def _run(self, jobs: dict[int, tuple[str, str, bool]]) -> dict[int, str]:
        """The status of each job. A worker holds one job at a time, so that a death is blamed on the right one."""
        if not self.pool:
            raise RuntimeError("the Verifier is not running: use `with Verifier(...) as verifier:`")
        try:
            return self._shared_out(jobs)
        except BaseException:  # also Ctrl-C: a worker still owes a reply, which must not meet the next question
            self.close()
            raise

    def _shared_out(self, jobs: dict[int, tuple[str, str, bool]]) -> dict[int, str]:
        waiting, statuses = collections.deque((at, 1) for at in jobs), {}
        idle, busy = list(self.pool), {}
        while waiting or busy:
            while idle and waiting:
                worker, (at, attempt) = idle.pop(), waiting.popleft()
                worker.send(jobs[at])
                busy[worker] = at, attempt, time.monotonic() + self.wall_seconds
            patience = min(deadline for _, _, deadline in busy.values()) - time.monotonic()
            ready = multiprocessing.connection.wait([worker.replies for worker in busy], max(0.0, patience))
            for worker, (at, attempt, deadline) in list(busy.items()):
                if worker.replies not in ready and time.monotonic() < deadline:
                    continue
                del busy[worker]
                status = worker.replies.readline().decode().strip() if worker.replies in ready else "starved"
                if status in ("", "starved"):
                    worker.kill()
                    place = self.pool.index(worker)
                    worker = self.pool[place] = _Process(*self.limits)
                    worker.wait_ready()
                idle.append(worker)
                if status in ("", "starved", "crash") and attempt == 1:
                    waiting.append((at, 2))
                else:
                    statuses[at] = {"": "crash", "starved": "timeout"}.get(status, status)
        return statuses


def check_gold(gold: str) -> bool:
    """Whether `gold` can be verified against itself. Starts a worker each time: for many use `check_golds`."""
    with Verifier(workers=1) as verifier:
        return verifier.check_golds([gold])[0]


if __name__ == "__main__":
    if len(sys.argv) != 4 or sys.argv[1] != "--worker":
        sys.exit("verify.py is a module; its Verifier starts the workers")
    _worker(float(sys.argv[2]), int(sys.argv[3]))

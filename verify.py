r"""The verified reward r_ver(o) in {0, 1}: does the last \boxed{} of completion o say what the gold answer says?

1. `Verifier`, in the trainer, cuts the box out of the completion and hands gold and answer, as strings, to workers.
2. A worker, `python verify.py --worker ...`, imports no torch and no trainer, and has limits on CPU time and memory.
   When it dies of one, or is killed after too long, its end tells the status of the sample and a fresh one follows.
3. `same(gold, answer)` compares. math-verify alone is too generous for a reward that is optimised against: it solves
   equations, so that repeating the question pays; it takes 1/2^99 for 1/2^98, "5 6" for 11 and 1=2=5 for 5. So:
   - The answer has the gold's shape: as many parts, the same brackets, the same names; every side of an "=" is true.
   - Values are parsed only if they are arithmetic in letters; then they are equal exactly where rational, else to 60
     digits, at random points for the letters. (math-verify's own `verify` judges golds with sums or integrals.)
   - Everything else is equal as text or not at all. A right answer in a rare spelling earns 0 (sin 30° in degrees,
     {x | x>3}, a zero hidden in roots, the real root of -8): a wrong 1 is learned, a wrong 0 only slows learning.
"""

from __future__ import annotations

import contextlib
import functools
import json
import logging
import multiprocessing.connection
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
from pathlib import Path

import math_verify
from latex2sympy2_extended.latex2sympy2 import ConversionConfig, latex2sympy
from sympy import E, Float, I, Rational

MAX_ANSWER = 2000  # characters of a box; longer ones are not read (status too_long)
START_SECONDS = 120  # a worker that takes longer to start does not work
NO_MEMORY = 4  # exit status of a worker
TRIALS = 6  # random points at which expressions in letters are compared; none of the first half is negative


@dataclass(frozen=True)
class Verdict:
    """`reward` is 1.0 iff `status` is "correct"; the others are wrong, no_box, too_long, timeout, memory, crash."""

    reward: float
    status: str


def extract_boxed(text: str) -> str | None:
    r"""The content of the last `\boxed{...}`, stripped; None if there is none, or it is empty or never closed."""
    start = max((box.end() for box in re.finditer(r"\\boxed\s*\{", text)), default=len(text))
    depth = 1
    for brace in re.compile(r"\\.|[{}]", re.DOTALL).finditer(text, start):
        depth += {"{": 1, "}": -1}.get(brace[0], 0)  # an escaped brace is neither
        if depth == 0:
            return text[start : brace.start()].strip() or None
    return None


# --- one spelling for each thing ---------------------------------------------------------------------------------

_UNICODE = str.maketrans(
    {
        "−": "-",
        "–": "-",
        "‑": "-",
        "×": "*",
        "·": "*",
        "÷": "/",
        "π": r"\pi ",
        "√": r"\sqrt ",
        "½": r"\frac12 ",
    }
    | dict.fromkeys("$€£", " ")
    | {digit: f"^{unicodedata.digit(digit)}" for digit in "⁰¹²³⁴⁵⁶⁷⁸⁹"}
    | {digit: f"_{unicodedata.digit(digit)}" for digit in "₀₁₂₃₄₅₆₇₈₉"}
)
# One character for each relation, set operation and bracket, so that texts can be cut at them.
_COMMANDS = {
    command: spelling
    for spelling, commands in {
        **{
            "≤": "le leq leqslant <=",
            "≥": "ge geq geqslant >=",
            "≠": "ne neq !=",
            "<": "lt",
            ">": "gt",
        },
        **{
            "∈": "in",
            "∪": "cup",
            "±": "pm",
            "∞": "infty",
            "≈": "approx",
            "°": "circ degree",
            "¬": "not neg lnot",
        },
        **{"⦃⦄": "emptyset varnothing ∅", r"\binom": "dbinom tbinom", "^": "**"},
        **{
            "⦃": "{ lbrace",
            "⦄": "} rbrace",
            "(": "langle",
            ")": "rangle",
            "|": "vert lvert rvert",
            "%": "%",
        },
        **{
            "*": "cdot times",
            "/": "div",
            ":": "colon",
            ",": "lor land vee wedge",
            r"\frac": "dfrac tfrac cfrac",
        },
        **{
            " ": ", ; : > ( ) quad qquad left right big Big bigl bigr displaystyle",
            "…": "ldots cdots dots",
        },
        **{"": "! $ boldsymbol bm mathit mathsf underline fbox bf"},
        **{r"\text": "textbf textit textrm textnormal mbox mathrm mathbf operatorname"},
    }.items()
    for command in commands.split()
} | {" ": " "}
# Not a unit: words that change what the number before them claims. Any others are taken for one.
_NO_CLAIM = (
    r"(?![^}]*(?:\b[kKMB]\b|(?i:\b(?:[iex]|pi|or|and|not?|non|is|to|than|but|plus|minus|times|over|half|double|twice|dozen|score"
    r"|hundred|thousand|[bmtr]+illion|bn|mil|lakh|crore|halves|thirds|quarters|(?!mon)\w+ths|root|factorial|negative|wrong"
    r"|false|ish|alpha|beta|gamma|delta|theta"
    r"|lambda|sigma|omega|phi|sin\w*|cos\w*|tan\w*|log\w*|mod\w*|infinity|zero|one|two|three|four|five|six|seven|eight|nine|ten|eleven|twelve|\w*teen|\w+ty"
    r"|squared|cubed)\b)))"
)
_POWER = (
    r"(?: ?\^ ?\{?-?[123]\}?)?(?= *(?:$|[,;=≈)⦄]))"  # of a unit, which stands at the end of a part
)


def _of_a_number(unit: re.Match) -> str:
    """Nothing, or the unit itself where no number stands before it: `red blue`."""
    return "" if re.search(r"[\d%]|\\pi", unit.string[: unit.start()]) else unit[0]


def _repeating(decimal: re.Match) -> str:
    r"""0.1\overline{6} as the fraction (16 - 1)/90."""
    whole, start, again = decimal.groups(default="")
    top = int(whole + start + again) - int("0" + whole + start)
    return rf"(\frac{{{top}}}{{{10 ** len(start) * (10 ** len(again) - 1)}}})"


_SPELLING = [
    (r"\s+|~", " "),
    (
        r"(?<=\d)(?:\{,\}|,? ?\\!|\\[,; ]) ?(?=\d{3}(?!\d))",
        "",
    ),  # thousands, whatever separates them
    (r"\\+ ?$|(?<=[\w)\]}%°]) ?\.(?=(?: ?\})? ?$)", ""),
    (r"\\\\ ?\[[\d.]+ ?\w\w\]", r"\\\\"),
    (r"\\mathbb ?\{?R\}?(?![\w^])", "(-∞,∞)"),
    (r"^ ?\\(?:text)?color ?\{\w+\}", ""),
    (r"\\\\|\\([a-zA-Z]+|.)|[<>!]=|\*\*|∅|\.\.\.", lambda m: _COMMANDS.get(m[1] or m[0], m[0])),
    (r" +", " "),
    (r"\{([^{}]*)\\over ([^{}]*)\}", r"\\frac{\1}{\2}"),
    (r"\{([^{}]*)\\choose ([^{}]*)\}", r"\\binom{\1}{\2}"),
    (r"^ ?\{((?:[^{}]|\{(?:[^{}]|\{[^{}]*\})*\})*)\} ?$", r"\1"),
    (r"\^ ?\{? ?° ?\}?|°", " "),
    (r"[(\[]? ?\\begin\{(?:(?:[pbB]|small)?matrix|array)\}(?:\{[lcr| ]*\})?", r"\\begin{matrix}"),
    (r"(?:\\\\ ?)?\\end\{(?:(?:[pbB]|small)?matrix|array)\} ?[)\]]?", r"\\end{matrix}"),
    (r"(?<![a-zA-Z\\])(sqrt|sin|cos|tan|log|ln|pi)(?![a-zA-Z])", r"\\\1 "),
    (r",? ?(?:\\text ?\{ ?(?:and|or) ?\}|(?<![a-zA-Z{ ]) ?(?:and|or)(?![a-zA-Z]))", ","),
    (r" ?(?:\\text ?\{ ?(?:percent(?:age)?|pct) ?\}|\b(?:percent(?:age)?|pct)\b)", "%"),
    (r"\\text ?\{ ?(-?[\d.,/]+) ?([a-zA-Z][^{}\d]*)\}", r"\1\\text{\2}"),
    (rf"(?<=[^ ,;=({{⦃]) *\\text ?\{{{_NO_CLAIM} ?[A-Za-z][A-Za-z/. -]*\}}{_POWER}", _of_a_number),
    (
        rf"(?:(?<=[\d}}])|(?<=\\pi)) ?(?:[ckm]m|kg|(?:\b(?=[a-z]){_NO_CLAIM}(?:[a-z]{{4,}}|per|in) ?)+){_POWER}",
        _of_a_number,
    ),
    (r"^ ?\\text ?\{((?:[^{}a-zA-Z]|\\[a-zA-Z]+|\{[^{}]*\})+)\} ?$", r"\1"),
    (r"\\text ?\{ ?([-+]?[\d./]+|\(?[A-Za-z]\)?) ?\}", r" \1 "),
    (
        r"^ ?-?\d{1,3}(?: \d{3})+(?=(?:\.\d+)? ?$)|(?:^|=) ?-?\d{1,3}(?:,\d{3})+(?=(?:\.\d+)?[ %]*$)",
        lambda m: re.sub("[ ,]", "", m[0]),
    ),
    (r"(?<![\d.,])(\d+) (\d+) ?/ ?(\d+)(?![\d.])", r"\1\\frac{\2}{\3}"),
    (
        r"\\frac(?: ?(\d)| ([a-zA-Z])| ?(\\pi(?![a-z]))) ?",
        lambda m: rf"\frac{{{m[1] or m[2] or m[3]}}}",
    ),
    (r"(\\frac\{(?:[^{}]|\{[^{}]*\})*\}) ?([\da-zA-Z]|\\pi(?![a-z]))", r"\1{\2}"),
    (r"\\sqrt ?(\d+)|\\sqrt ?\(([^()]*)\)", lambda m: rf"\sqrt{{{m[1] or m[2]}}}"),
    (r"\\sqrt ?(\[\d+\]) ?(\d)", r"\\sqrt\1{\2}"),
    (r"\\pmod ?(\d+)", r"\\pmod{\1}"),
    (
        r"(?<=\d) ?_ ?(?:(\d+)|\{ ?\(?(\d+)\)? ?\})|_ ?(\w)",
        lambda m: f"_{{{m[1] or m[2] or m[3]}}}",
    ),
    (
        r"(?<![\d.,}])(\d+) ?\\frac\{(\d+)\}\{(\d+)\}",
        r"(\1+\\frac{\2}{\3})",
    ),  # 11 5/6 is no product
    (r"(?<!\d)\.(?=\d)", "0."),
    (r"(\d*)\.(\d*)\\(?:overline|bar) ?\{ ?(\d+) ?\}", _repeating),
    (r"(?<=[\d.]) +(?=[\d.])", "?"),  # two numbers side by side are no product
    (r"(\\[a-zA-Z]+ (?=[a-zA-Z]))| ", r"\1"),
    (r"(?<![^=(\[,])\+", ""),
    (r"^\(?([A-Z])\)?$", r"\1"),  # a choice
    # A set without one of its points is a union.
    (r"([(\[])([^,]*),([^,]*)([)\]])\\setminus⦃([^,⦄]*)⦄", r"\1\2,\5)∪(\5,\3\4"),
]


def canonical(text: str) -> str:
    """One spelling of `text`: thousands, units, synonyms of commands and spaces are gone."""
    text = unicodedata.normalize("NFKC", text.translate(_UNICODE))
    # An unseen character must not glue what it separates: 4<NUL>2 is not 42.
    text = "".join(
        " " if unicodedata.category(character)[0] == "C" else character for character in text
    )
    for pattern, replacement in _SPELLING:
        text = re.sub(pattern, replacement, text)
    return text


# --- values ------------------------------------------------------------------------------------------------------

# All that is ever parsed as a value. The parser would evaluate much more: \gcd(4,6), \phantom{4}5 (9), 5_6 (5) ...
_ARITHMETIC = re.compile(
    r"(?![a-zA-Z]{3,}$)(?:[\da-zA-Z.+*/^{}()|! -]|(?<=[a-zA-Z])_(?:\w|\{\w+\})|\\sqrt\[\d+\]|\\(?:frac|sqrt|binom|pi"
    r"|sin|cos|tan|cot|sec|csc|log|ln|alpha|beta|gamma|delta|theta|lambda|mu|phi|omega|sigma|rho)(?![a-zA-Z]))+"
)
_CONSTANTS = {"e": E, "i": I}
_FUNCTION = re.compile(r"\\(?:sin|cos|tan|cot|sec|csc|log|ln)")


@functools.lru_cache(maxsize=256)  # the completions of a group share their gold
def _values(text: str) -> list:
    """The value as a sympy number: one, or TRIALS of them if there are letters; [] if it has none."""
    plain = re.sub(r"^([-+]?)\\frac\{(\d+)\}\{(\d+)\}$", r"\1\2/\3", text)
    if re.fullmatch(r"[-+]?\d+(?:\.\d*|/0*[1-9]\d*)?", plain):
        return [Rational(plain)]  # a short cut: most answers are plain numbers
    if not _ARITHMETIC.fullmatch(text):
        return []
    config = ConversionConfig(interpret_as_mixed_fractions=False, lowercase_symbols=False)
    text = re.sub(r"(?<![\d.^_])(\d[\d.]*)(?=\()", r"\1*", text).replace(
        "*", r"\cdot "
    )  # 7(8) is 56, not 15
    values = []
    try:
        tree = latex2sympy(text, is_real=False, normalization_config=None, conversion_config=config)
        tree = tree.xreplace({decimal: Rational(str(decimal)) for decimal in tree.atoms(Float)})
        letters = [symbol for symbol in tree.free_symbols if symbol.name not in _CONSTANTS]
        tree = tree.xreplace(
            {symbol: _CONSTANTS[symbol.name] for symbol in tree.free_symbols - {*letters}}
        )
        for trial in range(TRIALS if letters else 1):
            point = {}
            for letter in letters:  # 0.2 to 2.3; depends on nothing but the letter and the trial
                draw = zlib.crc32(f"{trial} {letter.name}".encode())
                sign = -1 if trial >= TRIALS // 2 and draw >> 16 & 1 else 1
                point[letter] = Rational(sign * (draw % 1009 + 101), 487)
            value = tree.xreplace(point).doit()
            values.append(value if value.is_Rational else value.evalf(80))
    except MemoryError:
        raise
    except Exception:  # the parser raises all kinds, bare Exception among them
        return []
    return values if all(value.is_finite for value in values) else []  # finite: no 1/0, no f(2)


def _close(a, b) -> bool:
    """Equal: exactly if both are rational, else to 60 digits."""
    return a == b or (
        not (a.is_Rational and b.is_Rational) and abs(a - b) <= abs(a) * Rational(1, 10**60)
    )


def _rounded(exact: str, decimal: str, least: int) -> bool:
    """Whether `decimal` is the value `exact`, rounded to the places it shows: `least` of them and as many digits."""
    places = len(decimal.partition(".")[2])
    values, digits = _values(exact), decimal.replace(".", "").lstrip("-0")
    if (
        len(values) != 1
        or min(places, len(digits)) < least
        or not re.fullmatch(r"-?\d+(?:\.\d*)?", decimal)
    ):
        return False
    return bool(abs(values[0] - Rational(decimal)) <= Rational(1, 2 * 10**places))


def _same_value(gold: str, answer: str) -> bool:
    """Whether two texts that have no parts are the same words or the same value."""
    if answer.endswith("%%"):
        return False
    if gold.endswith("%") or answer.endswith(
        "%"
    ):  # 28% is answered by 28 and by 0.28, and the other way round
        pairs = zip(
            *((text.rstrip("%"), re.sub("(.*)%$", r"(\1)/100", text)) for text in (gold, answer)),
            strict=True,
        )
        return any(_same_value(*pair) for pair in pairs)
    if not _ARITHMETIC.fullmatch(gold):
        words = [re.sub(r"\\text\{([^{}]*)\}", r"\1", text).casefold() for text in (gold, answer)]
        beyond = re.search(r"\\(?:sum|prod|int|lim)", gold)
        return (words[0] == words[1] and bool(re.search(r"\w|∞", gold))) or (
            beyond and _math_verify(gold, answer)
        )
    golds, answers = _values(gold), _values(answer)
    if (
        not golds
        or len(golds) != len(answers)
        or (_FUNCTION.search(answer) and not _FUNCTION.search(gold))
    ):
        return False  # log_2(8) repeats the question; it does not answer 3
    decimal, exact = sorted((gold, answer), key=lambda text: "." not in text)
    if "." not in exact and _rounded(exact, decimal, 6):
        return True
    pairs = zip(golds, answers, strict=True)
    # Roots of negative letters have several readings.
    return all(
        _close(*pair)
        for n, pair in enumerate(pairs)
        if n < TRIALS // 2 or all(one.is_real for one in pair)
    )


def _math_verify(gold: str, answer: str) -> bool:
    """For golds beyond arithmetic. Its own time limits use SIGALRM and are off: the worker has limits."""
    whole = [
        math_verify.LatexExtractionConfig(boxed_match_priority=0)
    ]  # no number is searched for in the box
    how = {
        "fallback_mode": "no_fallback",
        "extraction_mode": "first_match",
        "parsing_timeout": None,
    }
    trees = [math_verify.parse(rf"\boxed{{{text}}}", whole, **how) for text in (gold, answer)]
    return all(trees) and math_verify.verify(*trees, timeout_seconds=None)


# --- shapes ------------------------------------------------------------------------------------------------------

_LETTER = (
    r"(?:\\(?:angle|overline|vec|sin|cos|tan)[ {]*)*(?:\\text\{[a-zA-Z ]+\}|\\[a-zA-Z]{2,7}|[A-Z]{2,5}|[a-zA-Z])"
    r"(?:_(?:\w|\{\w+\}))?'*(?:\([\w,]+\))?\}?"
)
# What may stand on one side of "=" without making a claim: x, f(2), S_{ABC}, |AB|, (p,q), NO/BO, S:T.
_NAME = re.compile(
    rf"[|(]?{_LETTER}(?:[,/:]{_LETTER})*[|)]?|\\frac\{{d?{_LETTER}\}}\{{d?{_LETTER}\}}"
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


def _shape(text: str) -> tuple[str, str, list[str]]:
    r"""Name, kind and parts of a text: "x≤5" -> ("x", "(]", ["-∞", "5"]), "k=7:32" -> ("k", ":", ["7", "32"])."""
    whole = text[:1] in ("(", "[", "⦃") and _split(text, ")]}⦄")[1:] == [
        text[-1],
        "",
    ]  # closed at the end only
    around = text[0] + text[-1] if whole else ""
    parts = _split(text[1:-1] if around else text, ",;")[::2]
    union = _split(text, "∪")[::2]
    if len(union) > 1:
        shapes = [(part, *_shape(part)) for part in union]
        parts = [
            one for part, _, kind, inner in shapes for one in (inner if kind == "set" else [part])
        ]
    if around == "⦃⦄" or len(union) > 1 or (not around and (len(parts) > 1 or "±" in text)):
        parts = [
            part.replace("±", sign)
            for part in parts
            if part or not around
            for sign in ("+-" if "±" in part else "+")
        ]
        if len(parts) == 1 and parts != ["⦃⦄"]:
            return _shape(parts[0])
        return "", "set" if around or len(union) > 1 else "list", parts
    if len(parts) > 1:
        return "", around, parts

    sides = _split(
        re.sub(r"^-([a-zA-Z])([<>≤≥])(.*)", r"-(\3)\2\1", text), "=∈<>≤≥≠"
    )  # -x<3 is -3<x
    signs = "".join(sides[1::2])
    if signs == "=" and _NAME.fullmatch(sides[2]) and not _NAME.fullmatch(sides[0]):
        sides.reverse()  # 5=x
    if signs and set(signs) <= {"=", "∈"} and _NAME.fullmatch(sides[0]):
        values = sides[2::2]
        return sides[0], *(_shape(values[0])[1:] if len(values) == 1 else (signs[1:], values))
    # An inequality that is solved for a name is an interval: low < name < high.
    chain = (
        [side.translate(_FLIP) for side in reversed(sides)] if signs[:1] in (">", "≥") else sides
    )
    if len(chain) == 3:
        chain = ["-∞", "<", *chain] if _NAME.fullmatch(chain[0]) else [*chain, "<", "∞"]
    if len(chain) == 5 and {chain[1], chain[3]} <= {"<", "≤"} and _NAME.fullmatch(chain[2]):
        return chain[2], "(["[chain[1] == "≤"] + ")]"[chain[3] == "≤"], [chain[0], chain[4]]
    if signs:
        return "", signs, sides[::2]
    if matrix := re.fullmatch(r"\\begin\{matrix\}(.*)\\end\{matrix\}", text):
        rows = [row.split("&") for row in matrix[1].split("\\\\")]
        return "", f"matrix {[len(row) for row in rows]}", [entry for row in rows for entry in row]
    ratio = _split(text, ":")[::2]
    return "", ":" if len(ratio) > 1 else "value", ratio


def _multiples(gold: str, answer: str) -> bool:
    """Whether two relations are one: left - right differs by a constant factor, which turns "<" if it is negative."""
    golds, answers = _split(gold, "=<>≤≥≠"), _split(answer, "=<>≤≥≠")
    sides = [_values(side) for side in golds[::2] + answers[::2]]
    if not (len(golds) == len(answers) == 3 and all(sides)):
        return False
    points = list(zip(*(values * (TRIALS // len(values)) for values in sides), strict=True))
    if any(a == b or c == d for a, b, c, d in points):  # 0=0 says nothing
        return False
    factors = [(a - b) / (c - d) for a, b, c, d in points]
    if not all(factor.is_real and _close(factor, factors[0]) for factor in factors):
        return False
    return golds[1] == (answers[1].translate(_FLIP) if factors[0] < 0 else answers[1])


def _same_parts(golds: list[str], answers: list[str], ordered: bool) -> bool:
    """As many parts, equal one by one."""
    left = list(answers)
    for gold in golds:
        match = next(
            (at for at, answer in enumerate(left[:1] if ordered else left) if same(gold, answer)),
            None,
        )
        if match is None:
            return False
        del left[match]
    return not left


def same(gold: str, answer: str) -> bool:
    """Whether two canonical texts say the same."""
    answer, *rounded = _split(answer, "≈")[::2]
    (name, kind, golds), (answer_name, answer_kind, answers) = _shape(gold), _shape(answer)
    if (
        rounded
    ):  # an exact value and its approximations, each of which must be right: sqrt(3)/3 ≈ 0.577
        return same(gold, answer) and all(_rounded(answers[-1], decimal, 0) for decimal in rounded)
    # An equation is answered by its multiples, and so is a formula: y=2x+1 by 2x-y+1=0, but x=5 not by 2x+3=13.
    other = answer_name not in ("", name)
    formula = (
        name and kind == "value" and (other or answer_kind == "=") and len(_values(golds[0])) > 1
    )
    if formula or kind[0] in "=<>≤≥≠":
        same_kind = (name, kind) == (answer_name, answer_kind) and len(golds) == len(answers)
        return _multiples(gold, answer) or (same_kind and all(map(same, golds, answers)))
    if name and other:
        return False
    if set(answer_kind) == {
        "="
    }:  # 3+5=8: every side must be right; m+n=8 is the name of what was asked for
        named = not name and re.fullmatch(r"[a-z](?:\+[a-z])+", answers[0])
        return all(same(gold, side) for side in answers[bool(named) :])
    if {kind, answer_kind} <= {"list", "set"}:  # the order counts only if it alone tells x from y
        names, answer_names = (
            {_shape(part)[0] for part in parts} - {""} for parts in (golds, answers)
        )
        ordered = max(len(names), len(answer_names)) > 1 >= min(len(names), len(answer_names))
        return _same_parts(golds, answers, ordered)
    if {kind, answer_kind} == {":", "value"} and len(golds) + len(answers) == 3:
        return _same_value("/".join(golds), "/".join(answers))
    if kind == answer_kind == "value":
        return _same_value(golds[0], answers[0])
    # (3,1) is answered by 3,1 in this order, and so by y=1,x=3
    if kind == "()" and all(_shape(part)[0] for part in answers):
        answers = sorted(answers)
    return (kind == answer_kind or {kind, answer_kind} == {"list", "()"}) and _same_parts(
        golds, answers, True
    )


# 5 cm is not 5 m: units of one kind, each with its spellings.
_SIZES = "mm,millimeter cm,centimeter m,meter,metre km,kilometer in,inch,inche ft,foot,feet mile g,gram kg,kilogram"
_SIZES += " second,sec minute,min hour,hr day week month year cent dollar am pm degree radian"
_SIZES = {word: size for size, words in enumerate(_SIZES.split()) for word in words.split(",")}


_POWERS = {"": "1", "sq": "2", "cu": "3"}


def _sizes(text: str) -> set[tuple[int, str]]:
    """The units in a text, with their powers: "5 square inches" has the same as "5 in^2"."""
    text = text.replace(".", "").replace("²", "^2").replace("³", "^3")
    found = re.findall(r"(?<![a-zA-Z\\])(?:(sq|cu)[a-z]* )?([a-z]+)(?:\W?\^\W?(\d))?", text)
    named = [
        (word if word in _SIZES else word.removesuffix("s"), power or _POWERS[name])
        for name, word, power in found
    ]
    return {(_SIZES[word], power) for word, power in named if word in _SIZES}


def compare(gold: str, answer: str, trusting: bool = True) -> bool:
    """Whether `answer` says what `gold` says (contents of a box). `trusting`: equal texts do, understood or not."""
    sizes, others = _sizes(gold), _sizes(answer)
    if sizes and others and not sizes & others:
        return False
    gold, answer = canonical(gold), canonical(answer)
    try:
        return (trusting and gold == answer != "") or same(gold, answer)
    except RecursionError:
        return False  # nested deeper than any answer


# --- the workers -------------------------------------------------------------------------------------------------


def _worker(cpu_seconds: float, memory_bytes: int) -> None:
    """Answers JSON lines [gold, answer, trusting], each with its status, until the trainer closes the pipe or dies."""
    replies = os.dup(1)
    os.dup2(2, 1)  # what a library prints must not be taken for a verdict
    logging.disable(logging.CRITICAL)  # math-verify warns that its time limits are off
    compare(r"\sum_{k=1}^n k", r"\frac{n(n+1)}{2}")  # loads and warms the parser and math-verify
    resource.setrlimit(resource.RLIMIT_AS, (memory_bytes, memory_bytes))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    os.write(replies, b"ready\n")
    for line in sys.stdin.buffer:
        signal.setitimer(
            signal.ITIMER_PROF, cpu_seconds
        )  # CPU time: a loaded machine changes no verdict
        try:
            status = b"correct\n" if compare(*json.loads(line)) else b"wrong\n"
        except MemoryError:
            os._exit(NO_MEMORY)
        signal.setitimer(signal.ITIMER_PROF, 0)
        os.write(replies, status)


_DIED = {
    -signal.SIGPROF: "timeout",
    -signal.SIGKILL: "timeout",
    NO_MEMORY: "memory",
    -signal.SIGABRT: "memory",
}


class Verifier:
    """A pool of worker processes that grade completions; a context manager.

    workers: processes, about 100 MB each. memory_bytes: address space of a worker. cpu_seconds: CPU time that a sample
    may take; it decides `timeout`, and the machine's load does not. wall_seconds: what one sample may hold of workers
    whatever they do: half of it in each of two tries, since only a machine far too busy lets the first try run out.
    """

    def __init__(
        self,
        workers: int = 2,
        cpu_seconds: float = 0.5,
        wall_seconds: float = 2.5,
        memory_bytes: int = 1 << 30,
    ):
        if workers < 1:
            raise ValueError(f"workers is {workers}: at least 1 is needed")
        self.workers, self.wall_seconds, self.limits = (
            workers,
            wall_seconds,
            (cpu_seconds, memory_bytes),
        )
        self.pool: list[subprocess.Popen] = []
        self.killed = 0  # workers in a row that were killed while they started
        self.busy: dict[subprocess.Popen, tuple[int | None, float]] = {}  # its job and deadline

    def __enter__(self) -> Verifier:
        for _ in range(self.workers):
            self._start()
        self._run({})
        return self

    def __exit__(self, *exception) -> None:
        self.close()

    def close(self) -> None:
        """Kill the workers."""
        while self.pool:
            self._end(self.pool[-1])

    def _start(self) -> None:
        """Adds a worker in a session of its own, which Ctrl-C does not reach. It is busy until it says "ready"."""
        command = [
            sys.executable,
            str(Path(__file__).resolve()),
            "--worker",
            *map(str, self.limits),
        ]
        pipe, environment = subprocess.PIPE, {**os.environ, "PYTHONHASHSEED": "0"}
        worker = subprocess.Popen(
            command, stdin=pipe, stdout=pipe, env=environment, start_new_session=True
        )
        self.pool.append(worker)
        self.busy[worker] = None, time.monotonic() + START_SECONDS

    def _end(self, worker: subprocess.Popen) -> int:
        """Removes a worker, dead or alive, and returns its exit status."""
        self.pool.remove(worker)
        self.busy.pop(worker, None)
        worker.kill()
        worker.stdout.close()
        with contextlib.suppress(BrokenPipeError):
            worker.stdin.close()
        return worker.wait()

    def grade(self, completions: list[str], golds: list[str]) -> list[Verdict]:
        """One verdict for each completion (the text after the prompt, never the prompt itself), in order.

        Raises ValueError if the lists differ in length, RuntimeError outside `with` or if a worker cannot start.
        """
        if len(completions) != len(golds):
            raise ValueError(f"{len(completions)} completions for {len(golds)} golds")
        answers = [extract_boxed(completion) for completion in completions]
        statuses = {
            at: "no_box" if answer is None else "too_long" for at, answer in enumerate(answers)
        }
        jobs = {
            at: (gold, answer, True)
            for at, (gold, answer) in enumerate(zip(golds, answers, strict=True))
            if answer is not None and max(len(gold), len(answer)) <= MAX_ANSWER
        }
        statuses |= self._run(jobs)
        return [Verdict(float(status == "correct"), status) for status in statuses.values()]

    def check_golds(self, golds: list[str]) -> list[bool]:
        """For each gold whether it can be verified against itself: it fits a box, is understood and found equal."""
        boxed = [extract_boxed(rf"\boxed{{{gold}}}") == gold.strip() for gold in golds]
        jobs = {
            at: (g, g, False) for at, g in enumerate(golds) if boxed[at] and len(g) <= MAX_ANSWER
        }
        statuses = self._run(jobs)
        return [statuses.get(at) == "correct" for at in range(len(golds))]

    def _run(self, jobs: dict[int, tuple[str, str, bool]]) -> dict[int, str]:
        """The status of each job. A worker holds one job at a time, so that a death is blamed on the right one."""
        if not self.pool:
            raise RuntimeError("the Verifier is not running: use `with Verifier(...) as verifier:`")
        waiting, retried, statuses = list(jobs), set(), {}
        try:
            while (
                len(statuses) < len(jobs) if jobs else self.busy
            ):  # without jobs: until all have started
                for worker in [worker for worker in self.pool if worker not in self.busy][
                    : len(waiting)
                ]:
                    self.busy[worker] = at, _ = (
                        waiting.pop(),
                        time.monotonic() + self.wall_seconds / 2,
                    )
                    with contextlib.suppress(
                        BrokenPipeError
                    ):  # a dead worker shows as the end of its replies
                        worker.stdin.write(json.dumps(jobs[at]).encode() + b"\n")
                        worker.stdin.flush()
                patience = min(deadline for _, deadline in self.busy.values()) - time.monotonic()
                ready = multiprocessing.connection.wait(
                    [worker.stdout for worker in self.busy], max(0.0, patience)
                )
                for worker, (at, deadline) in list(self.busy.items()):
                    if worker.stdout not in ready and time.monotonic() < deadline:
                        continue
                    if worker.stdout in ready and (reply := worker.stdout.readline()):
                        del self.busy[worker]
                        if at is None:
                            self.killed = 0
                        else:
                            statuses[at] = reply.decode().strip()
                        continue
                    died = self._end(worker)
                    if (
                        at is None
                    ):  # it had not started; one that somebody killed may start the next time
                        self.killed += 1
                        if (
                            died != -signal.SIGKILL
                            or time.monotonic() >= deadline
                            or self.killed > 5
                        ):
                            raise RuntimeError(
                                f"the verifier's worker did not start: exit status {died}"
                            )
                    self._start()
                    if at is None:
                        continue
                    if died == -signal.SIGPROF or at in retried:
                        statuses[at] = _DIED.get(died, "crash")
                    else:  # perhaps not the fault of this sample
                        retried.add(at)
                        waiting.append(at)
        except (
            BaseException
        ):  # also Ctrl-C: a worker still owes a reply, which must not meet the next question
            self.close()
            raise
        return statuses


def check_gold(gold: str) -> bool:
    """Whether `gold` can be verified against itself. Starts a worker each time: for many use `check_golds`."""
    with Verifier(workers=1) as verifier:
        return verifier.check_golds([gold])[0]


if __name__ == "__main__":
    if len(sys.argv) != 4 or sys.argv[1] != "--worker":
        sys.exit("verify.py is a module; its Verifier starts the workers")
    _worker(float(sys.argv[2]), int(sys.argv[3]))

r"""Numeric values of arithmetic in LaTeX, letters included, to 2200 digits.

math-verify's parser reads the text. Its `verify` is not asked: it rounds to six places and takes
1/2^99 for 1/2^98. Two texts are equal here if they have the same values at the same points.
"""

import functools
import re
import zlib
from collections.abc import Callable
from itertools import accumulate

import mpmath
from latex2sympy2_extended.latex2sympy2 import ConversionConfig, latex2sympy
from sympy import Expr, Rational

MAX_EXPONENT = 1000  # values lie between 10^-1000 and 10^1000,
DIGITS = 2200  # so that no term is too small to be seen at the last points;
SCREENING_DIGITS = 60  # fewer, for time, at the others,
LARGE_DIGITS = MAX_EXPONENT + 100  # and enough of them where terms of large letters cancel
SPARE = 20  # of the digits, that may be lost to rounding
POSITIVE_POINTS, SIGNED_POINTS, LARGE_POINTS = 4, 8, 4
MAX_LENGTH, MAX_NESTING = 300, 7  # the parser's time grows exponentially with nesting

# Only texts of these tokens are parsed, and no word. The parser would read much else: it takes 5_6
# for 5, and \gcd(4,6) for a product of letters.
_FUNCTION = "(?:arc)?(?:sin|cos|tan)|sinh|cosh|tanh|cot|sec|csc|log|ln|exp"
_COMMAND = (
    rf"{_FUNCTION}|frac|sqrt|binom|pi|alpha|beta|[gG]amma|[dD]elta|epsilon|zeta"
    "|eta|theta|kappa|[lL]ambda|mu|nu|xi|rho|[sS]igma|tau|[pP]hi|psi|[oO]mega"
)
_ARITHMETIC = re.compile(
    r"(?![a-zA-Z]{3,}$|[A-Z][a-zA-Z]$|[a-z][A-Z]$|no$)"  # a word, unlike xy
    r"(?:[\da-zA-Z.+*/÷^{}()|!-]|\\sqrt\[\d+\]|(?<=[a-zA-Z])_\{\w\}"
    rf"|\\log ?_|\\(?:{_COMMAND})(?![a-zA-Z]) ?)+"
)
_MISREAD = re.compile(
    # A number behind a letter, "!" or braces is no factor: x1, 5!2, \frac{a}{b}1.
    r"(?<![\\a-zA-Z_])[a-zA-Z]\d|!!|!\d+(?![\d!])|(?<!_\{\w)(?<!_\{\d\d)\}\d"
    r"|\\binom\{[^{}]*\d{4}"  # computed while it is parsed
    # These have no value: 2020!, f(x), dy/dx, a|b.
    r"|\d{4}!|(?<![a-zA-Z])[fg]\(|\\phi ?\(|\\frac\{d[a-z]?\}\{d[a-z]\}|^[^|]*\|[^|]*$"
    r"|\^-|\^(?:\w|\{\w+\})\^"  # x^-1 and x^x^x without braces, of which the parser takes seconds
    r"|^\d{4}([-/])\d\d?\1\d\d?$"  # a date
    rf"|\\(?:{_FUNCTION})(?:[_^]\{{\w+\}})* ?[^-+(){{}}*/÷]*[*/÷]"  # \ln x*y, read as \ln(x*y)
)
# Plain numbers need no parser. It would also take the e of 1e-5 for Euler's.
_NUMBER = re.compile(r"-?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d{1,3})?|-?\d+/0*[1-9]\d*")
_FRACTION = re.compile(r"^(-?)\\frac\{(\d+)\}\{(\d+)\}$")
# What needs no computation: "-5", "0.5", "\frac{3}{4}", "(3)/(4)", "1.2*10^{5}", "50%", "(7)".
_DECIMAL = r"(?:\d+\.?\d*|\.\d+)"
_TERM = rf"\{{?-?(?:10\^\{{-?\d+\}}|{_DECIMAL})\}}?"
_SIDE = rf"(?:{_TERM}|\({_TERM}\))"
_VALUE = (
    rf"(?:{_DECIMAL}(?:[eE][-+]?\d{{1,3}})?|(?:{_DECIMAL}\*)?10\^\{{-?\d+\}}"
    rf"|\\frac\{{{_TERM}\}}\{{{_TERM}\}}|{_SIDE}/{_SIDE})"
)
_POWERS = r".*\^.*\^|[-(]*10+\.?0*\*"  # two of ten: 10^{5}/10^{2}, 10*10^{2}
_EVALUATED = re.compile(rf"(?!{_POWERS})(?:-?{_VALUE}|-[({{]{_VALUE}[)}}]|\(-?{_VALUE}\))%?")
# The parser takes x^T for a transpose, and I, E and gamma for constants.
_RENAMED = {
    "E": r"\varpi ",
    "I": r"\iota ",
    "T": r"\upsilon ",
    r"\gamma": r"\varrho ",
    r"\Gamma": r"\varsigma ",
    "*": r"\cdot ",
    "÷": "/",
}


def _require(condition: bool) -> None:
    """Raise ArithmeticError if a part has no finite value, or one that is too large or small."""
    if not condition:
        raise ArithmeticError


def _power(base, exponent):
    _require(base or mpmath.re(exponent) > 0)
    _require(not base or abs(exponent) * abs(mpmath.mag(base)) < 7 * MAX_EXPONENT)
    return mpmath.power(base, exponent)


def _factorial(number):
    is_fast = mpmath.isint(number) or mpmath.mp.dps <= SCREENING_DIGITS
    _require(abs(number) < 450 and is_fast)  # others take seconds
    return mpmath.factorial(number)


_EVALUATE = {
    "Add": lambda *terms: mpmath.fsum(terms),
    "Mul": lambda *factors: mpmath.fprod(factors),
    "Pow": _power,
    "exp": lambda exponent: _power(mpmath.e, exponent),
    "log": lambda x, base=mpmath.e: mpmath.log(x) / mpmath.log(base),
    "Abs": abs,
    "factorial": _factorial,
    "binomial": lambda n, k: _factorial(n) / _factorial(k) / _factorial(n - k),
    "Pi": lambda: +mpmath.pi,
    "Exp1": lambda: +mpmath.e,
    "ImaginaryUnit": lambda: mpmath.j,
}
_NAMES = "sin cos tan cot sec csc sinh cosh tanh asin acos atan"
_EVALUATE |= {name: getattr(mpmath, name) for name in _NAMES.split()}
_CONSTANTS = {"e": mpmath.e, "i": mpmath.j}


def _value(tree: Expr, point: dict):
    """Evaluate a tree from its leaves. Raises ArithmeticError, ValueError or LookupError if it has
    no value."""
    if tree.is_Symbol:
        return point[tree.name]
    if tree.is_Float:
        tree = Rational(str(tree))
    if tree.is_Rational:
        value = mpmath.mpf(tree.p) / tree.q
    else:
        parts = [_value(part, point) for part in tree.args]
        value = _EVALUATE[type(tree).__name__](*parts)
    size = abs(mpmath.mag(value)) if value else 0  # the exponent of two
    _require(mpmath.isfinite(value) and size < 3.33 * MAX_EXPONENT)
    return value


def is_arithmetic(text: str) -> bool:
    """Whether a canonical text consists of tokens that the parser reads as they are meant."""
    return bool(_ARITHMETIC.fullmatch(text)) and not _MISREAD.search(text)


def is_evaluated(text: str) -> bool:
    """Whether a canonical text is a number without an operation to carry out: a decimal, a fraction
    of two, a power of ten or its multiple, or a percentage. Spelling has made fractions of mixed
    numbers and repeating decimals. A product or quotient of powers of ten is an operation, also if
    one is written out: 10*10^{2}."""
    return bool(_EVALUATED.fullmatch(text))


def number(text: str) -> Rational | None:
    """Return the exact value of a plain number, or of a fraction of two; else None."""
    text = _FRACTION.sub(r"\1\2/\3", text)
    return Rational(text) if _NUMBER.fullmatch(text) else None


@functools.lru_cache(maxsize=256)  # the completions of a group share their reference answer
def parse(text: str) -> Expr | None:
    """Return the tree of a canonical text, not simplified; None if it is not arithmetic."""
    if (exact := number(text)) is not None:
        return exact
    depth = max(accumulate((c in "({") - (c in ")}") for c in text), default=0)
    if len(text) > MAX_LENGTH or depth > MAX_NESTING or not is_arithmetic(text):
        return None
    text = re.sub(r"\\[a-zA-Z]+|[EIT*÷]", lambda name: _RENAMED.get(name[0], name[0]), text)
    # Factors side by side; the parser would take 7(8) for the mixed number 15.
    text = re.sub(
        r"(?<=[\d)}])(?<![_^]\{\w\})(?<!\\log_\{\d\d\})(?=\(|\\(?:frac|binom))", r"\\cdot ", text
    )
    config = ConversionConfig(lowercase_symbols=False)
    try:
        return latex2sympy(text, is_real=False, normalization_config=None, conversion_config=config)
    except MemoryError:
        raise
    except Exception:  # the parser raises many kinds of errors, also a bare Exception
        return None


def letters(text: str) -> set[str]:
    """Return the names of the letters in a canonical text that are not constants."""
    tree = parse(text)
    if tree is None:
        return set()
    return {symbol.name for symbol in tree.free_symbols} - {*_CONSTANTS}


def _point(names: list[str], trial: int) -> dict:
    """Return a value for each letter, a function of its name and the trial alone: from 0.05 to 18,
    with signs after the first POSITIVE_POINTS. Then, where |x-20| is not 20-x, LARGE_POINTS of 100
    to 1110 and of 10^11 to 10^12."""
    point = dict(_CONSTANTS)
    for place, name in enumerate(names):
        size = mpmath.mpf(zlib.crc32(f"{trial}{name}".encode()) % 1009 + 101)
        is_negative = max(0, trial - POSITIVE_POINTS + 1) >> place & 1
        if trial < POSITIVE_POINTS + SIGNED_POINTS:
            size /= (61, 2047)[trial % 2]
        elif trial >= POSITIVE_POINTS + SIGNED_POINTS + LARGE_POINTS // 2:
            size *= 10**9
        point[name] = -size if is_negative else size
    return point


@functools.cache  # anew each time it takes half of a comparison of two numbers
def _tolerance(digits: int):
    """Return 10 to the power SPARE - digits, to so many digits."""
    with mpmath.workdps(digits):
        return mpmath.mpf(10) ** (SPARE - digits)


def hold(test: Callable, *texts: str) -> bool:
    """Whether test(tolerance, *values) is true of the values of texts at all common points. False
    if a text is not understood or has no value. Where a letter is negative or large it may have
    none."""
    trees = [parse(text) for text in texts]
    if None in trees:
        return False
    names = sorted(set().union(*map(letters, texts)))
    points = [(0, DIGITS), (1, DIGITS)]
    if names:
        first_large = POSITIVE_POINTS + SIGNED_POINTS
        screening = [(trial, SCREENING_DIGITS) for trial in range(first_large)]
        large = [(first_large + i, LARGE_DIGITS) for i in range(LARGE_POINTS)]
        points = [*screening, *large, *points]
    for trial, digits in points:
        with mpmath.workdps(digits):
            point = _point(names, trial)
            try:
                values = [_value(tree, point) for tree in trees]
            except (ArithmeticError, ValueError, LookupError):
                if trial < POSITIVE_POINTS and not (names and digits == DIGITS):
                    return False
                continue
            is_real = trial < POSITIVE_POINTS or not any(map(mpmath.im, values))
            tolerance = _tolerance(SCREENING_DIGITS if digits == LARGE_DIGITS else digits)
            if is_real and not test(tolerance, *values):
                return False
    return True


def is_close(tolerance, a, b) -> bool:
    return abs(a - b) <= tolerance * max(1, abs(a))

"""Numeric values of arithmetic in LaTeX, exact or to many digits, letters included."""

import functools
import random
import re
import zlib
from collections.abc import Iterator

from latex2sympy2_extended.latex2sympy2 import ConversionConfig, _Latex2Sympy
from sympy import (
    Abs,
    E,
    Expr,
    Float,
    I,
    Pow,
    Rational,
    binomial,
    ceiling,
    exp,
    factorial,
    floor,
    log,
)
from sympy.functions.elementary.hyperbolic import HyperbolicFunction
from sympy.functions.elementary.trigonometric import InverseTrigonometricFunction

from grading.structure import is_bounded

MAX_BITS = 1 << 18  # of all numbers in an evaluation
MAX_IRRATIONAL_BITS = 1 << 13  # of an irrational value: comparing takes as many digits
MAX_GAMMA_DIGITS = 240  # of n!, which takes seconds to 1000 digits
MAX_OPERATIONS = 20  # of an irrational value before it is rounded
MAX_ROOT = 64  # of roots that sympy simplifies: it computes 950^293888 for 950^(293888/4190209)
TRIALS = 4  # random points for expressions with letters
DIGITS, SPARE_DIGITS = 80, 20  # of irrational values; the last may be lost to rounding
SIGNED_POINTS = 16  # all combinations of the signs of four letters
SHORT_WORDS = {"no", "on", "up", "in", "at", "by", "to", "or", "if", "of", "so"}  # not products

# Only texts of these tokens are evaluated, but not a word of three letters or more. The parser
# would evaluate much else: it takes 5_6 for 5 and computes \gcd(4,6). A number behind a letter,
# "!" or fraction is no factor: n1, but n2^{n} and 1e5.
_NO_PRODUCT = (
    r"(?<![\\a-zA-Z])(?<!_\{)(?!(?<=\d)[eE]\d)[a-zA-Z]{1,2}\d+(?![\d^!(_.\\a-zA-Z])"
    r"|(?:!|\\frac\{[^{}]*\}\{[^{}]*\})\d+$"
)
_ARITHMETIC = re.compile(
    rf"(?!.*(?:!!|\\frac\{{d[^{{}}]*\}}\{{d[a-z]|{_NO_PRODUCT})|[a-zA-Z]{{3,}}$)"
    r"(?:[\da-zA-Z.+*/^{}()|! -]|\\sqrt\[\d+\]"
    r"|(?<=[a-zA-Z])_(?:\w|\{[\w+-]+\})|\\(?:frac|sqrt|binom|pi|(?:arc)?(?:sin|cos|tan)|sinh|cosh"
    r"|tanh|cot|sec|csc|log|ln|exp|[lr]floor|[lr]ceil|alpha|beta|[gG]amma|[dD]elta|epsilon|z?eta|[tT]heta|kappa|[lL]ambda"
    r"|mu|nu|[xX]i|rho|tau|[sS]igma|[pP]hi|[pP]si|chi|[oO]mega|ell|hbar)(?![a-zA-Z]))+"
)
# Square brackets around a number or a sum group it, as in 2[3+4]; but [x] may be the floor of x.
_GROUPING = re.compile(r"(?<!\\sqrt)\[([^\[\]a-zA-Z]*|[^\[\]]*[-+][^\[\]]*)\]")
# A derivative is a letter; the parser would compute it: dy/dx is 0.
_DERIVATIVE = re.compile(
    r"\\frac\{((?:d|\\partial ?)(?:\^\{?\d\}?)?(?:\\[a-zA-Z]+|[a-zA-Z](?:_\w)?) ?)\}"
    r"\{((?:d|\\partial ?)(?:\\[a-zA-Z]+ ?|[a-zA-Z](?:_\w)?)(?:\^\{?\d\}?)?)\}"
)
_PRIMED = re.compile(r"\\[a-zA-Z]+'*|([a-z])('{1,3})(?![('_])")
_CONSTANTS = {"e": E, "i": I}
# The parser takes x^T for a transpose, I, E and gamma for constants, and \pi(5) for a function.
_RENAMED = {"E": r"\varpi ", "I": r"\iota ", "T": r"\upsilon ", r"\pi(": r"\pi \cdot ("}
_RENAMED |= {r"\gamma": r"\varrho ", r"\Gamma": r"\varsigma ", "*": r"\cdot "}
_DECIMAL = re.compile(r"[-+]?(?:\d+\.?\d*|\.\d+)")
# Plain numbers need no parser. It would also take the e of 1e-5 for Euler's.
_NUMBER = re.compile(rf"{_DECIMAL.pattern}(?:[eE][-+]?\d\d?\d?)?|[-+]?\d+/0*[1-9]\d*")


def _plain(text: str) -> str:
    r"""Replace brackets that group and derivatives: "[1+x]\frac{dy}{dt}" -> "(1+x)d_{dydt}",
    "y''" -> "y_{pp}"."""
    grouped = _GROUPING.sub(r"(\1)", text)
    if "'" in text:
        grouped = _PRIMED.sub(lambda m: f"{m[1]}_{{{'p' * len(m[2])}}}" if m[1] else m[0], grouped)
    return _DERIVATIVE.sub(lambda d: "d_{" + re.sub(r"[\W_]", "", d[1] + d[2]) + "}", grouped)


def is_arithmetic(text: str) -> bool:
    """Whether a canonical text consists of tokens that `values` evaluates."""
    return text.lower() not in SHORT_WORDS and bool(_ARITHMETIC.fullmatch(_plain(text)))


class _Parser(_Latex2Sympy):
    """Multiply adjacent factors; the library takes 7(8) for the mixed number 15. Leave binomial
    coefficients to `_Evaluator`."""

    def convert_binom(self, binom):
        arguments = map(self.convert_expr, (binom.upper, binom.lower))
        return binomial(*arguments, evaluate=False)

    def convert_postfix_list(self, factors, first=0):
        return functools.reduce(self.mul_flat, map(self.convert_postfix, factors[first:]))


@functools.lru_cache(maxsize=256)  # the completions of a group share their gold
def parse(text: str) -> Expr | None:
    """Return the tree of a canonical text, in the order of the text and not simplified. None if it
    is not arithmetic."""
    number = re.sub(r"^([-+]?)\\frac\{(\d+)\}\{(\d+)\}$", r"\1\2/\3", text)
    if _NUMBER.fullmatch(number) and not re.search("/0+$", number):
        return Rational(number)
    if not (is_bounded(text) and is_arithmetic(text)):
        return None
    parser = _Parser(is_real=False, config=ConversionConfig(lowercase_symbols=False))
    renamed = re.sub(r"\\pi\(|\\[a-zA-Z]+|[EIT*]", lambda m: _RENAMED.get(m[0], m[0]), _plain(text))
    try:
        return parser.parse(renamed)
    except MemoryError:
        raise
    except Exception:  # the parser raises many kinds of errors, also a bare Exception
        return None


def letters(tree: Expr) -> list[str]:
    """Return the names of the letters that are not constants."""
    return sorted({symbol.name for symbol in tree.free_symbols} - {*_CONSTANTS})


class _Evaluator:
    """Evaluates trees at points. `bits` adds up the sizes of all numbers before they are computed,
    `cost` the work; beyond MAX_BITS, OverflowError is raised. `is_real` becomes false at a part
    that is not real."""

    def __init__(self, digits: int = DIGITS):
        self.digits = digits
        self.bits = 0
        self.cost = 0
        self.is_real = True

    def value(self, tree: Expr, point: dict[str, Expr]) -> Expr:
        """Evaluate from the leaves: rational values are exact, others have `digits` digits."""
        value = self._exact(tree, point)
        return value if value.is_Rational else value.evalf(self.digits)

    def _exact(self, tree: Expr, point: dict[str, Expr]) -> Expr:
        if tree.is_Float:
            return Rational(str(tree))
        if not tree.args:
            return point.get(tree.name, tree) if tree.is_Symbol else tree
        parts = [self._exact(part, point) for part in tree.args]
        self._count(tree, parts)
        if isinstance(tree, (floor, ceiling)):
            return self._step(tree, *parts)
        if tree.is_Pow and all(part.is_Rational for part in parts) and parts[1].q > MAX_ROOT:
            parts = [part.evalf(self.digits + SPARE_DIGITS // 2) for part in parts]
        value = tree.func(*parts).doit()
        self.is_real = self.is_real and value.is_real is not False
        is_small = value.is_Rational or value.count_ops() < MAX_OPERATIONS
        return value if is_small else value.evalf(self.digits + SPARE_DIGITS // 2)

    def _step(self, tree: Expr, part: Expr) -> Expr:
        """Compute a floor or ceiling of a value. Sympy's own takes seconds if it is irrational. A
        value that is an integer to half of the digits is taken for that integer: log_2 8."""
        if part.is_Rational:
            return tree.func(part)
        value = part.evalf(self.digits)
        spare = 10 ** (self.digits // 2)
        if not value.is_Float or abs(value) > spare:
            raise OverflowError(f"{tree} is not real, or too large")
        value = Rational(value)
        nearest = floor(value + Rational(1, 2))
        return nearest if abs(value - nearest) < Rational(1, spare) else tree.func(value)

    def _count(self, tree: Expr, parts: list[Expr]) -> None:
        is_power = isinstance(tree, (Pow, factorial, binomial))
        size = 1 + sum(map(_bits, parts[:1] if is_power else parts))
        if is_power or isinstance(tree, (exp, HyperbolicFunction)):
            size *= 1 + int(abs(parts[-1].evalf(3)))
        is_root = tree.is_Pow and not parts[-1].is_Integer
        self.bits += size
        self.cost += size * 64 if is_root else size  # sympy factors what is under a root
        if self.cost > MAX_BITS:
            raise OverflowError(f"{tree} is too large")


def _bits(number: Expr) -> int:
    """Return the bits of all rational numbers in an exact value, and of the exponents of others."""
    rationals = sum(n.p.bit_length() + n.q.bit_length() - 2 for n in number.atoms(Rational))
    return rationals + sum(abs(n._mpf_[2] + n._mpf_[3]) for n in number.atoms(Float))


def _random_point(names: list[str], trial: int) -> dict[str, Expr]:
    """Return a positive value for each letter, a function of the letter and the trial alone."""
    point = dict(_CONSTANTS)
    for name in names:
        size = zlib.crc32(f"seed {trial}{name}".encode()) % 1009 + 101
        point[name] = Rational(size, 127 >> trial if trial < TRIALS // 2 else 2047)  # 0.05 to 18
    return point


@functools.lru_cache(maxsize=256)
def _values(text: str, digits: int, trials: int) -> tuple[list[Expr], int]:
    """Return the values of a canonical text, [] if they are not finite, and the bits of each."""
    tree, evaluator = parse(text), _Evaluator(digits)
    if tree is None:
        return [], 0
    names = letters(tree)
    trials = trials if names else 1
    try:
        results = [evaluator.value(tree, _random_point(names, trial)) for trial in range(trials)]
    except MemoryError:
        raise
    except Exception:  # as the parser, sympy raises many kinds of errors
        return [], 0
    bits = evaluator.bits // trials
    is_small = results[0].is_Rational or bits <= MAX_IRRATIONAL_BITS
    is_finite = all(v.is_finite and v.is_number for v in results)  # no 1/0, no f(2)
    return (results, bits) if is_finite and is_small else ([], 0)


def values(text: str) -> list[Expr]:
    """Evaluate a canonical text: one value, or TRIALS values at random points if it has letters.
    Rational values are exact, others have 80 digits. [] if there is no finite value."""
    return _values(text, DIGITS, TRIALS)[0]


def equal_values(a: Expr, b: Expr, digits: int = DIGITS) -> bool:
    """Whether two values are equal: exactly if both are rational, else to 20 digits less."""
    if a == b or (a.is_Rational and b.is_Rational):
        return bool(a == b)
    return bool(abs(a - b) <= max(abs(a), 1) * Rational(1, 10 ** (digits - SPARE_DIGITS)))


def _has_kinks(tree: Expr) -> bool:
    """Whether signs of letters matter: bars, roots, logarithms and arcs. Other functions that agree
    at positive points agree everywhere."""
    for node in tree.atoms(Abs, Pow, log, InverseTrigonometricFunction):
        is_smooth = node.is_Pow and (node.exp.is_Integer or not letters(node.base))
        if not is_smooth and letters(node):
            return True
    return False


def _row(trees: list[Expr], point: dict[str, Expr]) -> list[Expr]:
    """Return the values of trees at a point; [] unless they are finite and every part is real."""
    evaluator = _Evaluator()
    try:
        row = [evaluator.value(tree, _CONSTANTS | point) for tree in trees]
    except OverflowError:
        return []
    return row if evaluator.is_real and all(value.is_finite for value in row) else []


SIZES = [Rational(k, 17) for k in (1, 9, 33, 95, 1700)]  # of letters


def _may_be_negative(trees: list[Expr], name: str) -> bool:
    """Whether all trees are real at a point where this letter alone is negative."""
    positive = dict.fromkeys(_all_letters(trees), SIZES[1])
    return any(_row(trees, positive | {name: -size}) for size in SIZES)


def _all_letters(trees: list[Expr]) -> list[str]:
    return sorted({name for tree in trees for name in letters(tree)})


def _signed_values(trees: list[Expr], numbers: list[int]) -> Iterator[list[Expr]]:
    """Yield values of trees at points with all combinations of signs and on both sides of kinks,
    which lie near the numbers of the text. Letters whose sign alone makes a root imaginary are
    positive: √x√y is √(xy). Yield unequal values if that holds only beside a gold with bars:
    ln|x| is not ln x."""
    names = _all_letters(trees)
    free = [name for name in names if _may_be_negative(trees, name)]
    golds = trees[: len(trees) // 2]
    barred = {name for gold in golds for bars in gold.atoms(Abs) for name in letters(bars)}
    if any(_may_be_negative(golds, name) for name in barred.difference(free)):
        yield [Rational(number**2) for number in range(len(trees))]
    sizes = list(SIZES)
    sizes += [Rational(7 * n + side, 7) for n in numbers for side in (-1, 1)]
    rng = random.Random(str(names))
    for number in range(max(SIGNED_POINTS, 2 * len(sizes))):
        point = {}
        for place, name in enumerate(names):
            is_negative = number >> place & 1 if place < 4 else rng.random() < 0.5
            size = rng.choice(sizes) if len(names) > 1 else sizes[number // 2 % len(sizes)]
            point[name] = -size if is_negative and name in free else size
        if row := _row(trees, point):
            yield row


def _step_values(trees: list[Expr], numbers: list[int]) -> Iterator[list[Expr]]:
    """Yield values of trees at and just below integers, above all multiples of the numbers of the
    text: where ⌊n/3⌋ is not ⌈n/3⌉-1, and ⌊n/5⌋ is not ⌊n/5⌋+⌊n/25⌋."""
    names = _all_letters(trees)
    integers = {*range(1, 10), 12, 16, 25, 27, 30, 32}
    integers |= {k * number for k in (1, 2, 3) for number in numbers}
    points = sorted(Rational(n) - gap for n in integers for gap in (0, Rational(1, 997)))
    rng = random.Random(str(names))
    for number in range(len(points) * min(len(names), 2)):
        place = number % len(points)
        point = {name: rng.choice(points) for name in names} | {names[0]: points[place]}
        if row := _row(trees, point):
            yield row


def _rows(columns: list[list[Expr]]) -> list[list[Expr]]:
    """Transpose the values of several texts. The value of a text without letters is repeated."""
    length = max(map(len, columns))
    return [[column[row % len(column)] for column in columns] for row in range(length)]


def common_values(*texts: str) -> Iterator[tuple[int, list[Expr]]]:
    """Yield the number of digits and the values of texts at common points. In the last rows values
    have so many digits that no term is too small to be seen. Nothing is yielded if a text has no
    value."""
    results = [_values(text, DIGITS, TRIALS) for text in texts]
    columns = [column for column, _ in results]
    if not all(columns):
        return
    for row in _rows(columns):
        yield DIGITS, row
    trees = [parse(text) for text in texts]
    numbers = {int(n) for n in re.findall(r"\d{1,9}", " ".join(texts))} - {0}
    numbers = sorted(numbers)[:8]
    if any(tree.has(floor, ceiling) for tree in trees) and _all_letters(trees):
        for row in _step_values(trees, numbers):
            yield DIGITS, row
    if any(map(_has_kinks, trees)):
        for row in _signed_values(trees, numbers):
            yield DIGITS, row
    if not all(column[0].is_Rational for column in columns):
        digits = DIGITS + sum(bits for _, bits in results) * 3 // 5
        if any(letters(node) for tree in trees for node in tree.atoms(factorial, binomial)):
            digits = min(digits, MAX_GAMMA_DIGITS)
        for row in _rows([_values(text, digits, 2)[0] for text in texts]):
            yield digits, row


def is_quotient(text: str) -> bool:
    r"""Whether letters of a text may cancel: in \frac{2x}{x}, not in 2+x-x."""
    powers = parse(text).atoms(Pow)
    return any(power.exp.is_negative and letters(power.base) for power in powers)


def is_rounded(exact: str, decimal: str, min_places: int) -> bool:
    """Whether `decimal` is the value of `exact`, rounded to the places that it shows: min_places
    or more, with as many digits that are not leading zeros."""
    places, digits = len(decimal.partition(".")[2]), decimal.replace(".", "").lstrip("-0")
    is_decimal = _DECIMAL.fullmatch(decimal) and min(places, len(digits)) >= min_places
    results = values(exact)
    if not is_decimal or len(results) != 1:
        return False
    return bool(abs(results[0] - Rational(decimal)) <= Rational(1, 2 * 10**places))

"""Numeric values of arithmetic in LaTeX, exact or to 80 digits, letters included."""

import functools
import re
import zlib
from collections import Counter

from latex2sympy2_extended.latex2sympy2 import ConversionConfig, _Latex2Sympy
from sympy import E, Expr, I, Pow, Rational, binomial, factorial

from grading.structure import is_bounded

MAX_BITS = 1 << 18  # of all numbers in an evaluation
MAX_OPERATIONS = 20  # of an irrational value before it is rounded
TRIALS = 6  # random points for expressions with letters; in the first half, letters are positive
SHORT_WORDS = {"no", "on", "up", "in", "at", "by", "to", "or", "if", "of", "so"}  # not products

# Only texts of these tokens are evaluated, but not a word of three letters or more. The parser
# would evaluate much else: it takes 5_6 for 5, dy/dx for 0 and computes \gcd(4,6).
_ARITHMETIC = re.compile(
    r"(?!.*(?:!!|\\frac\{d[^{}]*\}\{d[a-z])|[a-zA-Z]{3,}$)(?:[\da-zA-Z.+*/^{}()|! -]|\\sqrt\[\d+\]"
    r"|(?<=[a-zA-Z])_(?:\w|\{[\w+-]+\})|\\(?:frac|sqrt|binom|pi|(?:arc)?(?:sin|cos|tan)|sinh|cosh"
    r"|cot|sec|csc|log|ln|exp|alpha|beta|[gG]amma|[dD]elta|epsilon|z?eta|[tT]heta|kappa|[lL]ambda"
    r"|mu|nu|[xX]i|rho|tau|[sS]igma|[pP]hi|[pP]si|chi|[oO]mega|ell|hbar)(?![a-zA-Z]))+"
)
# Square brackets around a number or a sum group it, as in 2[3+4]; but [x] may be the floor of x.
_GROUPING = re.compile(r"(?<!\\sqrt)\[([^\[\]a-zA-Z]*|[^\[\]]*[-+][^\[\]]*)\]")
_CONSTANTS = {"e": E, "i": I}
# The parser takes x^T for a transpose, I, E and gamma for constants, and \pi(5) for a function.
_RENAMED = {"E": r"\varpi ", "I": r"\iota ", "T": r"\upsilon ", r"\pi(": r"\pi \cdot ("}
_RENAMED |= {r"\gamma": r"\varrho ", r"\Gamma": r"\varsigma ", "*": r"\cdot "}
_DECIMAL = re.compile(r"[-+]?(?:\d+\.?\d*|\.\d+)")
# Plain numbers need no parser. It would also take the e of 1e-5 for Euler's.
_NUMBER = re.compile(rf"{_DECIMAL.pattern}(?:[eE][-+]?\d\d?\d?)?|[-+]?\d+/0*[1-9]\d*")


def is_arithmetic(text: str) -> bool:
    """Whether a canonical text consists of tokens that `values` evaluates."""
    grouped = _GROUPING.sub(r"(\1)", text)
    return text.lower() not in SHORT_WORDS and bool(_ARITHMETIC.fullmatch(grouped))


class _Parser(_Latex2Sympy):
    """Multiply adjacent factors; the library takes 7(8) for the mixed number 15. Leave binomial
    coefficients to `_evaluate`."""

    def convert_binom(self, binom):
        arguments = map(self.convert_expr, (binom.upper, binom.lower))
        return binomial(*arguments, evaluate=False)

    def convert_postfix_list(self, factors, first=0):
        return functools.reduce(self.mul_flat, map(self.convert_postfix, factors[first:]))


def _evaluate(tree: Expr, point: dict[Expr, Expr], bits: Counter) -> Expr:
    """Evaluate a tree from its leaves, which have values in `point`. `bits` adds up the sizes of
    all numbers before they are computed. Raises OverflowError if the sum exceeds MAX_BITS."""
    if not tree.args:
        return Rational(str(tree)) if tree.is_Float else point.get(tree, tree)
    parts = [_evaluate(part, point, bits) for part in tree.args]
    grows = isinstance(tree, (Pow, factorial, binomial))
    numbers = [n for part in (parts[:1] if grows else parts) for n in part.atoms(Rational)]
    size = 1 + sum(n.p.bit_length() + n.q.bit_length() - 2 for n in numbers)
    if grows:
        size *= 1 + int(abs(parts[-1].evalf(3)))
    if tree.is_Pow and not parts[-1].is_Integer:
        size *= 64  # sympy factors what is under a root
    bits["total"] += size
    if bits["total"] > MAX_BITS:
        raise OverflowError(f"{tree} is too large")
    value = tree.func(*parts).doit()
    return value if value.is_Rational or value.count_ops() < MAX_OPERATIONS else value.evalf(90)


@functools.lru_cache(maxsize=256)  # the completions of a group share their gold
def values(text: str) -> list[Expr]:
    """Evaluate a canonical text: one value, or TRIALS values at random points if it has letters.
    Rational values are exact, others have 80 digits. [] if there is no finite value."""
    plain = re.sub(r"^([-+]?)\\frac\{(\d+)\}\{(\d+)\}$", r"\1\2/\3", text)
    if _NUMBER.fullmatch(plain):
        return [Rational(plain)]
    if not (is_bounded(text) and is_arithmetic(text)):
        return []
    parser = _Parser(is_real=False, config=ConversionConfig(lowercase_symbols=False))
    results, bits, half = [], Counter(), TRIALS // 2
    try:
        text = _GROUPING.sub(r"(\1)", text)
        text = re.sub(r"\\pi\(|\\[a-zA-Z]+|[EIT*]", lambda m: _RENAMED.get(m[0], m[0]), text)
        tree = parser.parse(text)
        letters = [symbol for symbol in tree.free_symbols if symbol.name not in _CONSTANTS]
        constants = tree.free_symbols - {*letters}
        for trial in range(TRIALS if letters else 1):
            point = {symbol: _CONSTANTS[symbol.name] for symbol in constants}
            for letter in letters:  # a function of the letter and the trial alone
                size = zlib.crc32(f"seed {trial}{letter.name}".encode()) % 1009 + 101
                # Neighbours such as x and y are not negative at once: else √x√y is not √(xy).
                negative = sum(map(ord, letter.name)) % half == trial - half
                # 0.05 to 36 or -3 to -36: else |x^2-1| is x^2-1, or |x+3| is x+3.
                scale = -31 if negative else 127 >> trial if trial < half else 2047
                point[letter] = Rational(size, scale)
            value = _evaluate(tree, point, bits)
            results.append(value if value.is_Rational else value.evalf(80))
    except MemoryError:
        raise
    except Exception:  # the parser raises many kinds of errors, also a bare Exception
        return []
    return results if all(v.is_finite and v.is_number for v in results) else []  # no 1/0, no f(2)


def equal_values(a: Expr, b: Expr) -> bool:
    """Whether two values are equal: exactly if both are rational, else to 60 digits."""
    exact = a.is_Rational and b.is_Rational
    return bool(a == b or (not exact and abs(a - b) <= abs(a) * Rational(1, 10**60)))


def is_rounded(exact: str, decimal: str, min_places: int) -> bool:
    """Whether `decimal` is the value of `exact`, rounded to the places that it shows: min_places
    or more, with as many digits that are not leading zeros."""
    places, digits = len(decimal.partition(".")[2]), decimal.replace(".", "").lstrip("-0")
    is_decimal = _DECIMAL.fullmatch(decimal) and min(places, len(digits)) >= min_places
    results = values(exact)
    if not is_decimal or len(results) != 1:
        return False
    return bool(abs(results[0] - Rational(decimal)) <= Rational(1, 2 * 10**places))

"""What arithmetic in LaTeX is worth, as numbers that can be compared."""

import functools
import re
import zlib

from latex2sympy2_extended.latex2sympy2 import ConversionConfig, _Latex2Sympy
from sympy import E, Float, I, Rational

TRIALS = 6  # random points for expressions in letters; none of the first half is negative
# Words of two letters; any other two letters are a product.
WORDS = {"no", "on", "up", "in", "at", "by", "to", "or", "if", "of", "so"}

# All that is ever parsed as a value. The parser would evaluate much more: \gcd(4,6), 5_6 (5) ...
_ARITHMETIC = re.compile(
    r"(?![a-zA-Z]{3,}$)(?:[\da-zA-Z.+*/^{}()|! -]|(?<=[a-zA-Z])_(?:\w|\{\w+\})|\\sqrt\[\d+\]"
    r"|\\(?:frac|sqrt|binom|pi|sin|cos|tan|cot|sec|csc|log|ln|alpha|beta|gamma|delta|epsilon|theta"
    r"|lambda|mu|phi|psi|omega|sigma|rho|Gamma|Delta|Theta|Lambda|Phi|Psi|Omega)(?![a-zA-Z]))+"
)
# Square brackets that hold a number or a sum, 2[3+4]; but [x] may be the floor of x.
_GROUPING = re.compile(r"(?<!\\sqrt)\[([^\[\]a-zA-Z]*|[^\[\]]*[-+][^\[\]]*)\]")
_CONSTANTS = {"e": E, "i": I}
_DECIMAL = re.compile(r"[-+]?(?:\d+\.?\d*|\.\d+)")
# A short cut, most answers are plain numbers; and 1e-5 has nothing to do with Euler's e.
_NUMBER = re.compile(rf"{_DECIMAL.pattern}(?:[eE][-+]?\d\d?\d?)?|[-+]?\d+/0*[1-9]\d*")


def is_arithmetic(text: str) -> bool:
    """Whether a text, its spelling canonical, is parsed as a value."""
    grouped = _GROUPING.sub(r"(\1)", text)
    return text.lower() not in WORDS and bool(_ARITHMETIC.fullmatch(grouped))


class _Parser(_Latex2Sympy):
    """What stands side by side is a product; the library reads 7(8) as the mixed number 15."""

    def convert_postfix_list(self, factors, first=0):
        return functools.reduce(self.mul_flat, map(self.convert_postfix, factors[first:]))


@functools.lru_cache(maxsize=256)  # the completions of a group share their gold
def values(text: str) -> list:
    """The value as a sympy number: one, or TRIALS of them if there are letters; [] if none."""
    plain = re.sub(r"^([-+]?)\\frac\{(\d+)\}\{(\d+)\}$", r"\1\2/\3", text)
    if _NUMBER.fullmatch(plain):
        return [Rational(plain)]
    if not is_arithmetic(text):
        return []
    parser = _Parser(is_real=False, config=ConversionConfig(lowercase_symbols=False))
    found = []
    try:
        tree = parser.parse(_GROUPING.sub(r"(\1)", text).replace("*", r"\cdot "))
        tree = tree.xreplace({decimal: Rational(str(decimal)) for decimal in tree.atoms(Float)})
        letters = [symbol for symbol in tree.free_symbols if symbol.name not in _CONSTANTS]
        constants = tree.free_symbols - {*letters}
        tree = tree.xreplace({symbol: _CONSTANTS[symbol.name] for symbol in constants})
        for trial in range(TRIALS if letters else 1):
            point = {}
            for letter in letters:  # 0.2 to 2.3; depends on nothing but the letter and the trial
                draw = zlib.crc32(f"{trial} {letter.name}".encode())
                sign = -1 if trial >= TRIALS // 2 and draw >> 16 & 1 else 1
                point[letter] = Rational(sign * (draw % 1009 + 101), 487)
            value = tree.xreplace(point).doit()
            found.append(value if value.is_Rational else value.evalf(80))
    except MemoryError:
        raise
    except Exception:  # the parser raises all kinds, bare Exception among them
        return []
    return found if all(value.is_finite for value in found) else []  # finite: no 1/0, no f(2)


def close(a, b) -> bool:
    """Equal: exactly if both are rational, else to 60 digits."""
    exact = a.is_Rational and b.is_Rational
    return bool(a == b or (not exact and abs(a - b) <= abs(a) * Rational(1, 10**60)))


def is_rounded(exact: str, decimal: str, least: int) -> bool:
    """Whether `decimal` is the value `exact`, rounded to the places it shows: `least` of them and
    as many digits."""
    places = len(decimal.partition(".")[2])
    found, digits = values(exact), decimal.replace(".", "").lstrip("-0")
    if len(found) != 1 or min(places, len(digits)) < least or not _DECIMAL.fullmatch(decimal):
        return False
    return bool(abs(found[0] - Rational(decimal)) <= Rational(1, 2 * 10**places))

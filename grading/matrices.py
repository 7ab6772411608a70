"""Products whose order counts: AB is BA for lengths, but not for matrices."""

import functools
import operator
import re
import zlib

from sympy import Expr, ImmutableMatrix, Rational

from grading.structure import plain
from grading.values import letters, parse

_GREEK = r"\\(?:Gamma|Delta|Theta|Lambda|Sigma|Phi|Psi|Omega) ?"
_NAME = rf"(?:(?:[A-Z𝐀-𝐳]|{_GREEK})(?:_\w|_\{{\w+\}})?|\([A-Z𝐀-𝐳+*-]+\))"
_INVERSE = r"\^(?:\{-1\}|T|\{T\}|\{?\\top ?\}?)"
_TRANSPOSE = re.compile(r"\^(?:T|\{T\}|\{?\\top ?\}?)")
# In A^{-1}B, BA^T, 𝐀𝐁 (bold) and AB-BA letters are matrices; in \frac{A}{B} and A/B they are not.
_MATRICES = re.compile(
    rf"{_NAME}{_INVERSE}\*?{_NAME}|{_NAME}\*?{_NAME}{_INVERSE}|\((?:{_NAME}\*?){{2,}}\){_INVERSE}"
    rf"|[𝐀-𝐳](?:_\w|\^\w|_\{{\w+\}}|{_INVERSE})*\(?[𝐀-𝐳]|[𝐀-𝐙]\*[𝐀-𝐙]"
    rf"|(?<!\\)\b[a-z]\^(?:T|\{{T\}}|\{{?\\top ?\}}?){_NAME}"  # of a vector: x^TA
    rf"|([A-Z])\*?([A-Z])(?:.*\2\*?\1|\*?\1)"
)
_NUMBERS = re.compile(r"\\frac\{[^{}]*\}\{[^{}]*[A-Z]|/\(?[A-Z]|\\sqrt\{[^{}]*[A-Z]")
_OF_ANY_SHAPE = re.compile(
    r"\([^()]*\^\{T\}[^()]*\)\^\{-1\}"
)  # in (A^TA)^{-1}A^T: A has no inverse
_TRANSPOSED = "upsilon"  # values.parse renames T
SIZE = 3


def order_counts(gold: str, answer: str) -> bool:
    """Whether letters of one of two canonical texts are matrices. A gold tells more: A^{-1}b is not
    answered by b/A."""
    if _NUMBERS.search(gold):
        return False
    return bool(
        _MATRICES.search(gold) or (_MATRICES.search(answer) and not _NUMBERS.search(answer))
    )


def _random_matrix(name: str) -> ImmutableMatrix:
    seeds = range(SIZE * SIZE)
    return ImmutableMatrix(SIZE, SIZE, [zlib.crc32(f"{name}{k}".encode()) % 101 for k in seeds])


def _evaluate(tree: Expr, point: dict) -> Expr | ImmutableMatrix:
    """Evaluate a tree from its leaves, in the order of its factors."""
    if not tree.args:
        return point.get(str(tree), tree)
    if tree.is_Pow and str(tree.exp) == _TRANSPOSED:
        return _evaluate(tree.base, point).T
    parts = [_evaluate(part, point) for part in tree.args]
    operators = {"Add": operator.add, "Mul": operator.mul, "Pow": operator.pow}
    return functools.reduce(operators[tree.func.__name__], parts)


def equal_products(gold: str, answer: str) -> bool:
    """Whether two texts are equal where capitals and bold letters are matrices; as texts, if they
    cannot be evaluated."""
    bold = {*plain("".join(re.findall("[𝐀-𝐳]", gold + answer)))}
    texts = [_TRANSPOSE.sub("^{T}", plain(text)) for text in (gold, answer)]
    trees = [parse(text) for text in texts]
    if not all(trees) or (_OF_ANY_SHAPE.search(texts[0]) and not _OF_ANY_SHAPE.search(texts[1])):
        return texts[0] == texts[1]
    point = {"iota": ImmutableMatrix.eye(SIZE)}  # values.parse renames I
    for name in {*letters(trees[0]), *letters(trees[1])} - {*point}:
        is_matrix = name[0].isupper() or name in bold
        point[name] = _random_matrix(name) if is_matrix else Rational(len(name), 7)
    try:
        first, second = (_evaluate(tree, point) for tree in trees)
    except (KeyError, TypeError, ValueError, AttributeError):  # a function, or a matrix plus 1
        return texts[0] == texts[1]
    return first == second

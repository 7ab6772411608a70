r"""Whether two answers in LaTeX state the same thing.

math-verify alone gives wrong 1s: it rounds, drops what it cannot read, and takes the question, an
equation, for its answer. A student learns whatever earns a wrong 1, while a wrong 0 only slows
learning. So guards decide first whether two answers may be compared at all:

- the same structure: value, list, set, tuple, interval, union, matrix, ratio, relation;
- the same unit and the same name, or none on one side: "5 cm" and "x=5" answer "5";
- the same order where it counts: in tuples, intervals and matrices, around "…", in products of
  matrices and vectors, and where the labels of one side alone tell the parts apart;
- no free "or", and every side of "a=b=c" right;
- the same letters, and no function that the reference answer lacks: \log_2 8 repeats a question.

What is left are pairs of plain values (values.py). Everything that a guard does not understand
must be the same text.
"""

import re

import mpmath

from grading.spelling import canonicalize
from grading.structure import FLIP, RELATIONS, Structure, is_asked, split, structure_of
from grading.values import hold, is_arithmetic, is_close, letters, number

_SLASH = re.compile(r"(?<=/)(\d+)(?=\\?[a-zA-Z]|\([^()]*[a-zA-Z])")  # 1/2x may be (1/2)x
_FUNCTION = re.compile(r"\\(?:(?:arc)?(?:sin|cos|tan)|cot|sec|csc|log|ln)")
# Products whose order may count: AB, A^{-1}B, x^TA, vectors.
_ORDERED = re.compile(
    r"[A-Z](?:_\{\w+\}|\^\{?-1\}?)*\*?[A-Z(]|\^\{?T|\\(?:vec|nabla|times|circ)(?![a-z])"
)


def _plain_text(text: str) -> str:
    r"""Remove \text{} and the case of words, but not of letters: N is not n."""
    text = re.sub(r"\\text\{([^{}]*)\}", r"\1", text).replace(" ", "")
    return text.casefold() if re.fullmatch(r"(?:[^\W\d]{2,}\W?)+", text) else text


def _is_rounded(exact: str, decimal: str, min_places: int = 6) -> bool:
    """Whether a decimal is the value of a text, rounded to min_places or more, with as many digits
    that are not leading zeros: 0.666667 is 2/3."""
    places, digits = len(decimal.partition(".")[2]), len(decimal.replace(".", "").lstrip("-0"))
    is_decimal = re.fullmatch(r"-?\d*\.\d+", decimal) and min(places, digits) >= min_places
    if not is_decimal or letters(exact):
        return False
    return hold(lambda _, a, b: abs(a - b) * 2 * 10**places <= 1.0001, exact, decimal)


def _equal_numbers(gold: str, answer: str) -> bool:
    """Compare two texts of arithmetic."""
    is_question = _FUNCTION.search(answer) and not _FUNCTION.search(gold)
    has_other_bars = ("|" in gold) != ("|" in answer)  # ln|x| is not ln x
    if is_question or has_other_bars or letters(gold) != letters(answer):
        return False
    if hold(is_close, gold, answer):
        return True
    return _is_rounded(gold, answer) or _is_rounded(answer, gold)


def _equal_values(gold: str, answer: str) -> bool:
    """Compare two texts without parts. 50, 50% and 0.5 answer 50%; 0.5% and 0.5 are different."""
    exact = [re.sub(r"^([^%]+)%$", r"(\1)/100", text) for text in (gold, answer)]
    if _ORDERED.search(gold) or _ORDERED.search(answer) or not is_arithmetic(exact[0]):
        return _plain_text(gold) == _plain_text(answer)
    if _equal_numbers(*exact):
        return True
    bare = [text.removesuffix("%") for text in (gold, answer)]
    size = number(bare[0])
    limit = 10 if "/" in gold + answer or "frac" in gold + answer else 1
    has_one_sign = gold.endswith("%") != answer.endswith("%")
    return has_one_sign and size is not None and size == number(bare[1]) and abs(size) > limit


def _equal_multiples(golds: list[str], answers: list[str]) -> bool:
    """Whether one relation is a multiple of the other: left - right of the two differ by a constant
    factor at all points. A negative factor reverses "<"."""
    factors = []

    def is_multiple(tolerance, a, b, c, d) -> bool:
        if a == b or c == d:
            return a == b and c == d
        factors.append((tolerance, (a - b) / (c - d)))
        (last_tolerance, last), (_, factor) = factors[-2:][0], factors[-1]
        return is_close(max(tolerance, last_tolerance), last, factor)

    has_letters = letters(golds[0]) | letters(golds[2])
    if not has_letters or not hold(is_multiple, *golds[::2], *answers[::2]) or not factors:
        return False
    is_reversed = mpmath.re(factors[0][1]) < 0
    return golds[1] == (answers[1].translate(FLIP) if is_reversed else answers[1])


def _equal_relations(gold: str, answer: str) -> bool:
    """Whether two relations have the same sides, or are multiples: 2x-y+1=0 answers y=2x+1."""
    golds, answers = split(gold, RELATIONS), split(answer, RELATIONS)
    if golds[1::2] != answers[1::2] or not all(map(_equal, golds[::2], answers[::2])):
        return len(golds) == len(answers) == 3 and _equal_multiples(golds, answers)
    return True


def _equal_chain(gold: str, sides: list[str]) -> bool:
    """Whether every side of an answer is right, as in 3+5=8; but in m+n=8 the first names it."""
    first, *others = sides
    return (is_asked(first) or _equal(gold, first)) and all(_equal(gold, side) for side in others)


def _equal_parts(golds: list[str], answers: list[str], is_ordered: bool) -> bool:
    """Whether there are as many parts, equal one by one; if not ordered, in any order."""
    remaining = list(answers)
    for gold in golds:
        candidates = remaining[:1] if is_ordered else remaining
        match = next((answer for answer in candidates if _equal(gold, answer)), None)
        if match is None:
            return False
        remaining.remove(match)
    return not remaining


def _is_tuple(structure: Structure) -> bool:
    """Whether a list or tuple may be coordinates: "x=3, y=1" or "3, 1", but not x∈(3,1)."""
    names = "".join(structure_of(part).name for part in structure.parts)
    return names in ("", "xy", "xyz") and (not structure.name or "," in structure.name)


def _equal_collections(gold: Structure, answer: Structure) -> bool:
    """Compare lists, sets, tuples, intervals, unions, ratios and matrices."""
    kinds = {gold.kind, answer.kind}
    if kinds == {"list", "()"}:
        is_allowed = _is_tuple(gold) and _is_tuple(answer)
        return is_allowed and _equal_parts(gold.parts, answer.parts, is_ordered=True)
    if len(kinds) > 1 and kinds != {"list", "set"}:
        return False
    names = [s.name for s in map(structure_of, answer.parts)]
    labels = [{s.name + s.unit for s in map(structure_of, x.parts)} - {""} for x in (gold, answer)]
    fewer, more = sorted(map(len, labels))  # "x=1, y=2" is not "2, 1"
    is_repeated = 1 < len({*names}) < len(names)  # x=1, y=2, x=3, y=4
    is_ordered = is_repeated or "…" in gold.parts or fewer == 0 < 1 < more
    in_any_order = kinds <= {"list", "set", "∪", "∨"}
    return _equal_parts(gold.parts, answer.parts, is_ordered or not in_any_order)


def _equal(gold: str, answer: str) -> bool:
    """Compare two canonical texts."""
    answer, *decimals = split(answer, "≈")[::2]
    if decimals:  # \sqrt{3}/3≈0.577: an exact value, and its approximations
        exact = split(answer, "=")[-1]
        return all(_is_rounded(exact, x, min_places=1) for x in decimals) and _equal(gold, answer)
    first, second = structure_of(gold), structure_of(answer)
    has_other_unit = first.unit and second.unit and first.unit != second.unit
    is_angle = "pi" in gold and {first.unit, second.unit} == {
        "",
        "degree",
    }  # π/6 is not π/6 degrees
    if has_other_unit or is_angle:
        return False
    has_other_name = first.name and second.name and first.name != second.name
    is_formula = first.name and first.kind == "value" and letters(first.parts[0])
    if first.kind[0] in RELATIONS or (is_formula and (has_other_name or second.kind == "=")):
        return _equal_relations(gold, answer)
    if has_other_name:
        return False
    if {*second.kind} == {"="}:
        return not first.name and _equal_chain(gold, second.parts)
    if first.kind == second.kind == "value":
        return _equal_values(first.parts[0], second.parts[0])
    return "value" not in (first.kind, second.kind) and _equal_collections(first, second)


def compare(gold: str, answer: str, accept_identical: bool = True) -> bool:
    """Whether two contents of boxes agree. accept_identical: even if they cannot be parsed."""
    gold, answer = canonicalize(gold), canonicalize(answer)
    if not re.search(r"\w|∞|⦃⦄", gold):
        return False
    if accept_identical and gold == answer:
        return True
    golds, answers = ({text, _SLASH.sub(r"\1*", text)} for text in (gold, answer))
    try:
        return any(_equal(g, a) for g in golds for a in answers)
    except RecursionError:
        return False  # nested deeper than any real answer

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
_PERCENT = re.compile(r"^([^%]+)%$")
_FUNCTION = re.compile(r"\\(?:(?:arc)?(?:sin|cos|tan)|cot|sec|csc|log|ln)")
# Products whose order may count: AB, A^{-1}B, x^TA, vectors.
_ORDERED = re.compile(
    r"[A-Z](?:_\{\w+\}|\^\{?-1\}?)*\*?[A-Z(]|\^\{?T|\\(?:vec|nabla|times|circ)(?![a-z])"
)


def _plain_text(text: str) -> str:
    r"""Remove \text{} and the case of words, but not of letters: N is not n."""
    text = re.sub(r"\\text\{([^{}]*)\}", r"\1", text)
    text = text.replace(" ", "")
    return text.casefold() if re.fullmatch(r"(?:[^\W\d]{2,}\W?)+", text) else text


def _is_rounded(exact: str, decimal: str, min_places: int = 6) -> bool:
    """Whether a decimal is the value of a text, rounded to min_places or more, with as many digits
    that are not leading zeros: 0.666667 is 2/3."""
    if letters(exact) or not re.fullmatch(r"-?\d*\.\d+", decimal):
        return False
    places = len(decimal.partition(".")[2])
    digits = len(decimal.replace(".", "").lstrip("-0"))
    if min(places, digits) < min_places:
        return False

    def rounds_to(tolerance, a, b) -> bool:
        return abs(a - b) * 2 * 10**places <= 1.0001

    return hold(rounds_to, exact, decimal)


def _equal_numbers(gold: str, answer: str) -> bool:
    """Compare two texts of arithmetic."""
    is_question = _FUNCTION.search(answer) and not _FUNCTION.search(gold)
    has_other_bars = ("|" in gold) != ("|" in answer)  # ln|x| is not ln x
    if is_question or has_other_bars or letters(gold) != letters(answer):
        return False
    is_equal = hold(is_close, gold, answer)
    return is_equal or _is_rounded(gold, answer) or _is_rounded(answer, gold)


def _equal_values(gold: str, answer: str) -> bool:
    """Compare two texts without parts. 50, 50% and 0.5 answer 50%; 0.5% and 0.5 are different."""
    exact_gold = _PERCENT.sub(r"(\1)/100", gold)
    exact_answer = _PERCENT.sub(r"(\1)/100", answer)
    is_ordered = _ORDERED.search(gold) or _ORDERED.search(answer)
    if is_ordered or not is_arithmetic(exact_gold):
        return _plain_text(gold) == _plain_text(answer)
    if _equal_numbers(exact_gold, exact_answer):
        return True
    if gold.endswith("%") == answer.endswith("%"):
        return False
    # The sign is missing on one side. A number up to 1 may be a share: 0.5 is 50%, and not 0.5%.
    size = number(gold.removesuffix("%"))
    if size is None or size != number(answer.removesuffix("%")):
        return False
    is_fraction = re.search("/|frac", gold + answer)
    return abs(size) > (10 if is_fraction else 1)


def _equal_multiples(golds: list[str], answers: list[str]) -> bool:
    """Whether one relation is a multiple of the other: left - right of the two differ by a constant
    factor at all points. A negative factor reverses "<"."""
    left, sign, right = golds
    answer_left, answer_sign, answer_right = answers
    factors = []

    def is_multiple(tolerance, a, b, c, d) -> bool:
        if a == b or c == d:
            return a == b and c == d
        factor = (a - b) / (c - d)
        factors.append((tolerance, factor))
        last_tolerance, last = factors[-2:][0]
        return is_close(max(tolerance, last_tolerance), last, factor)

    if not letters(left) | letters(right):
        return False
    if not hold(is_multiple, left, right, answer_left, answer_right) or not factors:
        return False
    _, factor = factors[0]
    if mpmath.re(factor) < 0:
        answer_sign = answer_sign.translate(FLIP)
    return sign == answer_sign


def _equal_relations(gold: str, answer: str) -> bool:
    """Whether two relations have the same sides, or are multiples: 2x-y+1=0 answers y=2x+1."""
    golds = split(gold, RELATIONS)
    answers = split(answer, RELATIONS)
    have_same_signs = golds[1::2] == answers[1::2]
    if have_same_signs and all(map(_equal, golds[::2], answers[::2])):
        return True
    have_two_sides = len(golds) == len(answers) == 3
    return have_two_sides and _equal_multiples(golds, answers)


def _equal_chain(gold: str, sides: list[str]) -> bool:
    """Whether every side of an answer is right, as in 3+5=8; but in m+n=8 the first names it."""
    first, *others = sides
    is_first_right = is_asked(first) or _equal(gold, first)
    return is_first_right and all(_equal(gold, side) for side in others)


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


def _labels(structure: Structure) -> set[str]:
    """Return the names and units of the parts: "x=1, 2 cm" -> "x", "cm"."""
    parts = map(structure_of, structure.parts)
    return {part.name + part.unit for part in parts if part.name or part.unit}


def _equal_collections(gold: Structure, answer: Structure) -> bool:
    """Compare lists, sets, tuples, intervals, unions, ratios and matrices."""
    kinds = {gold.kind, answer.kind}
    if kinds == {"list", "()"}:
        is_allowed = _is_tuple(gold) and _is_tuple(answer)
        return is_allowed and _equal_parts(gold.parts, answer.parts, is_ordered=True)
    if len(kinds) > 1 and kinds != {"list", "set"}:
        return False
    names = [structure_of(part).name for part in answer.parts]
    is_repeated = 1 < len({*names}) < len(names)  # x=1, y=2, x=3, y=4
    labels = _labels(gold), _labels(answer)
    has_one_sided_labels = not all(labels) and max(map(len, labels)) > 1  # "x=1, y=2" is not "2, 1"
    has_no_order = kinds <= {"list", "set", "∪", "∨"} and "…" not in gold.parts
    is_ordered = is_repeated or has_one_sided_labels or not has_no_order
    return _equal_parts(gold.parts, answer.parts, is_ordered)


def _equal_approximations(gold: str, exact: str, decimals: list[str]) -> bool:
    r"""Whether an answer such as \sqrt{3}/3≈0.577, an exact value and its decimals, is right."""
    value = split(exact, "=")[-1]
    are_right = all(_is_rounded(value, decimal, min_places=1) for decimal in decimals)
    return are_right and _equal(gold, exact)


def _equal(gold: str, answer: str) -> bool:
    """Compare two canonical texts."""
    answer, *decimals = split(answer, "≈")[::2]
    if decimals:
        return _equal_approximations(gold, answer, decimals)
    first = structure_of(gold)
    second = structure_of(answer)
    if first.unit and second.unit and first.unit != second.unit:
        return False
    if "pi" in gold and {first.unit, second.unit} == {"", "degree"}:
        return False  # π/6 is not π/6 degrees
    has_other_name = first.name and second.name and first.name != second.name
    is_formula = first.name and first.kind == "value" and letters(first.parts[0])
    is_relation = first.kind[0] in RELATIONS
    if is_relation or (is_formula and (has_other_name or second.kind == "=")):
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
    gold = canonicalize(gold)
    answer = canonicalize(answer)
    if not re.search(r"\w|∞|⦃⦄", gold):
        return False
    if accept_identical and gold == answer:
        return True
    golds = {gold, _SLASH.sub(r"\1*", gold)}
    answers = {answer, _SLASH.sub(r"\1*", answer)}
    try:
        return any(_equal(g, a) for g in golds for a in answers)
    except RecursionError:
        return False  # nested deeper than any real answer

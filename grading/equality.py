r"""Whether two answers in LaTeX state the same thing.

math-verify alone gives wrong 1s: it rounds, drops what it cannot read, and takes the question, an
equation, for its answer. A student learns whatever earns a wrong 1, while a wrong 0 only slows
learning. So guards decide first whether two answers may be compared at all:

- the same structure: value, list, set, tuple, interval, union, matrix, ratio, relation;
- the same unit and the same name, or none on one side: "5 cm" and "x=5" answer "5";
- the same order where it counts: in tuples, intervals and matrices, around "…", in products of
  matrices and vectors, and where the labels of one side alone tell the parts apart;
- no free "or", and every side of "a=b=c" right;
- the same letters, and no function that the reference answer lacks: \log_2 8 repeats a question;
- no operation left to carry out where the reference answer is a number: 48+24 repeats a question.

What is left are pairs of plain values (values.py). Everything that a guard does not understand
must be the same text.
"""

import re
from itertools import product, starmap

import mpmath

from grading.spelling import FUNCTION, canonicalize
from grading.structure import (
    FLIP,
    RELATIONS,
    Structure,
    is_asked,
    is_condition,
    split,
    structure_of,
)
from grading.values import hold, is_arithmetic, is_close, is_evaluated, letters, number

_SLASH = re.compile(r"(?<=/)(\d+)(?=\\?[a-zA-Z]|\([^()]*[a-zA-Z])")  # 1/2x may be (1/2)x
_PERCENT = re.compile(r"^([^%]+)%$")
_FUNCTION = re.compile(FUNCTION)
_SINGLE = re.compile(r"(?:^|[=∈])⦃+[^,;⦃⦄]+⦄+$")  # {2} or x∈{2}
# Products whose order may count: AB, A^{-1}B, x^TA, vectors. Not A(A-1).
_ORDERED = re.compile(
    r"([A-Z])(?!\([^A-Z()]*\1[^A-Z()]*\))(?:_\{\w+\}|\^\{?-1\}?)*\*?[A-Z(]|\^\{?T"
    r"|\\(?:vec|nabla|times|circ)(?![a-z])"
)
# The choice B with its text: "B. A circle", "(B) 12". Not "B. C", "(B)-12" or "A: red, B: blue",
# nor its denial: "B is wrong", "B. Not B".
_CHOICE = re.compile(
    r"^(?:\\text\{)?(?:Answer:|Option|Choice)?\(?([A-J])"
    r"(?!(?:.*\1)?[).:]*\}?(?:is|was)(?:n'?t|not|wrong|false|incorrect|untrue))"
    r"(?!.*(?:[Nn]ot|n't|¬|[Nn]ever|except|but)\}? ?(?:\\text\{)?\(?\1(?![a-z]))"
    r"(?:[).:]\}?(?!.*(?:∨|[A-J][).:]))(?:.*[a-z]{2}.*|\d[\d.,]*)?)?$"
)


def _plain_text(text: str) -> str:
    r"""Remove \text{} and the case of words, but not of letters: N is not n, xy is not XY."""
    text = re.sub(r"\\text\{([^{}]*)\}", r"\1", text)
    text = text.replace(" ", "")
    are_words = re.fullmatch(r"(?i)no|(?:(?=\w{4}|\w*[aeiou])[^\W\d]{3,}\W?)+", text)
    return text.casefold() if are_words else text


def _is_rounded(exact: str, decimal: str, min_places: int = 6) -> bool:
    """Whether a decimal is the value of a text, rounded to min_places or more, with as many digits
    that are not leading zeros: 0.666667 is 2/3."""
    if letters(exact):
        return False
    if not re.fullmatch(r"-?\d*\.\d+", decimal):
        return False
    places = len(decimal.partition(".")[2])
    digits = len(decimal.replace(".", "").lstrip("-0"))
    if min(places, digits) < min_places:
        return False

    def rounds_to(tolerance, a, b) -> bool:
        error = abs(a - b)
        return error * 2 * 10**places <= 1.0001

    return hold(rounds_to, exact, decimal)


def _equal_numbers(gold: str, answer: str) -> bool:
    """Compare two texts of arithmetic."""
    is_question = _FUNCTION.search(answer) and not _FUNCTION.search(gold)
    has_other_bars = ("|" in gold) != ("|" in answer)  # ln|x| is not ln x
    if is_question or has_other_bars:
        return False
    if letters(gold) != letters(answer):
        return False
    if hold(is_close, gold, answer):
        return True
    return _is_rounded(gold, answer) or _is_rounded(answer, gold)


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
    answer_size = number(answer.removesuffix("%"))
    if size is None or size != answer_size:
        return False
    is_fraction = re.search("/|frac", gold + answer)
    largest_share = 10 if is_fraction else 1
    return abs(size) > largest_share


def _factor(golds: list[str], answers: list[str]):
    """Return the factor between left - right of two relations, or None if it is not the same at all
    points."""
    factors = []  # of the points so far, with their tolerances, which never grow
    # A factor is compared with that of the point before: its tolerance is the wider one.

    def is_constant(tolerance, left, right, answer_left, answer_right) -> bool:
        difference = left - right
        answer_difference = answer_left - answer_right
        if difference == 0 or answer_difference == 0:
            return difference == answer_difference
        factor = difference / answer_difference
        previous_tolerance, previous = factors[-1] if factors else (tolerance, factor)
        factors.append((tolerance, factor))
        return is_close(previous_tolerance, previous, factor)

    has_letters = any(map(letters, golds))
    if has_letters and hold(is_constant, *golds, *answers) and factors:
        return factors[0][1]
    return None


def _equal_relations(gold: str, answer: str) -> bool:
    """Whether two relations have the same sides, or are multiples: 2x-y+1=0 answers y=2x+1. A
    negative factor reverses "<"."""
    golds, signs = split(gold, RELATIONS)
    answers, answer_signs = split(answer, RELATIONS)
    if signs == answer_signs and all(map(_equal, golds, answers)):
        return True
    if not len(signs) == len(answer_signs) == 1:
        return False
    factor = _factor(golds, answers)
    if factor is None:
        return False
    if mpmath.re(factor) < 0:
        answer_signs = answer_signs.translate(FLIP)
    return signs == answer_signs


def _equal_chain(gold: str, sides: list[str]) -> bool:
    """Whether every side of an answer is right, as in 3+5=8, and one is no mere operation; but in
    m+n=8 the first names it."""
    if is_asked(sides[0]):
        sides = sides[1:]
    are_right = all(_equal(gold, side, is_step=True) for side in sides)
    return are_right and any(_equal(gold, side) for side in sides)


def _is_member(gold: str, answer: str) -> bool:
    """Whether two parts are equal, and neither only inside a set of its own: {2} is no 2."""
    are_sets = {bool(_SINGLE.search(part)) for part in (gold, answer)}
    return len(are_sets) == 1 and _equal(gold, answer)


def _equal_parts(golds: list[str], answers: list[str], is_ordered: bool) -> bool:
    """Whether there are as many parts, equal one by one; if not ordered, in any order."""
    remaining = list(answers)
    for gold in golds:
        candidates = remaining[:1] if is_ordered else remaining
        for answer in candidates:
            if _is_member(gold, answer):
                remaining.remove(answer)
                break
        else:
            return False
    return not remaining


def _names(structure: Structure) -> list[str]:
    """Return the names of the parts, "" for a part without: "x=1, 2" -> "x", ""."""
    return [structure_of(part).name for part in structure.parts]


def _labels(structure: Structure) -> set[str]:
    """Return the names and units of the parts: "x=1, 2 cm" -> "x", "cm"."""
    parts = map(structure_of, structure.parts)
    return {part.name + part.unit for part in parts} - {""}


def _is_tuple(structure: Structure) -> bool:
    """Whether a list or tuple may be coordinates: "x=3, y=1" or "3, 1", but not x∈(3,1) or
    (3,∞)."""
    is_named = structure.name and "," not in structure.name
    if is_named or "∞" in str(structure.parts):
        return False
    names = _names(structure)
    return not any(names) or names == sorted({*names})


def _is_ordered(gold: Structure, answer: Structure) -> bool:
    """Whether the order of the parts counts."""
    have_no_order = {gold.kind, answer.kind} <= {"list", "or", "set", "∪", "∨"}
    if not have_no_order or "…" in gold.parts:
        return True
    names = _names(answer)
    if 1 < len({*names}) < len(names):
        return True  # x=1, y=2, x=3, y=4
    gold_labels = _labels(gold)
    answer_labels = _labels(answer)
    if gold_labels and answer_labels:
        return False
    return len(gold_labels | answer_labels) > 1  # "x=1, y=2" is not "2, 1"


def _equal_collections(gold: Structure, answer: Structure) -> bool:
    """Compare lists, sets, tuples, intervals, unions, ratios and matrices."""
    kinds = {gold.kind, answer.kind}
    are_tuples = kinds == {"list", "()"} and _is_tuple(gold) and _is_tuple(answer)
    is_one_label = len(_labels(gold) | _labels(answer)) < 2  # "x=1, y=2" is not "1 or 2"
    are_alike = len(kinds) == 1 or (is_one_label and kinds <= {"list", "set", "or"})
    if not are_alike and not are_tuples:
        return False
    if any(map(is_condition, answer.parts)) and not any(map(is_condition, gold.parts)):
        return False
    return _equal_parts(gold.parts, answer.parts, _is_ordered(gold, answer))


def _equal_approximations(gold: str, exact: str, *decimals: str) -> bool:
    r"""Whether an answer such as \sqrt{3}/3≈0.577, an exact value and its decimals, is right."""
    sides, _ = split(exact, "=")
    for decimal in decimals:
        if not _is_rounded(sides[-1], decimal, min_places=1):
            return False
    return _equal(gold, exact)


def _equal(gold: str, answer: str, is_step: bool = False) -> bool:
    """Compare two canonical texts. is_step: the answer may leave an operation to carry out."""
    sides, signs = split(answer, "≈")
    if signs:
        return _equal_approximations(gold, *sides)
    first = structure_of(gold)
    second = structure_of(answer)
    # Units: one may be left out, except that of π/6 degrees, which is not π/6.
    units = {first.unit, second.unit}
    if len(units - {""}) > 1:
        return False
    if "pi" in gold and units == {"", "degree"}:
        return False
    # Relations: x<2, and the formula y=2x+1, which may also be written 2x-y+1=0. Only one side may
    # leave out a name: 3 answers x=3, but y=3 does not.
    if first.kind[0] in RELATIONS:
        return _equal_relations(gold, answer)
    has_other_name = len({first.name, second.name} - {""}) > 1
    is_formula = first.name and first.kind == "value" and letters(first.parts[0])
    if is_formula and (has_other_name or second.kind == "="):
        return _equal_relations(gold, answer)
    if has_other_name:
        return False
    # The answer is a calculation, 3+5=8.
    if {*second.kind} == {"="}:
        return not first.name and _equal_chain(gold, second.parts)
    # The answer gives one value in several forms, "1/2 or 0.5".
    if first.kind == "value" and second.kind == "or":
        part_units = {structure_of(part).unit for part in second.parts} - {""}
        return len(part_units) < 2 and all(_equal(gold, part) for part in second.parts)
    # Two values. 3+5 does not answer 8, but may be a side of a calculation.
    if first.kind == second.kind == "value":
        [gold_value], [value] = first.parts, second.parts
        is_question = is_evaluated(gold_value) and not is_evaluated(value)
        return (is_step or not is_question) and _equal_values(gold_value, value)
    return _equal_collections(first, second)


def compare(gold: str, answer: str, accept_identical: bool = True) -> bool:
    """Whether two contents of boxes agree. accept_identical: even if they cannot be parsed."""
    gold = canonicalize(gold)
    answer = canonicalize(answer)
    if not re.search(r"\w|∞|⦃⦄", gold):
        return False
    if re.fullmatch("[A-J]", gold):
        answer = _CHOICE.sub(r"\1", answer)
    if accept_identical and gold == answer:
        return True
    golds = {gold, _SLASH.sub(r"\1*", gold)}
    answers = {answer, _SLASH.sub(r"\1*", answer)}
    try:
        return any(starmap(_equal, product(golds, answers)))
    except RecursionError:
        return False  # nested deeper than any real answer

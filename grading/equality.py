r"""Whether two answers in LaTeX state the same thing.

`compare` has these stages:

1. Spelling (spelling.py, units.py): units are removed, and both texts get one canonical spelling.
   A unit, or the base of 52_8, may be left out but neither replaced nor cut: "5 cm" is right for
   "5", wrong for "5 m" and "5 cm/s". Labels of parts may not be swapped: "3 apples, 5 pears".
   One text may tell how to read the other (readings.py): "B" beside "B. A circle".
2. Conditions (conditions.py): "k∈\mathbb{Z}" may be left out but not replaced.
3. Structure (structure.py, sets.py): lists, sets, tuples, intervals, matrices, ratios and relations
   are split into parts. Brackets, names and parts must be equal, and every "=" in the answer true.
4. Values (values.py): arithmetic is evaluated, at random points if it has letters. Rational values
   must be the same, others equal to as many digits as their smallest term needs, but a decimal may
   be rounded to six or more places. Products of matrices (matrices.py) keep their order.
5. Text: other parts must be the same text, but sums, integrals and the like go to math-verify. It
   alone is too generous: it takes 1/2^99 for 1/2^98 and lets the question, an equation, earn 1.

Accepted: "2, 1" for "1, 2"; 3·4, 6! or a binomial coefficient for its value, even as the question.
Rejected: rare spellings, such as sin 30° in degrees; formulas that are long, nested or huge.
"""

import math
import re

import math_verify

from grading.conditions import Condition, rename_index, split_conditions
from grading.matrices import equal_products, order_counts
from grading.readings import are_same_letters, read_choices, unset, with_letter_units
from grading.sets import simplify
from grading.spelling import FUNCTION, Spelling, canonicalize
from grading.structure import FLIP, Structure, is_bounded, plain, split, structure_of
from grading.units import PART_ENDS, compatible
from grading.values import (
    common_values,
    equal_values,
    is_arithmetic,
    is_quotient,
    is_rounded,
    values,
)

_POSSIBLE_FLOOR = re.compile(r"(?<!\\sqrt)\[[^\]]*[a-zA-Z]")  # [x] in a gold
_FLOOR = re.compile(r"\\l(?:floor|ceil)(?![a-z])")
_FUNCTION = re.compile(rf"\\{FUNCTION}|{_FLOOR.pattern}")
_SUM = re.compile(r"\\(?:sum|prod|int|lim)")
MAX_TERMS = 20  # math-verify computes every term of a sum and expands powers
_BOUND = re.compile(r"\^(?:\{((?:[^{}]|\{[^{}]*\})*)\}|(\d))|=(-?\d+)")
_HUGE = re.compile(r"\d{6}|\([\d^{}*+]+\)!|\d\d!|\\binom\{\d\d|\^\{[^{}]*\^")
# 1/2x may be (1/2)x. Not before a digit or (3): these are numbers.
_SLASH = re.compile(r"(?<=/)(\d+)(?=\\?[a-zA-Z]|\([^()]*[a-zA-Z])")


def _are_short_sums(gold: str, answer: str) -> bool:
    """Whether math-verify may compare a sum, product, integral or limit with another or a formula:
    it computes all terms, so that a product to 1000 takes half a minute."""
    operators = [sorted(_SUM.findall(text)) for text in (gold, answer)]
    if not operators[0] or operators[1] not in ([], operators[0]):
        return False
    if is_arithmetic(answer) and not values(answer):
        return False
    for text in (gold, answer):
        bounds = ["".join(groups) for groups in _BOUND.findall(text)]
        sizes = [abs(size[0]) for bound in bounds if len(size := values(bound)) == 1]
        if not is_bounded(text) or _HUGE.search(text) or max(sizes, default=0) > MAX_TERMS:
            return False
    return True


def _without_case(text: str) -> str:
    r"""Remove \text{} and the case of words, but not of letters: N is not n, \Delta not \delta."""
    text = re.sub(r"\\text\{([^{}]*)\}", lambda words: words[1].casefold(), plain(text))
    return re.sub(
        r"(?<![a-zA-Z\\])[a-zA-Z]{3,}|^[a-zA-Z]{2}$", lambda word: word[0].casefold(), text
    )


def _equal_text(gold: str, answer: str) -> bool:
    """Compare as text without the case of words; sums, integrals and the like by math-verify."""
    texts = [_without_case(text) for text in (gold, answer)]
    if texts[0] == texts[1]:
        return bool(re.search(r"\w|[∞…]", gold))
    if not _are_short_sums(gold, answer) or "'" in gold + answer:  # math-verify takes f' for f
        return False
    # Parse the whole box, not its first number; time limits are the worker's, not SIGALRM's.
    options = {"fallback_mode": "no_fallback", "extraction_mode": "first_match"}
    whole_box = [math_verify.LatexExtractionConfig(boxed_match_priority=0)]
    boxes = (rf"\boxed{{{text}}}" for text in (gold, answer))
    trees = [math_verify.parse(box, whole_box, parsing_timeout=None, **options) for box in boxes]
    return all(trees) and math_verify.verify(*trees, timeout_seconds=None)


_WORD = re.compile("[a-z]{3,}")  # but BAC may be an order or an angle
_PRODUCT = re.compile(r"[a-z](?:\*[a-z])+")


def _are_factors(word: str, product: str) -> bool:
    """Whether a word, "abc", has the letters of a product: a*b*c, or c*a*b."""
    is_product = _WORD.fullmatch(word) and _PRODUCT.fullmatch(product)
    return bool(is_product) and sorted(word) == sorted(product[::2])


def _equal_term(gold: str, answer: str) -> bool:
    """Compare two texts without "%", as values if the gold is arithmetic, else as text."""
    if re.fullmatch("[A-Z]{4}", gold + answer):  # HT and TH, but A*B is AB
        return gold == answer
    if order_counts(gold, answer):
        return equal_products(gold, answer)
    if _are_factors(gold, answer) or _are_factors(answer, gold):
        return True
    if _POSSIBLE_FLOOR.search(gold) or not is_arithmetic(plain(gold)):
        return _equal_text(gold, answer)
    if gold == answer and _FLOOR.search(gold):
        return True  # it may have no value, as ⌊f(n)⌋
    gold, answer = plain(gold), plain(answer)
    gold_values, answer_values = values(gold), values(answer)
    if not gold_values or not answer_values:
        return gold == answer and bool(re.match(r"[a-zA-Z]\([\w,]+\)$", gold))  # f(2)
    if len(gold_values) != len(answer_values):
        with_letters = gold if len(gold_values) > 1 else answer
        if not is_quotient(with_letters):
            return False
    if _FUNCTION.search(answer) and not _FUNCTION.search(gold):
        return False  # log_2(8) repeats the question; it does not answer 3
    decimal, exact = sorted((gold, answer), key=lambda text: "." not in text)
    if "." not in exact and is_rounded(exact, decimal, min_places=6):
        return True
    return all(equal_values(*row, digits) for digits, row in common_values(gold, answer))


_DATE = re.compile(r"(\d{4})([-/])(\d\d?)\2(\d\d?)|(\d\d?)([-/])(\d\d?)\6(\d{4})")
_TIME = re.compile(r"([01]?\d|2[0-4]):([0-5]\d)")


def _date(text: str) -> list[int]:
    """Return the numbers of a date: "2024-01-05" -> 2024, 1, 5. It is not a difference."""
    return [int(number) for number in re.findall(r"\d+", text)] if _DATE.fullmatch(text) else []


def _is_time(text: str) -> bool:
    """Whether "a:b" is a time, as 6:30 and 7:10 are; 5:12 may be a ratio, which is in lowest terms
    and rarely ends in a multiple of five minutes."""
    time = _TIME.fullmatch(text)
    return bool(time) and (int(time[2]) % 5 == 0 or math.gcd(int(time[1]), int(time[2])) > 1)


def _is_plain(text: str) -> bool:
    """Whether a number without "%" is read only as itself, not as a number of percent: 0.5 and 3/4,
    but not 28 and 100/3."""
    size = [abs(value) for value in values(text)]
    is_fraction = re.fullmatch(r"-?(?:\\frac\{\d+\}\{\d+\}|\d+/\d+)", text)
    return len(size) != 1 or not size[0] > (10 if is_fraction else 1)


def _without_percent(text: str) -> str:
    return re.sub("^([^%]+)%$", r"(\1)/100", text)


def _equal_value(gold: str, answer: str) -> bool:
    """Compare two texts without parts. Accept 28 and 0.28 for 28%, and 28% for either."""
    if _date(gold) or _date(answer):
        return _date(gold) == _date(answer)
    exact = [_without_percent(text) for text in (gold, answer)]
    bare = [re.sub("^([^%]+)%$", r"\1", text) for text in (gold, answer)]
    if _equal_term(*exact):
        return True
    has_one_sign = gold.endswith("%") != answer.endswith("%")
    return has_one_sign and not any(map(_is_plain, bare)) and _equal_term(*bare)


def _equal_multiples(gold: str, answer: str) -> bool:
    """Whether one relation is a multiple of the other: left - right of the two differ by a constant
    factor at all points. A negative factor reverses "<"."""
    golds, answers = split(gold, "=<>≤≥≠"), split(answer, "=<>≤≥≠")
    sides = [plain(side) for side in golds[::2] + answers[::2]]
    if not (len(golds) == len(answers) == 3 and max(len(values(side)) for side in sides) > 1):
        return False
    factor, factor_digits = None, 0
    for digits, (a, b, c, d) in common_values(*sides):
        if a == b and c == d:  # 0=0 states nothing
            continue
        if a == b or c == d:
            return False
        previous, factor = factor, (a - b) / (c - d)
        is_same = previous is None or equal_values(factor, previous, min(digits, factor_digits))
        if not (factor.is_real and is_same):
            return False
        factor_digits = digits
    if factor is None:
        return False
    return golds[1] == (answers[1].translate(FLIP) if factor < 0 else answers[1])


def _equal_relations(gold: str, answer: str, parts: tuple[Structure, Structure]) -> bool:
    """Whether two relations have the same sides, or are multiples of each other. An equation is
    answered by its multiples: y=2x+1 by 2x-y+1=0."""
    first, second = parts
    same_sides = first[:2] == second[:2] and _equal_parts(first.parts, second.parts)
    return same_sides or _equal_multiples(gold, answer)


def _equal_parts(golds: list[str], answers: list[str], ordered: bool = True) -> bool:
    """Whether there are as many answers as golds, equal one by one, if not ordered in any order.
    Where only the order tells x from y, it counts: "x=1, y=2" and "2, 1"; so it does around "…"."""
    if len(golds) != len(answers):
        return False
    names = [{structure_of(part).name for part in parts} - {""} for parts in (golds, answers)]
    fewer, more = sorted(map(len, names))
    ordered = ordered or fewer <= 1 < more or "…" in golds
    remaining = list(answers)
    for gold in golds:
        candidates = remaining[:1] if ordered else remaining
        match = next((answer for answer in candidates if _equal(gold, answer)), None)
        if match is None:
            return False
        remaining.remove(match)
    return True


def _equal_pairs(gold: Structure, answer: Structure) -> bool:
    """Compare a list with a tuple: "y=1, x=3" is (3,1), but not x∈(3,1), nor "x=3, x=1"."""
    golds, answers = gold.parts, answer.parts
    gold_names, answer_names = ([structure_of(p).name for p in parts] for parts in (golds, answers))
    owners = [name for name in (gold.name, answer.name) if name and "," not in name]
    repeated = [n for side in (gold_names, answer_names) for n in side if n and side.count(n) > 1]
    if owners or repeated:
        return False
    names = {*gold_names, *answer_names, gold.name, answer.name}
    has_order = any({*pair} <= names for pair in ("mb", ("r", r"\theta")))  # not b, m
    if names <= {*"xyz", gold.name, answer.name} or not (has_order or gold_names[0]):
        golds, answers = (
            sorted(parts) if names[0] else parts
            for parts, names in ((golds, gold_names), (answers, answer_names))
        )
    return _equal_parts(golds, answers)


def _without_indices(parts: list[str], others: list[str]) -> list[str]:
    """Remove the names of solutions, "x_1=2, x_2=3", if the others are of x: "x=2 or x=3"."""
    names = [structure_of(part).name for part in parts]
    letters = {structure_of(part).name for part in others} - {""}
    if len(letters) != 1 or {re.sub(r"_\{\d\}$", "", name) for name in names} != letters:
        return parts
    return [structure_of(part).parts[0] if "=" in part else part for part in parts]


def _equal_collections(gold: Structure, answer: Structure) -> bool:
    """Compare lists, sets, tuples, intervals, matrices, and statements joined by ∧ or ∨."""
    kinds = {gold.kind, answer.kind}
    if kinds == {"list", "()"}:
        return _equal_pairs(gold, answer)
    in_any_order = "list", "set", "∧", "∨", "∩"
    is_ordered = not kinds <= {*in_any_order}
    # "x=1 or y=2" is not "x=1, y=2", nor "red or blue" "red, blue".
    may_agree = len(kinds) == 1 or ("list" in kinds and not is_ordered and "∨" not in kinds)
    golds, answers = gold.parts, answer.parts
    if kinds == {"list"}:
        golds, answers = _without_indices(golds, answers), _without_indices(answers, golds)
    return may_agree and _equal_parts(golds, answers, is_ordered)


_FACTOR = (
    r"(?:[a-zA-Z]|\\(?:alpha|beta|gamma|theta|(?:vec|over\w+)\{\w+\}))(?:_\{\w+\})?(?:\(\w+\))?"
)
_FACTORS = rf"{_FACTOR}(?:[-+*]?{_FACTOR})+"
# A first side that names what is asked: m+n, x_1x_2, f(1)+f(2), \vec{a}*\vec{b}, |z-w|, E[X],
# \det A, (a+b)_{min}, \max|z|, \lim_{x\to0}f(x), \cos2A, \tan(a-b), \log_ab. Not 2m+n=5,
# |x-2|=5 or \cos(x-1)=0, which may be conditions of the problem.
_LEFT_SIDE = re.compile(
    rf"{_FACTORS}|\|{_FACTORS}\||\\(?:det|dim) ?[A-Z]"
    r"|(?:\\mathbb\{[EP]\}|E|P|Var)(?:\[[^\[\]]+\]|\([^()]+\))"
    rf"|(?:{_FACTOR}|\([^()]*\))_\{{?\\?(?:min|max)\}}?"
    rf"|\\(?:max|min)(?:{_FACTOR}|\|[^|]+\||\([^()]+\)|⦃[^⦃⦄]+⦄)|\\lim_\{{[^{{}}]*\}}{_FACTOR}"
    rf"|\\(?:sin|cos|tan)(?:\^\{{?2\}}?)?(?:\d?{_FACTOR}|\(\d?{_FACTOR}(?:[-+]{_FACTOR})*\))"
    r"|\\log_\{?[a-z]\}?[a-z]"
)


def _equal_chain(gold: str, sides: list[str], is_named: bool) -> bool:
    """Whether every side of an answer is right, as in 3+5=8. In m+n=8, ab=8 the first names it, and
    in \\log_2 8=3 it is computed."""
    first, *others = sides
    last = sides[-1]
    if last.endswith("%") and _equal(gold, last):  # 1/4=25% answers 25
        exact = [_without_percent(side) for side in sides]
        if all(_equal_term(exact[-1], side) for side in exact):
            return True
    rows = [values(plain(text)) for text in (gold, first)]
    is_computed = all(len(row) == 1 for row in rows) and equal_values(rows[0][0], rows[1][0])
    is_name = not is_named and _LEFT_SIDE.fullmatch(first)
    is_right = is_name or is_computed or _equal(gold, first)
    return bool(is_right) and all(_equal(gold, side) for side in others)


_POINT = re.compile(r"[A-Z](\([^()]+,[^()]+\))")  # A(2,3), beside (2,3)
_FUNCTION_OF = re.compile(r"([a-zA-Z])\(([a-zA-Z])\)(=.*)")  # y(x)=2x


def _without_argument(text: str, other: str) -> str:
    """Return "y=2x" for "y(x)=2x" if the other text has y alone: "y=2x"."""
    function = _FUNCTION_OF.fullmatch(text)
    if not function or not other.startswith(f"{function[1]}="):
        return text
    letters = re.sub(r"\\[a-zA-Z]+", "", function[3])
    return function[1] + function[3] if function[2] in letters else text


def _equal_statements(gold: str, answer: str) -> bool:
    """Compare two canonical texts without conditions and approximations."""
    gold, answer = _without_argument(gold, answer), _without_argument(answer, gold)
    first = structure_of(gold)
    point = _POINT.fullmatch(answer)
    if point and first.kind == "()" and not first.name:
        answer = point[1]
    second = structure_of(answer)
    has_other_name = second.name not in ("", first.name)
    # x=5 is not answered by 2x+3=13, which may be the question; a formula of x may be.
    is_equation = has_other_name or second.kind == "="
    is_formula = first.name and first.kind == "value" and len(values(first.parts[0])) > 1
    if (is_formula and is_equation) or first.kind[0] in "=<>≤≥≠":
        return _equal_relations(gold, answer, (first, second))
    if first.name and has_other_name:
        return False
    if {*second.kind} == {"="}:
        return _equal_chain(gold, second.parts, is_named=bool(first.name))
    kinds = {first.kind, second.kind}
    is_ratio = kinds == {":", "value"} and len(first.parts) + len(second.parts) == 3
    if kinds == {"value"} or is_ratio:
        is_time = any(_is_time(":".join(side.parts)) for side in (first, second))
        return not is_time and _equal_value("/".join(first.parts), "/".join(second.parts))
    return _equal_collections(first, second)


def _equal_condition(gold: Condition | None, answer: Condition, name: str) -> bool:
    """Whether the answer's condition on a letter is the gold's. If there is none, the answer may
    say that the letter is an integer or real, and that n of a_n counts from 0 or 1."""
    if gold is None:
        default = ["(-∞,∞)"] + ["[0,∞)", "[1,∞)"] * (f"_{{{answer.letter}}}" in name)
        allowed = {f"{answer.letter}∈{region}" for region in default}
        return answer.domain != "Q" and not allowed.isdisjoint(answer.regions(True))
    if answer.domain != gold.domain and "" not in (answer.domain, gold.domain):
        return False
    golds, answers = (c.regions("Z" in (gold.domain, answer.domain)) for c in (gold, answer))
    return any(_equal_statements(g, a) for g in golds for a in answers)


def _equal(gold: str, answer: str) -> bool:
    """Compare two canonical texts."""
    answer, *decimals = split(answer, "≈")[::2]
    exact, *rounded = split(gold, "≈")[::2]
    if len(rounded) == 1 and is_rounded(exact, rounded[0], min_places=0):
        if answer == rounded[0]:
            return True
        gold = exact
    if decimals:  # sqrt(3)/3 ≈ 0.577: an exact value, and all its approximations hold
        last = structure_of(answer).parts[-1]
        are_rounded = all(is_rounded(last, x, 0) for x in decimals)
        # Not 4.9 ≈ 5, which would be right for both.
        is_long = len(re.sub(r"\D", "", gold).lstrip("0")) > 2
        is_decimal = gold == decimals[-1] and is_long and not re.search(r"\d\.\d", answer)
        return are_rounded and (is_decimal or _equal(gold, answer))
    gold, gold_conditions = split_conditions(gold)
    answer_conditions = split_conditions(answer)[1]
    answer = rename_index(answer_conditions, answer, gold_conditions)
    answer, answer_conditions = split_conditions(answer)
    for letter, condition in answer_conditions.items():
        if not _equal_condition(gold_conditions.get(letter), condition, structure_of(answer).name):
            return False
    return _equal_statements(simplify(gold), simplify(answer))


_RESIDUE = re.compile(r"(?:(?:[a-zA-Z](?:_\{\w+\})?|[^=a-zA-Z]*)=)?(\d+)\\pmod\{(\d+)\}")


def _without_modulus(text: str, other: str) -> str:
    r"""Return the residue alone beside a number: "5" for N=5\pmod{7}."""
    residue = _RESIDUE.fullmatch(text)
    is_least = residue and int(residue[1]) < int(residue[2])
    return residue[1] if is_least and other.isdecimal() else text


def equivalent(gold: str, answer: str) -> bool:
    """Whether two canonical texts state the same answer, in one of their readings: 1/2x is (1/2)x
    or 1/(2x)."""
    answer = _without_modulus(answer, gold)
    if "=" not in gold:  # N=5 is not all N that leave 5
        gold = _without_modulus(gold, answer)
    golds, answers = ({text, _SLASH.sub(r"\1*", text)} for text in (gold, answer))
    return any(_equal(g, a) for g in golds for a in answers)


def _is_labelled(spelling: Spelling) -> bool:
    """Whether parts have different units: "3 apples, 5 pears"; "x = 3 m, y = 5 s"."""
    return len({*spelling.units} - {frozenset()}) > 1


def _equal_labelled(gold: Spelling, answer: Spelling) -> bool:
    """Compare part by part: labels may not be swapped. In the gold's order, unless every part of
    the answer has its label."""
    if len(gold.units) != len(answer.units):
        return False
    sides = []
    for spelling in (gold, answer):
        texts = split(spelling.text, PART_ENDS)[::2]
        if len(texts) != len(spelling.units):  # in brackets, which keep the order
            pairs = zip(gold.units, answer.units, strict=True)
            return all(compatible(*pair) for pair in pairs) and equivalent(gold.text, answer.text)
        sides.append(list(zip(map(sorted, spelling.units), texts, strict=True)))
    names = [[structure_of(text).name for _, text in side] for side in sides]
    labels = [sorted(unit for unit, _ in side) for side in sides]
    if all(names[0]) and sorted(names[0]) == sorted(names[1]):
        sides = [sorted(side, key=lambda part: part[1]) for side in sides]
    elif labels[0] == labels[1]:
        sides = [sorted(side) for side in sides]
    return all(
        compatible(frozenset(gold_unit), frozenset(unit)) and equivalent(gold_text, text)
        for (gold_unit, gold_text), (unit, text) in zip(*sides, strict=True)
    )


_DEGREE = frozenset({("degree", 1)})


def _equal_quantities(gold: Spelling, answer: Spelling) -> bool:
    """Whether units and texts agree."""
    if _is_labelled(gold) or _is_labelled(answer):
        return _equal_labelled(gold, answer)
    units = [frozenset().union(*spelling.units) for spelling in (gold, answer)]
    if units[0] ^ units[1] == _DEGREE and "pi" in gold.text and not _DEGREE & units[0]:
        return False  # \pi/6 is an angle in radians, not \pi/6 degrees
    return compatible(*units) and equivalent(gold.text, answer.text)


def compare(gold: str, answer: str, accept_identical: bool = True) -> bool:
    """Whether two contents of boxes agree. accept_identical: even if they cannot be parsed."""
    is_identical = unset(gold) == unset(answer) and re.search(r"\w", gold)
    if (accept_identical and is_identical) or are_same_letters(gold, answer):
        return True
    gold, answer = read_choices(gold, answer)
    spelled_gold = canonicalize(gold)
    spelled_answer = canonicalize(with_letter_units(answer, spelled_gold))
    spelled_gold = canonicalize(with_letter_units(gold, spelled_answer))
    base = spelled_answer.base
    if base not in ("", spelled_gold.base) and (spelled_gold.base or base != "10"):
        return False  # 101_2 is not 101, but 101_10 is
    try:
        if accept_identical and spelled_gold == spelled_answer != ("", (frozenset(),), ""):
            return True
        return _equal_quantities(spelled_gold, spelled_answer)
    except RecursionError:
        return False  # nested deeper than any real answer

r"""Whether two answers in LaTeX state the same thing.

`compare` has four stages:

1. Spelling (spelling.py, units.py): units are removed, and both texts get one canonical spelling.
   A unit, or the base of 52_8, may be left out but neither replaced nor cut: "5 cm" is right for
   "5", wrong for "5 m" and "5 cm/s". Labels of parts may not be swapped: "3 apples, 5 pears".
2. Structure (structure.py): lists, sets, tuples, intervals, matrices, ratios and relations are
   split into parts. Brackets, names and parts must be equal, and every "=" in the answer true.
3. Values (values.py): arithmetic is evaluated, at random points if it has letters. Rational values
   must be the same, others equal to 60 digits, but a decimal may be rounded to six or more places.
4. Text: other parts must be the same text, but sums, integrals and the like go to math-verify. It
   alone is too generous: it takes 1/2^99 for 1/2^98 and lets the question, an equation, earn 1.

Accepted: "2, 1" for "1, 2"; 3·4, 6! or a binomial coefficient for its value, even as the question.
Rejected: rare spellings, such as sin 30° in degrees or {x | x>3}; formulas long, nested or huge.
"""

import math
import re

import math_verify

from grading.spelling import FUNCTION, Spelling, canonicalize
from grading.structure import FLIP, is_bounded, split, structure_of
from grading.units import PART_ENDS, compatible
from grading.values import TRIALS, equal_values, is_arithmetic, is_rounded, values

_POSSIBLE_FLOOR = re.compile(r"(?<!\\sqrt)\[[^\]]*[a-zA-Z]")  # [x] in a gold
_FUNCTION = re.compile(rf"\\{FUNCTION}")


def _equal_text(gold: str, answer: str) -> bool:
    r"""Compare as text without case and \text{}; sums, integrals and the like by math-verify."""
    first, second = (re.sub(r"\\text\{([^{}]*)\}", r"\1", x).casefold() for x in (gold, answer))
    if first == second:
        return bool(re.search(r"\w|[∞…]", gold))
    is_sum = re.search(r"\\(?:sum|prod|int|lim)", gold) and is_bounded(gold) and is_bounded(answer)
    is_huge = re.search(r"\d{6}", answer) or (is_arithmetic(answer) and not values(answer))
    if not is_sum or is_huge or "'" in gold + answer:  # math-verify takes f' for f
        return False
    # Parse the whole box, not its first number; time limits are the worker's, not SIGALRM's.
    options = {"fallback_mode": "no_fallback", "extraction_mode": "first_match"}
    whole_box = [math_verify.LatexExtractionConfig(boxed_match_priority=0)]
    boxes = (rf"\boxed{{{text}}}" for text in (gold, answer))
    trees = [math_verify.parse(box, whole_box, parsing_timeout=None, **options) for box in boxes]
    return all(trees) and math_verify.verify(*trees, timeout_seconds=None)


def _equal_term(gold: str, answer: str) -> bool:
    """Compare two texts without "%", as values if the gold is arithmetic, else as text."""
    if re.fullmatch("[A-Z]{4}", gold + answer):  # HT and TH, but A*B is AB
        return gold == answer
    if _POSSIBLE_FLOOR.search(gold) or not is_arithmetic(gold):
        return _equal_text(gold, answer)
    gold_values, answer_values = values(gold), values(answer)
    if not gold_values or len(gold_values) != len(answer_values):
        return gold == answer and bool(re.match(r"[a-zA-Z]\([\w,]+\)$", gold))  # f(2)
    if _FUNCTION.search(answer) and not _FUNCTION.search(gold):
        return False  # log_2(8) repeats the question; it does not answer 3
    decimal, exact = sorted((gold, answer), key=lambda text: "." not in text)
    if "." not in exact and is_rounded(exact, decimal, min_places=6):
        return True
    pairs = enumerate(zip(gold_values, answer_values, strict=True))
    # In the second half letters may be negative. Their roots follow no one convention: skip these.
    half = TRIALS // 2
    return all(equal_values(a, b) for i, (a, b) in pairs if i < half or (a.is_real and b.is_real))


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


def _equal_value(gold: str, answer: str) -> bool:
    """Compare two texts without parts. Accept 28 and 0.28 for 28%, and 28% for either."""
    if _date(gold) or _date(answer):
        return _date(gold) == _date(answer)
    exact = [re.sub("^([^%]+)%$", r"(\1)/100", text) for text in (gold, answer)]
    bare = [re.sub("^([^%]+)%$", r"\1", text) for text in (gold, answer)]
    if _equal_term(*exact):
        return True
    has_one_sign = gold.endswith("%") != answer.endswith("%")
    return has_one_sign and not any(map(_is_plain, bare)) and _equal_term(*bare)


def _equal_relations(gold: str, answer: str) -> bool:
    """Whether one relation is a multiple of the other: left - right of the two differ by a constant
    factor at all random points. A negative factor reverses "<"."""
    golds, answers = split(gold, "=<>≤≥≠"), split(answer, "=<>≤≥≠")
    sides = [values(side) for side in golds[::2] + answers[::2]]
    if not (len(golds) == len(answers) == 3 and all(sides) and max(map(len, sides)) > 1):
        return False
    points = list(zip(*(side * (TRIALS // len(side)) for side in sides), strict=True))
    if any(a == b or c == d for a, b, c, d in points):  # 0=0 states nothing
        return False
    factors = [(a - b) / (c - d) for a, b, c, d in points]
    if not all(factor.is_real and equal_values(factor, factors[0]) for factor in factors):
        return False
    return golds[1] == (answers[1].translate(FLIP) if factors[0] < 0 else answers[1])


def _equal_parts(golds: list[str], answers: list[str], ordered: bool = True) -> bool:
    """Whether there are as many answers as golds, equal one by one, if not ordered in any order.
    Where only the order tells x from y, it counts: "x=1, y=2" and "2, 1"; so it does around "…"."""
    if len(golds) != len(answers):
        return False
    names = [{structure_of(part).name for part in parts} - {""} for parts in (golds, answers)]
    fewer, more = sorted(map(len, names))
    ordered, remaining = ordered or fewer <= 1 < more or "…" in golds, list(answers)
    for gold in golds:
        candidates = remaining[:1] if ordered else remaining
        match = next((answer for answer in candidates if equivalent(gold, answer)), None)
        if match is None:
            return False
        remaining.remove(match)
    return True


def equivalent(gold: str, answer: str) -> bool:
    """Whether two canonical texts state the same answer."""
    answer, *decimals = split(answer, "≈")[::2]
    exact, *rounded = split(gold, "≈")[::2]
    gold = exact if len(rounded) == 1 and is_rounded(exact, rounded[0], min_places=0) else gold
    name, kind, golds = structure_of(gold)
    answer_name, answer_kind, answers = structure_of(answer)
    if decimals:  # sqrt(3)/3 ≈ 0.577: an exact value, and all its approximations hold
        return equivalent(gold, answer) and all(is_rounded(answers[-1], x, 0) for x in decimals)
    # An equation or a formula (y=2x+1) is answered by its multiples (2x-y+1=0). x=5 is not answered
    # by 2x+3=13, which may be the question.
    other_name = answer_name not in ("", name)
    is_equation = other_name or answer_kind == "="
    is_formula = name and kind == "value" and is_equation and len(values(golds[0])) > 1
    if is_formula or kind[0] in "=<>≤≥≠":
        same_sides = (name, kind) == (answer_name, answer_kind) and _equal_parts(golds, answers)
        return same_sides or _equal_relations(gold, answer)
    if name and other_name:
        return False
    if set(answer_kind) == {"="}:  # 3+5=8: every side must be right, but in m+n=8 or ab=8 one names
        is_name = not name and re.fullmatch(r"[a-zA-Z](?:[-+]?[a-zA-Z])+", answers[0])
        return all(equivalent(gold, side) for side in answers[bool(is_name) :])
    kinds = {kind, answer_kind}
    if kinds == {"value"} or (kinds == {":", "value"} and len(golds) + len(answers) == 3):
        is_time = any(_is_time(":".join(parts)) for parts in (golds, answers))
        return not is_time and _equal_value("/".join(golds), "/".join(answers))  # 2:3 is 2/3
    if kinds == {"list", "()"}:  # "y=1, x=3" is the pair (3,1), but not x∈(3,1), nor "x=3, x=1"
        names = [structure_of(part).name for part in golds + answers] + 2 * [name, answer_name]
        sides = names[: len(golds)], names[len(golds) :]
        if any(n and "," not in n and side.count(n) > 1 for side in sides for n in side):
            return False
        in_order = any({*pair} <= {*names} for pair in ("mb", ("r", r"\theta")))  # not b, m
        if {*names} <= {*"xyz", name, answer_name} or not (in_order or structure_of(golds[0]).name):
            golds, answers = (sorted(x) if structure_of(x[0]).name else x for x in (golds, answers))
    may_agree = len(kinds) == 1 or kinds in ({"list", "set"}, {"list", "()"})
    return may_agree and _equal_parts(golds, answers, ordered=not kinds <= {"list", "set"})


# The letter of a choice and then its content: "(D) (2,0)", "\text{(D)} 5", "B. A circle". No match
# where the letter may be part of an expression or one of several: "(D)-5", "(D), (E)".
_LETTER = r"(?<![a-zA-Z\\])[A-J](?![a-zA-Z])"
_ARTICLE = r"(?:A|I)(?= (?!or |and )[a-z]{2})"
_CHOICE = re.compile(
    r"(?:\\(?:text|math)\w*\{)? ?\(?([A-J])[).:](?:[\s~}]|\\[ ,;:]|\\q?quad)+"
    rf"(?!.*(?!{_ARTICLE}){_LETTER})(?:-\S|[^\s=<>+*/^_,;-])"
)
_ANSWER_IS = re.compile(  # "Answer: G", "\text{The answer is G}", "Option (G)"
    r"(?i:(?:\\text\w*\{)? ?(?:the )?(?:(?:final|correct) )?(?:answer|option|choice)(?: is|:)*) ?"
    r"(?:\\text\w*\{)? ?(\(?[A-J]\)?)[}. ]*"
)


def _choice(text: str, other: str) -> str:
    """Return the letter of a choice with its content, if `other` is a letter: "B. A circle" -> B.
    The content counts if both have one."""
    choice = _CHOICE.match(text) or _ANSWER_IS.fullmatch(text)
    if choice and re.fullmatch(r"\(?[A-J]\)?", canonicalize(other).text):
        return choice[1]
    return rf"\text{{{text}}}" if choice and _CHOICE.match(other) else text


def _is_labelled(spelling: Spelling) -> bool:
    """Whether parts have different units: "3 apples, 5 pears", but not "x = 3 m, y = 5 s"."""
    return len({*spelling.units} - {frozenset()}) > 1 and "=" not in spelling.text


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
    labels = [sorted(unit for unit, _ in side) for side in sides]
    if labels[0] == labels[1]:
        sides = [sorted(side) for side in sides]
    return all(
        compatible(frozenset(gold_unit), frozenset(unit)) and equivalent(gold_text, text)
        for (gold_unit, gold_text), (unit, text) in zip(*sides, strict=True)
    )


def _equal_quantities(gold: Spelling, answer: Spelling) -> bool:
    """Whether units and texts agree."""
    if _is_labelled(gold) or _is_labelled(answer):
        return _equal_labelled(gold, answer)
    units = [frozenset().union(*spelling.units) for spelling in (gold, answer)]
    return compatible(*units) and equivalent(gold.text, answer.text)


def compare(gold: str, answer: str, accept_identical: bool = True) -> bool:
    """Whether two contents of boxes agree. accept_identical: even if they cannot be parsed."""
    spelled_gold = canonicalize(_choice(gold, answer))
    spelled_answer = canonicalize(_choice(answer, gold))
    base = spelled_answer.base
    if base not in ("", spelled_gold.base) and (spelled_gold.base or base != "10"):
        return False  # 101_2 is not 101, but 101_10 is
    try:
        if accept_identical and spelled_gold == spelled_answer != ("", (frozenset(),), ""):
            return True
        return _equal_quantities(spelled_gold, spelled_answer)
    except RecursionError:
        return False  # nested deeper than any real answer

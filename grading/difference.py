"""What the guards of equality.py see first in a wrong answer."""

from grading.spelling import canonicalize
from grading.structure import structure_of
from grading.values import is_arithmetic, is_evaluated, letters


def difference(gold: str, answer: str) -> str:
    """Return the first difference between two answers in the order of the guards."""
    first, second = structure_of(canonicalize(gold)), structure_of(canonicalize(answer))
    if first.kind != second.kind:
        return f"structure: {second.kind!r}, the reference answer's is {first.kind!r}"
    for name in ("unit", "name"):
        if len({getattr(first, name), getattr(second, name)} - {""}) > 1:
            return f"{name}: {getattr(second, name)!r} is not {getattr(first, name)!r}"
    if first.kind != "value":
        return "parts"
    [value], [other] = first.parts, second.parts
    if is_evaluated(value) and not is_evaluated(other):
        return "an operation to carry out, where the reference answer is a number"
    if not is_arithmetic(value.removesuffix("%")):
        return "text: the reference answer is no arithmetic, so the texts must be the same"
    if letters(value) != letters(other):
        return f"letters: {sorted(letters(other))} are not {sorted(letters(value))}"
    return "value"

r"""Grade one completion, and show what the guards of equality.py see in it.

    python -m grading '\boxed{48+24}' 72

The status is verify.py's. The difference is the first that a guard would find.
"""

import argparse

from grading.spelling import canonicalize
from grading.structure import structure_of
from grading.values import is_arithmetic, is_evaluated, letters
from plumbing.errors import print_line
from verify import Verifier, read_answers


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


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("completion", help=r"text with \boxed{...}")
    parser.add_argument("gold", help="reference answer")
    args = parser.parse_args(argv)
    with Verifier(workers=1) as verifier:
        [verdict] = verifier.grade([args.completion], [args.gold])
    print_line(f"{verdict.status}, reward {verdict.reward:g}")
    print_line(f"reference answer: {canonicalize(args.gold)}")
    for answer in read_answers(args.completion)[:1]:
        print_line(f"answer: {canonicalize(answer)}")
        if verdict.status == "wrong":
            print_line(f"difference: {difference(args.gold, answer)}")


if __name__ == "__main__":
    main()

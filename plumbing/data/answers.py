"""Reference answers that no plain answer matches, such as "#### 72"."""

import math

from grading.guesses import unwrap

GRADED = 100  # reference answers of a kind that are graded
UNMARKED = 0.2  # of the reference answers may be words and a number


def unmatched_note(name: str, golds: list[str], verifier) -> str:
    """Return a note on reference answers such as "#### 72", which a completion can only match word
    for word: a plain answer taken out of them earns 0. Returns "" if there are none.

    Words without a mark ("Room 12") count if they are more than UNMARKED of all. GRADED of each
    kind are graded by `verifier`, a Verifier; their share is that of the others.
    """
    plain = {}  # by reference answer: the plain answer in it
    marked = []
    unmarked = []
    for gold in golds:
        text, is_marked = unwrap(gold)
        if text not in ("", gold.strip()):
            plain[gold] = text
            kind = marked if is_marked else unmarked
            kind.append(gold)
    limit = UNMARKED * len(golds)
    n_marked, marked_example = _count_unmatched(marked, plain, verifier, above=0)
    n_unmarked, unmarked_example = _count_unmatched(unmarked, plain, verifier, above=limit)
    number = n_marked + n_unmarked
    example = marked_example or unmarked_example
    if not number:
        return ""
    return (
        f"note: {number:,} of {len(golds):,} reference answers of {name}, "
        f"such as {example!r:.70}, match no plain answer: {plain[example]!r:.40} earns 0. "
        "Keep only the answer itself in the field 'expected_answer'"
    )


def _count_unmatched(golds: list[str], plain: dict, verifier, above: float) -> tuple[int, str]:
    """Estimate how many of these reference answers do not match their plain answer. Returns that
    number and one of them, or 0 and "" where the number is not above a limit."""
    if len(golds) <= above:
        return 0, ""
    sample = golds[:: math.ceil(len(golds) / GRADED)]
    boxes = [rf"\boxed{{{plain[gold]}}}" for gold in sample]
    verdicts = verifier.grade(boxes, sample, None)
    wrong = []
    for gold, verdict in zip(sample, verdicts, strict=True):
        if not verdict.reward:
            wrong.append(gold)
    number = len(golds) * len(wrong) / len(sample)
    if number <= above:
        return 0, ""
    return round(number), wrong[0]

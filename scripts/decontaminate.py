"""Find training problems that also occur in an evaluation file, possibly spelled differently.

SAME: all words of the training problem are those of an evaluation problem, in the same order.
CONTAINS: shared runs of 8 words cover 60% of the evaluation problem, and its numbers and signs
occur in the same order. Paraphrases and translations are not found. The 60% of shared words is
Llama 3's measure (arXiv 2407.21783, Section 5.1.4); with it stock phrases ("where m and n are
relatively prime positive integers, find m + n") do not count.
"""

import re
from collections import defaultdict

from plumbing.data.problems import normalise

RUN = 8  # words in a row
SHARE = 0.6  # of an evaluation problem's words that shared runs must cover
SAME, CONTAINS = "same_as_evaluation", "contains_evaluation"

_LOOKS = re.compile(
    r"\\(?:left|right|displaystyle|text(?:bf|it|rm)?|mathrm)(?![a-z])"
    r"|\\[,;:! ]|(?<=\\)[dt](?=frac)"
    r"|-(?=[a-z]{2})"  # a hyphen, not a minus
)
_NUMBER = r"\d{1,3}(?:,\d{3})+(?!\d)(?:\.\d+)?|\d+(?:\.\d+)?|\.\d+"
_WORD = re.compile(_NUMBER + r"|[a-z]+|[^\W\d_a-z]|[-+*/^=<>%≤≥≠×÷±√]")
_ONES = "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen"
_ONES += " fifteen sixteen seventeen eighteen nineteen"
_TENS = "twenty thirty forty fifty sixty seventy eighty ninety"
_DIGITS = {word: str(n) for n, word in enumerate(_ONES.split())}
_DIGITS |= {word: str(10 * n) for n, word in enumerate(_TENS.split(), 2)}
_DASHES = dict.fromkeys(map(ord, "‐‑‒–—−"), "-")
_AMOUNTS = {"half", "twice", "double", "triple", "third", "thirds", "quarter", "quarters", "dozen"}
_AMOUNTS |= {"hundred", "thousand", "million"}


def words_of(text: str) -> tuple[str, ...]:
    """Split a problem into lower-case words, numbers and signs; equal tuples are one problem."""
    text = _LOOKS.sub(" ", normalise(text).translate(_DASHES))
    return tuple(_DIGITS.get(word, word.replace(",", "")) for word in _WORD.findall(text))


def numbers_in(words: tuple[str, ...]) -> list[str]:
    """Return the words that state an amount, and the signs between them."""
    return [word for word in words if not word.isalpha() or word in _AMOUNTS]


class Evaluation:
    """The distinct problems of the evaluation files, indexed by their runs of words."""

    def __init__(self):
        self.problems: dict[tuple, dict] = {}  # by their words, as the manifest shows them
        self.runs = defaultdict(list)  # hash of a run -> [(a problem's words, first word)]

    def add(self, text: str, place: str) -> None:
        """Add a problem; a text without words, or one that is known, is ignored."""
        words = words_of(text)
        if not words or words in self.problems:
            return
        self.problems[words] = {"evaluation": text, "from": place}
        for start in range(len(words) - RUN + 1):
            self.runs[hash(words[start : start + RUN])].append((words, start))

    def find(self, text: str) -> tuple[str, dict] | None:
        """Look a training problem up: (SAME or CONTAINS, that of `problems`), or None."""
        words = words_of(text)
        if words in self.problems:
            return SAME, self.problems[words]
        shared = defaultdict(set)  # a problem's words -> their positions that shared runs cover
        for start in range(len(words) - RUN + 1):
            for wanted, at in self.runs.get(hash(words[start : start + RUN]), ()):
                shared[wanted].update(range(at, at + RUN))
        for wanted, covered in shared.items():
            numbers = iter(numbers_in(words))  # `x in numbers` consumes it: the order counts
            same_numbers = all(number in numbers for number in numbers_in(wanted))
            if same_numbers and len(covered) >= SHARE * len(wanted):
                return CONTAINS, self.problems[wanted]
        return None

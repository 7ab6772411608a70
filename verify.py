r"""The verified reward r_ver(o) in {0, 1}: does the last \boxed{} of a completion o say what the
gold answer says?

1. `Verifier`, in the trainer, hands completions and golds to workers (`python verify.py --worker`,
   without torch), which can be killed and have limits on CPU time and memory (plumbing/grading/workers.py).
   What a worker dies of is the status of the sample.
2. `compare` brings gold and answer to one spelling (plumbing/grading/spelling.py), then compares their shapes
   (plumbing/grading/structure.py) part by part, and of the parts the values (plumbing/grading/values.py).
   math-verify alone is too generous for a reward that is optimised against: it solves equations, so
   that repeating the question pays; it takes 1/2^99 for 1/2^98, "5 6" for 11, 1=2=5 for 5. So:
   - The answer has the gold's shape: as many parts, the same brackets and names, each "=" true.
   - Values are parsed only if they are arithmetic in letters; then they are equal exactly where
     rational, else to 60 digits, at random points for the letters, or one is the other rounded to
     six places or more. (math-verify's own `verify` judges golds with sums or integrals.)
     Everything else is equal as text or not at all.
   - A right answer in a rare spelling earns 0 (sin 30° in degrees, {x | x>3}, a zero hidden in
     roots, the real root of -8): a wrong 1 is learned, a wrong 0 only slows learning.
   Whether the order of a gold's list "1, 2" matters cannot be known: any order of it is paid.
   3·4, 6! or a binomial coefficient is paid for 12, 720 or 10: a question that is such a term and
   nothing more can be copied into the box.
3. A `reward` of one's own, FILE.py:FUNCTION, takes the place of 2 in the same workers.
"""

from __future__ import annotations

import logging
import re
import sys
from dataclasses import dataclass
from pathlib import Path

import math_verify

from plumbing import plugins
from plumbing.errors import InputError, first_lines
from plumbing.grading.spelling import read
from plumbing.grading.structure import FLIP, split, structure_of
from plumbing.grading.values import TRIALS, close, is_arithmetic, is_rounded, values
from plumbing.grading.workers import Pool, serve

_FLOOR = re.compile(r"(?<!\\sqrt)\[[^\]]*[a-zA-Z]")  # may be one, where it stands in a gold
_FUNCTION = re.compile(r"\\(?:sin|cos|tan|cot|sec|csc|log|ln)")
MANY = 16  # golds that are not all bad by chance
MAX_ANSWER = 2000  # characters of a box; longer ones are not read (status too_long)
STATUSES = ("correct", "wrong", "no_box", "too_long", "timeout", "memory", "crash")


@dataclass(frozen=True)
class Verdict:
    """`reward` is 1.0 iff `status`, one of STATUSES, is "correct"."""

    reward: float
    status: str


def extract_boxed(text: str) -> str | None:
    r"""The content of the last `\boxed{...}`, stripped; None if it is missing, empty or open."""
    start = max((box.end() for box in re.finditer(r"\\boxed\s*\{", text)), default=len(text))
    depth = 1
    for brace in re.compile(r"\\.|[{}]", re.DOTALL).finditer(text, start):
        depth += {"{": 1, "}": -1}.get(brace[0], 0)  # an escaped brace is neither
        if depth == 0:
            return text[start : brace.start()].strip() or None
    return None


def _same_percent(gold: str, answer: str) -> bool:
    """28% is answered by 28 and by 0.28, and the other way round."""
    texts = (gold, answer)
    bare = [text.rstrip("%") for text in texts]
    hundredths = [re.sub("(.*)%$", r"(\1)/100", text) for text in texts]
    return not answer.endswith("%%") and (_same_value(*bare) or _same_value(*hundredths))


def _same_words(gold: str, answer: str) -> bool:
    r"""Red is \text{red}; and what math-verify understands of sums, products, integrals, limits."""
    first, second = (re.sub(r"\\text\{([^{}]*)\}", r"\1", x).casefold() for x in (gold, answer))
    if first == second:
        return bool(re.search(r"\w|∞", gold))
    if not re.search(r"\\(?:sum|prod|int|lim)", gold):
        return False
    # No number is searched for in the box; no time limits, which use SIGALRM: the worker has some.
    how = {"fallback_mode": "no_fallback", "extraction_mode": "first_match"}
    whole = [math_verify.LatexExtractionConfig(boxed_match_priority=0)]
    boxes = (rf"\boxed{{{text}}}" for text in (gold, answer))
    trees = [math_verify.parse(box, whole, parsing_timeout=None, **how) for box in boxes]
    return all(trees) and math_verify.verify(*trees, timeout_seconds=None)


def _same_value(gold: str, answer: str) -> bool:
    """Whether two texts that have no parts are the same words or the same value."""
    if gold.endswith("%") or answer.endswith("%"):
        return _same_percent(gold, answer)
    if _FLOOR.search(gold) or not is_arithmetic(gold):
        return _same_words(gold, answer)
    golds, answers = values(gold), values(answer)
    if not golds or len(golds) != len(answers):
        return False
    if _FUNCTION.search(answer) and not _FUNCTION.search(gold):
        return False  # log_2(8) repeats the question; it does not answer 3
    decimal, exact = sorted((gold, answer), key=lambda text: "." not in text)
    if "." not in exact and is_rounded(exact, decimal, 6):
        return True
    pairs = enumerate(zip(golds, answers, strict=True))
    # Roots of negative letters, which the second half has, are read in many ways.
    half = TRIALS // 2
    return all(close(a, b) for at, (a, b) in pairs if at < half or (a.is_real and b.is_real))


def _multiples(gold: str, answer: str) -> bool:
    """Whether two relations are one: left - right differs by a constant factor, which turns "<" if
    it is negative."""
    golds, answers = split(gold, "=<>≤≥≠"), split(answer, "=<>≤≥≠")
    sides = [values(side) for side in golds[::2] + answers[::2]]
    if not (len(golds) == len(answers) == 3 and all(sides)):
        return False
    points = list(zip(*(side * (TRIALS // len(side)) for side in sides), strict=True))
    if any(a == b or c == d for a, b, c, d in points):  # 0=0 says nothing
        return False
    factors = [(a - b) / (c - d) for a, b, c, d in points]
    if not all(factor.is_real and close(factor, factors[0]) for factor in factors):
        return False
    return golds[1] == (answers[1].translate(FLIP) if factors[0] < 0 else answers[1])


def _same_parts(golds: list[str], answers: list[str], ordered: bool = True) -> bool:
    """As many parts, equal one by one."""
    left = list(answers)
    for gold in golds:
        near = left[:1] if ordered else left
        match = next((answer for answer in near if same(gold, answer)), None)
        if match is None:
            return False
        left.remove(match)
    return not left


def _same_collection(golds: list[str], answers: list[str]) -> bool:
    """In any order, unless it alone tells x from y: "x=1, y=2" is not answered by "2, 1"."""
    names = [{structure_of(part).name for part in parts} - {""} for parts in (golds, answers)]
    few, many = sorted(map(len, names))
    return _same_parts(golds, answers, ordered=few <= 1 < many)


def same(gold: str, answer: str) -> bool:
    """Whether two canonical texts say the same."""
    answer, *rounded = split(answer, "≈")[::2]
    (name, kind, golds), (answer_name, answer_kind, answers) = (
        structure_of(gold),
        structure_of(answer),
    )
    if rounded:  # an exact value and its approximations, all right: sqrt(3)/3 ≈ 0.577
        right = all(is_rounded(answers[-1], decimal, 0) for decimal in rounded)
        return right and same(gold, answer)
    other_name = answer_name not in ("", name)
    # An equation is answered by its multiples, and so is a formula: y=2x+1 by 2x-y+1=0, but x=5 not
    # by 2x+3=13.
    is_equation = other_name or answer_kind == "="
    is_formula = name and kind == "value" and is_equation and len(values(golds[0])) > 1
    if is_formula or kind[0] in "=<>≤≥≠":
        alike = (name, kind) == (answer_name, answer_kind) and _same_parts(golds, answers)
        return alike or _multiples(gold, answer)
    if name and other_name:
        return False
    if set(answer_kind) == {"="}:  # 3+5=8: every side is right; m+n=8 names what was asked for
        named = not name and re.fullmatch(r"[a-z](?:\+[a-z])+", answers[0])
        return all(same(gold, side) for side in answers[bool(named) :])
    kinds = {kind, answer_kind}
    if kinds <= {"list", "set"}:
        return _same_collection(golds, answers)
    if kinds == {"value"} or (kinds == {":", "value"} and len(golds) + len(answers) == 3):
        return _same_value("/".join(golds), "/".join(answers))
    if kind == "()" and all(structure_of(part).name for part in answers):
        answers = sorted(answers)  # (3,1) is answered by 3,1 in this order, and so by y=1,x=3
    return (len(kinds) == 1 or kinds == {"list", "()"}) and _same_parts(golds, answers)


# A letter and what it stands for: "(D) (2,0)", "\text{(D)} 5", "D. red"; not "(D)-5", "(D), (E)".
_CHOICE = re.compile(
    r"(?:\\(?:text|math)\w*\{)? ?\(?([A-J])[).:](?:[\s~}]|\\[ ,;:]|\\q?quad)+"
    r"(?!.*(?<![a-zA-Z])[A-J](?![a-zA-Z]))(?:-\S|[^\s=<>+*/^_,;-])"
)


def compare(gold: str, answer: str, trusting: bool = True) -> bool:
    """Whether `answer` says what `gold` says (contents of a box). `trusting`: equal texts do,
    understood or not."""
    (gold, units), choice = read(gold), _CHOICE.match(answer)
    if choice and re.fullmatch(r"\(?[A-J]\)?", gold):
        answer = choice[1]
    answer, others = read(answer)
    if not (units <= others or others <= units):  # 8% is not 8 minutes; 8 may be
        return False
    try:
        return (trusting and gold == answer != "") or same(gold, answer)
    except RecursionError:
        return False  # nested deeper than any answer


def _grade(completion: str, gold: str, trusting: bool) -> str:
    """The status of a completion."""
    answer = extract_boxed(completion)
    if answer is None:
        return "no_box"
    if max(len(gold), len(answer)) > MAX_ANSWER:
        return "too_long"
    return "correct" if compare(gold, answer, trusting) else "wrong"


def _prepare(reward: str):
    """`_grade`, or the same by a reward of one's own; its status may be what is wrong with that."""
    if not reward:
        logging.disable(logging.CRITICAL)  # math-verify warns that its time limits are off
        compare(r"\sum_{k=1}^n k", r"\frac{n(n+1)}{2}")  # loads and warms the parsers
        return _grade
    function = plugins.load(reward, "--reward", "compute_score")
    name = getattr(function, "__name__", "it")

    def grade(completion: str, gold: str, trusting: bool, **about) -> str:
        try:
            score = function(solution_str=completion, ground_truth=gold, **about)
            score = score["score"] if isinstance(score, dict) else score
            if score in (0, 1):
                return "correct" if score else "wrong"
            did = f"returned {score!r}"
        except MemoryError:
            raise
        except Exception as error:  # it is anyone's code
            did = f"raised {type(error).__name__}: {first_lines(error)}"
        return f"--reward {reward}: {name} {did}: the method is for binary rewards, 0 or 1"

    return grade


class Verifier:
    """A pool of worker processes that grade completions; a context manager.

    workers: processes, about 100 MB each. cpu_seconds: CPU time that a sample may take; it decides
    `timeout`, and the machine's load does not. wall_seconds: what one sample may hold of workers
    whatever they do. memory_bytes: what a sample may add to a worker. reward: FILE.py or
    FILE.py:FUNCTION, a reward of one's own in place of r_ver, called as verl's are:
    compute_score(data_source, solution_str, ground_truth, extra_info=None) -> 0 or 1, or a dict
    with it under "score". Raises InputError, when entered, if there is no such function.
    """

    def __init__(
        self,
        workers: int = 2,
        cpu_seconds: float = 0.5,
        wall_seconds: float = 2.5,
        memory_bytes: int = 1 << 30,
        reward: str = "",
    ):
        command = [sys.executable, str(Path(__file__).resolve()), "--worker"]
        command += [str(cpu_seconds), str(memory_bytes), reward]
        self.pool, self.reward = Pool(command, workers, wall_seconds), reward
        self.paid = {}  # by data set: how many golds `reward` has seen, and paid

    def __enter__(self) -> Verifier:
        self.pool.start()
        return self

    def __exit__(self, *exception) -> None:
        self.pool.close()

    def grade(
        self, completions: list[str], golds: list[str], extras: list[dict] | None = None
    ) -> list[Verdict]:
        """One verdict for each completion (the text after the prompt, never the prompt itself), in
        order. extras: {"data_source": str, "extra_info": dict | None} for each, for `reward`.

        Raises ValueError if the lists differ in length, RuntimeError outside `with` or if a worker
        cannot start, InputError if `reward` raises or returns what is neither 0 nor 1.
        """
        statuses = self._statuses(completions, golds, extras, trusting=True)
        return [Verdict(float(status == "correct"), status) for status in statuses]

    def check_golds(
        self, golds: list[str], extras: list[dict] | None = None, of=None
    ) -> list[bool]:
        r"""For each gold whether it can be verified against itself: it fits a box, is understood
        and found equal. With `reward`: whether \boxed{gold} earns 1; InputError once none of MANY
        of a data set `of` has, as it then looks for another form of answer than the prompt asks
        for."""
        boxes = [rf"\boxed{{{gold}}}" for gold in golds]
        statuses = self._statuses(boxes, golds, extras, trusting=False)
        pairs = zip(boxes, golds, strict=True)
        fits = [bool(self.reward) or extract_boxed(box) == gold.strip() for box, gold in pairs]
        good = [fit and status == "correct" for fit, status in zip(fits, statuses, strict=True)]
        seen, paid = self.paid.get(of, (0, 0))
        self.paid[of] = seen, paid = seen + len(golds), paid + sum(good)
        if self.reward and seen >= MANY and not paid:
            raise InputError(
                f"--reward {self.reward}: {boxes[0]} does not earn 1, nor any other gold"
            )
        return good

    def _statuses(self, completions, golds, extras, trusting: bool) -> list[str]:
        if len(completions) != len(golds):
            raise ValueError(f"{len(completions)} completions for {len(golds)} golds")
        nothing = {"data_source": "", "extra_info": None} if self.reward else {}
        extras = extras if extras and self.reward else [{}] * len(golds)
        jobs = [
            nothing | extra | {"completion": completion, "gold": gold, "trusting": trusting}
            for completion, gold, extra in zip(completions, golds, extras, strict=True)
        ]
        statuses = self.pool.run(jobs)
        if refused := [status for status in statuses if status not in STATUSES]:
            raise InputError(refused[0])
        return statuses


def check_gold(gold: str) -> bool:
    """Whether `gold` can be verified against itself. Starts a worker; `check_golds` takes many."""
    with Verifier(workers=1) as verifier:
        return verifier.check_golds([gold])[0]


if __name__ == "__main__":
    if len(sys.argv) != 5 or sys.argv[1] != "--worker":
        sys.exit("verify.py is a module; its Verifier starts the workers")
    _, _, cpu_seconds, memory_bytes, reward = sys.argv
    serve(lambda: _prepare(reward), float(cpu_seconds), int(memory_bytes))

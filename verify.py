r"""Grade completions: does the last \boxed{} state the reference answer, the "gold"? (r_ver)

The comparison is strict on purpose: the student learns whatever earns a wrong 1, while a wrong 0
only slows learning. `compare` has four stages, the first three of them in plumbing/grading:

1. Spelling: units are removed, and both texts get one canonical spelling. A unit, or the base of
   52_8, may be left out but not replaced: "5 cm" is right for "5", wrong for "5 m".
2. Structure: lists, sets, tuples, intervals, matrices, ratios and relations are split into parts.
   Brackets, names and parts must be equal, and every "=" in the answer true.
3. Values: arithmetic is evaluated, at random points if it has letters. Rational values must be the
   same, others equal to 60 digits, but a decimal may be rounded to six or more places.
4. Text: other parts must be the same text, but sums, integrals and the like go to math-verify. It
   alone is too generous: it takes 1/2^99 for 1/2^98 and lets the question, an equation, earn 1.

Accepted: "2, 1" for "1, 2"; 3·4, 6! or a binomial coefficient for its value, even as the question.
Rejected: rare spellings, such as sin 30° in degrees or {x | x>3}; formulas long, nested or huge.

`Verifier` calls `compare`, or a custom reward, in worker processes (`python verify.py --worker`).
"""

import logging
import re
import sys
from collections import Counter
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from pathlib import Path

import math_verify

from plumbing import plugins
from plumbing.errors import InputError, first_lines, survive_lost_output
from plumbing.grading.spelling import FUNCTION, canonicalize
from plumbing.grading.structure import FLIP, is_bounded, split, structure_of
from plumbing.grading.values import TRIALS, equal_values, is_arithmetic, is_rounded, values
from plumbing.grading.workers import WorkerPool, serve

_POSSIBLE_FLOOR = re.compile(r"(?<!\\sqrt)\[[^\]]*[a-zA-Z]")  # [x] in a gold
_FUNCTION = re.compile(rf"\\{FUNCTION}")
MIN_GOLDS = 16  # if none of so many earns 1, the custom reward expects another format
MAX_ANSWER = 2000  # characters; longer boxes are not parsed (status too_long)
STATUSES = ("correct", "wrong", "no_box", "too_long", "timeout", "memory", "crash")


@dataclass(frozen=True)
class Verdict:
    """`reward` is 1.0 if `status`, one of STATUSES, is "correct", else 0.0."""

    reward: float
    status: str


def extract_boxed(text: str) -> str | None:
    r"""Return the content of the last `\boxed{...}`; None if it is missing, empty or not closed."""
    start = max((box.end() for box in re.finditer(r"\\boxed\s*\{", text)), default=len(text))
    depth = 1
    for brace in re.compile(r"\\.|[{}]", re.DOTALL).finditer(text, start):
        depth += {"{": 1, "}": -1}.get(brace[0], 0)  # escaped braces do not count
        if depth == 0:
            return text[start : brace.start()].strip() or None
    return None


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


def _equal_value(gold: str, answer: str) -> bool:
    """Compare two texts without parts. Accept 28 and 0.28 for 28%, and 28% for either."""
    readings = r"\1", r"(\1)/100"
    pairs = {tuple(re.sub("^([^%]+)%$", r, text) for text in (gold, answer)) for r in readings}
    return any(_equal_term(*pair) for pair in pairs)


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
        return _equal_value("/".join(golds), "/".join(answers))  # 2:3 is 2/3
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


# The letter of a choice and then its content: "(D) (2,0)", "\text{(D)} 5", "D. red". No match where
# the letter may be part of an expression or one of several: "(D)-5", "(D), (E)".
_CHOICE = re.compile(
    r"(?:\\(?:text|math)\w*\{)? ?\(?([A-J])[).:](?:[\s~}]|\\[ ,;:]|\\q?quad)+"
    r"(?!.*(?<![a-zA-Z])[A-J](?![a-zA-Z]))(?:-\S|[^\s=<>+*/^_,;-])"
)


def compare(gold: str, answer: str, accept_identical: bool = True) -> bool:
    """Whether two contents of boxes agree. accept_identical: even if they cannot be parsed."""
    (gold, gold_units), choice = canonicalize(gold), _CHOICE.match(answer)
    is_choice = choice and re.fullmatch(r"\(?[A-J]\)?", gold)
    answer, answer_units = canonicalize(choice[1] if is_choice else answer)
    more, fewer = answer_units - gold_units, gold_units - answer_units
    # 8% is not 8 minutes, 101_2 is not 101, but 101_10 is.
    if more and (fewer or dict(more).get("base", "10") != "10"):
        return False
    try:
        return (accept_identical and gold == answer != "") or equivalent(gold, answer)
    except RecursionError:
        return False  # nested deeper than any real answer


def _grade(completion: str, gold: str, accept_identical: bool) -> str:
    """Return the status of a completion."""
    answer = extract_boxed(completion)
    if answer is None:
        return "no_box"
    if max(len(gold), len(answer)) > MAX_ANSWER:
        return "too_long"
    return "correct" if compare(gold, answer, accept_identical) else "wrong"


def _prepare(reward: str) -> Callable[..., str]:
    """Return `_grade`, or a function like it that calls a custom reward. It returns a status, or an
    error message if the reward fails."""
    if not reward:
        return _grade
    function = plugins.load(reward, "--reward", "compute_score")

    def grade(completion: str, gold: str, accept_identical: bool, **extra) -> str:
        try:
            extra = {"data_source": "", "extra_info": None} | extra
            score = function(solution_str=completion, ground_truth=gold, **extra)
            score = score["score"] if isinstance(score, dict) else score
            if score in (0, 1):
                return "correct" if score else "wrong"
            problem = f"it returned {score!r}"
        except MemoryError:
            raise
        except (Exception, SystemExit) as error:  # the user's code may raise anything
            problem = f"it raised {type(error).__name__}: {first_lines(error)}"
        return f"--reward {reward}: {problem}; it must return 0 or 1, as rewards are binary"

    return grade


def _warm_up() -> None:
    """Fill the caches of the parsers and of sympy, which make the first comparisons slow."""
    logging.disable(logging.CRITICAL)  # math-verify warns that its time limits are off
    compare(r"\sum_{k=0}^{n-1} a_k b_{n-k-1}", r"\sum_{k=0}^{n-1} b_{n-k-1} a_k")
    compare("0", r"-\frac{2(x^2+6)}{9\sqrt[3]{x-2}}+3!")


class Verifier:
    """A pool of worker processes that grade completions; a context manager. The workers do not
    import torch, and plumbing/grading/workers.py limits their time and memory.

    workers: number of processes, about 100 MB each.
    cpu_seconds: CPU time for an attempt at a sample; the second makes it a `timeout`.
    wall_seconds: the longest that an attempt may take, for a custom reward that sleeps.
    memory_bytes: memory that a sample may add to a worker.
    reward: FILE.py or FILE.py:FUNCTION, a custom reward instead of `compare`. As in verl,
        compute_score(data_source, solution_str, ground_truth, extra_info=None) returns 0 or 1, or a
        dict with it under "score". Entering raises InputError if there is no such function."""

    def __init__(self, workers=2, cpu_seconds=3, wall_seconds=30, memory_bytes=2**30, reward=""):
        command = [sys.executable, str(Path(__file__).resolve()), "--worker"]
        command += [str(cpu_seconds), str(memory_bytes), reward]
        self.pool, self.reward = WorkerPool(command, workers, wall_seconds), reward
        self.checked, self.valid = Counter(), Counter()  # golds by data set

    def __enter__(self) -> "Verifier":
        self.pool.start()
        return self

    def __exit__(self, *exception) -> None:
        self.pool.close()

    def grade(self, completions: list[str], golds: list[str], extras=None) -> list[Verdict]:
        """Return the verdicts of completions (the text after the prompt, never the prompt itself).
        extras: for a custom reward, {"data_source": str, "extra_info": dict | None} for each.

        Raises ValueError if the lists differ in length, RuntimeError outside `with` or if a worker
        cannot start, InputError if the reward raises or does not return 0 or 1."""
        return self._verdicts(completions, golds, extras, accept_identical=True)

    def check_golds(self, golds: list[str], extras=None, dataset: Hashable = None) -> list[bool]:
        r"""Return whether each gold can be verified: \boxed{gold} earns 1, and not because texts
        are identical. Raises InputError if a custom reward rejects a data set's first MIN_GOLDS."""
        boxes = [rf"\boxed{{{gold}}}" for gold in golds]
        verdicts = self._verdicts(boxes, golds, extras, accept_identical=False)
        valid = [verdict.status == "correct" for verdict in verdicts]
        self.checked[dataset] += len(golds)
        self.valid[dataset] += sum(valid)
        if self.reward and self.checked[dataset] >= MIN_GOLDS and not self.valid[dataset]:
            problem = rf"{boxes[0]} does not earn 1, nor any other gold; it must accept \boxed{{}}"
            raise InputError(f"--reward {self.reward}: {problem}")
        return valid

    def _verdicts(self, completions, golds, extras, accept_identical: bool) -> list[Verdict]:
        extras = extras if extras and self.reward else [{}] * len(golds)
        jobs = [
            extra | {"completion": text, "gold": gold, "accept_identical": accept_identical}
            for text, gold, extra in zip(completions, golds, extras, strict=True)
        ]
        statuses = self.pool.run(jobs)
        if errors := [status for status in statuses if status not in STATUSES]:
            raise InputError(errors[0])
        return [Verdict(float(status == "correct"), status) for status in statuses]


def check_gold(gold: str) -> bool:
    """Whether `gold` can be verified. Starts a worker; use Verifier.check_golds for many."""
    with Verifier(workers=1) as verifier:
        return verifier.check_golds([gold])[0]


if __name__ == "__main__":
    if len(sys.argv) != 5 or sys.argv[1] != "--worker":
        sys.exit("verify.py: not a command; use `from verify import Verifier`")
    survive_lost_output()  # a custom reward may print
    _, _, seconds, memory, reward = sys.argv
    serve(lambda: _prepare(reward), lambda: reward or _warm_up(), float(seconds), int(memory))

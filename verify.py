r"""Grade completions: is the last \boxed{} the reference answer, the "gold"? (r_ver)

Boxes that a comma, "and" or "or" links are one answer, unless they are equal.

The comparison, `grading.equality.compare`, is strict on purpose: the student learns whatever earns
a reward, so a false positive teaches it a wrong answer. A false negative only slows learning.

`Verifier.grade` sends each text to a worker process, which runs this file, and calls `_status` or a
custom reward. The status "correct" earns 1, a custom reward's "partial" between 0 and 1, others 0.
"""

import re
import sys
from collections import Counter
from collections.abc import Callable, Hashable
from contextlib import contextmanager
from dataclasses import dataclass
from numbers import Real
from pathlib import Path

from grading.equality import compare
from grading.workers import PrepareError, WorkerPool, serve
from plumbing import plugins
from plumbing.errors import InputError, escape_output

MIN_GOLDS = 16  # if all of so many earn 0, the custom reward expects another format
MAX_ANSWER = 2000  # characters; longer boxes are not parsed (status too_long)
MAX_PARTS = 12  # boxes of one answer
MAX_BETWEEN = 60  # characters between two of them
DECIMALS = 6  # of a custom reward, so that 0.1 + 0.2 and 0.3 are equal, and their group is dead
STATUSES = ("correct", "partial", "wrong", "no_box", "too_long", "timeout", "memory", "crash")


@dataclass(frozen=True)
class Verdict:
    """`reward` is 1.0 if `status`, one of STATUSES, is "correct"; a custom reward's, between 0 and
    1, if it is "partial"; else 0.0."""

    reward: float
    status: str


# Thinking, which is no part of the answer

# What opens (1) and closes (2) a model's thinking: <think>, <seed:think>, [THINK], ◁think▷,
# <|start_think|>, <|channel|>analysis.
_THINK = "(?:think|thinking|thought|thoughts|reasoning|analysis|scratchpad)"
_THINKING = re.compile(
    rf"(<(?:\w+:)?{_THINK} ?>|\[THINK\]|◁think▷|<?\|(?:begin|start)_(?:of_)?{_THINK}\|>?"
    r"|<\|channel\|> ?(?:analysis|commentary))"
    rf"|(</(?:\w+:)?{_THINK} ?>|\[/THINK\]|◁/think▷|<?\|end_(?:of_)?{_THINK}\|>?"
    r"|<\|channel\|> ?final)",
    re.IGNORECASE,
)


def _remove_thinking(text: str) -> str:
    """Return the text outside thinking. Where only the end is marked, the prompt has begun it."""
    spoken = []
    is_thinking = False
    start = 0  # of the text since the last mark
    for mark in _THINKING.finditer(text):
        opens, closes = mark.groups()
        if closes and not is_thinking:
            spoken = []
        if opens and not is_thinking:
            spoken.append(text[start : mark.start()])
        is_thinking = bool(opens)
        start = mark.end()
    spoken.append("" if is_thinking else text[start:])
    return " ".join(spoken)


def opened_thinking(answer_start: str) -> str:
    """Return the mark that opens thinking at the end of a prompt, "" if the answer does not begin
    as thinking. The caller puts it before the completion, so that the graded text has both the
    beginning and the end of the thinking."""
    marks = [*_THINKING.finditer(answer_start)]
    return (marks[-1][1] or "") if marks else ""


# Boxes, and what of the text around them belongs to the answer

_BOX = re.compile(r"\\boxed\s*\{")
_BRACE = re.compile(r"\\.|[{}]", re.DOTALL)


def _end_of_box(text: str, start: int, limit: int) -> int | None:
    """Return where a box whose content begins at `start` is closed; None if not before `limit`."""
    depth = 1
    for brace in _BRACE.finditer(text, start, limit):
        depth += {"{": 1, "}": -1}.get(brace[0], 0)  # escaped braces do not count
        if depth == 0:
            return brace.start()
    return None


def extract_boxed(text: str) -> str | None:
    r"""Return the content of the last `\boxed{...}` outside `<think>...</think>` and the like; None
    if it is missing, empty or not closed."""
    text = _remove_thinking(text)
    start = len(text)
    for box in _BOX.finditer(text):
        start = box.end()
    end = _end_of_box(text, start, len(text))
    return None if end is None else text[start:end].strip() or None


# What may stand between the boxes of one answer, from the brace that closes the first.
_BETWEEN = re.compile(
    r"\}(?:[\s$,;()&}]|\\[()\[\],; \\]|\\q?quad|\\text ?\{|(?:and|or)\b)*+"
    r"(?:[a-zA-Z](?:_\w)? ?= ?)?[ $]*"
)
_LINK = re.compile(r"(?<!\\)[,;]|\b(?:and|or)\b")  # makes the boxes around it one answer
# "x=" before a box.
_NAME = re.compile(r"(?<![\w\\])([a-zA-Z](?:_\w)?) ?= ?[ $]*$")
# "2x=" or "-x=" before a box, which is then not the value of x. In a list, "- x=", the hyphen is a
# bullet and no sign.
_MULTIPLE = re.compile(
    r"(?:\d ?|[-+/^)}]|\\(?:cdot|times) ?|[^\s*] ?[-+*/^] ?)[a-zA-Z](?:_\w)? ?= ?[ $]*$"
)


def last_boxes(text: str) -> tuple[list[str], list[str]]:
    r"""Return the last boxes between which only commas, "and", "or" or names stand, each with its
    name: "$x=\boxed{1}$ and $y=\boxed{2}$" gives "x=1" and "y=2"; and what stands between them.
    Both are empty if there are more than MAX_PARTS."""
    text = _remove_thinking(text)
    parts = []
    links = []
    limit = len(text)  # where the next box begins
    for box in reversed([*_BOX.finditer(text)][-MAX_PARTS - 1 :]):
        end = _end_of_box(text, box.end(), limit)
        content = text[box.end() : end].strip()
        if end is None or not content:
            break
        before = text[max(0, box.start() - 20) : box.start()]
        if parts:
            between = text[end:limit]
            is_link = len(between) < MAX_BETWEEN and _BETWEEN.fullmatch(between)
            if not is_link or _MULTIPLE.search(before):
                break
            links.insert(0, between)
        name = _NAME.search(before)
        parts.insert(0, f"{name[1]}={content}" if name else content)
        limit = box.start()
    return (parts, links) if len(parts) <= MAX_PARTS else ([], [])


def read_answers(completion: str) -> list[str]:
    r"""Return what a completion may have answered: its last box, or the last few joined. Boxes that
    a comma, "and" or "or" links are one answer: "\boxed{2} or \boxed{3}" does not answer 3. But
    "\boxed{\frac{1}{2}} or \boxed{0.5}" answers 0.5."""
    answer = extract_boxed(completion)
    if answer is None:
        return []
    parts, links = last_boxes(completion)
    if len({*parts}) < 2:
        return [answer]
    joined = parts[0]
    for link, part in zip(links, parts[1:], strict=True):
        joined += " or " if re.search(r"\bor\b", link) else ", "
        joined += part
    is_linked = any(map(_LINK.search, links))
    # Each way round, as an operation and its value are equal only if the operation is the gold.
    if is_linked and not all(compare(answer, p) or compare(p, answer) for p in parts):
        return [joined]
    return [answer, joined]


# Verdicts


def _status(completion: str, gold: str, accept_identical: bool) -> str:
    """Return the status of a completion."""
    answers = read_answers(completion)
    if not answers:
        return "no_box"
    if max(len(gold), len(answers[0])) > MAX_ANSWER:
        return "too_long"
    for answer in answers:
        if len(answer) <= MAX_ANSWER and compare(gold, answer, accept_identical):
            return "correct"
    return "wrong"


def _prepare(reward: str) -> Callable[..., str]:
    """Return `_status`, or a function like it that calls a custom reward. It returns a status,
    "partial" with the reward after a space, or an error message if the reward fails."""
    if not reward:
        return _status
    function = plugins.load(reward, "--reward", "compute_score")

    def custom(completion: str, gold: str, accept_identical: bool, **extra) -> str:
        try:
            extra = {"data_source": "", "extra_info": None} | extra
            score = function(solution_str=completion, ground_truth=gold, **extra)
            score = score.get("score", score) if isinstance(score, dict) else score
            value = round(float(score), DECIMALS) if isinstance(score, Real) else score
            if value in (0, 1):
                return "correct" if value else "wrong"
            if isinstance(value, float) and 0 < value < 1:  # not NaN
                return f"partial {value}"
            problem = f"it returned {score!r}, and must return a number in [0, 1]"
        except MemoryError:
            raise
        except (Exception, SystemExit) as error:  # the user's code may raise anything
            problem = f"it raised {plugins.describe(error)}"
        return f"--reward {reward}: {problem}"

    return custom


@contextmanager
def _rejecting_the_reward():
    """Raise InputError if a worker cannot load a custom reward."""
    try:
        yield
    except PrepareError as error:
        raise InputError(str(error)) from error


class Verifier:
    """A pool of worker processes that grade completions; a context manager. The workers do not
    import torch, and grading/workers.py limits their time and memory.

    workers: number of processes, about 100 MB each.
    cpu_seconds: CPU time that one attempt at a sample may take. A sample that exceeds it is tried
        once more; if it exceeds it again, its status is `timeout`.
    wall_seconds: the longest that an attempt may take, for a custom reward that sleeps.
    memory_bytes: memory that a sample may add to a worker.
    reward: FILE.py or FILE.py:FUNCTION, a custom reward instead of `compare`. As in verl,
        compute_score(data_source, solution_str, ground_truth, extra_info=None) returns a number in
        [0, 1], which is rounded to DECIMALS, or a dict with it under "score". Entering raises
        InputError if there is no such function."""

    def __init__(self, workers=2, cpu_seconds=3, wall_seconds=30, memory_bytes=2**30, reward=""):
        command = [sys.executable, str(Path(__file__).resolve())]
        command += [str(cpu_seconds), str(memory_bytes), reward]
        self.pool = WorkerPool(command, workers, wall_seconds)
        self.reward = reward
        self.checked = Counter()  # golds by data set
        self.valid = Counter()

    def __enter__(self) -> "Verifier":
        with _rejecting_the_reward():
            self.pool.start()
        return self

    def __exit__(self, *exception) -> None:
        self.pool.close()

    def grade(self, completions: list[str], golds: list[str], extras=None) -> list[Verdict]:
        """Return the verdicts of completions (the text after the prompt, never the prompt itself).
        extras: for a custom reward, {"data_source": str, "extra_info": dict | None} for each.

        Raises TypeError if a text is no str, ValueError if the lists differ in length, RuntimeError
        outside `with` or if a worker cannot start, InputError if the reward raises or does not
        return a number in [0, 1]."""
        return self._verdicts(completions, golds, extras, accept_identical=True)

    def check_golds(self, golds: list[str], extras=None, dataset: Hashable = None) -> list[bool]:
        r"""Return whether each gold can be verified: \boxed{gold} earns a reward (of a custom one,
        any above 0), and not because texts are identical. Raises InputError if a custom reward
        rejects a data set's first MIN_GOLDS."""
        boxes = [rf"\boxed{{{gold}}}" for gold in golds]
        verdicts = self._verdicts(boxes, golds, extras, accept_identical=False)
        valid = [verdict.reward > 0 for verdict in verdicts]
        self.checked[dataset] += len(golds)
        self.valid[dataset] += sum(valid)
        all_fail = self.checked[dataset] >= MIN_GOLDS and not self.valid[dataset]
        if self.reward and all_fail:
            raise InputError(
                f"--reward {self.reward}: {boxes[0]} earns 0, and so does every other gold; "
                r"it must accept \boxed{}"
            )
        return valid

    def _verdicts(self, completions, golds, extras, accept_identical: bool) -> list[Verdict]:
        for texts in (completions, golds):  # of a str each character would be graded
            if isinstance(texts, str) or not all(isinstance(text, str) for text in texts):
                raise TypeError(f"{texts!r:.80}: must be a list of str")
        extras = extras if extras and self.reward else [{}] * len(golds)
        jobs = [
            extra | {"completion": text, "gold": gold, "accept_identical": accept_identical}
            for text, gold, extra in zip(completions, golds, extras, strict=True)
        ]
        with _rejecting_the_reward():  # a worker that is started again loads it again
            replies = self.pool.run(jobs)
        verdicts = []
        for reply in replies:
            status, _, score = reply.partition(" ")
            if status not in STATUSES:
                raise InputError(reply)
            reward = float(score) if score else float(status == "correct")
            verdicts.append(Verdict(reward, status))
        return verdicts


def check_gold(gold: str) -> bool:
    """Whether `gold` can be verified. Starts a worker; use Verifier.check_golds for many."""
    with Verifier(workers=1) as verifier:
        return verifier.check_golds([gold])[0]


if __name__ == "__main__":
    escape_output()  # a custom reward may print
    _, seconds, memory, reward = sys.argv
    serve(lambda: _prepare(reward), float(seconds), int(memory))

"""Metrics beside the loss: seconds, validation accuracy."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from grpo import Group
from plumbing.data.problems import Problems
from plumbing.distributed.shutdown import stop_requested
from plumbing.progress import Console
from plumbing.run.directory import RunDir

TAIL = 1000  # characters of a completion, its last, that evals/ keeps
VERDICT = ("problem", "reward", "status", "tokens", "completion")  # the keys of evals/
PARTS = ("rollout_s", "verify_s", "gather_s", "train_s", "teacher_wait_s", "eval_s")  # of a step


class Stopwatch(dict):
    """Seconds by part of a step; `with watch("train_s"): ...` adds to watch["train_s"]."""

    def __init__(self, parts=PARTS):
        super().__init__(dict.fromkeys(parts, 0.0))

    @contextmanager
    def __call__(self, part: str):
        start = time.perf_counter()
        yield
        self[part] += time.perf_counter() - start


def evaluate(
    rollout: Callable,
    encode: Callable,
    problems: Problems,
    run: RunDir,
    step: int,
    console: Console | None = None,
) -> dict[str, float]:
    """Compute greedy pass@1 on every validation problem (Table 5a), and log the verdicts with the
    completions' ends. A problem whose prompt is too long counts as wrong. rollout, encode:
    train.Student's. console: shows how far it is. All student ranks call it. Returns {} if one is
    to stop."""
    start = time.perf_counter()
    c = run.config
    tokens = [len(encode(problems.question(i))) for i in range(len(problems))]
    fitting = [i for i, length in enumerate(tokens) if length <= c.max_prompt_tokens]
    overlong = {*range(len(tokens))} - {*fitting}
    verdicts = [(i, 0.0, "overlong_prompt", 0, "") for i in overlong]
    longest = max((tokens[i] for i in fitting), default=0) + c.max_completion_tokens
    rows_of_rank = max(1, c.max_rollout_tokens // longest)  # one micro-batch
    for part in deal(fitting, rows_of_rank, run.layout.n_students):
        if console:
            console.report(f"evaluation, {len(verdicts):,} of {len(tokens):,} problems")
        if stop_requested(run.layout):
            return {}
        groups = [Group(problem, size=1) for problem in part]
        rollout(groups, problems, 0.0, (0, step), Stopwatch())
        decode = encode.tokenizer.decode if run.layout.rank == 0 else None
        verdicts += [verdict(group, decode) for group in groups]
    if console:
        console.report("")
    rows = [dict(zip(VERDICT, row, strict=True)) for row in sorted(verdicts)]
    run.log(f"evals/step_{step}", rows, "w")
    accuracy = sum(row["reward"] for row in rows) / len(rows)
    return {"val_accuracy": accuracy, "eval_s": time.perf_counter() - start}


def deal(problems: list[int], rows_of_rank: int, ranks: int) -> Iterator[list[int]]:
    """Cut problems into parts of so many for each rank; in a part neighbours, which may be equally
    hard, go to different ranks."""
    size = rows_of_rank * ranks
    for start in range(0, len(problems), size):
        part = problems[start : start + size]
        yield [i for rank in range(ranks) for i in part[rank::ranks]]


def verdict(group: Group, decode: Callable | None) -> tuple:
    """Return the values of VERDICT for a group of one completion. decode: None on ranks that write
    no file; else the completion's end, where the box is, is kept."""
    [answer] = group.completions
    text = decode(answer.ids, skip_special_tokens=True)[-TAIL:] if decode else ""
    return group.problem, answer.reward, answer.status, len(answer.ids), text

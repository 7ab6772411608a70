"""Metrics beside the loss: seconds, validation accuracy."""

import time
from collections.abc import Callable
from contextlib import contextmanager

from grpo import Group
from plumbing.distributed.shutdown import stop_requested
from plumbing.problems import Problems
from plumbing.progress import Console
from plumbing.run_dir import RunDir

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


def ends(completion_ids: list[list[int]], tokenizer, rank: int) -> list[str]:
    """Decode the ends of completions, where the box is; "" on ranks that write no file."""
    if rank:
        return [""] * len(completion_ids)
    return [tokenizer.decode(ids, skip_special_tokens=True)[-TAIL:] for ids in completion_ids]


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
    c, n, start = run.config, run.layout.n_students, time.perf_counter()
    tokens = [len(encode(problems.question(i))) for i in range(len(problems))]
    fits = [i for i, length in enumerate(tokens) if length <= c.max_prompt_tokens]
    rows = [(i, 0.0, "overlong_prompt", 0, "") for i in {*range(len(tokens))} - {*fits}]
    longest = max((tokens[i] for i in fits), default=0) + c.max_completion_tokens
    size = n * max(1, c.max_rollout_tokens // longest)  # one micro-batch of each rank
    for part in (fits[i : i + size] for i in range(0, len(fits), size)):
        if console:
            console.report(f"evaluation, {len(rows):,} of {len(tokens):,} problems")
        if stop_requested(run.layout):
            return {}
        order = [i for r in range(n) for i in part[r::n]]  # neighbours may be equally hard
        groups = [Group(problem, size=1) for problem in order]
        rollout(groups, problems, 0.0, (0, step), Stopwatch())
        texts = ends(
            [group.completions[0].ids for group in groups], encode.tokenizer, run.layout.rank
        )
        for group, text in zip(groups, texts, strict=True):
            [answer] = group.completions
            row = group.problem, answer.reward, answer.status, len(answer.ids), text
            rows.append(row)
    if console:
        console.report("")
    verdicts = [dict(zip(VERDICT, row, strict=True)) for row in sorted(rows)]
    run.log(f"evals/step_{step}", verdicts, "w")
    accuracy = sum(reward for _, reward, *_ in rows) / len(rows)
    return {"val_accuracy": accuracy, "eval_s": time.perf_counter() - start}

"""Metrics beside the loss: seconds, validation accuracy."""

import time
from collections.abc import Callable
from contextlib import contextmanager

from grpo import Group
from plumbing.distributed.shutdown import stop_requested
from plumbing.problems import Problems
from plumbing.run_dir import RunDir

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
    rollout: Callable, encode: Callable, problems: Problems, run: RunDir, step: int
) -> dict[str, float]:
    """Compute greedy pass@1 on every validation problem (Table 5a), and log the verdicts. A problem
    whose prompt is too long counts as wrong. rollout, encode: train.Student's. All student ranks
    call it. Returns {} if one has received SIGTERM meanwhile."""
    c, n, start = run.config, run.layout.n_students, time.perf_counter()
    tokens = [len(encode(problems.question(i))) for i in range(len(problems))]
    fits = [i for i, length in enumerate(tokens) if length <= c.max_prompt_tokens]
    rows = [(i, 0.0, "overlong_prompt", 0) for i in {*range(len(tokens))} - {*fits}]
    longest = max((tokens[i] for i in fits), default=0) + c.max_completion_tokens
    size = n * max(1, c.max_rollout_tokens // longest)  # one micro-batch of each rank
    for part in (fits[i : i + size] for i in range(0, len(fits), size)):
        if stop_requested(run.layout):
            return {}
        order = [i for r in range(n) for i in part[r::n]]  # neighbours may be equally hard
        groups = [Group(problem, size=1) for problem in order]
        rollout(groups, problems, 0.0, (0, step), Stopwatch())
        for group in groups:
            [answer] = group.completions
            rows.append((group.problem, answer.reward, answer.status, len(answer.ids)))
    names = ("problem", "reward", "status", "tokens")
    verdicts = [dict(zip(names, row, strict=True)) for row in sorted(rows)]
    run.log(f"evals/step_{step}", verdicts, "w")
    accuracy = sum(reward for _, reward, _, _ in rows) / len(rows)
    return {"val_accuracy": accuracy, "eval_s": time.perf_counter() - start}

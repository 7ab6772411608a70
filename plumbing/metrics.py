"""Metrics beside the loss: seconds, shares of completions, validation accuracy."""

import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from operator import itemgetter

from grpo import Group
from plumbing.config import Config
from plumbing.data.problems import Problems
from plumbing.distributed.shutdown import stop_requested
from plumbing.progress import Console
from plumbing.run.directory import RunDir

TAIL = 1000  # characters of a completion, its last, that evals/ keeps
VERDICT = ("problem", "reward", "status", "tokens", "completion")  # the keys of evals/
EVALUATION, TRAINING = 0, 1  # first integer of a rollout's random stream; the second is the step
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


def completion_metrics(groups: list[Group]) -> dict[str, float]:
    """Compute shares of a step's completions, and token counts, for metrics.jsonl."""
    completions = []
    prompt_tokens = 0
    for group in groups:
        completions += group.completions
        prompt_tokens += len(group.prompt_ids) * len(group.completions)
    B = len(completions)
    completion_tokens = sum(len(each.ids) for each in completions)
    truncated = sum(not each.finished for each in completions)
    status_of = Counter(each.status for each in completions)
    failures = [status_of[status] for status in ("too_long", "timeout", "memory", "crash")]
    return {
        "truncated": truncated / B,
        "no_box": status_of["no_box"] / B,
        "bad_gold": status_of["bad_gold"] / B,
        "verify_failures": sum(failures) / B,
        "completion_tokens": completion_tokens,
        "total_tokens": prompt_tokens + completion_tokens,
    }


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
    layout = run.layout
    prompts = [encode(problems.question(problem)) for problem in range(len(problems))]
    tokens = [len(ids) for ids in prompts]
    rows = []
    for problem, n in enumerate(tokens):
        if n > run.config.max_prompt_tokens:
            rows.append(eval_row(problem, 0.0, "overlong_prompt"))
    for part in rollout_parts(tokens, run.config, layout.n_students):
        if console:
            console.report(f"evaluation, {len(rows):,} of {len(tokens):,} problems")
        if stop_requested(layout):
            return {}
        groups = [Group(problem, size=1, prompt_ids=prompts[problem]) for problem in part]
        rollout(groups, problems, 0.0, (EVALUATION, step), Stopwatch())
        for group in groups:
            # Rank 0 writes the file.
            decode = encode.tokenizer.decode if layout.rank == 0 else None
            rows.append(graded_row(group, decode))
    if console:
        console.report("")
    rows.sort(key=itemgetter("problem"))
    run.log(f"evals/step_{step}", rows, "w")
    accuracy = sum(row["reward"] for row in rows) / len(rows)
    return {"val_accuracy": accuracy, "eval_s": time.perf_counter() - start}


def rollout_parts(tokens: list[int], c: Config, ranks: int) -> Iterator[list[int]]:
    """Cut the problems whose prompts, of these numbers of tokens, fit into parts of one micro-batch
    a rank. In a part neighbours, which may be equally hard, go to different ranks."""
    fitting = [i for i, n in enumerate(tokens) if n <= c.max_prompt_tokens]
    longest = max((tokens[i] for i in fitting), default=0)
    rows_of_rank = c.max_rollout_tokens // (longest + c.max_completion_tokens)
    size = ranks * max(1, rows_of_rank)
    for start in range(0, len(fitting), size):
        part = fitting[start : start + size]
        dealt = []
        for rank in range(ranks):
            dealt += part[rank::ranks]
        yield dealt


def graded_row(group: Group, decode: Callable | None) -> dict:
    """Make the row of a problem with its completion. decode: None if the text is not needed."""
    [answer] = group.completions
    row = eval_row(group.problem, answer.reward, answer.status, len(answer.ids))
    if decode:
        text = decode(answer.text_ids)
        row["completion"] = text[-TAIL:]  # the box is at the end
    return row


def eval_row(problem: int, reward: float, status: str, tokens: int = 0) -> dict:
    """Make a row of evals/, with the keys VERDICT and no text of a completion yet."""
    return dict(zip(VERDICT, (problem, reward, status, tokens, ""), strict=True))

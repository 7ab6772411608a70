"""Metrics beside the loss: seconds, shares of completions, validation accuracy."""

import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from grpo import Completion, Group
from plumbing.config import Config

TAIL = 1000  # characters of a completion, its last, that evals/ keeps
EVALUATION, TRAINING = 0, 1  # first integer of a rollout's random stream; then step and round
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
    number = Counter(each.status for each in completions)
    failures = number["too_long"] + number["timeout"] + number["memory"] + number["crash"]
    return {
        "truncated": sum(not each.finished for each in completions) / B,
        "no_box": number["no_box"] / B,
        "bad_gold": number["bad_gold"] / B,
        "verify_failures": failures / B,
        "completion_tokens": completion_tokens,
        "total_tokens": prompt_tokens + completion_tokens,
    }


def evaluation_parts(groups: list[Group], c: Config, ranks: int) -> Iterator[list[Group]]:
    """Cut the groups whose prompts fit into parts of one micro-batch a rank."""
    fitting = [group for group in groups if len(group.prompt_ids) <= c.max_prompt_tokens]
    rows_of_rank = c.max_rollout_tokens // (c.max_prompt_tokens + c.max_completion_tokens)
    size = ranks * max(1, rows_of_rank)
    for start in range(0, len(fitting), size):
        yield fitting[start : start + size]


def graded_row(group: Group, decode: Callable) -> dict:
    """Make a row of evals/: a problem with its completion, none if its prompt is too long."""
    none = Completion([], [], finished=False, status="overlong_prompt")
    [answer] = group.completions or [none]
    return {
        "problem": group.problem,
        "reward": answer.reward,
        "status": answer.status,
        "tokens": len(answer.ids),
        "completion": decode(answer.text_ids)[-TAIL:],  # the box is at the end
        "temperature": 0.0,
    }

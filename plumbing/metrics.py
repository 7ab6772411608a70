"""Metrics beside the loss: seconds, shares of completions, validation accuracy."""

import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from grpo import Group
from plumbing.config import Config

TAIL = 1000  # characters of a completion, its last, that evals/ keeps
VERDICT = ("problem", "reward", "status", "tokens", "completion")  # the keys of evals/
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


def rollout_parts(prompts: list[list[int]], c: Config, ranks: int) -> Iterator[list[int]]:
    """Cut the problems whose prompts fit into parts of one micro-batch a rank. In a part
    neighbours, which may be equally hard, go to different ranks."""
    fitting = [i for i, prompt in enumerate(prompts) if len(prompt) <= c.max_prompt_tokens]
    longest = max((len(prompts[i]) for i in fitting), default=0)
    rows_of_rank = c.max_rollout_tokens // (longest + c.max_completion_tokens)
    size = ranks * max(1, rows_of_rank)
    for start in range(0, len(fitting), size):
        part = fitting[start : start + size]
        dealt = []
        for rank in range(ranks):
            dealt += part[rank::ranks]
        yield dealt


def overlong_rows(prompts: list[list[int]], c: Config) -> list[dict]:
    """Make the rows of evals/ of problems whose prompts are too long: they are wrong."""
    overlong = [i for i, prompt in enumerate(prompts) if len(prompt) > c.max_prompt_tokens]
    return [eval_row(problem, 0.0, "overlong_prompt") for problem in overlong]


def graded_row(group: Group, decode: Callable) -> dict:
    """Make the row of a problem with its completion."""
    [answer] = group.completions
    row = eval_row(group.problem, answer.reward, answer.status, len(answer.ids))
    row["completion"] = decode(answer.text_ids)[-TAIL:]  # the box is at the end
    return row


def eval_row(problem: int, reward: float, status: str, tokens: int = 0) -> dict:
    """Make a row of evals/, with the keys VERDICT and no text of a completion yet."""
    row = dict(zip(VERDICT, (problem, reward, status, tokens, ""), strict=True))
    return row | {"temperature": 0.0}  # evaluation is greedy

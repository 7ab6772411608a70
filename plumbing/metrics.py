"""Metrics beside the loss: seconds, gradient noise, validation accuracy."""

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import nn

from plumbing.batches import Batch
from plumbing.distributed.layout import Layout
from plumbing.distributed.shutdown import stop_requested
from plumbing.problems import Problems
from plumbing.progress import PARTS
from plumbing.run_dir import RunDir

SAMPLED = 2**24  # elements of a rank's gradient that are used; of more, every k-th


class Stopwatch(dict):
    """Seconds by part of a step; `with watch("train_s"): ...` adds to watch["train_s"]."""

    def __init__(self):
        super().__init__(dict.fromkeys(PARTS, 0.0))

    @contextmanager
    def __call__(self, part: str):
        start = time.perf_counter()
        yield
        self[part] += time.perf_counter() - start


class GradientNoise(dict):
    """How much of a step's gradient is signal: `grad_cosine` of metrics.jsonl, as a dict.

    It is cos(g₁, g₂) of the gradients of two halves of the step's live groups: 0 if the gradient is
    all noise, 1 if the halves agree, and missing if there is only one live group.
    """

    def __init__(self, policy: nn.Module, layout: Layout, every: int, step: int):
        super().__init__()
        self.measured, self.layout = bool(every) and step % every == 0, layout
        self.parameters = list(policy.parameters())
        stride = sum(p.numel() for p in self.parameters) // layout.n_students // SAMPLED
        # Coprime to the widths of models, so that it walks through all columns of a matrix.
        self.stride = next(k for k in range(stride, stride + 11) if math.gcd(k, 210) == 1)

    def _sample(self, tensor) -> torch.Tensor:
        """Return every `stride`-th element of this rank's shard."""
        return tensor.to_local().flatten()[:: self.stride]

    def watch(self, parts: list[list[Batch]]) -> Iterator[Batch]:
        """Yield all micro-batches. If there are two parts, compute grad_cosine, once, from the
        gradients that the caller's backward has accumulated after each part."""
        first, *rest = parts
        compared = rest and "grad_cosine" not in self
        yield from first
        if compared:  # in bf16: three digits are enough
            half = [self._sample(p.grad).bfloat16() for p in self.parameters]
        for part in rest:
            yield from part
        if compared:
            self["grad_cosine"] = self._cosine(half)

    @torch.no_grad()
    def _cosine(self, half: list[torch.Tensor]) -> float:
        sums = dict.fromkeys(("11", "12", "22"), 0.0)
        for g1, p in zip(half, self.parameters, strict=True):
            g1 = g1.float()
            g2 = self._sample(p.grad) - g1
            for name, (a, b) in {"11": (g1, g1), "12": (g1, g2), "22": (g2, g2)}.items():
                sums[name] += (a * b).sum(dtype=torch.float64).item()
        sums = self.layout.sum(sums)
        return sums["12"] / max(sums["11"] * sums["22"], 1e-300) ** 0.5


def evaluate(
    rollout: Callable, encode: Callable, problems: Problems, run: RunDir, step: int
) -> dict[str, float]:
    """Compute greedy pass@1 on every validation problem (Table 5a), and log the verdicts.

    rollout, encode: train.Student's. All student ranks call it. A problem whose prompt is too long
    counts as wrong. Returns {} if a rank has received SIGTERM meanwhile.
    """
    c, n, start = run.config, run.layout.n_students, time.perf_counter()
    tokens = [len(encode(problems.question(i))) for i in range(len(problems))]
    fits = [i for i, length in enumerate(tokens) if length <= c.max_prompt_tokens]
    overlong = [i for i, length in enumerate(tokens) if length > c.max_prompt_tokens]
    rows = [(i, 0.0, "overlong_prompt", 0) for i in overlong]
    longest = max((tokens[i] for i in fits), default=0) + c.max_completion_tokens
    size = n * max(1, c.max_rollout_tokens // longest)  # one micro-batch of each rank
    for part in (fits[i : i + size] for i in range(0, len(fits), size)):
        if stop_requested(run.layout):
            return {}
        order = [i for r in range(n) for i in part[r::n]]  # neighbours may be equally hard
        graded = rollout(problems, order, 0.0, (0, step), Stopwatch())
        lengths = graded.lengths().tolist()
        rows += zip(order, graded.rewards, graded.statuses, lengths, strict=True)
    names = ("problem", "reward", "status", "tokens")
    run.log_evaluation(step, [dict(zip(names, row, strict=True)) for row in sorted(rows)])
    accuracy = sum(reward for _, reward, _, _ in rows) / len(rows)
    return {"val_accuracy": accuracy, "eval_s": time.perf_counter() - start}

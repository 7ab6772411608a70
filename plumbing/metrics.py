"""How much of a step's gradient is signal: two numbers that a run logs every so many steps."""

import math
import time
from pathlib import Path

import torch

from plumbing.files import write_lines
from plumbing.progress import Stopwatch

LOOK_AT = 2**24  # numbers of a rank's gradient and update; more are sampled at a fixed stride


class GradientNoise(dict):
    """The numbers of one step, by their names in metrics.jsonl; none at most steps.

    grad_cosine: cos(g₁, g₂) of the gradients of two halves of the step's live groups, 0 where all
    is noise and 1 where they agree; missing where there are no two such groups, and where KL or
    entropy add to the gradient. update_rms: root mean square of AdamW's update over its rate,
    m̂ / (√v̂ + ε): 1 where the latest gradients agree, √((1-β₁)/(1+β₁)) = 0.23 where they have
    nothing in common.
    """

    def __init__(self, student, step: int):
        super().__init__()
        c = student.config
        self.measured = bool(c.noise_every) and step % c.noise_every == 0
        self.halves = self.measured and not (c.kl_coef or c.entropy_coef)
        self.student, self.half = student, None
        size = sum(p.numel() for p in student.policy.parameters())
        every = size // student.layout.n_students // LOOK_AT
        # Prime to the widths of models, so that it walks through all columns of a matrix.
        self.every = next(k for k in range(every, every + 11) if math.gcd(k, 2 * 3 * 5 * 7) == 1)

    def sample(self, tensor) -> torch.Tensor:
        """The numbers that are looked at, of a parameter's gradient or moment."""
        return tensor.to_local().flatten()[:: self.every]

    @torch.no_grad()
    def of_gradient(self, whole: bool) -> None:
        """Called when the gradient of a first part is there, and when the whole one is."""
        if not self.halves or "grad_cosine" in self:
            return
        if self.half:
            self["grad_cosine"], self.half = self._cosine(), None
        elif not whole:  # in bf16: three digits are enough
            self.half = [self.sample(p.grad).bfloat16() for p in self.student.policy.parameters()]

    def _cosine(self) -> float:
        sums = dict.fromkeys(("11", "12", "22"), 0.0)
        for half, p in zip(self.half, self.student.policy.parameters(), strict=True):
            g1 = half.float()
            g2 = self.sample(p.grad) - g1
            for name, (a, b) in {"11": (g1, g1), "12": (g1, g2), "22": (g2, g2)}.items():
                sums[name] += (a * b).sum(dtype=torch.float64).item()
        sums = self.student.layout.sum(sums)
        return sums["12"] / max(sums["11"] * sums["22"], 1e-300) ** 0.5

    @torch.no_grad()
    def of_update(self) -> None:
        """Called after the optimizer's step."""
        if not self.measured or self.student.config.optimizer != "adamw":
            return
        sums = {"squares": 0.0, "numbers": 0.0}
        for group in self.student.optimizer.param_groups:
            beta_1, beta_2 = group["betas"]
            for state in (self.student.optimizer.state[p] for p in group["params"]):
                m, v = (self.sample(state[name]) for name in ("exp_avg", "exp_avg_sq"))
                t = state["step"].item()
                root = (v / (1 - beta_2**t)).sqrt() + group["eps"]
                update = m / (1 - beta_1**t) / root
                sums["squares"] += update.square().sum(dtype=torch.float64).item()
                sums["numbers"] += update.numel()
        sums = self.student.layout.sum(sums)
        self["update_rms"] = (sums["squares"] / sums["numbers"]) ** 0.5


def evaluate(student, problems, step: int, folder: Path) -> dict[str, float]:
    """Greedy pass@1 on every problem (Table 5a), spread over the ranks. Verdicts go to evals/.
    Of an evaluation that is asked to stop nothing is kept: {}."""
    c, n, start = student.config, student.layout.n_students, time.perf_counter()
    tokens = [len(student.encode(problems.question(i))) for i in range(len(problems))]
    fits = [i for i, length in enumerate(tokens) if length <= c.max_prompt_tokens]
    overlong = set(range(len(problems))) - set(fits)
    rows = [(i, 0.0, "overlong_prompt", 0) for i in overlong]  # they count as wrong
    # A micro-batch of each rank at a time.
    longest = max((tokens[i] for i in fits), default=0) + c.max_completion_tokens
    at_once = n * max(1, c.max_rollout_tokens // longest)
    for part in (fits[i : i + at_once] for i in range(0, len(fits), at_once)):
        if student.layout.stopping():
            return {}
        order = [i for r in range(n) for i in part[r::n]]  # neighbours are often alike
        graded = student.rollout(problems, order, 0.0, (0, step), Stopwatch())
        lengths = graded.lengths().tolist()
        rows += zip(order, graded.rewards, graded.statuses, lengths, strict=True)
    if student.layout.rank == 0:
        names = ("problem", "reward", "status", "tokens")
        lines = [dict(zip(names, row, strict=True)) for row in sorted(rows)]
        write_lines(folder / "evals" / f"step_{step}.jsonl", lines)
    accuracy = sum(row[1] for row in rows) / len(rows)
    return {"val_accuracy": accuracy, "eval_s": time.perf_counter() - start}

"""What rank 0 prints of a run: the plan, a progress bar, and how it ended."""

import sys
import time

from tqdm import tqdm

from plumbing.data.problems import Problems
from plumbing.files import read_lines
from plumbing.run import checkpoint
from plumbing.run.directory import RunDir

LINE_S = 10  # seconds between two lines
LINE = "step {n_fmt} of {total_fmt} [{elapsed}<{remaining}{postfix}]"


class Console:
    """A run's plan, progress and end, as rank 0 prints them: a line now and then."""

    def __init__(self, run: RunDir, start: int, train: Problems, val: Problems):
        self.run = run
        self.silent = run.layout.rank > 0
        self.steps = {"n": start, "initial": start, "total": run.config.steps}
        self.begun = time.monotonic()
        self.printed = self.begun  # when the last line was
        self.of_step = ""
        if not self.silent:
            print(plan(run, start, train, val), end="", flush=True)

    def update(self, row: dict) -> None:
        """Show a step: its row of metrics.jsonl."""
        speed = row["total_tokens"] / row["seconds"]
        reward = row["reward_mean"]
        dead = row["zero_variance"]
        self.of_step = f"reward {reward:.2f}, dead {dead:.0%}, {speed:,.0f} tok/s"
        self.steps["n"] = row["step"]
        self.report("")

    def report(self, evaluation: str, at_once: bool = False) -> None:
        """Print how far an evaluation is, or if "" the latest step: at once, or if the last line is
        LINE_S old."""
        now = time.monotonic()
        if not self.silent and (at_once or now - self.printed >= LINE_S):
            times = {"elapsed": now - self.begun, "bar_format": LINE}
            line = tqdm.format_meter(postfix=evaluation or self.of_step, **times, **self.steps)
            print(line, file=sys.stderr, flush=True)
            self.printed = now

    def end(self, finished: bool) -> None:
        """Print the accuracy before and after, or how to resume."""
        if self.silent:
            return
        self.report("", at_once=True)
        if not finished:
            saved = ", and saved" if checkpoint.steps(self.run.path) else " before the first step"
            print(f"stopped{saved}: run the same command again to resume")
            return
        rows = read_lines(self.run.path / "metrics.jsonl")
        first, *later = [row["val_accuracy"] for row in rows if "val_accuracy" in row]
        last = later[-5:] or [first]
        mean = sum(last) / len(last)
        print(
            f"validation accuracy: {first:.1%} before, {last[-1]:.1%} after, "
            f"{mean:.1%} mean of the last {len(last)} evaluations\n"
            f"next: python -m scripts.report {self.run.path}; "
            "or read samples.jsonl and metrics.jsonl there"
        )


def plan(run: RunDir, start: int, train: Problems, val: Problems) -> str:
    """Describe a run that is about to begin at step `start`."""
    c = run.config
    ranks = run.layout
    matched = ""
    if not c.teacher_model:
        matched = f", compute-matched with {c.steps * 3 // 4:,} with a Teacher (App. D)"
    return (
        f"Goldilocks RL: preset {c.preset}, sampler {c.sampler}, seed {c.seed}\n"
        f"  ranks    {ranks.n_students} student + {ranks.n_teachers} teacher, {ranks.device.type}\n"
        f"  student  {c.model}\n"
        f"  teacher  {c.teacher_model or 'none'}\n"
        f"  data     {len(train):,} problems, {len(val):,} for validation\n"
        f"  steps    {start} to {c.steps}{matched}, saved every {c.checkpoint_every}\n"
        f"  output   {run.path}\n"
    )

"""What rank 0 prints of a run: the plan, lines of progress, and how it ended."""

import sys
import time

from tqdm import tqdm

from plumbing.errors import print_line
from plumbing.files import read_lines
from plumbing.run.directory import RunDir

LINE_S = 10  # seconds between two lines
LINE = "step {n_fmt} of {total_fmt} [{elapsed}<{remaining}{postfix}]"


class Console:
    """A run's plan, progress and end, as rank 0 prints them: a line now and then.
    ends: Generator.ends."""

    def __init__(self, run: RunDir, start: int, ends: str):
        self.run = run
        self.silent = run.layout.rank > 0
        self.start = start
        self.step = start
        self.begun = time.monotonic()
        self.printed = self.begun  # when the last line was
        if not self.silent:
            n = len(run.problems)
            print_line(f"Goldilocks RL from step {start}: {n:,} problems, {run.settings}")
            print_line(f"  {ends}")
            if warning := run.problems.overlap(run.val_problems):
                print_line(warning)
            if not run.config.teacher_model:
                print_line(
                    "  compute-matched: 3/4 as many steps of a run whose Teacher has 1/4 of the "
                    "devices (App. D)"
                )

    def update(self, row: dict) -> None:
        """Show a step: its row of metrics.jsonl."""
        self.step = row["step"]
        speed = row["total_tokens"] / row["seconds"]
        dead = row["zero_variance"]
        self.report(f"reward {row['reward_mean']:.2f}, dead {dead:.0%}, {speed:,.0f} tok/s")

    def report(self, text: str) -> None:
        """Print the step and a text, of it or of an evaluation, if the last line is LINE_S old."""
        now = time.monotonic()
        if self.silent or now - self.printed < LINE_S:
            return
        self.printed = now
        line = tqdm.format_meter(
            self.step,
            self.run.config.steps,
            now - self.begun,
            initial=self.start,
            postfix=text,
            bar_format=LINE,
        )
        print_line(line, sys.stderr)

    def end(self, finished: bool) -> None:
        """Print the accuracy before and after, or how to resume."""
        if self.silent:
            return
        if not finished:
            print_line("stopped: run the same command again to resume")
            return
        rows = read_lines(self.run.metrics)
        first, *later = [row["val_accuracy"] for row in rows if "val_accuracy" in row]
        last = later[-5:] or [first]
        print_line(
            f"validation accuracy: {first:.1%} before, {last[-1]:.1%} after, "
            f"{sum(last) / len(last):.1%} mean of the last {len(last)} evaluations\n"
            f"next: python -m scripts.report {self.run.path}"
        )

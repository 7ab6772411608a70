"""What rank 0 prints of a run: the plan, a progress bar, and how it ended."""

import sys
import threading
import time

from tqdm import tqdm

from plumbing.data.problems import Problems
from plumbing.files import read_lines
from plumbing.run import checkpoint
from plumbing.run.directory import RunDir

LINE_S = 30  # seconds between two lines where there is no terminal for a bar
BAR_S = 2  # between two looks at the bar, whose clock shows that the run is alive
LINE = "step {n_fmt} of {total_fmt} [{elapsed}<{remaining}{postfix}]"


class Console:
    """A run's plan, progress and end, as rank 0 prints them: a bar on a terminal, else a line now
    and then, also in a step or evaluation that takes long."""

    def __init__(self, run: RunDir, start: int, student, train: Problems, val: Problems):
        self.run = run
        self.silent = run.layout.rank > 0
        if not self.silent:
            print(plan(run, start, student, train, val), end="", flush=True)
            if not run.config.reward:
                print_notes(train, val, student.verifier)
        terminal = sys.stderr.isatty()
        steps = {"initial": start, "total": run.config.steps, "unit": "step"}
        self.bar = tqdm(**steps, disable=not terminal or self.silent)
        self.meter = {"n": start, **steps}
        self.begun = time.monotonic()
        self.of_step = ""
        self.of_evaluation = ""
        self.ended = threading.Event()
        if not self.silent:
            threading.Thread(target=self._tick, args=[terminal], daemon=True).start()

    def update(self, row: dict) -> None:
        """Advance the bar by a step: its row of metrics.jsonl."""
        speed = row["total_tokens"] / row["seconds"]
        reward = row["reward_mean"]
        dead = row["zero_variance"]
        self.of_step = f"reward {reward:.2f}, dead {dead:.0%}, {speed:,.0f} tok/s"
        self.bar.set_postfix_str(self.of_step, refresh=False)
        self.bar.update()
        self.meter["n"] = row["step"]

    def report(self, text: str) -> None:
        """Show how far an evaluation is; "": it is over."""
        self.of_evaluation = text
        self.bar.set_postfix_str(text or self.of_step)

    def _tick(self, terminal: bool) -> None:
        """Refresh the bar or print a line now and then, until `end`."""
        while not self.ended.wait(BAR_S if terminal else LINE_S):
            if terminal:
                self.bar.refresh()
            else:
                print(self._line(), file=sys.stderr, flush=True)

    def _line(self) -> str:
        postfix = self.of_evaluation or self.of_step
        elapsed = time.monotonic() - self.begun
        return tqdm.format_meter(**self.meter, elapsed=elapsed, postfix=postfix, bar_format=LINE)

    def end(self, finished: bool) -> None:
        """Close the bar; print the accuracy before and after, or how to resume."""
        if self.silent:
            return
        self.ended.set()
        if self.bar.disable:
            print(self._line(), file=sys.stderr, flush=True)
        self.bar.close()
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


def plan(run: RunDir, start: int, student, train: Problems, val: Problems) -> str:
    """Describe a run that is about to begin at step `start`."""
    c = run.config
    ranks = run.layout
    batch = c.prompts_per_step * c.group_size
    policy = student.policy
    parameters = sum(p.numel() for p in policy.parameters())
    attention = policy.lm.config._attn_implementation
    return (
        f"Goldilocks RL: preset {c.preset}, sampler {c.sampler}, loss {c.loss}, seed {c.seed}\n"
        f"  ranks    {ranks.world} = {ranks.n_students} student + {ranks.n_teachers} teacher, "
        f"{ranks.device.type}\n"
        f"  batch    {c.prompts_per_step} prompts x {c.group_size} = {batch} completions\n"
        f"  student  {c.model}, {parameters / 1e6:,.2f} M parameters\n"
        f"  kernels  attention {attention}\n"
        f"  teacher  {c.teacher_model or 'none'}\n"
        f"  data     {len(train):,} problems, {len(val):,} for validation\n"
        f"  steps    {start} to {c.steps}, "
        f"evaluated every {c.eval_every}, saved every {c.checkpoint_every}\n"
        f"  output   {run.path}\n"
    )


def print_notes(train: Problems, val: Problems, verifier) -> None:
    """Print a note on each data file whose reference answers no plain answer matches."""
    for problems in (train, val):
        note = problems.unmatched_note(verifier)
        if note:
            print(note, flush=True)

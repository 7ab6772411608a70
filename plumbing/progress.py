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
        c, n, device = run.config, run.layout, run.layout.device.type
        self.run, self.silent = run, n.rank > 0
        P, G = c.prompts_per_step, c.group_size
        policy, decoding = student.policy, "varlen" if student.generator.varlen else "masked"
        parameters = sum(p.numel() for p in policy.parameters())
        plan = (
            f"Goldilocks RL: preset {c.preset}, sampler {c.sampler}, loss {c.loss}, seed {c.seed}\n"
            f"  ranks    {n.world} = {n.n_students} student + {n.n_teachers} teacher, {device}\n"
            f"  batch    {P} prompts x {G} = {P * G} completions\n"
            f"  student  {c.model}, {parameters / 1e6:,.2f} M parameters\n"
            f"  kernels  attention {policy.lm.config._attn_implementation}; generation {decoding}\n"
            f"  teacher  {c.teacher_model or 'none'}\n"
            f"  data     {len(train):,} problems, {len(val):,} for validation\n"
            f"  steps    {start} to {c.steps}, "
            f"evaluated every {c.eval_every}, saved every {c.checkpoint_every}\n"
            f"  output   {run.path}\n"
        )
        if not self.silent:
            print(plan, end="", flush=True)
            for problems in (train, val) if not c.reward else ():
                if note := problems.unmatched_note(student.verifier):
                    print(note, flush=True)
        terminal = sys.stderr.isatty()
        self.bar = tqdm(total=c.steps, initial=start, unit="step", disable=not terminal or n.rank)
        self.meter = {"n": start, "initial": start, "total": c.steps, "unit": "step"}
        self.begun = time.monotonic()
        self.of_step = self.of_evaluation = ""
        self.ended = threading.Event()
        if not self.silent:
            threading.Thread(target=self._tick, args=[terminal], daemon=True).start()

    def update(self, row: dict) -> None:
        """Advance the bar by a step: its row of metrics.jsonl."""
        speed = row["total_tokens"] / row["seconds"]
        text = f"reward {row['reward_mean']:.2f}, dead {row['zero_variance']:.0%}, "
        self.of_step = text + f"{speed:,.0f} tok/s"
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
        print(
            f"validation accuracy: {first:.1%} before, {last[-1]:.1%} after, "
            f"{sum(last) / len(last):.1%} mean of the last {len(last)} evaluations\n"
            f"next: python -m scripts.report {self.run.path}; "
            "or read samples.jsonl and metrics.jsonl there"
        )

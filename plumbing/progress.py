"""What rank 0 prints of a run: the plan, a progress bar, diagnostics, and how it ended."""

import sys
from collections import deque

from torch import nn
from tqdm import tqdm

from plumbing import checkpoint
from plumbing.files import read_lines
from plumbing.run_dir import RunDir

# Keys of metrics.jsonl that tell why groups are dead; docs/troubleshooting.md has the remedies.
CAUSES = ("truncated", "no_box", "bad_gold", "verify_failures", "reward_mean")


class Diagnostics:
    """Notes drawn from a run's rows of metrics.jsonl, each given once.

    val_problems: the number of problems of an evaluation. rows: those before a resume, whose notes
    have been printed. steps: the number of latest steps averaged.
    """

    def __init__(self, val_problems: int, rows=(), steps: int = 20):
        self.val_problems, self.recent = val_problems, deque(maxlen=steps)
        self.dead_reported = self.collapsed = False
        self.best = 0  # most right answers of an evaluation
        for row in rows:
            self.update(row)

    def update(self, row: dict) -> list[str]:
        """Return the notes that follow from the next row: mostly none."""
        notes = self._collapse(row) if "val_accuracy" in row else []
        if "seconds" in row:  # else the row holds only an evaluation
            self.recent.append(row)
        if len(self.recent) == self.recent.maxlen and not self.dead_reported:
            notes += self._dead_groups()
        return notes

    def _dead_groups(self) -> list[str]:
        """Report at least 95% dead groups, with the shares of their completions by cause."""
        groups = sum(row["groups"] for row in self.recent)

        def share(name: str) -> float:
            return sum(row[name] * row["groups"] for row in self.recent) / groups

        dead = share("zero_variance")
        self.dead_reported = round(dead * groups) >= 0.95 * groups
        causes = ", ".join(f"{name} {share(name):.0%}" for name in CAUSES)
        note = (
            f"{dead:.0%} of the groups of the last {len(self.recent)} steps are dead and give no "
            f"gradient; of all completions: {causes}. Remedies: docs/troubleshooting.md"
        )
        return [note] if self.dead_reported else []

    def _collapse(self, row: dict) -> list[str]:
        """Report validation accuracy a third below its best, by more than two standard errors;
        again only after an evaluation that was not."""
        n, before = self.val_problems, self.collapsed
        right = round(row["val_accuracy"] * n)
        self.best = best = max(self.best, right)
        error = sum(k * (1 - k / n) for k in (right, best)) ** 0.5
        self.collapsed = 3 * right <= 2 * best and best - right > 2 * error
        if before or not self.collapsed:
            return []
        return [
            f"validation accuracy fell from {best / n:.1%} to {right / n:.1%} at step "
            f"{row['step']}. Start a new run (another --out) with a lower --learning_rate, or "
            "with --kl_coef; metrics.jsonl shows where grad_norm rose"
        ]


class Console:
    """A run's plan, progress, diagnostics and end, as rank 0 prints them."""

    def __init__(self, run: RunDir, start: int, policy: nn.Module, n_train: int, n_val: int):
        self.run, self.silent = run, run.layout.rank > 0
        if self.silent:
            return
        rows = read_lines(run.path / "metrics.jsonl")
        self.diagnostics = Diagnostics(n_val, rows)
        c, n = run.config, run.layout
        P, G = c.prompts_per_step, c.group_size
        ranks = f"{n.n_students} student" + (f" + {n.n_teachers} teacher" if n.n_teachers else "")
        parameters = sum(p.numel() for p in policy.parameters())
        print(
            f"Goldilocks RL: preset {c.preset}, sampler {c.sampler}, loss {c.loss}, seed {c.seed}\n"
            f"  ranks    {n.world} = {ranks}, {n.device.type}\n"
            f"  batch    {P} prompts x {G} = {P * G}, {P * G // n.n_students} a student rank\n"
            f"  student  {c.model}, {parameters / 1e6:,.2f} M parameters\n"
            f"  teacher  {c.teacher_model or 'none'}\n"
            f"  data     {n_train:,} problems, {n_val:,} for validation\n"
            f"  steps    {start} to {c.steps}, "
            f"evaluated every {c.eval_every}, saved every {c.checkpoint_every}\n"
            f"  output   {run.path}",
            flush=True,
        )
        self.bar = tqdm(total=c.steps, initial=start, unit="step")

    def update(self, row: dict) -> None:
        """Advance the bar, if the row of metrics.jsonl is a step's, and print the row's advice."""
        if self.silent:
            return
        if "seconds" in row:
            speed = row["total_tokens"] / row["seconds"]
            text = f"reward {row['reward_mean']:.2f}, dead {row['zero_variance']:.0%}, "
            self.bar.set_postfix_str(text + f"{speed:,.0f} tok/s", refresh=False)
            self.bar.update()
        for note in self.diagnostics.update(row):
            tqdm.write(f"note: {note}")  # above the bar
            sys.stdout.flush()

    def end(self, finished: bool) -> None:
        """Close the bar; print the accuracy before and after, or how to resume."""
        if self.silent:
            return
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

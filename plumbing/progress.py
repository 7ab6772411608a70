"""What rank 0 prints of a run: the plan, a progress bar, diagnostics, and how it ended."""

import sys
from collections import deque

from torch import nn
from tqdm import tqdm

from plumbing import checkpoint
from plumbing.files import read_lines
from plumbing.run_dir import RunDir

PARTS = {  # the parts of a step, by their keys in metrics.jsonl: name, and what shortens it
    "rollout_s": ("generation", "a larger --max_rollout_tokens, a smaller --max_completion_tokens"),
    "verify_s": ("grading", "more --verify_workers"),
    "gather_s": ("waiting for the slowest rank", "a smaller --max_completion_tokens"),
    "train_s": ("training", "a larger --per_device_batch_size"),
    "teacher_wait_s": ("choosing problems", "more --teacher_ranks, fewer --teacher_epochs"),
    "eval_s": ("evaluation", "a larger --eval_every"),
}
CAUSES = {  # of dead groups: a description of their completions, and what to do
    "bad_gold": ("of an unverifiable reference answer", "correct expected_answer in --train_data"),
    "failed": ("given up by the verifier", "samples.jsonl shows what it cannot read"),
    "cut": ("cut at --max_completion_tokens", "raise --max_completion_tokens"),
    "no_box": ("without a box", "try another --prompt_footer, or --chat_template"),
    "wrong": ("wrong", "use easier problems, or check in samples.jsonl that answers match rewards"),
    "right": ("right", "use harder problems"),
}


class Diagnostics:
    """Advice drawn from a run's rows of metrics.jsonl, each given once.

    val_problems: the number of problems of an evaluation. rows: those before a resume, whose advice
    has been printed. steps: the number of latest steps averaged.
    """

    def __init__(self, config, val_problems: int, rows=(), steps: int = 20):
        self.config, self.val_problems = config, val_problems
        self.recent = deque(maxlen=steps)
        self.dead_reported = self.time_reported = self.collapsed = False
        self.best, self.eval_s = 0, 0.0  # most right answers; seconds of the latest evaluation
        for row in rows:
            self.update(row)

    def update(self, row: dict) -> list[str]:
        """Return the advice that follows from the next row: mostly none."""
        advice = self._collapse(row) if "val_accuracy" in row else []
        if "seconds" in row:  # else the row holds only an evaluation
            self.recent.append(row)
        if len(self.recent) == self.recent.maxlen:
            advice += self._dead_groups() + self.step_time()
        return advice

    def step_time(self) -> list[str]:
        """Report the seconds of a step by part, once."""
        if self.time_reported or not self.recent:
            return []
        self.time_reported = True
        mean_s = {name: self._mean(name) for name in PARTS}
        mean_s["eval_s"] = self.eval_s / self.config.eval_every
        total_s = self._mean("seconds") + mean_s["eval_s"]
        shares = listed({PARTS[name][0]: part_s / total_s for name, part_s in mean_s.items()})
        remedy = PARTS[max(mean_s, key=mean_s.get)][1]
        return [f"a step takes {total_s:.3g} s: {shares}. To shorten it: {remedy}"]

    def _mean(self, name: str) -> float:
        return sum(row[name] for row in self.recent) / len(self.recent)

    def _dead_groups(self) -> list[str]:
        """Report at least 95% dead groups, once, with a description of their completions."""
        groups = sum(row["groups"] for row in self.recent)

        def share(name: str) -> float:
            return sum(row[name] * row["groups"] for row in self.recent) / groups

        dead = share("zero_variance")
        if self.dead_reported or round(dead * groups) < 0.95 * groups:
            return []
        self.dead_reported = True
        shares = {"bad_gold": share("bad_gold"), "failed": share("verify_failures")}
        shares |= {"cut": share("truncated"), "right": share("reward_mean")}
        shares["no_box"] = max(0.0, share("no_box") - shares["cut"])  # most that are cut have none
        shares["wrong"] = max(0.0, 1 - sum(shares.values()))
        causes = listed({CAUSES[name][0]: value for name, value in shares.items()})
        remedy = CAUSES[max(shares, key=shares.get)][1]
        return [
            f"{dead:.0%} of the groups of the last {len(self.recent)} steps are dead and give no "
            f"gradient; of all completions {causes}: {remedy}"
        ]

    def _collapse(self, row: dict) -> list[str]:
        """Report validation accuracy a third below its best, by more than two standard errors;
        again only after an evaluation that was not."""
        n, before = self.val_problems, self.collapsed
        right, self.eval_s = round(row["val_accuracy"] * n), row["eval_s"]
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


def listed(shares: dict[str, float]) -> str:
    """Format shares of 1% and more, the largest first: "71% generation, 20% training"."""
    ordered = sorted(shares.items(), key=lambda item: -item[1])
    return ", ".join(f"{share:.0%} {name}" for name, share in ordered if share >= 0.005)


class Console:
    """A run's plan, progress, diagnostics and end, as rank 0 prints them."""

    def __init__(self, run: RunDir, start: int, policy: nn.Module, n_train: int, n_val: int):
        self.run, self.silent = run, run.layout.rank > 0
        if self.silent:
            return
        rows = read_lines(run.path / "metrics.jsonl")
        self.diagnostics = Diagnostics(run.config, n_val, rows)
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

    def start_bar(self, start: int) -> None:
        """Show the progress bar, before the first step."""
        total = self.run.config.steps
        self.bar = tqdm(total=total, initial=start, unit="step", disable=self.silent)

    def update(self, row: dict) -> None:
        """Advance the bar, if the row of metrics.jsonl is a step's, and print the row's advice."""
        if self.silent:
            return
        if "seconds" in row:
            speed = row["total_tokens"] / row["seconds"]
            text = f"reward {row['reward_mean']:.2f}, dead {row['zero_variance']:.0%}, "
            self.bar.set_postfix_str(text + f"{speed:,.0f} tok/s", refresh=False)
            self.bar.update()
        self._print_notes(self.diagnostics.update(row))

    def _print_notes(self, notes: list[str]) -> None:
        for note in notes:
            tqdm.write(f"note: {note}")  # above the bar, if there is one
            sys.stdout.flush()

    def end(self, finished: bool) -> None:
        """Close the bar; print the accuracy before and after, or how to resume."""
        self.bar.close()
        if self.silent:
            return
        if not finished:
            saved = ", and saved" if checkpoint.steps(self.run.path) else " before the first step"
            print(f"stopped{saved}: run the same command again to resume")
            return
        self._print_notes(self.diagnostics.step_time())
        rows = read_lines(self.run.path / "metrics.jsonl")
        first, *later = [row["val_accuracy"] for row in rows if "val_accuracy" in row]
        last = later[-5:] or [first]
        print(
            f"validation accuracy: {first:.1%} before, {last[-1]:.1%} after, "
            f"{sum(last) / len(last):.1%} mean of the last {len(last)} evaluations\n"
            f"next: python -m scripts.report {self.run.path}; "
            "or read samples.jsonl and metrics.jsonl there"
        )

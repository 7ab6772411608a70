"""What rank 0 prints of a run: the plan, a progress bar, diagnostics, and how it ended."""

import sys
from collections import deque
from pathlib import Path

from torch import nn
from tqdm import tqdm

from plumbing import checkpoint
from plumbing.files import read_lines
from plumbing.run_dir import RunDir

PARTS = {  # of a step, in metrics.jsonl: its name, and what shortens it
    "rollout_s": ("generation", "a larger --max_rollout_tokens, a smaller --max_completion_tokens"),
    "verify_s": ("grading", "more --verify_workers"),
    "gather_s": ("waiting for the slowest rank", "a smaller --max_completion_tokens"),
    "train_s": ("training", "a larger --per_device_batch_size"),
    "teacher_wait_s": ("choosing problems", "more --teacher_ranks, fewer --teacher_epochs"),
    "eval_s": ("evaluation", "a larger --eval_every"),
}
CAUSES = {  # of dead groups: how their completions look, and what to do
    "bad_gold": ("of an unverifiable reference answer", "correct expected_answer in --train_data"),
    "failed": ("given up by the verifier", "samples.jsonl shows what it cannot read"),
    "cut": ("cut at --max_completion_tokens", "raise --max_completion_tokens"),
    "no_box": ("without a box", "try another --prompt_footer, or --chat_template"),
    "wrong": ("wrong", "use easier problems, or check in samples.jsonl that answers match rewards"),
    "right": ("right", "use harder problems"),
}


class Diagnostics:
    """Turns a run's rows of metrics.jsonl, one after the other, into advice; each is given once.

    val_problems: the problems of an evaluation. folder: the run directory. rows: those from before
    a resume, whose advice has been printed. steps: how many, up to the latest, are averaged.
    """

    def __init__(self, config, val_problems: int, folder: Path, rows=(), steps: int = 20):
        self.config, self.val_problems, self.folder = config, val_problems, folder
        self.recent = deque(maxlen=steps)
        self.dead_reported, self.slowest_part = False, None
        self.best, self.collapsed = 0, False  # most right answers; whether it is far below them
        self.evaluated, self.eval_s = 0, 0.0  # the latest evaluation's step and seconds
        for row in rows:
            self.update(row)

    def update(self, row: dict) -> list[str]:
        """Return the advice that follows from the next row: mostly none."""
        advice = []
        if "val_accuracy" in row:
            advice += self._collapse(row)
        if "seconds" in row:  # else the row holds only an evaluation
            self.recent.append(row)
        if len(self.recent) == self.recent.maxlen:
            advice += self._dead_groups()
            advice += [] if self.slowest_part else self.step_time()
        return advice

    def step_time(self) -> list[str]:
        """Return where the time of a step goes; [] where the part reported last still takes more
        than half as long as the slowest."""
        if not self.recent:
            return []
        mean_s = {name: self._mean(name) for name in PARTS}
        mean_s["eval_s"] = self.eval_s / self.config.eval_every
        slowest = max(mean_s, key=mean_s.get)
        if self.slowest_part and 2 * mean_s[self.slowest_part] > mean_s[slowest]:
            return []
        self.slowest_part, total_s = slowest, self._mean("seconds") + mean_s["eval_s"]
        shares = listed({PARTS[name][0]: part / total_s for name, part in mean_s.items()})
        return [f"a step takes {total_s:.3g} s: {shares}. To shorten it: {PARTS[slowest][1]}"]

    def _mean(self, name: str) -> float:
        return sum(row[name] for row in self.recent) / len(self.recent)

    def _dead_groups(self) -> list[str]:
        """Report at least 95% dead groups, with what their completions look like."""
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
        if self.collapsed:
            remedy = "accuracy collapsed (see above)"
        steps = len(self.recent)
        return [
            f"{dead:.0%} of the groups of the last {steps} steps are dead and give no gradient; "
            f"of all completions {causes}: {remedy}"
        ]

    def _collapse(self, row: dict) -> list[str]:
        """Report validation accuracy a third below its best, by more than two standard errors; once
        until it has recovered."""
        n, best, previous = self.val_problems, self.best, self.evaluated
        right = round(row["val_accuracy"] * n)
        self.evaluated, self.eval_s = row["step"], row["eval_s"]
        error = sum(k * (1 - k / n) for k in (right, best)) ** 0.5
        self.best, recovered = max(best, right), best - right <= 2 * error
        if recovered or self.collapsed or 3 * right > 2 * best:
            self.collapsed = self.collapsed and not recovered
            return []
        self.collapsed = True
        kept = [step for step in checkpoint.steps(self.folder) if step <= previous]
        older = f"{checkpoint.directory(self.folder, kept[-1])} is" if kept else "no checkpoint is"
        return [
            f"validation accuracy fell from {best / n:.1%} to {right / n:.1%} at step "
            f"{row['step']}; {older} from before it. Start a new run (another --out) with a lower "
            "--learning_rate, or with --kl_coef; metrics.jsonl shows where grad_norm rose"
        ]


def listed(shares: dict[str, float]) -> str:
    """Format shares of 1% and more, the largest first: "71% generation, 20% training"."""
    ordered = sorted(shares.items(), key=lambda item: -item[1])
    return ", ".join(f"{share:.0%} {name}" for name, share in ordered if share >= 0.005)


class Console:
    """Prints on rank 0, and on no other rank. Created when the run's logs end at step `start`."""

    def __init__(self, run: RunDir, start: int, policy: nn.Module, n_train: int, n_val: int):
        self.run, self.silent = run, run.layout.rank > 0
        rows = [] if self.silent else read_lines(run.path / "metrics.jsonl")
        self.diagnostics = Diagnostics(run.config, n_val, run.path, rows)
        self.bar = None
        if not self.silent:
            parameters = sum(p.numel() for p in policy.parameters())
            self._print_plan(start, parameters, n_train, n_val)

    def _print_plan(self, start: int, parameters: int, n_train: int, n_val: int) -> None:
        c, n = self.run.config, self.run.layout
        P, G = c.prompts_per_step, c.group_size
        ranks = f"{n.n_students} student" + (f" + {n.n_teachers} teacher" if n.n_teachers else "")
        share = P * G // n.n_students
        print(
            f"Goldilocks RL: preset {c.preset}, sampler {c.sampler}, loss {c.loss}, seed {c.seed}\n"
            f"  ranks    {n.world} = {ranks}, {n.device.type}\n"
            f"  batch    {P} prompts x {G} = {P * G}, {share} a student rank\n"
            f"  student  {c.model}, {parameters / 1e6:,.2f} M parameters\n"
            f"  teacher  {c.teacher_model or 'none'}\n"
            f"  data     {n_train:,} problems, {n_val:,} for validation\n"
            f"  steps    {start} to {c.steps}, "
            f"evaluated every {c.eval_every}, saved every {c.checkpoint_every}\n"
            f"  output   {self.run.path}",
            flush=True,
        )

    def start_bar(self, start: int) -> None:
        """Show the progress bar, before the first step."""
        total = self.run.config.steps
        self.bar = tqdm(total=total, initial=start, unit="step", disable=self.silent)

    def update(self, metrics: dict) -> None:
        """Advance the bar by a step, if the row of metrics.jsonl has one, and print its advice."""
        if self.silent:
            return
        if self.bar is not None:
            speed, dead = metrics["total_tokens"] / metrics["seconds"], metrics["zero_variance"]
            reward = metrics["reward_mean"]
            postfix = f"reward {reward:.2f}, dead {dead:.0%}, {speed:,.0f} tok/s"
            self.bar.set_postfix_str(postfix, refresh=False)
            self.bar.update()
        self._print_notes(self.diagnostics.update(metrics))

    def _print_notes(self, notes: list[str]) -> None:
        for note in notes:
            tqdm.write(f"note: {note}")  # above the bar, if there is one
            sys.stdout.flush()

    def end(self, finished: bool) -> None:
        """Close the bar; print accuracy before and after, and where to look."""
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

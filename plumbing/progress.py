"""What rank 0 prints of a run: the plan, a progress bar, diagnostics, and how it ended."""

import sys
import time
from collections import deque
from contextlib import contextmanager
from pathlib import Path

from tqdm import tqdm

from plumbing import checkpoint
from plumbing.files import read_lines

PARTS = {  # of a step, in metrics.jsonl: what it is, and what shortens it
    "rollout_s": ("generation", "a larger --max_rollout_tokens, a smaller --max_completion_tokens"),
    "verify_s": ("grading", "more --verify_workers"),
    "gather_s": ("waiting for the slowest rank", "a smaller --max_completion_tokens"),
    "train_s": ("training", "a larger --per_device_batch_size"),
    "teacher_wait_s": ("choosing problems", "more --teacher_ranks, fewer --teacher_epochs"),
    "eval_s": ("evaluation", "a larger --eval_every"),
}
CAUSES = {  # what may be the matter with completions whose groups are dead, and what to do
    "bad_gold": ("of a gold that cannot be verified", "mend expected_answer in --train_data"),
    "failed": ("given up by the verifier", "samples.jsonl shows what it cannot read"),
    "cut": ("cut at --max_completion_tokens", "raise --max_completion_tokens"),
    "no_box": (
        "without a box",
        "the model does not follow --prompt_footer: try another, or --chat_template",
    ),
    "wrong": (
        "wrong",
        "the data are too hard, or golds and reward do not match: look at samples.jsonl",
    ),
    "right": ("right", "the data are too easy: take harder ones"),
}


class Diagnostics:
    """Hears a run's rows of metrics.jsonl one after the other, and says each thing once.

    val_problems: how many an evaluation has. folder: the run's. rows: of before a resume; what they
    gave rise to has been said. steps: how many, up to the latest, are judged together.
    """

    def __init__(self, config, val_problems: int, folder: Path, rows=(), steps: int = 20):
        self.config, self.val_problems, self.folder = config, val_problems, folder
        self.recent = deque(maxlen=steps)
        self.dead = False  # whether it has been said
        self.longest = None  # the part of a step that was last said to be
        self.best, self.fell = 0, False  # most right answers; whether it is far below them
        self.evaluated, self.eval_s = 0, 0.0  # the latest step, and the seconds it took
        for row in rows:
            self.hear(row)

    def hear(self, row: dict) -> list[str]:
        """The notes that the next row gives rise to: mostly none."""
        notes = []
        if "val_accuracy" in row:
            notes += self._fall(row)
        if "seconds" in row:  # else there was only an evaluation
            self.recent.append(row)
        if len(self.recent) == self.recent.maxlen:
            notes += self._dead()
            notes += [] if self.longest else self.at_end()
        return notes

    def at_end(self) -> list[str]:
        """What a step's seconds go to: not where the part that was last said is still more than
        half as long as the longest."""
        if not self.recent:
            return []
        taken = {name: self._mean(name) for name in PARTS}
        taken["eval_s"] = self.eval_s / self.config.eval_every
        longest = max(taken, key=taken.get)
        if self.longest and 2 * taken[self.longest] > taken[longest]:
            return []
        self.longest, seconds = longest, self._mean("seconds") + taken["eval_s"]
        shares = listed({PARTS[name][0]: part / seconds for name, part in taken.items()})
        return [f"a step takes {seconds:.3g} s: {shares}. To shorten it: {PARTS[longest][1]}"]

    def _mean(self, name: str) -> float:
        return sum(row[name] for row in self.recent) / len(self.recent)

    def _dead(self) -> list[str]:
        """At least 95% dead groups, and what the completions look like."""
        if self.dead:
            return []
        groups = sum(row["groups"] for row in self.recent)

        def share(name: str) -> float:
            return sum(row[name] * row["groups"] for row in self.recent) / groups

        dead = share("zero_variance")
        if round(dead * groups) < 0.95 * groups:
            return []
        self.dead = True
        shares = {"bad_gold": share("bad_gold"), "failed": share("verify_failures")}
        shares |= {"cut": share("truncated"), "right": share("reward_mean")}
        shares["no_box"] = max(0.0, share("no_box") - shares["cut"])  # most that are cut have none
        shares["wrong"] = max(0.0, 1 - sum(shares.values()))
        most = max(shares, key=shares.get)
        what = listed({CAUSES[name][0]: value for name, value in shares.items()})
        answer = "the student has fallen, as was said" if self.fell else CAUSES[most][1]
        said = f"{dead:.0%} of the groups of the last {len(self.recent)} steps are dead and teach "
        return [f"{said}nothing; of all completions {what}: {answer}"]

    def _fall(self, row: dict) -> list[str]:
        """Validation accuracy a third below its best, and by more than two standard errors. It is
        said once, until they are that near again."""
        n, best, before = self.val_problems, self.best, self.evaluated
        right = round(row["val_accuracy"] * n)
        self.evaluated, self.eval_s = row["step"], row["eval_s"]
        error = sum(k * (1 - k / n) for k in (right, best)) ** 0.5
        self.best, near = max(best, right), best - right <= 2 * error
        if near or self.fell or 3 * right > 2 * best:
            self.fell = self.fell and not near
            return []
        self.fell = True
        kept = [step for step in checkpoint.steps(self.folder) if step <= before]
        where = f"{checkpoint.folder_of(self.folder, kept[-1])} is" if kept else "no checkpoint is"
        fell = f"validation accuracy fell from {best / n:.1%} to {right / n:.1%} at step "
        fell += f"{row['step']}; {where} from before it. What helps: a new run (another --out) "
        fell += "with a lower --learning_rate, or with --kl_coef; see in metrics.jsonl where "
        return [f"{fell}grad_norm rose"]


def listed(shares: dict[str, float]) -> str:
    """Shares of 1% and more, the largest first: 71% generation, 20% training."""
    ordered = sorted(shares.items(), key=lambda item: -item[1])
    return ", ".join(f"{share:.0%} {name}" for name, share in ordered if share >= 0.005)


class Stopwatch(dict):
    """Seconds by part of a step: `with watch("train_s"): ...` adds to watch["train_s"]."""

    def __init__(self):
        super().__init__(dict.fromkeys(PARTS, 0.0))

    @contextmanager
    def __call__(self, part: str):
        start = time.perf_counter()
        yield
        self[part] += time.perf_counter() - start


class Screen:
    """What rank 0 shows of a run, and no other rank: the plan, a bar, notes, and how it ended."""

    def __init__(self, run, start: int, policy, n_train: int, n_val: int):
        """Called when the run's logs are those of the steps up to `start`."""
        self.run, self.start, self.silent = run, start, run.layout.rank > 0
        rows = [] if self.silent else read_lines(run.path / "metrics.jsonl")
        self.advice = Diagnostics(run.config, n_val, run.path, rows)
        plan(run, start, policy, n_train, n_val)

    def begin(self) -> None:
        """Before the first step."""
        how = {"initial": self.start, "unit": "step", "disable": self.silent}
        self.bar = tqdm(total=self.run.config.steps, **how)

    def step(self, metrics: dict) -> None:
        """After a step, and its checkpoint where it has one."""
        self.bar.set_postfix_str(progress(metrics), refresh=False)
        self.bar.update()
        self.hear(metrics)

    def hear(self, metrics: dict) -> None:
        """Says what there is to say about a row of metrics.jsonl."""
        if not self.silent:
            self.say(self.advice.hear(metrics))

    def say(self, notes: list[str]) -> None:
        """Above the bar, if there is one."""
        for note in notes:
            tqdm.write(f"note: {note}")
            sys.stdout.flush()

    def end(self, finished: bool) -> None:
        """How the run ended, and where to look."""
        self.bar.close()
        if finished and not self.silent:
            self.say(self.advice.at_end())
        result(self.run, finished)


def plan(run, start: int, policy, n_train: int, n_val: int) -> None:
    """What is about to happen, on one screen."""
    c, n = run.config, run.layout
    if n.rank:
        return
    B = c.prompts_per_step * c.group_size
    parameters = sum(p.numel() for p in policy.parameters())
    ranks = f"{n.n_students} student" + (f" + {n.n_teachers} teacher" if n.n_teachers else "")
    batch = (
        f"{c.prompts_per_step} prompts x {c.group_size} = {B}, {B // n.n_students} a student rank"
    )
    every = f"evaluated every {c.eval_every}, saved every {c.checkpoint_every}"
    print(
        f"Goldilocks RL: preset {c.preset}, sampler {c.sampler}, loss {c.loss}, seed {c.seed}\n"
        f"  ranks    {n.world} = {ranks}, {n.device.type}\n"
        f"  batch    {batch}\n"
        f"  student  {c.model}, {parameters / 1e6:,.2f} M parameters\n"
        f"  teacher  {c.teacher_model or 'none'}\n"
        f"  data     {n_train:,} problems, {n_val:,} for validation\n"
        f"  steps    {start} to {c.steps}, {every}\n"
        f"  output   {run.path}",
        flush=True,
    )


def progress(metrics: dict) -> str:
    """A step, for the progress bar."""
    speed = metrics["total_tokens"] / metrics["seconds"]
    dead = metrics["zero_variance"]
    return f"reward {metrics['reward_mean']:.2f}, dead {dead:.0%}, {speed:,.0f} tok/s"


def result(run, finished: bool) -> None:
    """Accuracy before and after, and where to look."""
    if run.layout.rank:
        return
    if not finished:
        saved = ", and saved" if checkpoint.steps(run.path) else " before the first step"
        print(f"stopped{saved}: the same command continues")
        return
    rows = read_lines(run.path / "metrics.jsonl")
    first, *later = [row["val_accuracy"] for row in rows if "val_accuracy" in row]
    last = later[-5:] or [first]
    print(
        f"validation accuracy: {first:.1%} before, {last[-1]:.1%} after, "
        f"{sum(last) / len(last):.1%} mean of the last {len(last)} evaluations\n"
        f"next: python -m scripts.report {run.path}; or read samples.jsonl and metrics.jsonl there"
    )

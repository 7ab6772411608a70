"""What a run shows on the terminal, and the seconds of its parts."""

import sys
import time
from contextlib import contextmanager

from tqdm import tqdm

from plumbing import advice, checkpoint
from plumbing.files import read_lines


class Stopwatch(dict):
    """Seconds by part of a step: `with watch("train_s"): ...` adds to watch["train_s"]."""

    def __init__(self):
        super().__init__(dict.fromkeys(advice.PARTS, 0.0))

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
        self.advice = advice.Advice(run.config, n_val, run.path, rows)
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

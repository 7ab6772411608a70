"""docs/study_plan.md as data: the toy tasks, the runs, and which runs are compared.

A run is one process with one thread, because results do not depend on the number of ranks. A method
without a teacher gets 4/3 of the steps, as if 8 devices trained instead of 6 + 2 (App. D).
"""

import functools
import sys
from dataclasses import dataclass
from pathlib import Path

from experiments.toy_task import MASTERED, OUT, REACH, Task
from sampler import find_sampler
from scripts.analysis import Run

ROOT = Path(__file__).resolve().parent.parent


def ten_topics(reach: int, **settings) -> Task:
    """One topic mastered, `reach` topics within reach, the rest out of reach."""
    return Task(rates=(MASTERED, *reach * [REACH], *(9 - reach) * [OUT]), **settings)


# Lengths 1 to 10, each 1.2 times as frequent as the one before; all words within reach, no name.
CHAINS = tuple(n for n in range(1, 11) for _ in range(round(10 * 1.2 ** (n - 1))))
TASKS = {
    "demo": Task(),
    "9 within reach": ten_topics(9),
    "6 within reach": ten_topics(6),
    "3 within reach": ten_topics(3),
    "1 within reach": ten_topics(1),
    "topic not named": Task(named=False),
    "topic misnamed": Task(misnamed=0.5),
    "7 words a topic": Task(words=7),
    "52 words a topic": Task(words=52),
    "long chains": Task((MASTERED, *2 * [(0.97, 0.6)], *7 * [OUT]), lengths=(4, 5, 6, 7, 8)),
    "wordy habits": Task(wordy=True),
    "climbing": Task(((0.95, 0.08),), words=48, lengths=CHAINS, named=False, steps=1500),
}
LENGTH = 120  # steps with a teacher
SHARED = ["preset=demo", f"eval_every={LENGTH // 12}", "checkpoint_every=1000"]
SHARED += ["max_completion_tokens=80"]


@dataclass(frozen=True)
class Cell:
    """Runs that differ in the seed alone.

    flags: name=value, of train.py. live: the share of training problems that keep their reference
    answer; no completion is right on the others, so their groups are dead.
    """

    task: str
    sampler: str = "uniform"
    flags: tuple = ()
    seeds: int = 6
    live: float = 1.0

    @property
    def name(self) -> str:
        thinned = (f"live {self.live:g}",) if self.live < 1 else ()
        return ", ".join([self.task, self.sampler, *self.flags, *thinned]).replace("/", "-")

    @property
    def steps(self) -> int:
        return LENGTH if self.has_teacher else LENGTH * 4 // 3

    @property
    def has_teacher(self) -> bool:
        return find_sampler(self.sampler).uses_teacher

    def folder(self, out: Path, seed: int) -> Path:
        return out / self.name / f"seed{seed}"

    def command(self, out: Path, seed: int) -> list[str]:
        """The command line of one run."""
        data = task_folder(out, self.task)
        training = data / (f"live{self.live:g}.jsonl" if self.live < 1 else "train.jsonl")
        flags = [f"sampler={self.sampler}", f"steps={self.steps}", f"seed={seed}", *SHARED]
        flags += [f"model={data / 'model'}", f"train_data={training}"]
        flags += [f"val_data={data / 'val.jsonl'}", f"out={self.folder(out, seed)}", *self.flags]
        if self.has_teacher:
            flags.append(f"teacher_model={data / 'model'}")
        return [sys.executable, str(ROOT / "train.py"), *(f"--{flag}" for flag in flags)]

    def is_done(self, out: Path, seed: int) -> bool:
        """Whether the run has finished: its last act is to export the student."""
        return (self.folder(out, seed) / "student").exists()

    def finished(self, out: Path) -> dict[int, Run]:
        """The finished runs by seed."""
        seeds = [seed for seed in range(self.seeds) if self.is_done(out, seed)]
        return {seed: load(self.folder(out, seed)) for seed in seeds}


load = functools.cache(Run.load)  # a finished run does not change, and is in many comparisons


def task_folder(out: Path, task: str) -> Path:
    return ROOT / "demo" if task == "demo" else out / "tasks" / task


def pair(task: str, *flags: str, seeds: int = 6) -> tuple[Cell, Cell]:
    """Uniform and Goldilocks with the same flags."""
    return Cell(task, "uniform", flags, seeds), Cell(task, "goldilocks", flags, seeds)


CLAIM = UNIFORM, GOLDILOCKS = pair("demo", seeds=12)
HEADROOM = Cell("demo", "headroom", ("epsilon=0.05",), 12)
HEADROOM_CLIMBING = Cell("climbing", "headroom", ("epsilon=0.05",))
RATES = ("learning_rate=0.0001", "learning_rate=0.0004")  # half and twice the preset's
SGD = ("optimizer=sgd", "learning_rate=0.1")
OPTIMIZERS = [(), *((rate,) for rate in RATES), SGD, (*SGD, "dead_rows=out")]
REACHES = ("1 within reach", "3 within reach", "6 within reach", "9 within reach")
EXTRA_ROUNDS = Cell("demo", "uniform", ("resample_rounds=2",))
TEACHERS = [
    Cell("demo", "goldilocks", (f"teacher_mode={m}",)) for m in ("last_token", "frozen", "lora")
]
PARTS = {  # name -> (baseline, method) of each comparison
    "claim": [CLAIM],
    "share_within_reach": [pair(task) for task in REACHES],
    "topic_visibility": [pair("topic not named"), pair("topic misnamed")],
    "vocabulary_size": [pair("7 words a topic"), pair("52 words a topic")],
    "other_tasks": [pair("long chains"), pair("climbing")],
    "informative_groups": [
        (Cell("6 within reach", "uniform", f, 3, live), Cell("6 within reach", "uniform", f, 3))
        for f in OPTIMIZERS
        for live in (1 / 2, 1 / 3, 1 / 4)
    ],
    "target_function": [
        *((UNIFORM, Cell("demo", s)) for s in ("softmax", "success_rate", "thompson", "skip")),
        (UNIFORM, EXTRA_ROUNDS),
    ],
    "rates": [pair("demo", rate) for rate in RATES],
    "losses": [
        pair("demo", "entropy_coef=0.0003"),
        pair("demo", "dead_rows=out"),
        pair("wordy habits"),
        pair("wordy habits", "loss=dapo"),
        *((UNIFORM, teacher) for teacher in TEACHERS),
    ],
    "headroom": [
        *((cell, HEADROOM) for cell in CLAIM),
        *((cell, HEADROOM_CLIMBING) for cell in pair("climbing")),
    ],
    # Added when all runs but half of "losses" were known; it has no runs of its own.
    "afterwards": [(cell, GOLDILOCKS) for cell in (EXTRA_ROUNDS, *TEACHERS)],
}

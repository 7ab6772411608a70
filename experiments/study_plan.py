"""docs/study_plan.md as code: the worlds, the runs, and which of them are compared.

A world is what make_demo.py makes of a `World`: a base model, training and validation problems. A
run is one process with one thread (results do not depend on ranks), its steps those of 6 + 2
devices: 4/3 as many for a method without a teacher (App. D).
"""

import functools
import sys
from dataclasses import dataclass
from pathlib import Path

from experiments.toy_task import MASTERED, OUT, REACH, World
from sampler import find_sampler
from scripts.analysis import Run

ROOT = Path(__file__).resolve().parent.parent


def books(mastered: int, reach: int, **more) -> World:
    """Ten books, of which those not named are out of reach."""
    out = (10 - mastered - reach) * [OUT]
    return World(rates=(*mastered * [MASTERED], *reach * [REACH], *out), **more)


# Lengths 1 to 10, each 1.2 times as frequent as the one before; all words within reach, no name.
CHAINS = tuple(n for n in range(1, 11) for _ in range(round(10 * 1.2 ** (n - 1))))
WORLDS = {
    "demo": World(),
    "9 within reach": books(1, 9),
    "6 within reach": books(1, 6),
    "3 within reach": books(1, 3),
    "1 within reach": books(1, 1),
    "no names": World(named=False),
    "wrong names": World(misnamed=0.5),
    "small books": World(words=7),
    "large books": World(words=52),
    "long chains": World((MASTERED, *2 * [(0.97, 0.6)], *7 * [OUT]), lengths=(4, 5, 6, 7, 8)),
    "wordy habits": World(wordy=True),
    "climbing": World(((0.95, 0.08),), words=48, lengths=CHAINS, named=False, steps=1500),
}
LENGTH = 120  # steps with a teacher
SHARED = ["preset=demo", f"eval_every={LENGTH // 12}", "checkpoint_every=1000"]
SHARED += ["max_completion_tokens=80", "noise_every=5"]


@dataclass(frozen=True)
class Cell:
    """Runs that differ in the seed alone. live: the share of training problems whose gold is left
    as it is; no answer earns the gold of the others, so that their groups are dead."""

    world: str
    sampler: str = "uniform"
    flags: tuple = ()  # name=value, of train.py
    seeds: int = 6
    live: float = 1.0

    @property
    def name(self) -> str:
        thin = (f"live {self.live:g}",) if self.live < 1 else ()
        return ", ".join([self.world, self.sampler, *self.flags, *thin]).replace("/", "-")

    @property
    def steps(self) -> int:
        return LENGTH if self.has_teacher else LENGTH * 4 // 3

    @property
    def has_teacher(self) -> bool:
        return find_sampler(self.sampler).uses_teacher

    def folder(self, out: Path, seed: int) -> Path:
        return out / self.name / f"seed{seed}"

    def command(self, out: Path, seed: int) -> list[str]:
        """The run, as a command."""
        world = place(out, self.world)
        training = world / (f"live{self.live:g}.jsonl" if self.live < 1 else "train.jsonl")
        flags = [f"sampler={self.sampler}", f"steps={self.steps}", f"seed={seed}", *SHARED]
        flags += [f"model={world / 'model'}", f"train_data={training}"]
        flags += [f"val_data={world / 'val.jsonl'}", f"out={self.folder(out, seed)}", *self.flags]
        if self.has_teacher:
            flags.append(f"teacher_model={world / 'model'}")
        return [sys.executable, str(ROOT / "train.py"), *(f"--{flag}" for flag in flags)]

    def finished(self, out: Path) -> dict[int, Run]:
        """By seed, the runs that are at their end."""
        seeds = [seed for seed in range(self.seeds) if self.is_done(out, seed)]
        return {seed: load(self.folder(out, seed)) for seed in seeds}

    def is_done(self, out: Path, seed: int) -> bool:
        """Whether the run is at its end, where the student is exported."""
        return (self.folder(out, seed) / "student").exists()


load = functools.cache(Run.load)  # a finished run stays as it is, and is in many comparisons


def pair(world: str, *flags: str, **more) -> tuple[Cell, Cell]:
    """Uniform and Goldilocks, alike in all else."""
    return Cell(world, "uniform", flags, **more), Cell(world, "goldilocks", flags, **more)


def against(base: Cell, *samplers: str) -> list[tuple[Cell, Cell]]:
    return [(base, Cell(base.world, sampler)) for sampler in samplers]


CLAIM = pair("demo", seeds=12)
THINNED = "6 within reach"
RATES = ("learning_rate=0.0001", "learning_rate=0.0004")  # half and twice the preset's
SGD = ("optimizer=sgd", "learning_rate=0.1")
DESCENTS = [(), *((rate,) for rate in RATES), SGD, (*SGD, "dead_rows=out")]
DOSES = ("1 within reach", "3 within reach", "6 within reach", "9 within reach")
HEADROOM = [
    Cell(w, "headroom", ("epsilon=0.05",), seeds=n) for w, n in (("demo", 12), ("climbing", 6))
]
EXTRA_ROUNDS = Cell("demo", "uniform", ("resample_rounds=2",))
MODES = [
    Cell("demo", "goldilocks", (f"teacher_mode={m}",)) for m in ("last_token", "frozen", "lora")
]
WHERE = ("claim", "dose", "readability", "apprenticeship", "other worlds")  # Goldilocks pays?
PARTS = {  # name -> what is compared: (the slower one, by what is expected, the faster one)
    "claim": [CLAIM],
    "dose": [pair(world) for world in DOSES],
    "readability": [pair("no names"), pair("wrong names")],
    "apprenticeship": [pair("small books"), pair("large books")],
    "other worlds": [pair("long chains"), pair("climbing")],
    "quantity": [
        (Cell(THINNED, flags=flags, seeds=3, live=live), Cell(THINNED, flags=flags, seeds=3))
        for flags in DESCENTS
        for live in (1 / 2, 1 / 3, 1 / 4)
    ],
    "quality": [
        *against(CLAIM[0], "softmax", "success_rate", "thompson", "skip"),
        (CLAIM[0], EXTRA_ROUNDS),
    ],
    "rates": [pair("demo", rate) for rate in RATES],
    "losses": [
        pair("demo", "entropy_coef=0.0003"),
        pair("demo", "dead_rows=out"),
        pair("wordy habits"),
        pair("wordy habits", "loss=dapo"),
        *((CLAIM[0], mode) for mode in MODES),
    ],
    "further": [
        *((cell, HEADROOM[0]) for cell in CLAIM),
        *((cell, HEADROOM[1]) for cell in pair("climbing")),
    ],
    # Asked when all runs but half of "losses" were known.
    "afterwards": [(cell, CLAIM[1]) for cell in (EXTRA_ROUNDS, *MODES)],
}


def place(out: Path, world: str) -> Path:
    return ROOT / "demo" if world == "demo" else out / "worlds" / world

"""The paper's claim where its conditions hold, and where it ends: every run, and its tables.

    python -m scripts.study --out runs/study              # all of docs/study_plan.md; goes on
    python -m scripts.study --out runs/study --only claim # one part of it
    python -m scripts.study --out runs/study --minutes 0  # what is known by now

A world is what make_demo.py makes of a `World`: a base model, training and validation problems. A
run is one process with one thread (results do not depend on ranks), its steps those of 6 + 2
devices: 4/3 as many for a method without a teacher (App. D).
"""

import functools
import os
import subprocess
import sys
import time
import zlib
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from filelock import FileLock, Timeout
from matplotlib.figure import Figure

from plumbing.files import read_lines, write_lines
from sampler import find_sampler
from scripts import audit, make_demo, plot, report
from scripts.make_demo import MASTERED, OUT, REACH, World
from scripts.report import Run, spread, table

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
SHARED += ["max_completion_tokens=80", "meter_every=5"]


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
SMALLER, LARGER = ("1 within reach", "3 within reach"), ("6 within reach", "9 within reach")
MODES = [("demo", "goldilocks", (f"teacher_mode={m}",)) for m in ("last_token", "frozen", "lora")]
WHERE = ("claim", "dose", "readability", "apprenticeship", "other worlds")  # Goldilocks pays?
PARTS = {  # name -> what is compared: (the slower one, by what is expected, the faster one)
    "claim": [CLAIM],
    "dose": [pair(world) for world in SMALLER + LARGER],
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
        (CLAIM[0], Cell("demo", "uniform", ("resample_rounds=2",))),
    ],
    "rates": [pair("demo", rate) for rate in RATES],
    "losses": [
        pair("demo", "entropy_coef=0.0003"),
        pair("demo", "dead_rows=out"),
        pair("wordy habits"),
        pair("wordy habits", "loss=dapo"),
        *((CLAIM[0], Cell(*mode)) for mode in MODES),
    ],
}


# How processes of a pool start: anew, with one thread each.
OWN_THREAD = {"mp_context": get_context("spawn"), "initializer": torch.set_num_threads}
OWN_THREAD |= {"initargs": (1,)}


def place(out: Path, world: str) -> Path:
    return ROOT / "demo" if world == "demo" else out / "worlds" / world


def prepare(out: Path, cells: list[Cell], jobs: int) -> None:
    """Makes the worlds of these cells; what is there is kept."""
    # Its statistics are written last.
    whole = {cell.world: place(out, cell.world) / "statistics.json" for cell in cells}
    worlds = [world for world, path in whole.items() if not path.exists()]

    with ProcessPoolExecutor(jobs, **OWN_THREAD) as pool:
        makers = [pool.submit(make_demo.make, WORLDS[w], place(out, w), 0) for w in worlds]
        for maker in makers:
            maker.result()
    for world, live in {(cell.world, cell.live) for cell in cells if cell.live < 1}:
        thin(place(out, world), live)


def thin(world: Path, live: float) -> None:
    """Training problems of which a share `live` is left as it is. The gold of the others is 0,
    which no number of these worlds has: the same draws, with fewer live groups."""
    rows = read_lines(world / "train.jsonl")
    for row in rows:
        if zlib.crc32(row["problem"].encode()) >= live * 2**32:
            row["expected_answer"] = "0"
    write_lines(world / f"live{live:g}.jsonl", rows)


ONE_THREAD = os.environ | {"OMP_NUM_THREADS": "1"}


def run_all(out: Path, cells: list[Cell], jobs: int, minutes: float) -> int:
    """Runs what is not finished, `jobs` at a time, seeds in turn; after `minutes` it starts none.
    Returns how many failed."""
    end = time.time() + 60 * minutes
    # By folder: cells that differ in the number of seeds alone share runs.
    runs = {cell.folder(out, seed): (cell, seed) for cell in cells for seed in range(cell.seeds)}
    todo = [(cell, seed) for cell, seed in runs.values() if not cell.is_done(out, seed)]
    todo.sort(key=lambda each: each[1])

    def one(job: tuple[Cell, int]) -> int | None:
        """Exit status, None where the time is up."""
        if time.time() > end:
            return None
        cell, seed = job
        log = out / f"{cell.name}-seed{seed}.log"
        with log.open("w") as file:
            done = subprocess.run(cell.command(out, seed), stdout=file, stderr=file, env=ONE_THREAD)
        print(f"FAILED, see {log}" if done.returncode else f"done: {log.stem}", flush=True)
        return done.returncode

    with ThreadPoolExecutor(jobs) as pool:
        statuses = list(pool.map(one, todo))
    print(f"{statuses.count(None)} runs left: the same command goes on", flush=True)
    return sum(map(bool, statuses))


def outcomes(out: Path, cell: Cell) -> pd.DataFrame:
    """By seed, of the finished runs. In percent: score, the paper's mean of the last five
    evaluations; equal, that of the last five within LENGTH steps, so after equally many
    completions; hardest, score on the hardest quarter of the problems neither mastered nor out of
    reach at the start. Of those steps: live, the share of live groups in an update, and x, how much
    of a step's gradient is signal."""
    rows = {}
    for seed, run in cell.finished(out).items():
        live = run.live.loc[1:LENGTH]
        bits = pd.read_json(place(out, cell.world) / "val.jsonl", lines=True).difficulty
        within = bits[(bits > 0.1) & (bits < 30)]
        rows[seed] = {
            "score": run.score,
            "equal": run.accuracy.loc[:LENGTH].tail(5).mean(),
            "hardest": run.verdicts[within[within >= within.quantile(0.75)].index].mean(),
            "live": live.mean(),
            "x": report.signal(live, run.curve("grad_cosine").loc[1:LENGTH]),
        }
    return pd.DataFrame.from_dict(rows, orient="index")


def curves(out: Path, cell: Cell) -> pd.DataFrame:
    """Accuracy by step, a column for each seed."""
    runs = cell.finished(out)
    return pd.DataFrame({seed: run.accuracy for seed, run in runs.items()})


def speed_up(base: pd.DataFrame, method: pd.DataFrame) -> float:
    """S: steps that the baseline needs to an accuracy over those that the method needs, on their
    mean curves. The accuracy is what both come to: the lower mean of the last five evaluations.
    NaN where that is no gain."""
    means = [curve.mean(axis=1) for curve in (base, method)]
    level, steps = min(mean.tail(5).mean() for mean in means), []
    if level <= max(mean.iloc[0] for mean in means):
        return np.nan
    for mean in means:
        at = (mean.to_numpy() >= level).argmax()  # the first that is as good
        share = (level - mean.iloc[at - 1]) / (mean.iloc[at] - mean.iloc[at - 1])
        steps.append(mean.index[at - 1] + share * (mean.index[at] - mean.index[at - 1]))
    return steps[0] / steps[1]


def speed_interval(base: pd.DataFrame, method: pd.DataFrame) -> tuple[float, float, float]:
    """S and its 95% interval over seeds."""
    seeds = list(base.columns)
    return report.ratio_interval(lambda some: speed_up(base[some], method[some]), seeds)


def compared(out: Path, part: str) -> pd.DataFrame:
    """A row for each comparison of a part that has at least two seeds in common."""
    rows = []
    for base, method in PARTS[part]:
        a, b = outcomes(out, base), outcomes(out, method)
        if len(common := a.index.intersection(b.index)) < 2:
            continue
        a, b = a.loc[common], b.loc[common]
        row = {"part": part, "world": base.world, "seeds": len(common)}
        row |= {"method": method.name, "against": base.name}
        for what in ("score", "equal", "hardest"):
            mean, (low, high), _ = report.t_difference(b[what], a[what], paired=True)
            row[what] = f"{mean:+.1f} ({low:+.1f} to {high:+.1f})"
        S, low, high = speed_interval(curves(out, base)[common], curves(out, method)[common])
        r, x = b.live.mean() / a.live.mean(), a.x.mean()
        row |= {"base": spread(a.score), "own": spread(b.score)}
        row |= {"dead": f"{1 - a.live.mean():.0%} → {1 - b.live.mean():.0%}", "r": r, "x": x}
        row |= {"S": S, "low": low, "high": high, "predicted": report.predicted_speed(r, x)}
        asked = part in WHERE and answer_of(out, base.world)
        row |= {"answer": read_lines(asked)[0] if asked and asked.exists() else None}
        rows.append(row)
    return pd.DataFrame(rows)


def ask(out: Path, worlds: list[str], jobs: int) -> None:
    """Asks the uniform run of seed 0 in each of these worlds, where it is finished, whether a
    teacher would pay; the answer is kept, as the teacher takes minutes to learn."""
    unasked = {w: answer_of(out, w) for w in worlds if Cell(w).is_done(out, 0)}
    unasked = {world: path for world, path in unasked.items() if not path.exists()}
    with ProcessPoolExecutor(jobs, **OWN_THREAD) as pool:
        runs = {world: Cell(world).folder(out, 0) for world in unasked}
        found = pool.map(would_pay, runs.values(), [place(out, w) / "model" for w in runs])
        for path, answer in zip(unasked.values(), found, strict=True):
            write_lines(path, [answer])


def would_pay(folder: Path, model: Path) -> dict[str, float]:
    run = Run.load(folder)
    return audit.would_pay(run, audit.read_by_teacher(run, str(model)))


def answer_of(out: Path, world: str) -> Path:
    return Cell(world).folder(out, 0) / "would_a_teacher_pay.jsonl"


def judged(says: str, row: dict) -> str:
    """What became of an answer: right, wrong, or open where it or the outcome is."""
    came = audit.says(row, perfect=False)
    return "open" if "open" in (says, came) else "right" if says == came else "wrong"


def show(found: pd.DataFrame) -> str:
    """Three Markdown tables: what came out, the rule of quantity, and what a uniform run foretold
    of it."""
    out, rule, answers = [], [], []
    for row in found.to_dict("records"):
        out.append([row[name] for name in ("method", "against", "seeds", "base", "own")])
        out[-1] += [row["score"], row["equal"], row["hardest"]]
        measured = speed(row)
        numbers = [f"{row['r']:.2f}", f"{row['x']:.2f}", f"{row['predicted']:.2f}", measured]
        said = "yes" if row["predicted"] > audit.PAYS else "no"
        verdict = judged(said, row) if row["part"] in WHERE else "–"
        rule.append([row["method"], row["dead"], *numbers, verdict])
        if answer := row["answer"]:
            says = audit.says(answer, perfect=False)
            numbers = f"{answer['r']:.2f}", f"{row['r']:.2f}", speed(answer), says, measured
            answers.append([row["world"], *numbers, judged(says, row)])
    header = ["method", "against", "seeds", "baseline", "method", "difference, 4/3 rule"]
    header += ["… at equal completions", "… on the hardest quarter within reach"]
    tables = [table("Methods against baselines, points (95% t-intervals over seeds)", header, out)]
    header = ["method", "dead groups", "r", "x", "S predicted by AdamW's rule", "S measured"]
    tables += [table("Quantity: S from r", [*header, "S > 4/3: the rule is"], rule)]
    header = ["world", "r foretold", "r found", "S foretold", "does it pay?", "S measured", ""]
    tables += [table("Asked of one uniform run: would a teacher pay?", header, answers)]
    return "\n".join(tables)


def speed(row: dict) -> str:
    return f"{row['S']:.2f} ({row['low']:.2f} to {row['high']:.2f})"


def draw(out: Path, found: pd.DataFrame) -> Figure:
    """Dead groups and accuracy in the claim's runs, and over all worlds S against r."""
    figure = Figure(figsize=(13.2, 3.8), layout="constrained")
    dead, accuracy, speed = figure.subplots(1, 3)
    methods = {cell.sampler: list(cell.finished(out).values()) for cell in CLAIM}
    for axes, title in ((dead, "Dead groups (zero variance)"), (accuracy, "Validation accuracy")):
        (panel,) = (panel for panel in plot.PANELS if panel[0] == title)
        plot.draw_panel(axes, panel, methods, "steps")
    for name, colour in zip(methods, plot.COLOURS, strict=False):
        accuracy.plot([], [], color=colour, label=f"{name}, {len(methods[name])} runs")
    accuracy.legend()
    r = np.linspace(1, max(4, found.r.max()), 50)
    speed.plot(r, np.sqrt(r), color="0.3", linewidth=1, label="√r: all noise")
    speed.axhline(audit.PAYS, color="0.3", linestyle=":", label="4/3: a teacher pays above")
    for part, rows in found.groupby("part", sort=False):
        ends = (rows.S - rows.low).clip(lower=0), (rows.high - rows.S).clip(lower=0)
        speed.errorbar(rows.r, rows.S, ends, fmt="o", capsize=2, label=part)
    speed.legend()
    speed.set(xlabel="r: live groups ÷ the baseline's", ylabel="S: steps saved", title="Speed-up")
    return figure


def main(argv=None) -> int:
    """The command line; returns 1 if a run failed."""
    parser = report.parser(__doc__)
    add = parser.add_argument
    add("--out", type=Path, default=Path("runs/study"), help="folder of everything (%(default)s)")
    add("--only", choices=PARTS, nargs="+", default=list(PARTS), help="parts of the plan")
    add("--jobs", type=int, default=2, help="runs at a time, one thread each (%(default)s)")
    add("--minutes", type=float, default=600, help="no run starts after (%(default)s); 0: report")
    args = parser.parse_args(argv)
    out = args.out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    cells = [cell for part in args.only for both in PARTS[part] for cell in both]
    cells = list(dict.fromkeys(cells))
    # One study at a time.
    with report.one_line("study", Timeout), FileLock(out / "study.lock", timeout=0):
        failed = 0
        if args.minutes:
            prepare(out, cells, args.jobs)
            failed = run_all(out, cells, args.jobs, args.minutes)
            wanted = [PARTS[part] for part in WHERE if part in args.only]
            ask(out, [base.world for both in wanted for base, _ in both], args.jobs)
        found = pd.concat([compared(out, part) for part in args.only])
        if not found.empty:
            print(show(found))
            print(plot.save(draw(out, found), out / "study.png"))
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())

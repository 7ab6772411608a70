"""The paper's claims in miniature: every run, and the table and figures of what is compared.

    python -m scripts.study --out runs/study     # can be interrupted; again: goes on

The problems are the demo's (see make_demo.py) with other chains: words read rightly at rates from
0.95 to 0.08 and up to ten of them in a row, so that a skill learned in a short chain makes the long
ones possible. Settings differ in how the lengths of training problems are distributed, and so in
the share of groups that are dead at the start. Validation problems are the same for all: lengths 1
to 10, equally often. `rare` is the demo itself, with words that are hardly ever read rightly.

A run is one process with one thread (results do not depend on ranks), its steps those of 6 + 2
devices: 4/3 as many for a method without a teacher (App. D).
"""

import json
import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pandas as pd
import torch
from filelock import FileLock, Timeout
from matplotlib.figure import Figure
from transformers import AutoModelForCausalLM, AutoTokenizer

from plumbing.files import read_lines, write_lines, write_whole
from scripts import make_demo, plot, report
from scripts.report import Run, spread, table

ROOT = Path(__file__).resolve().parent.parent
LENGTHS = tuple(range(1, 11))
# The words of the chains: more of them within reach than the demo's.
SKILLS = make_demo.make_skills(seed=0, best=0.95, worst=0.08, power=1.0)
# A chain of n words is skew^n as frequent.
SKEWS = {"easy": 0.7, "even": 1.0, "main": 1.2, "hard": 1.5, "hardest": 2.0}
BASES = {"base": (96, 3), "small": (64, 2)}  # hidden size, layers
TOKENS = 88  # of a completion, at most
SHARED = ["preset=demo", "prompts_per_step=6", f"max_completion_tokens={TOKENS}"]
SHARED += ["learning_rate=0.0002", "checkpoint_every=1000"]  # a short run needs the last step only
TEACHER = ["teacher_learning_rate=0.001", "teacher_batch_size=32"]


@dataclass(frozen=True)
class Cell:
    """Runs that differ in the seed alone: a setting, a sampler, and flags of train.py."""

    setting: str
    sampler: str
    flags: tuple = ()  # name=value
    seeds: tuple = (0, 1, 2)
    base: str = "base"
    length: int = 72  # steps with a teacher

    @property
    def name(self) -> str:
        return "-".join([self.setting, self.sampler, self.base, str(self.length), *self.flags])

    @property
    def steps(self) -> int:
        return self.length * 4 // 3 if self.sampler == "uniform" else self.length

    def folder(self, out: Path, seed: int) -> Path:
        return out / self.name / f"seed{seed}"

    def materials(self, out: Path) -> tuple[Path, Path, Path]:
        """Base model, training and validation problems."""
        if self.setting == "rare":
            return ROOT / "demo/model", ROOT / "demo/train.jsonl", ROOT / "demo/val.jsonl"
        training = out / "problems" / self.setting / "train.jsonl"
        return out / "models" / self.base, training, out / "problems" / "val.jsonl"

    def command(self, out: Path, seed: int) -> list[str]:
        """The run, as a command."""
        model, training, validation = self.materials(out)
        flags = [f"sampler={self.sampler}", f"steps={self.steps}", f"seed={seed}", *SHARED]
        flags += [f"eval_every={self.length // 12}", f"out={self.folder(out, seed)}"]
        flags += [f"model={model}", f"train_data={training}", f"val_data={validation}"]
        if self.sampler != "uniform":
            flags += [f"teacher_model={model}", *TEACHER]
        flags += self.flags
        return [sys.executable, str(ROOT / "train.py"), *(f"--{flag}" for flag in flags)]

    def finished(self, out: Path) -> dict[int, Run]:
        """By seed, the runs that are at their end, where the student is exported."""
        folders = {seed: self.folder(out, seed) for seed in self.seeds}
        return {seed: Run.load(f) for seed, f in folders.items() if (f / "student").exists()}


def pair(setting: str, *flags: str, **more) -> tuple[Cell, Cell]:
    """Uniform and Goldilocks, alike in all else."""
    return Cell(setting, "uniform", flags, **more), Cell(setting, "goldilocks", flags, **more)


# Pilots have a seed of their own and took the rates: the student's was the *baseline's* best of
# three, the teacher's had the least prequential error.
FAST, PILOT = "learning_rate=0.0004", {"seeds": (100,), "length": 36}
PILOTS = [pair("main", f"learning_rate={x}", **PILOT)[0] for x in (0.0002, 0.0004, 0.0008)]
for x in (0.0003, 0.001, 0.003):
    PILOTS.append(Cell("main", "goldilocks", (FAST, f"teacher_learning_rate={x}"), **PILOT))

MODES = ("last_token", "frozen", "lora")
OTHERS = [Cell("main", "goldilocks", (f"teacher_mode={mode}",)) for mode in MODES]
OTHERS += [Cell("main", sampler) for sampler in ("softmax", "success_rate")]
OTHERS += [Cell("main", "uniform", ("resample_rounds=2",))]  # DAPO's way round dead groups
SWEEP = [pair(setting, seeds=tuple(range(6))) for setting in SKEWS]
MAIN = SWEEP[2]
COMPARED = [*SWEEP, pair("rare"), pair("main", base="small")]  # (what is compared with, cell)
COMPARED += [pair("main", "learning_rate=0.0001", length=144), pair("main", "dead_rows=out")]
COMPARED += [pair("main", "entropy_coef=0.0003"), pair("main", "loss=dapo", seeds=(0,))]
COMPARED += [pair(setting, FAST, seeds=(0, 1), length=36) for setting in SKEWS]  # the first plan
COMPARED += [(base, cell) for base in MAIN for cell in OTHERS]
# What is signal worth? More problems a step bring more live groups and change nothing else: what
# avoiding dead groups can bring at best.
for base, _ in SWEEP[2:4]:
    for n in (3, 12):
        COMPARED.append((base, Cell(base.setting, "uniform", (f"prompts_per_step={n}",))))
CELLS = list(dict.fromkeys([*PILOTS, *(cell for cells in COMPARED for cell in cells)]))


def make_problems(out: Path, count: int = 8_000) -> None:
    """out/problems: val.jsonl, and SETTING/train.jsonl without any of its problems."""
    validation = make_demo.make_problems(360, SKILLS, seed=0, lengths=LENGTHS)
    seen = {row["problem"] for row in validation}
    for seed, (setting, skew) in enumerate(SKEWS.items(), 1):
        lengths = [n for n in LENGTHS for _ in range(round(1000 * skew**n / max(skew, 1) ** 10))]
        rows = make_demo.make_problems(count, SKILLS, seed, lengths)
        training = [row for row in rows if row["problem"] not in seen]
        write_lines(out / "problems" / setting / "train.jsonl", training)
    write_lines(out / "problems" / "val.jsonl", validation)


def dead_share(base: Path, training: Path, problems: int = 300) -> float:
    """Percent of dead groups of a base model on the first problems of a file."""
    tokenizer = AutoTokenizer.from_pretrained(base)
    model = AutoModelForCausalLM.from_pretrained(base).eval()
    torch.manual_seed(0)
    how = (make_demo.GROUP_SIZE, make_demo.TEMPERATURE, TOKENS)
    p = make_demo.graded(model, tokenizer, read_lines(training)[:problems], *how).mean(1)
    return 100 * ((p == 0) | (p == 1)).float().mean().item()


def prepare(out: Path) -> None:
    """Models, problems and dead.json, before any run. What is there is kept."""
    torch.set_num_threads(1)
    for name, (hidden, layers) in BASES.items():
        folder = out / "models" / name
        if not (folder / "model.safetensors").exists():
            tokenizer = make_demo.make_tokenizer()
            model = make_demo.make_model(tokenizer, 0, hidden, layers)
            make_demo.train_base(model, tokenizer, SKILLS, seed=0, steps=1500, lengths=LENGTHS)
            tokenizer.save_pretrained(folder)
            model.save_pretrained(folder)
    if not (out / "problems" / "val.jsonl").exists():
        make_problems(out)
    if not (out / "dead.json").exists():
        cells = {setting: Cell(setting, "uniform") for setting in (*SKEWS, "rare")}
        dead = {setting: dead_share(*cell.materials(out)[:2]) for setting, cell in cells.items()}
        write_whole(out / "dead.json", json.dumps(dead) + "\n")


def run_all(out: Path, cells: list[Cell], jobs: int, minutes: float) -> int:
    """Runs what is not finished, `jobs` at a time, seeds in turn; after `minutes` it starts none.
    Returns how many failed."""
    end = time.time() + 60 * minutes
    todo = [(c, seed) for c in cells for seed in c.seeds if seed not in c.finished(out)]
    todo.sort(key=lambda each: each[0].seeds.index(each[1]))

    def one(job: tuple[Cell, int]) -> int | None:
        """Exit status, None where the time is up."""
        if time.time() > end:
            return None
        cell, seed = job
        log = out / f"{cell.name}-seed{seed}.log"
        with log.open("w") as file:
            done = subprocess.run(cell.command(out, seed), stdout=file, stderr=file, env=one_thread)
        print(f"FAILED, see {log}" if done.returncode else f"done: {log.stem}", flush=True)
        return done.returncode

    one_thread = os.environ | {"OMP_NUM_THREADS": "1"}
    with ThreadPoolExecutor(jobs) as pool:
        statuses = list(pool.map(one, todo))
    print(f"{statuses.count(None)} runs left: the same command goes on", flush=True)
    return sum(map(bool, statuses))


def outcomes(out: Path, cell: Cell) -> pd.DataFrame:
    """By seed, of the finished runs, in percent: score, the paper's mean of the last five
    evaluations; equal, that of the last five within the steps that a teacher's run has, so after
    equally many completions; dead, the share of dead groups in those steps."""
    rows = {}
    for seed, run in cell.finished(out).items():
        equal = run.accuracy.loc[: cell.length].tail(5).mean()
        dead = 100 * run.metrics.zero_variance.loc[1 : cell.length].mean()
        rows[seed] = {"score": run.score, "equal": equal, "dead": dead}
    return pd.DataFrame.from_dict(rows, orient="index", columns=["score", "equal", "dead"])


def gain(found: dict, base: Cell, cell: Cell, what: str):
    """cell - base over their common seeds: (mean, interval, p), paired t; None below two seeds."""
    pairs = pd.concat([found[cell][what], found[base][what]], axis=1, join="inner")
    return report.t_difference(*pairs.to_numpy().T, paired=True) if len(pairs) > 1 else None


def versus(found: dict) -> str:
    """COMPARED as a Markdown table; found: the outcomes of each cell."""
    rows = []
    for base, cell in COMPARED:
        row = [cell.name, base.name, len(found[cell])]
        row += [spread(found[base].score), spread(found[cell].score)]
        for what in ("score", "equal"):
            row.append("–")
            if known := gain(found, base, cell, what):
                mean, (low, high), p = known
                row[-1] = f"{mean:+.1f} ({low:+.1f} to {high:+.1f}), p = {p:.2g}"
        rows.append([*row, spread(found[base].dead), spread(found[cell].dead)])
    header = ["", "against", "seeds", "baseline", "method"]
    header += ["method − baseline, points", "the same at equal completions"]
    header += ["dead groups in equally many steps: baseline", "method"]
    return table("Methods against baselines", header, rows)


def draw(found: dict, dead: dict) -> Figure:
    """Goldilocks' gain over uniform by the share of dead groups at the start."""
    axes = Figure(figsize=(5, 3.8), layout="constrained").subplots()
    labels = {"equal": ("equal completions", "o-"), "score": ("4/3 steps for uniform", "s--")}
    for aside, (what, (label, style)) in enumerate(labels.items()):
        points = []
        for uniform, goldilocks in SWEEP:
            if known := gain(found, uniform, goldilocks, what):
                mean, (low, high), _ = known
                # A little apart, so that no interval hides another.
                points.append([dead[uniform.setting] + aside, mean, (high - low) / 2])
        points = pd.DataFrame(points, columns=["x", "y", "yerr"])
        axes.errorbar(**points, fmt=style, color="0.2", capsize=3, label=label)
    axes.axhline(0, color="0.3", linewidth=0.8)
    axes.set(xlabel="dead groups at the start, %", ylabel="Goldilocks − uniform, points")
    axes.legend(title="95% intervals")
    return axes.figure


def main(argv=None) -> int:
    """The command line; returns 1 if a run failed."""
    parser = report.parser(__doc__)
    add = parser.add_argument
    add("--out", type=Path, default=Path("runs/study"), help="folder of everything (%(default)s)")
    add("--jobs", type=int, default=2, help="runs at a time, one thread each (%(default)s)")
    add("--minutes", type=float, default=600, help="no run starts after (%(default)s); 0: report")
    args = parser.parse_args(argv)
    out = args.out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    # One study at a time.
    with report.one_line("study", Timeout), FileLock(out / "study.lock", timeout=0):
        prepare(out)
        failed = run_all(out, CELLS, args.jobs, args.minutes)
        dead = json.loads((out / "dead.json").read_text())
        found = {cell: outcomes(out, cell) for cell in CELLS}
        print(versus(found))
        print("dead groups at the start, %:", {name: round(x) for name, x in dead.items()})
        print(plot.save(draw(found, dead), out / "gain.png"))
        if runs := [run.folder for cell in MAIN for run in cell.finished(out).values()]:
            print(plot.save(plot.draw(report.load_methods(runs)), out / "training.png"))
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())

"""The paper's claims in miniature: every run, table and figure by one command.

    python -m scripts.study --out runs/study                # can be interrupted; again: goes on
    python -m scripts.study --out runs/study --minutes 30   # starts no run after that
    python -m scripts.study --out runs/study --report       # only the report, of the runs there are

The problems are the demo's (see make_demo.py) with other chains: words read rightly at rates from
0.95 to 0.08 and up to ten of them in a row, so that a skill learned in a short chain makes the long
ones possible, as steps of a proof do. Settings differ in how the lengths of training problems are
distributed, and so in the share of groups that are dead at the start. Validation problems are the
same for all: lengths 1 to 10, equally often. `rare` is the demo itself, whose difficulty is in
words that are hardly ever read rightly.

What was fixed before any two methods were compared, and by what: see PILOTS. A run is one process
with one thread (results do not depend on ranks), its steps those of 6 + 2 devices: 4/3 as many for
a method without a teacher (App. D).
"""

import argparse
import json
import os
import subprocess
import sys
import time
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from filelock import FileLock, Timeout
from transformers import AutoModelForCausalLM, AutoTokenizer

from plumbing.files import write_lines
from scripts import compare, make_demo, plot, report
from scripts.report import Method, Run, spread, table

ROOT = Path(__file__).resolve().parent.parent
STEPS = 72  # of a run with a teacher
LENGTHS = tuple(range(1, 11))
# A chain of n words is skew^n as frequent.
SKEWS = {"easy": 0.7, "even": 1.0, "main": 1.2, "hard": 1.5, "hardest": 2.0}
BASES = {"base": (96, 3), "small": (64, 2)}  # hidden size, layers
SHARED = {
    "prompts_per_step": 6,
    "max_completion_tokens": 88,
    "checkpoint_every": 1000,  # the last step only: a run is short
    "learning_rate": 2e-4,
}
TEACHER = {"teacher_learning_rate": 1e-3, "teacher_batch_size": 32}


@dataclass(frozen=True)
class Cell:
    """Runs that differ in the seed alone: a setting, a sampler, and flags of train.py."""

    setting: str
    sampler: str
    flags: tuple = ()  # of (name, value)
    seeds: tuple = (0, 1, 2)
    base: str = "base"
    length: int = STEPS

    @property
    def name(self) -> str:
        parts = [f"{name}_{value}" for name, value in self.flags]
        parts += [self.base] * (self.base != "base")
        parts += [f"{self.length}_steps"] * (self.length != STEPS)
        return "-".join([self.setting, self.sampler, *parts])

    @property
    def label(self) -> str:
        """The sampler and the flags, as the report names them."""
        return " ".join([self.sampler, *(f"{name} {value}" for name, value in self.flags)])

    @property
    def steps(self) -> int:
        return self.length * 4 // 3 if self.sampler == "uniform" else self.length

    def folder(self, out: Path, seed: int) -> Path:
        return out / self.name / f"seed{seed}"

    def materials(self, out: Path) -> tuple[Path, Path, Path]:
        """Base model, training and validation problems."""
        if self.setting == "rare":
            demo = ROOT / "demo"
            return demo / "model", demo / "train.jsonl", demo / "val.jsonl"
        problems = out / "problems"
        training = problems / self.setting / "train.jsonl"
        return out / "models" / self.base, training, problems / "val.jsonl"

    def command(self, out: Path, seed: int) -> list[str]:
        """The run, as a command."""
        model, training, validation = self.materials(out)
        flags = {"sampler": self.sampler, "seed": seed, "steps": self.steps}
        flags |= {"model": model, "train_data": training, "val_data": validation}
        flags |= {"out": self.folder(out, seed), "eval_every": self.length // 12} | SHARED
        if self.sampler != "uniform":
            flags |= TEACHER | {"teacher_model": model}
        command = [sys.executable, str(ROOT / "train.py"), "--preset", "demo"]
        flags |= dict(self.flags)
        return command + [str(x) for name, value in flags.items() for x in (f"--{name}", value)]

    def finished(self, out: Path, seed: int) -> Run | None:
        """The run, if it has taken and evaluated its last step."""
        metrics = self.folder(out, seed) / "metrics.jsonl"
        if not metrics.exists() or not metrics.stat().st_size:
            return None
        run = Run.load(metrics.parent)
        done = run.metrics.index[-1] == self.steps and self.steps in run.curve("val_accuracy")
        return run if done else None

    def runs(self, out: Path) -> list[Run]:
        """The finished runs, in the order of their seeds."""
        return [run for seed in self.seeds if (run := self.finished(out, seed))]


def pair(setting: str, *flags, **more) -> tuple[Cell, Cell]:
    """Uniform and Goldilocks, alike in all else."""
    return Cell(setting, "uniform", flags, **more), Cell(setting, "goldilocks", flags, **more)


# Pilots have a seed of their own. The first plan took the rates by them: the student's was the
# *baseline's* best of three (4e-4), with a horizon at which the baseline is half-way (FIRST); the
# teacher's had the least prequential error (1e-3). What came of FIRST made the rate a question of
# its own: half of it in twice the steps, and again (SLOW).
FAST, PILOT = ("learning_rate", 4e-4), {"seeds": (100,), "length": 36}
RATES = [(("learning_rate", x),) for x in (2e-4, 4e-4, 8e-4)]
TEACHER_RATES = [(FAST, ("teacher_learning_rate", x)) for x in (3e-4, 1e-3, 3e-3)]
PILOTS = [Cell("main", "uniform", flags, **PILOT) for flags in RATES]
PILOTS += [Cell("main", "goldilocks", flags, **PILOT) for flags in TEACHER_RATES]

SETTINGS = ("main", "hard", "even", "hardest", "easy")
SWEEP = [pair(setting, seeds=tuple(range(6))) for setting in SETTINGS]
FIRST = [pair(setting, FAST, seeds=(0, 1), length=36) for setting in SETTINGS]
SLOW = pair("main", ("learning_rate", 1e-4), length=144)
RARE, SMALL = pair("rare"), pair("main", base="small")
ENTROPY, DEAD_OUT = pair("main", ("entropy_coef", 0.0003)), pair("main", ("dead_rows", "out"))
DAPO = pair("main", ("loss", "dapo"), seeds=(0,))
MODES = ("last_token", "frozen", "lora")
OTHERS = [Cell("main", "goldilocks", (("teacher_mode", mode),)) for mode in MODES]
OTHERS += [Cell("main", sampler) for sampler in ("softmax", "success_rate")]
OTHERS += [Cell("main", "uniform", (("resample_rounds", 2),))]  # DAPO's way round dead groups
# What is signal worth? More problems a step bring more live groups and change nothing else: what
# avoiding dead groups can bring at best.
SIGNAL = []
for base, _ in SWEEP[:2]:
    for n in (3, 12):
        cell = Cell(base.setting, "uniform", (("prompts_per_step", n),))
        SIGNAL.append((f"{base.setting}, {n} problems a step", base, cell))
LOSSES = (ENTROPY, DAPO, DEAD_OUT)
SECTIONS = {  # title in the report -> (name, cell, the cell that is compared with it)
    "Goldilocks against uniform, by setting": [(u.setting, u, g) for u, g in [*SWEEP, RARE]],
    "A smaller model": [("main, small", *SMALL)],
    "By the student's rate, its product with the steps kept": [
        (f"{(SHARED | dict(u.flags))['learning_rate']:g}, {u.length} steps", u, g)
        for u, g in (FIRST[0], SWEEP[0], SLOW)
    ],
    "Other losses": [(u.label.removeprefix("uniform "), u, g) for u, g in LOSSES],
    "The first plan: 36 steps at 4e-4": [(u.setting, u, g) for u, g in FIRST],
    "Other teachers and samplers against uniform": [(c.label, SWEEP[0][0], c) for c in OTHERS],
    "Other teachers and samplers against Goldilocks": [(c.label, SWEEP[0][1], c) for c in OTHERS],
    "Uniform with more or fewer problems a step, against 6": SIGNAL,
}
COMPARED = [cell for rows in SECTIONS.values() for _, *cells in rows for cell in cells]
CELLS = list(dict.fromkeys([*PILOTS, *COMPARED]))


def make_base(out: Path, name: str) -> None:
    """The base model `name` of BASES in out/models, trained on noisy demonstrations."""
    folder = out / "models" / name
    torch.set_num_threads(1)
    hidden, layers = BASES[name]
    tokenizer = make_demo.make_tokenizer()
    model = make_demo.make_model(tokenizer, 0, hidden, layers)
    make_demo.train_base(model, tokenizer, skills(), seed=0, steps=1500, lengths=LENGTHS)
    tokenizer.save_pretrained(folder)
    model.save_pretrained(folder)


def skills() -> dict:
    """The words of the study's chains, more of them within reach than the demo's."""
    return make_demo.make_skills(seed=0, best=0.95, worst=0.08, power=1.0)


def make_problems(out: Path, count: int = 8_000) -> None:
    """out/problems: val.jsonl, and SETTING/train.jsonl without any of its problems."""
    validation = make_demo.make_problems(360, skills(), seed=0, lengths=LENGTHS)
    seen = {row["problem"] for row in validation}
    for seed, (setting, skew) in enumerate(SKEWS.items(), 1):
        lengths = [n for n in LENGTHS for _ in range(round(1000 * skew**n / max(skew, 1) ** 10))]
        rows = make_demo.make_problems(count, skills(), seed, lengths)
        training = [row for row in rows if row["problem"] not in seen]
        write_lines(out / "problems" / setting / "train.jsonl", training)
    write_lines(out / "problems" / "val.jsonl", validation)


def measure(out: Path, cell: Cell, problems: int = 300) -> dict:
    """What a cell's base model does on its first problems: shares of dead groups, mean p."""
    model, training, _ = cell.materials(out)
    rows = [json.loads(line) for line in training.read_text().splitlines()[:problems]]
    tokenizer = AutoTokenizer.from_pretrained(model)
    lm = AutoModelForCausalLM.from_pretrained(model).eval()
    torch.manual_seed(0)
    how = (make_demo.GROUP_SIZE, make_demo.TEMPERATURE, SHARED["max_completion_tokens"])
    p = make_demo.graded(lm, tokenizer, rows, *how).numpy().astype(float).mean(axis=1)
    live = ((0 < p) & (p < 1)).mean()
    return {"wrong": (p == 0).mean(), "right": (p == 1).mean(), "live": live, "p": p.mean()}


def prepare(out: Path, jobs: int) -> None:
    """Models, problems and statistics.json, before any run. What is there is kept."""
    lacking = [name for name in BASES if not (out / "models" / name / "config.json").exists()]
    if lacking:
        print(f"making {' and '.join(lacking)}, some minutes", flush=True)
        with ProcessPoolExecutor(jobs, get_context("spawn")) as pool:
            list(pool.map(make_base, [out] * len(lacking), lacking))
    if not (out / "problems" / "val.jsonl").exists():
        make_problems(out)
    if not (out / "statistics.json").exists():
        found = {setting: measure(out, Cell(setting, "uniform")) for setting in (*SKEWS, "rare")}
        found["main, small"] = measure(out, SMALL[0])
        (out / "statistics.json").write_text(json.dumps(found, indent=1) + "\n")


def call(command: list[str], log: Path) -> int:
    """Exit status of a command on one thread, its output in a file."""
    log.parent.mkdir(parents=True, exist_ok=True)
    one_thread = os.environ | {"OMP_NUM_THREADS": "1"}
    with log.open("w") as file:
        done = subprocess.run(command, stdout=file, stderr=subprocess.STDOUT, env=one_thread)
    return done.returncode


def run_all(out: Path, cells: list[Cell], jobs: int, minutes: float) -> int:
    """Runs what is not finished, `jobs` at a time, seeds in turn; after `minutes` it starts none.

    Returns how many failed.
    """
    order = [(cell, seed) for cell in cells for seed in cell.seeds]
    order.sort(key=lambda each: each[0].seeds.index(each[1]))
    todo = [(cell, seed) for cell, seed in order if not cell.finished(out, seed)]
    print(f"{len(order) - len(todo)} of {len(order)} runs are finished", flush=True)
    start, failed, done = time.time(), [], []

    def one(cell: Cell, seed: int) -> None:
        began, name = time.time(), f"{cell.name} seed {seed}"
        if began - start > 60 * minutes:
            return
        log = out / "logs" / f"{cell.name}-{seed}.log"
        if call(cell.command(out, seed), log):
            failed.append(name)
            last = log.read_text().strip().splitlines()[-1:]
            print(f"FAILED {name}: {''.join(last)}", flush=True)
            return
        done.append(name)
        score, took = cell.finished(out, seed).score, time.time() - began
        print(f"{len(done)}/{len(todo)}  {name}: {score:.1f}%  ({took:.0f} s)", flush=True)

    with ThreadPoolExecutor(jobs) as pool:
        list(pool.map(lambda each: one(*each), todo))
    if left := len(todo) - len(done) - len(failed):
        print(f"{left} runs left: the same command goes on", flush=True)
    return len(failed)


def outcomes(out: Path, cell: Cell) -> pd.DataFrame:
    """By seed, of the finished runs, in percent: score, the paper's mean of the last five
    evaluations; equal, that of the last five within the steps that a teacher's run has, so after
    equally many completions; mean, over the whole run; dead, the share of dead groups in those
    steps."""
    rows = {}
    for run in cell.runs(out):
        known, first = run.accuracy, run.accuracy.loc[: cell.length]
        dead = 100 * run.metrics.zero_variance.loc[1 : cell.length].mean()
        means = {"score": run.score, "equal": first.tail(5).mean(), "mean": known.loc[1:].mean()}
        rows[run.config["seed"]] = means | {"dead": dead}
    columns = ["score", "equal", "mean", "dead"]
    return pd.DataFrame.from_dict(rows, orient="index", columns=columns)


def difference(one: pd.DataFrame, other: pd.DataFrame, what: str):
    """one - other over their common seeds, with interval and p (paired t); None for one."""
    seeds = one.index.intersection(other.index)
    if len(seeds) < 2:
        return None
    return report.t_difference(one[what][seeds], other[what][seeds], True)


def versus(title: str, found: dict, statistics: dict) -> str:
    """One of SECTIONS as a Markdown table; found: the outcomes of each cell."""
    rows = []
    for name, base, method in SECTIONS[title]:
        base, method = found[base], found[method]
        dead = f"{100 * (1 - statistics[name]['live']):.0f}%" if name in statistics else ""
        row = [name, dead, len(method), spread(base.score), spread(method.score)]
        for what in ("score", "equal", "mean"):
            row.append("–")
            if gain := difference(method, base, what):
                mean, (low, high), p = gain
                row[-1] = f"{mean:+.1f} ({low:+.1f} to {high:+.1f}), p = {p:.2g}"
        rows.append([*row, spread(base.dead), spread(method.dead)])
    header = ["", "dead at the start", "seeds", "baseline", "method", "method − baseline, points"]
    header += ["the same at equal completions", "the same, mean over the whole run"]
    return table(title, [*header, "dead groups in equally many steps: baseline", "method"], rows)


def pilots(out: Path, found: dict) -> str:
    """What the rates were chosen by, as a Markdown table."""
    rows = []
    for cell in PILOTS:
        errors = [error for run in cell.runs(out) for error in run.curve("teacher_mae")]
        mae = f"{np.mean(errors):.4f}" if errors else "–"
        scores = [spread(found[cell].score), spread(found[cell]["mean"])]
        flag, value = cell.flags[-1]
        rows.append([cell.sampler, flag, f"{value:g}", *scores, mae])
    header = ["sampler", "flag", "value", "last five", "mean over the run", "teacher's MAE"]
    return table("Pilots (seed 100)", header, rows)


def chains(path: Path) -> pd.Series:
    """The words of the problems in a file, a row for each word; the index is the problem's."""
    problems = [json.loads(line)["problem"] for line in path.read_text().splitlines()]
    return pd.Series([make_demo.parse(problem)[1] for problem in problems]).explode()


def coverage(out: Path, cells: list[Cell]) -> str:
    """Which words are learned: by quarters of the words, most often misread first, the live groups
    a word was in during the first STEPS steps, and the share right, at step STEPS, of validation
    problems whose worst word is of it."""
    rates = pd.Series({word: skill[2] for word, skill in skills().items()})
    quarter = ((rates.rank(method="first") - 1) * 4 // len(rates)).astype(int)
    rows = []
    for cell in cells:
        _, training, validation = cell.materials(out)
        live, right = [], []
        for run in cell.runs(out):
            s = run.selections
            alive = (s.step <= STEPS) & s.successes.between(1, run.config["group_size"] - 1)
            words = chains(training).loc[s.chosen[alive]].map(quarter)
            live.append(words.value_counts() / (len(rates) / 4))
            verdicts = report.read_table(run.folder / "evals" / f"step_{STEPS}.jsonl", "reward")
            hardest = chains(validation).map(quarter).groupby(level=0).min()
            right.append(100 * verdicts.reward.groupby(hardest).mean())
        if live:
            n, live, right = len(live), sum(live) / len(live), sum(right) / len(right)
            rows.append([cell.name, n, *(f"{live[q]:.0f} / {right[q]:.0f}%" for q in range(4))])
    names = [f"words read rightly at {rate:.2f}" for rate in rates.groupby(quarter).mean()]
    header = ["live groups a word / problems right", "seeds", *names]
    return table("Which words are learned", header, rows)


def write_report(out: Path) -> str:
    """Writes report.md, tables.md and the figures from the finished runs; returns the report."""
    statistics = json.loads((out / "statistics.json").read_text())
    found = {cell: outcomes(out, cell) for cell in CELLS}
    rows = [[name, *(f"{100 * x:.1f}%" for x in s.values())] for name, s in statistics.items()]
    settings = table("Settings", ["", "all wrong", "all right", "live groups", "mean p"], rows)
    parts = ["# The study", settings, pilots(out, found)]
    parts += [versus(title, found, statistics) for title in SECTIONS]
    parts.append(coverage(out, [cell for cells in SWEEP[:4] for cell in cells]))
    text = "\n".join(parts)
    (out / "report.md").write_text(text)
    runs = [run.folder for cell in (*SWEEP[0], *ENTROPY, *DAPO) for run in cell.runs(out)]
    if runs:
        (out / "tables.md").write_text(compare.compare(report.load_methods(runs)))
    main = [run.folder for cell in SWEEP[0] for run in cell.runs(out)]
    if main:
        methods = report.load_methods(main)
        plot.plot(methods, out / "figures")
        draw(out / "figures" / "study.png", methods, found, statistics)
    return text


def draw(path: Path, main: list[Method], found: dict, statistics: dict) -> None:
    """Dead groups and accuracy in the main setting, and the gain by dead groups at the start."""
    figure, (left, middle, right) = plot.plt.subplots(1, 3, figsize=(13, 3.8), layout="constrained")
    plot.draw_panel(left, plot.PANELS[3], main)
    plot.draw_panel(middle, plot.PANELS[0], main)
    for method, colour, marker in plot.looks(main):
        left.plot([], [], color=colour, marker=marker, label=method.name)
    # A little apart, so that no interval hides another.
    equal, score = ("equal completions", "o-", -0.5), ("4/3 of the steps for uniform", "s--", 0.5)
    for what, (label, style, aside) in {"equal": equal, "score": score}.items():
        points = []
        for u, g in SWEEP:
            if gain := difference(found[g], found[u], what):
                mean, (low, high), _ = gain
                dead = 100 * (1 - statistics[u.setting]["live"])
                points.append([dead + aside, mean, (high - low) / 2])
        if points:
            x, y, half = np.array(sorted(points)).T
            right.errorbar(x, y, half, fmt=style, color="0.2", capsize=3, label=label)
    right.axhline(0, color="0.3", linewidth=0.8)
    right.set(title="Gain (95% intervals)", xlabel="dead groups at the start, %")
    right.set(ylabel="Goldilocks − uniform, points")
    for axes in (left, right):
        axes.legend(fontsize=8, frameon=False)
    figure.savefig(path, dpi=150)
    plot.plt.close(figure)


def main(argv=None) -> int:
    """The command line; returns 1 if a run failed."""
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    add = parser.add_argument
    add("--out", type=Path, default=Path("runs/study"), help="folder of everything (%(default)s)")
    add("--jobs", type=int, default=2, help="runs at a time, one thread each (%(default)s)")
    add("--minutes", type=float, default=600, help="after so many no run is started (%(default)s)")
    add("--report", action="store_true", help="run nothing")
    args = parser.parse_args(argv)
    out, failed = args.out.resolve(), 0
    with report.one_line("study", Timeout):
        if not args.report:
            out.mkdir(parents=True, exist_ok=True)
            with FileLock(out / "study.lock", timeout=0):  # one study at a time
                prepare(out, args.jobs)
                failed = run_all(out, CELLS, args.jobs, args.minutes)
        print(write_report(out))
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())

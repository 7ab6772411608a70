#!/usr/bin/env python
r"""The paper's claims in miniature: every run, table and figure of the study, by one command that can be interrupted.

    python scripts/study.py --out runs/study                 # again: goes on; --minutes 30: starts no run after that
    python scripts/study.py --out runs/study --report        # only the report, from the runs that are there

The problems are the demo's (see make_demo.py) with other chains: words read rightly at rates from 0.95 to 0.08 and up
to ten of them in a row, so that a skill learned in a short chain makes the long ones possible, as steps of a proof do.
Settings differ in how the lengths of training problems are distributed, and so in the share of groups that are dead at
the start. Validation problems are the same for all: lengths 1 to 10, equally often. `rare` is the demo itself, whose
difficulty is in words that are hardly ever read rightly.

What was fixed before any two methods were compared, and by what: see PILOTS. A run is one process with one thread
(results do not depend on ranks), its steps those of 6 + 2 devices: 4/3 as many for a method without a teacher (App. D).
"""

import argparse
import itertools
import json
import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import compare
import make_demo
import matplotlib.pyplot as plt
import numpy as np
import plot
import torch
from intervals import t_difference
from transformers import AutoModelForCausalLM, AutoTokenizer

ROOT = Path(__file__).resolve().parent.parent
STEPS = 72  # of a run with a teacher
LENGTHS = tuple(range(1, 11))
SKEWS = {
    "easy": 0.7,
    "even": 1.0,
    "main": 1.2,
    "hard": 1.5,
    "hardest": 2.0,
}  # a chain of n words is skew^n as frequent
BASES = {"base": (96, 3), "small": (64, 2)}  # hidden size, layers
SHARED = {
    "prompts_per_step": 6,
    "max_completion_tokens": 88,
    "checkpoint_every": 1000,  # the last step only: a run is short
    "learning_rate": 2e-4,
    "teacher_learning_rate": 1e-3,
    "teacher_batch_size": 32,
}
PAIR = ("uniform", "goldilocks")


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
        parts = [f"{name}_{value}" for name, value in self.flags] + [self.base] * (
            self.base != "base"
        )
        parts += [f"{self.length}_steps"] * (self.length != STEPS)
        return "-".join([self.setting, self.sampler, *parts])

    def folder(self, out: Path, seed: int) -> Path:
        return out / self.name / f"seed{seed}"

    @property
    def steps(self) -> int:
        return self.length * 4 // 3 if self.sampler == "uniform" else self.length

    def materials(self, out: Path) -> tuple[Path, Path, Path]:
        """Base model, training and validation problems."""
        if self.setting == "rare":
            demo = ROOT / "demo"
            return demo / "model", demo / "train.jsonl", demo / "val.jsonl"
        problems = out / "problems"
        return (
            out / "models" / self.base,
            problems / self.setting / "train.jsonl",
            problems / "val.jsonl",
        )

    def command(self, out: Path, seed: int) -> list[str]:
        model, train, validation = self.materials(out)
        flags = SHARED | {"model": model, "train_data": train, "val_data": validation}
        flags |= {
            "teacher_model": model,
            "steps": self.steps,
            "seed": seed,
            "out": self.folder(out, seed),
        }
        flags |= {"sampler": self.sampler, "eval_every": self.length // 12} | dict(self.flags)
        if self.sampler == "uniform":
            flags = {k: v for k, v in flags.items() if not k.startswith("teacher")}
        command = [sys.executable, str(ROOT / "train.py"), "--preset", "demo"]
        return command + [str(x) for name, value in flags.items() for x in (f"--{name}", value)]


# Pilots have a seed of their own. The first plan took the rates by them: the student's was the *baseline's* best of
# three (4e-4), with a horizon at which the baseline is half-way (FIRST); the teacher's had the least prequential error
# (1e-3). What came of FIRST made the rate a question of its own: half of it in twice the steps, and again (SLOW).
PILOTS = [
    Cell("main", "uniform", (("learning_rate", rate),), (100,), length=36)
    for rate in (2e-4, 4e-4, 8e-4)
]
FAST = ("learning_rate", 4e-4)
PILOTS += [
    Cell("main", PAIR[1], (FAST, ("teacher_learning_rate", x)), (100,), length=36)
    for x in (3e-4, 1e-3, 3e-3)
]
SETTINGS = ("main", "hard", "even", "hardest", "easy")
SWEEP = [Cell(setting, sampler, seeds=tuple(range(6))) for setting in SETTINGS for sampler in PAIR]
SLOW = [Cell("main", sampler, (("learning_rate", 1e-4),), length=144) for sampler in PAIR]
FIRST = [Cell(s, m, (FAST,), (0, 1), length=36) for s in SETTINGS for m in PAIR]
RARE = [Cell("rare", sampler) for sampler in PAIR]
SMALL = [Cell("main", sampler, base="small") for sampler in PAIR]
ENTROPY = [Cell("main", sampler, (("entropy_coef", 0.0003),)) for sampler in PAIR]
DAPO = [Cell("main", sampler, (("loss", "dapo"),), (0,)) for sampler in PAIR]
DEAD_OUT = [Cell("main", sampler, (("dead_rows", "out"),)) for sampler in PAIR]
TEACHERS = [
    Cell("main", "goldilocks", (("teacher_mode", mode),))
    for mode in ("last_token", "frozen", "lora")
]
OTHERS = [Cell("main", sampler) for sampler in ("softmax", "success_rate")]
OTHERS += [Cell("main", "uniform", (("resample_rounds", 2),))]  # DAPO's way round dead groups
# What is signal worth? More problems a step bring more live groups and change nothing else: what avoiding dead groups
# can bring at best.
SIGNAL = [Cell(s, "uniform", (("prompts_per_step", n),)) for s in ("main", "hard") for n in (3, 12)]
CELLS = [
    *PILOTS,
    *SWEEP,
    *SIGNAL,
    *SLOW,
    *RARE,
    *SMALL,
    *TEACHERS,
    *OTHERS,
    *ENTROPY,
    *DAPO,
    *DEAD_OUT,
    *FIRST,
]


def make_base(out: Path, name: str) -> None:
    """The base model `name` of BASES in out/models, trained on noisy demonstrations of all lengths."""
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
    files, seen = {}, {row["problem"] for row in validation}
    for seed, (setting, skew) in enumerate(SKEWS.items(), 1):
        lengths = [n for n in LENGTHS for _ in range(round(1000 * skew**n / max(skew, 1) ** 10))]
        rows = make_demo.make_problems(count, skills(), seed, lengths)
        files[out / "problems" / setting / "train.jsonl"] = [
            row for row in rows if row["problem"] not in seen
        ]
    files[out / "problems" / "val.jsonl"] = validation
    for path, rows in files.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def measure(out: Path, cell: Cell, problems: int = 300) -> dict:
    """What a cell's base model does on its first training problems: shares of dead groups of 16, mean p."""
    model, train, _ = cell.materials(out)
    rows = [json.loads(line) for line in train.read_text().splitlines()[:problems]]
    lm, tokenizer = (
        AutoModelForCausalLM.from_pretrained(model).eval(),
        AutoTokenizer.from_pretrained(model),
    )
    torch.manual_seed(0)
    how = (make_demo.GROUP_SIZE, make_demo.TEMPERATURE, SHARED["max_completion_tokens"])
    p_hat = make_demo.graded(lm, tokenizer, rows, *how).numpy().astype(float).mean(axis=1)
    live = (0 < p_hat) & (p_hat < 1)
    return {
        "wrong": (p_hat == 0).mean(),
        "right": (p_hat == 1).mean(),
        "live": live.mean(),
        "p": p_hat.mean(),
    }


def prepare(out: Path, jobs: int) -> None:
    """Models, problems and statistics.json, before any run. What is there is kept."""
    lacking = [name for name in BASES if not (out / "models" / name / "config.json").exists()]
    code = "import sys; from pathlib import Path; import study; study.make_base(Path(sys.argv[1]), sys.argv[2])"
    with ThreadPoolExecutor(jobs) as pool:
        if lacking:
            print(f"making {' and '.join(lacking)}, some minutes", flush=True)
        calls = [
            pool.submit(call, [sys.executable, "-c", code, str(out), n], out / f"{n}.log")
            for n in lacking
        ]
        if not (out / "problems" / "val.jsonl").exists():
            make_problems(out)
        if any(done.result() for done in calls):
            sys.exit(f"study: a base model could not be made: see {out}/*.log")
    if not (out / "statistics.json").exists():
        found = {setting: measure(out, Cell(setting, "uniform")) for setting in (*SKEWS, "rare")}
        found["main, small"] = measure(out, SMALL[0])
        (out / "statistics.json").write_text(json.dumps(found, indent=1) + "\n")


def call(command: list[str], log: Path) -> int:
    """Exit status of a command on one thread, its output in a file."""
    log.parent.mkdir(parents=True, exist_ok=True)
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(Path(__file__).parent)}
    with log.open("w") as file:
        return subprocess.run(
            command, stdout=file, stderr=subprocess.STDOUT, env=environment
        ).returncode


def finished(folder: Path, steps: int) -> bool:
    """Whether the run there has taken and evaluated its last step."""
    if not (folder / "metrics.jsonl").exists():
        return False
    rows = plot.read_rows(folder / "metrics.jsonl")
    return bool(rows) and rows[-1]["step"] == steps and rows[-1].get("val_accuracy") is not None


def run_all(out: Path, cells: list[Cell], jobs: int, minutes: float) -> int:
    """Runs what is not finished, `jobs` at a time, seeds in turn; after `minutes` it starts none. Returns failures."""
    order = sorted(
        itertools.chain(*([(i, c, s) for i, s in enumerate(c.seeds)] for c in cells)),
        key=lambda x: x[0],
    )
    todo = [(c, s) for _, c, s in order if not finished(c.folder(out, s), c.steps)]
    print(f"{len(order) - len(todo)} of {len(order)} runs are finished", flush=True)
    start, failed, done = time.time(), [], []

    def one(cell: Cell, seed: int) -> None:
        began, folder, log = (
            time.time(),
            cell.folder(out, seed),
            out / "logs" / f"{cell.name}-{seed}.log",
        )
        if began - start > 60 * minutes:
            return
        if call(cell.command(out, seed), log):
            failed.append(folder)
            last = log.read_text().strip().splitlines()[-1:]
            print(f"FAILED {folder}: {''.join(last)}", flush=True)
            return
        done.append(folder)
        left = (time.time() - start) / len(done) * (len(todo) - len(done) - len(failed)) / 60
        took = f"{time.time() - began:.0f} s, about {left:.0f} min to go"
        print(
            f"{len(done)}/{len(todo)}  {cell.name} seed {seed}: {load(folder).score:.1f}%  ({took})",
            flush=True,
        )

    with ThreadPoolExecutor(jobs) as pool:
        for waited in [pool.submit(one, cell, seed) for cell, seed in todo]:
            waited.result()
    if left := len(todo) - len(done) - len(failed):
        print(f"{left} runs left: the same command goes on", flush=True)
    return len(failed)


def load(folder: Path) -> compare.Run:
    return compare.Run(folder, *plot.load_run(folder))


# ----------------------------------------------------------------------------------------------------
# Report


class Result:
    """The finished runs of a cell, by seed."""

    def __init__(self, out: Path, cell: Cell):
        self.cell = cell
        self.runs = {
            s: load(cell.folder(out, s))
            for s in cell.seeds
            if finished(cell.folder(out, s), cell.steps)
        }

    def at(self, what: str) -> dict[int, float]:
        """By seed: `score`, the paper's mean of the last five evaluations; `equal`, that of the last five within
        the steps that a teacher's run has, so after equally many completions; `mean`, over the whole run; `dead`, the
        share of dead groups in those steps."""
        found, length = {}, self.cell.length
        for seed, run in self.runs.items():
            values = {
                "score": [run.score],
                "equal": [a for step, a in run.accuracy.items() if step <= length][-5:],
                "mean": [a for step, a in run.accuracy.items() if step],
                "dead": [
                    100 * row["zero_variance"] for row in run.rows if 0 < row["step"] <= length
                ],
            }
            found[seed] = float(np.mean(values[what]))
        return found


def difference(
    one: Result, other: Result, what: str
) -> tuple[float, tuple[float, float], float] | None:
    """one - other over their common seeds, with 95% interval and p (paired t); None with fewer than two seeds."""
    a, b = one.at(what), other.at(what)
    common = sorted(a.keys() & b.keys())
    return (
        t_difference([a[s] for s in common], [b[s] for s in common], True)
        if len(common) > 1
        else None
    )


def shown(found) -> str:
    if found is None:
        return "–"
    mean, (low, high), p = found
    return f"{mean:+.1f} ({low:+.1f} to {high:+.1f}), p = {p:.2g}"


def spread(result: Result, what: str) -> str:
    values = list(result.at(what).values())
    return compare.spread(values) if values else "–"


def versus(title: str, pairs: list[tuple[str, Result, Result]], statistics: dict) -> str:
    """A Markdown table: for each named pair of cells the second against the first."""
    rows = []
    for name, base, method in pairs:
        dead = statistics.get(name)
        row = [name, f"{100 * (1 - dead['live']):.0f}%" if dead else "", len(method.runs)]
        row += [spread(base, "score"), spread(method, "score")]
        row += [shown(difference(method, base, what)) for what in ("score", "equal", "mean")]
        rows.append([*row, spread(base, "dead"), spread(method, "dead")])
    header = ["", "dead at the start", "seeds", "baseline", "method", "method − baseline, points"]
    header += ["the same at equal completions", "the same, mean over the whole run"]
    header += ["dead groups in equally many steps: baseline", "method"]
    return compare.table(title, header, rows)


def coverage(pairs: list[tuple[str, Result]]) -> str:
    """Which words are learned: by quarters of the words, most often misread first, the live groups a word was in during
    the first STEPS steps, and the share right, at step STEPS, of validation problems whose worst word is of it."""
    rate = {word: skill[2] for word, skill in skills().items()}
    quarter = {word: i * 4 // len(rate) for i, word in enumerate(sorted(rate, key=rate.get))}
    rates = [np.mean([rate[word] for word in quarter if quarter[word] == q]) for q in range(4)]
    rows = []
    for name, result in pairs:
        live, right = [], []
        for run in result.runs.values():
            texts = {}
            for key in ("train_data", "val_data"):
                lines = Path(run.config[key]).read_text().splitlines()
                texts[key] = [make_demo.parse(json.loads(line)["problem"])[1] for line in lines]
            s = plot.load_selections(run.folder)
            alive = (
                (s["step"] <= STEPS)
                & (0 < s["successes"])
                & (s["successes"] < run.config["group_size"])
            )
            words = [quarter[word] for i in s["chosen"][alive] for word in texts["train_data"][i]]
            live.append(4 * np.bincount(words, minlength=4) / len(quarter))
            rewards = [
                row["reward"]
                for row in plot.read_rows(run.folder / "evals" / f"step_{STEPS}.jsonl", "problem")
            ]
            hardest = np.array([min(map(quarter.get, words)) for words in texts["val_data"]])
            right.append([100 * np.mean(np.array(rewards)[hardest == q]) for q in range(4)])
        if live:
            cells = [
                f"{a:.0f} / {b:.0f}%"
                for a, b in zip(np.mean(live, axis=0), np.mean(right, axis=0), strict=True)
            ]
            rows.append([name, len(live), *cells])
    header = [
        "live groups a word / problems right",
        "seeds",
        *(f"words read rightly at {rate:.2f}" for rate in rates),
    ]
    return compare.table("Which words are learned", header, rows)


def report(out: Path) -> str:
    """Writes report.md, tables.md and the figures from the runs that are finished, and returns the report."""
    statistics = json.loads((out / "statistics.json").read_text())
    result = {cell: Result(out, cell) for cell in CELLS}

    def pairs(cells: list[Cell], name) -> list[tuple[str, Result, Result]]:
        return [
            (name(b), result[a], result[b]) for a, b in zip(cells[::2], cells[1::2], strict=True)
        ]

    def rate(cell: Cell) -> str:
        return f"{dict(cell.flags).get('learning_rate', SHARED['learning_rate']):g}, {cell.length} steps"

    rows = [
        [name, *(f"{100 * x:.1f}%" for x in found.values())] for name, found in statistics.items()
    ]
    parts = [
        "# The study",
        compare.table("Settings", ["", "all wrong", "all right", "live groups", "mean p"], rows),
    ]
    rows = []
    for r in (result[cell] for cell in PILOTS):
        errors = [row.get("teacher_mae") for run in r.runs.values() for row in run.rows]
        errors = [error for error in errors if error is not None]
        (flag, value), mae = r.cell.flags[-1], f"{np.mean(errors):.4f}" if errors else "–"
        rows.append(
            [r.cell.sampler, flag, f"{value:g}", spread(r, "score"), spread(r, "mean"), mae]
        )
    header = ["sampler", "flag", "value", "last five", "mean over the run", "teacher's MAE"]
    parts.append(compare.table("Pilots (seed 100)", header, rows))
    for title, cells, name in (
        ("Goldilocks against uniform, by setting", SWEEP + RARE, lambda cell: cell.setting),
        ("A smaller model", SMALL, lambda cell: "main, small"),
        (
            "By the student's rate, its product with the steps kept",
            FIRST[:2] + SWEEP[:2] + SLOW,
            rate,
        ),
        ("Other losses", ENTROPY + DAPO + DEAD_OUT, lambda cell: " ".join(map(str, cell.flags[0]))),
        ("The first plan: 36 steps at 4e-4", FIRST, lambda cell: cell.setting),
    ):
        parts.append(versus(title, pairs(cells, name), statistics))
    uniform, goldilocks = (result[cell] for cell in SWEEP[:2])
    named = [
        (" ".join([c.sampler, *(f"{k} {v}" for k, v in c.flags)]), result[c])
        for c in TEACHERS + OTHERS
    ]
    for base, title in ((uniform, "uniform"), (goldilocks, "Goldilocks")):
        parts.append(
            versus(
                f"Other teachers and samplers against {title}",
                [(n, base, r) for n, r in named],
                statistics,
            )
        )
    named = [
        (
            f"{c.setting}, {c.flags[0][1]} problems a step",
            result[SWEEP[0 if c.setting == "main" else 2]],
            result[c],
        )
        for c in SIGNAL
    ]
    parts.append(versus("Uniform with more or fewer problems a step, against 6", named, statistics))
    parts.append(coverage([(cell.name, result[cell]) for cell in SWEEP[:8]]))
    compared = [*SWEEP[:2], *ENTROPY, *DAPO]
    folders = [run.folder for cell in compared for run in result[cell].runs.values()]
    text = "\n".join(parts)
    (out / "report.md").write_text(text)
    if folders:
        (out / "tables.md").write_text(compare.compare(folders))
    if uniform.runs and goldilocks.runs:
        main = plot.load_groups(
            [run.folder for r in (uniform, goldilocks) for run in r.runs.values()]
        )
        plot.plot(main, {}, out / "figures")
        draw(out, main, result, statistics)
    return text


def draw(out: Path, main: dict, result: dict, statistics: dict) -> None:
    """figures/study.png: dead groups and accuracy in the main setting, and the gain by dead groups at the start."""
    figure, (left, middle, right) = plt.subplots(1, 3, figsize=(13, 3.8), layout="constrained")
    axis = "steps"
    runs = {
        name: [(rows, plot.x_values(config, rows, axis)) for _, config, rows in g]
        for name, g in main.items()
    }
    plot.draw_panel(left, plot.PANELS[3], runs, axis)
    plot.draw_panel(middle, plot.PANELS[0], runs, axis)
    for colour, marker, name in zip(plot.COLOURS, plot.MARKERS, runs, strict=False):
        left.plot([], [], color=colour, marker=marker, label=name)
    left.legend(fontsize=8, frameon=False)
    styles = (
        ("equal", "o-", "equal completions", -0.5),
        ("score", "s--", "4/3 of the steps for uniform", 0.5),
    )
    for what, style, label, aside in styles:  # a little apart, so that no interval hides another
        points = []
        for a, b in zip(SWEEP[::2], SWEEP[1::2], strict=True):
            if found := difference(result[b], result[a], what):
                points.append(
                    (100 * (1 - statistics[a.setting]["live"]) + aside, found[0], *found[1])
                )
        if points:
            x, y, low, high = np.array(sorted(points)).T
            right.errorbar(
                x, y, [y - low, high - y], fmt=style, color="0.2", capsize=3, label=label
            )
    right.axhline(0, color="0.3", linewidth=0.8)
    right.set(
        title="Gain (95% intervals)",
        xlabel="dead groups at the start, %",
        ylabel="Goldilocks − uniform, points",
    )
    right.legend(fontsize=8, frameon=False)
    figure.savefig(out / "figures" / "study.png", dpi=150)
    plt.close(figure)


def main(argv=None) -> int:
    """The command line; returns 1 if a run failed."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--out", type=Path, default=Path("runs/study"), help="folder of everything (%(default)s)"
    )
    parser.add_argument(
        "--jobs", type=int, default=2, help="runs at a time, one thread each (%(default)s)"
    )
    parser.add_argument(
        "--minutes", type=float, default=600, help="after so many no run is started (%(default)s)"
    )
    parser.add_argument(
        "--only", nargs="+", metavar="TEXT", help="runs whose name has one of these in it"
    )
    parser.add_argument("--report", action="store_true", help="run nothing")
    args = parser.parse_args(argv)
    out, failed = args.out.resolve(), 0
    if not args.report:
        out.mkdir(parents=True, exist_ok=True)
        prepare(out, args.jobs)
        cells = [
            cell for cell in CELLS if not args.only or any(text in cell.name for text in args.only)
        ]
        failed = run_all(out, cells, args.jobs, args.minutes)
    print(report(out))
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())

#!/usr/bin/env python
"""Which sampler finds useful problems, and when? The samplers of sampler.py on a simulated student, in a minute.

    python scripts/sampler_lab.py --out figures
    python scripts/sampler_lab.py --problems 1000 300000 --steps 1000 --readability 0.9 --samplers uniform thompson

Prints a Markdown table and draws sampler_lab.png. No language model: the student and what the teacher reads are
the formulas below, and all else (pools, passes, posteriors, bandits) is the code that train.py runs.

The model. A problem has a skill k, one of 8, and a difficulty d ~ N(0, 3²); the student solves it with probability

    p = σ(a_k - d),      a_k ~ N(-1, 1) at the start.

A group of G attempts with the share p̂ right moves the student as Eq. 2 says a gradient step would,

    a_k += 0.01 · √(p̂(1-p̂)),  a tenth of it in every other skill,

so a dead group teaches nothing. That √(p(1-p)) is the right thing to look for is thus assumed, not shown; the lab
asks who finds it. A problem teaches as much the tenth time as the first, which is kind to methods that come back.

A teacher sees of a question its skill, with probability r (else a random one), and √r · d/3 + √(1-r) · noise: the
`readability` r is the share of difficulty's variance that can be read. It is a small network in the place of the
large one, with Alg. 2's buffer and the same two methods, called as with --teacher_lag 0. `static` and `category` get
a column with the pass rate in 16 attempts of a model that is one unit of ability ahead of the student's start;
`category_skill` gets the true skill. `revisiting` is Goldilocks without passes: any problem may be a candidate again.
"""

import argparse
import itertools
import sys
import time
from collections import deque
from functools import lru_cache
from pathlib import Path
from types import SimpleNamespace

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from sampler import SAMPLERS, Category, Goldilocks, Pooled, Sampler, utility_target

P, G, K, EPSILON = 18, 16, 8, 0.2  # prompts, completions, candidates, ε: the paper's
SKILLS, SPREAD, START, RATE, TRANSFER, AHEAD = 8, 3.0, -1.0, 0.01, 0.1, 1.0
HELD_OUT = 4096  # problems that nobody trains on, for the success rate; and as many of the data to measure regret


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


class Bank:
    """n simulated problems, in the place of sampler.Problems: a question is its own index."""

    def __init__(self, n: int, readability: float, start_S: np.ndarray, rng: np.random.Generator):
        self.skill = rng.integers(SKILLS, size=n, dtype=np.int8)
        self.difficulty = rng.normal(0, SPREAD, n).astype(np.float32)
        self.rate = rng.binomial(16, sigmoid(start_S[self.skill] + AHEAD - self.difficulty)).astype(
            np.int8
        )
        noise = rng.normal(size=n).astype(np.float32)
        self.seen_difficulty = (
            np.sqrt(readability) * self.difficulty / SPREAD + np.sqrt(1 - readability) * noise
        )
        random_skill = rng.integers(SKILLS, size=n, dtype=np.int8)
        self.seen_skill = np.where(
            rng.random(n, dtype=np.float32) < readability, self.skill, random_skill
        )

    def __len__(self) -> int:
        return len(self.skill)

    def question(self, index) -> int:
        return index

    def column(self, name: str) -> tuple[list, np.ndarray]:
        """ "skill" and "pass_rate" (of the other model), as Problems.column returns them."""
        return {"skill": (range(SKILLS), self.skill), "pass_rate": (np.arange(17) / 16, self.rate)}[
            name
        ]


class Student:
    """a_k, and how it grows."""

    def __init__(self, ability_S: np.ndarray):
        self.ability_S = ability_S.copy()

    def p(self, bank: Bank, index) -> np.ndarray:
        """The true success rate of problems."""
        return sigmoid(self.ability_S[bank.skill[index]] - bank.difficulty[index])

    def learn(self, bank: Bank, index_N, successes_N) -> None:
        """One training step on N groups."""
        gain_N = RATE * utility_target(successes_N / G)
        gain_S = np.bincount(bank.skill[index_N], weights=gain_N, minlength=SKILLS)
        self.ability_S += (1 - TRANSFER) * gain_S + TRANSFER * gain_S.sum()


class Reader:
    """A teacher: f = 0.5 σ(w · φ), φ the hat functions of the seen difficulty, for all skills and for the seen one.

    Alg. 2: the latest 64 outcomes, and after every 4th 4 epochs of gradient descent on the MSE, here in one batch.
    """

    GRID = np.linspace(-3, 3, 13)
    LEARNING_RATE = 40.0

    def __init__(self, bank: Bank):
        self.bank, self.replay, self.pushed = bank, deque(maxlen=64), 0
        self.w = np.zeros((1 + SKILLS) * len(self.GRID))

    def predict(self, questions) -> np.ndarray:
        return 0.5 * sigmoid(self._logit(*self._features(np.asarray(questions))))

    def update(self, question, successes: int, G: int, target=utility_target) -> None:
        self.replay.append((question, target(successes / G)))
        self.pushed += 1
        if self.pushed % 4 == 0:
            questions, y_B = (np.array(column) for column in zip(*self.replay, strict=True))
            at_B_4, value_B_4 = self._features(questions.astype(np.int64))
            for _ in range(4):
                s_B = sigmoid(self._logit(at_B_4, value_B_4))
                slope_B = 2 * (0.5 * s_B - y_B) * 0.5 * s_B * (1 - s_B) / len(y_B)
                gradient = np.bincount(
                    at_B_4.ravel(), (slope_B[:, None] * value_B_4).ravel(), len(self.w)
                )
                self.w -= self.LEARNING_RATE * gradient

    def _features(self, index_B) -> tuple[np.ndarray, np.ndarray]:
        """The four features of a question that are not zero: where they are, and their values, both (B, 4)."""
        x_B = np.clip((self.bank.seen_difficulty[index_B] + 3) * 2, 0, len(self.GRID) - 1.001)
        left_B = x_B.astype(np.int64)
        own_B = left_B + (1 + self.bank.seen_skill[index_B].astype(np.int64)) * len(self.GRID)
        right_B = x_B - left_B
        value_B_4 = np.column_stack([1 - right_B, right_B, 1 - right_B, right_B])
        return np.column_stack([left_B, left_B + 1, own_B, own_B + 1]), value_B_4

    def _logit(self, at_B_4, value_B_4) -> np.ndarray:
        return (self.w[at_B_4] * value_B_4).sum(axis=1)


class Oracle(Pooled):
    """Knows p, and picks the best of each pool: what any choice among K random problems is measured against."""

    revisits = True

    def __init__(self, bank, config, fits, p):
        super().__init__(bank, config, fits)
        self.p = p

    def score(self, pool_N_K):
        return utility_target(self.p(self.problems, pool_N_K))


class Revisiting(Goldilocks):
    """Goldilocks whose candidates are drawn from all problems: the teacher alone, without the pass over the data."""

    revisits = True


# name -> class and the column it would get: train.py's, and three to compare them with
LAB: dict[str, tuple[type[Sampler], str]] = {
    name: (cls, "pass_rate") for name, cls in SAMPLERS.items()
} | {
    "category_skill": (Category, "skill"),
    "revisiting": (Revisiting, ""),
    "oracle": (Oracle, ""),
}


@lru_cache(maxsize=1)
def world(n: int, readability: float, seed: int) -> tuple[np.ndarray, Bank, Bank]:
    """(the student's start, held-out problems, n problems): the same for every sampler, the first two for every n."""
    rng = np.random.default_rng(seed)
    start_S = rng.normal(START, 1.0, SKILLS)
    return start_S, Bank(HELD_OUT, 0, start_S, rng), Bank(n, readability, start_S, rng)


def best_of(utilities: np.ndarray, k: int) -> float:
    """The mean of the highest of k utilities drawn at random, with replacement."""
    n = len(utilities)
    rank = np.arange(n + 1) / n
    return float(np.sort(utilities) @ np.diff(rank**k))


def simulate(name: str, n: int, readability: float, steps: int, seed: int) -> dict[str, float]:
    """One run: means over its steps, its coverage, the held-out success rate gained, and the sampler's own seconds.

    regret is the best of K random problems, for the student as it is at that step, minus the utility selected.
    """
    start_S, held_out, bank = world(n, readability, seed)
    student, rng = Student(start_S), np.random.default_rng([seed, 2])
    before = student.p(held_out, slice(None)).mean()
    cls, column = LAB[name]
    config = SimpleNamespace(candidates=K, epsilon=EPSILON, seed=seed, column=column)
    helper = [Reader(bank)] if cls.uses_teacher else [student.p] if cls is Oracle else []
    began = time.perf_counter()
    sampler = cls(bank, config, lambda index: True, *helper)
    busy = time.perf_counter() - began
    reference, trained = np.arange(min(n, HELD_OUT)), np.zeros(n, dtype=bool)
    dead, utility, best = np.zeros((3, steps))
    for step in range(steps):
        began = time.perf_counter()
        index_N = sampler.propose(P).index_N
        busy += time.perf_counter() - began
        p_N = student.p(bank, index_N)
        successes_N = rng.binomial(G, p_N)
        dead[step] = ((successes_N == 0) | (successes_N == G)).mean()
        utility[step] = utility_target(p_N).mean()
        best[step] = best_of(utility_target(student.p(bank, reference)), K)
        began = time.perf_counter()
        sampler.observe(index_N, successes_N, G)
        busy += time.perf_counter() - began
        student.learn(bank, index_N, successes_N)
        trained[index_N] = True
    return {
        "dead": dead.mean(),
        "utility": utility.mean(),
        "regret": (best - utility).mean(),
        "coverage": trained.mean(),
        "gained": student.p(held_out, slice(None)).mean() - before,
        "seconds": busy,
    }


# ----------------------------------------------------------------------------------------------------
# Table and picture

COLUMNS = {  # metric -> its heading
    "dead": "dead groups",
    "utility": "utility selected",
    "regret": "regret",
    "coverage": "coverage",
    "gained": "success gained",
    "seconds": "sampler s",
}
PANELS = {"dead": "dead groups (share)", "gained": "success rate gained"}
# What a sampler knows a problem by -> Okabe and Ito's colour.
COLOURS = {
    "nothing": "#000000",
    "history": "#D55E00",
    "column": "#009E73",
    "teacher": "#0072B2",
    "truth": "#000000",
}
MARKERS = ("o", "s", "^", "v", "P")  # of the teachers' readabilities, in order


def knows_by(name: str) -> str:
    """A key of COLOURS."""
    cls = LAB[name][0]
    if cls.uses_teacher or cls is Oracle:
        return "truth" if cls is Oracle else "teacher"
    return "column" if "column" in cls.flags else "history" if cls.learned else "nothing"


def sweep(
    names, sizes, readabilities, steps: int, seeds: int
) -> dict[tuple, dict[str, np.ndarray]]:
    """(problems, name, readability) -> metric -> values by seed. Readability is None where there is no teacher."""
    runs = {}
    for n, r, seed in itertools.product(sizes, readabilities, range(seeds)):
        for name in names:
            if LAB[name][0].uses_teacher or r == readabilities[0]:
                key = n, name, r if LAB[name][0].uses_teacher else None
                runs.setdefault(key, []).append(simulate(name, n, r, steps, seed))
    known = list(COLOURS)
    order = sorted(
        runs,
        key=lambda key: (key[0], known.index(knows_by(key[1])), names.index(key[1]), key[2] or 0),
    )
    return {
        key: {metric: np.array([run[metric] for run in runs[key]]) for metric in COLUMNS}
        for key in order
    }


def table(rows, steps: int) -> str:
    """Markdown: means over the seeds, and the sample standard deviation of what was gained."""
    heads = ["problems", "passes", "sampler", "r", *COLUMNS.values()]
    lines = [heads, ["---"] * len(heads)]
    for (n, name, r), row in rows.items():
        cells = {metric: f"{values.mean():.3f}" for metric, values in row.items()}
        if len(row["gained"]) > 1:
            cells["gained"] += f" ± {row['gained'].std(ddof=1):.3f}"
        lines.append(
            [f"{n:,}", f"{steps * P / n:.2g}", name, "" if r is None else f"{r:g}", *cells.values()]
        )
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def draw(rows, steps: int, out: Path) -> Path:
    """A line for each sampler, a mark for each readability, a column of panels for each number of problems."""
    sizes, names = (list(dict.fromkeys(key[i] for key in rows)) for i in (0, 1))
    readabilities = sorted({r for _, _, r in rows if r is not None})

    def look(colour, r):
        """Diamonds without a teacher; with one a shape for each readability, filled for the highest."""
        marker = "D" if r is None else MARKERS[readabilities.index(r) % len(MARKERS)]
        return {
            "color": colour,
            "marker": marker,
            "mfc": "white" if r in readabilities[:-1] else colour,
            "ls": "",
        }

    size = (2.6 + 2.7 * len(sizes), 1.6 + 0.5 * len(names))
    figure, grid = plt.subplots(
        len(PANELS),
        len(sizes),
        figsize=size,
        sharex="row",
        sharey=True,
        squeeze=False,
        layout="constrained",
    )
    for (metric, label), line in zip(PANELS.items(), grid, strict=True):
        for n, axes in zip(sizes, line, strict=True):
            for (at, name, r), row in rows.items():
                if at == n:
                    x, y = row[metric], names.index(name)
                    colour = COLOURS[knows_by(name)]
                    axes.plot(
                        [x.min(), x.max()], [y, y], color=colour, linewidth=1
                    )  # the seeds' range
                    axes.plot(x.mean(), y, **look(colour, r), markersize=6)
                    if name == "uniform":
                        axes.axvline(x.mean(), color="0.5", linewidth=0.8, linestyle=":", zorder=0)
            axes.set_xlabel(label)
            axes.grid(axis="y", alpha=0.25, linewidth=0.6)
            axes.spines[["top", "right"]].set_visible(False)
        line[0].set_yticks(range(len(names)), names)
        for name, tick in zip(names, line[0].get_yticklabels(), strict=True):
            tick.set_color(COLOURS[knows_by(name)])
    for n, axes in zip(sizes, grid[0], strict=True):
        axes.set_title(f"{n:,} problems: {steps * P / n:.2g} passes", fontsize=10)
    grid[0, 0].set_ylim(len(names) - 0.5, -0.5)  # the first on top, none cut
    marks = {
        f"a problem is known by its {what}": look(COLOURS[what], None)
        for what in ("history", "column")
    }
    marks |= {
        f"by a teacher, readability {r:g}": look(COLOURS["teacher"], r) for r in readabilities
    }
    handles = [plt.Line2D([], [], label=label, **style) for label, style in marks.items()]
    figure.legend(handles=handles, loc="outside upper center", ncols=3, frameon=False, fontsize=9)
    path = out if out.suffix in (".png", ".pdf", ".svg") else out / "sampler_lab.png"
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150)
    plt.close(figure)
    return path


def main(argv=None) -> None:
    """The command line of `sweep`."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--problems", type=int, nargs="+", default=[1_000, 5_000, 3_000_000], metavar="N",
                        help="sizes of the data (%(default)s)")  # fmt: skip
    parser.add_argument("--readability", type=float, nargs="+", default=[0.0, 0.5, 0.9], metavar="R",
                        help="share of the difficulty that a teacher can read (%(default)s)")  # fmt: skip
    parser.add_argument(
        "--samplers", nargs="+", default=list(LAB), choices=LAB, metavar="NAME", help="(all)"
    )
    parser.add_argument(
        "--steps", type=int, default=300, help=f"training steps of {P} groups (%(default)s)"
    )
    parser.add_argument(
        "--seeds", type=int, default=3, help="runs of each, seeds 0, 1, … (%(default)s)"
    )
    parser.add_argument(
        "--out", type=Path, default=Path("figures"), help="a folder, or a .png, .pdf or .svg file"
    )
    args = parser.parse_args(argv)
    if min(args.problems) < P * K:
        parser.error(f"--problems {min(args.problems)}: a step draws {P * K}")
    if args.steps < 1 or args.seeds < 1 or not all(0 <= r <= 1 for r in args.readability):
        parser.error("--steps and --seeds must be at least 1, and --readability in [0, 1]")
    rows = sweep(
        args.samplers,
        sorted(set(args.problems)),
        sorted(set(args.readability)),
        args.steps,
        args.seeds,
    )
    print(table(rows, args.steps))
    print(f"\n{draw(rows, args.steps, args.out)}")


if __name__ == "__main__":
    main()

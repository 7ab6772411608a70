"""Which sampler finds useful problems, and when? On a simulated student, in two minutes.

    python -m scripts.sampler_lab --out figures
    python -m scripts.sampler_lab --problems 1000 300000 --samplers uniform thompson my.py:Mine

Prints a table and draws sampler_lab.png. No language model: the student and what the
teacher reads are the formulas below; pools, passes, posteriors and bandits are those of a run.

The model. A problem has a skill k, one of 8, and a difficulty d ~ N(0, 3²); the student solves it
with probability

    p = σ(a_k - d),      a_k ~ N(-1, 1) at the start.

A group of G attempts with the share p̂ right moves the student as Eq. 2 says a gradient step would,

    a_k += 0.01 · √(p̂(1-p̂)),  a tenth of it in every other skill,

so a dead group teaches nothing. That √(p(1-p)) is the right thing to look for is thus assumed, not
shown; the lab asks who finds it. A problem teaches as much the tenth time as the first, which is
kind to methods that come back.

A teacher sees of a question its skill, with probability r (else a random one), and
√r · d/3 + √(1-r) · noise: the `readability` r is the share of difficulty's variance that can be
read. It is a small network in the place of the large one, with Alg. 2's buffer and the same two
methods, called as with --teacher_lag 0. A sampler that takes a column gets the pass rate in 16
attempts of a model that is one unit of ability ahead of the student's start; `category_skill` gets
the true skill. `revisiting` is Goldilocks without passes: any problem may be a candidate again.
"""

import argparse
import itertools
from collections import deque
from functools import lru_cache
from pathlib import Path
from types import SimpleNamespace

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd

from plumbing.errors import InputError
from sampler import OTHERS, SAMPLERS, Context, Goldilocks, Pooled, find_sampler, utility_target

P, G, K, EPSILON = 18, 16, 8, 0.2  # prompts, completions, candidates, ε: the paper's
SKILLS, SPREAD, START, RATE, TRANSFER, AHEAD = 8, 3.0, -1.0, 0.01, 0.1, 1.0
HELD_OUT = 4096  # problems that nobody trains on, for the success rate


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


class Bank:
    """n simulated problems, in the place of Problems: a question is its own index."""

    def __init__(self, n: int, readability: float, start_S: np.ndarray, rng: np.random.Generator):
        self.skill = rng.integers(SKILLS, size=n, dtype=np.int8)
        self.difficulty = rng.normal(0, SPREAD, n).astype(np.float32)
        ahead = sigmoid(start_S[self.skill] + AHEAD - self.difficulty)
        self.rate = rng.binomial(16, ahead).astype(np.int8)
        noise = rng.normal(size=n).astype(np.float32)
        signal = self.difficulty / SPREAD
        self.seen_difficulty = np.sqrt(readability) * signal + np.sqrt(1 - readability) * noise
        random_skill = rng.integers(SKILLS, size=n, dtype=np.int8)
        legible = rng.random(n, dtype=np.float32) < readability
        self.seen_skill = np.where(legible, self.skill, random_skill)

    def __len__(self) -> int:
        return len(self.skill)

    def question(self, index) -> int:
        return index

    def column(self, name: str) -> tuple[list, np.ndarray]:
        """The skill, or else the other model's pass rate, as Problems.column returns them."""
        if name == "skill":
            return list(range(SKILLS)), self.skill
        return [k / 16 for k in range(17)], self.rate


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
    """A teacher: f = 0.5 σ(w · φ). Alg. 2: the latest 64 outcomes, and after every 4th 4 epochs of
    gradient descent on the MSE, here in one batch."""

    GRID = np.linspace(-3, 3, 13)
    LEARNING_RATE = 40.0

    def __init__(self, bank: Bank):
        self.bank, self.replay, self.pushed = bank, deque(maxlen=64), 0
        self.w = np.zeros((SKILLS + 1) * len(self.GRID))

    def features(self, index_B) -> np.ndarray:
        """φ, (B, 117): hat functions of the seen difficulty, for the seen skill and for any."""
        x_B_1 = np.clip(self.bank.seen_difficulty[index_B], -3, 3)[:, None]
        hats_B_13 = np.maximum(0, 1 - 2 * abs(x_B_1 - self.GRID))
        skills_B_9 = np.eye(SKILLS, SKILLS + 1)[self.bank.seen_skill[index_B]]
        skills_B_9[:, SKILLS] = 1
        return np.einsum("bs,bh->bsh", skills_B_9, hats_B_13).reshape(len(x_B_1), -1)

    def predict(self, questions) -> np.ndarray:
        return 0.5 * sigmoid(self.features(np.array(questions)) @ self.w)

    def update(self, question, successes: int, G: int, target=utility_target) -> None:
        self.replay.append((question, target(successes / G)))
        self.pushed += 1
        if self.pushed % 4 == 0:
            questions, y_B = (np.array(column) for column in zip(*self.replay, strict=True))
            phi_B_D = self.features(questions.astype(int))
            for _ in range(4):
                s_B = sigmoid(phi_B_D @ self.w)
                slope_B = 2 * (0.5 * s_B - y_B) * 0.5 * s_B * (1 - s_B)
                self.w -= self.LEARNING_RATE * slope_B @ phi_B_D / len(y_B)


class Oracle(Pooled):
    """Knows p, and picks the best of each pool: what any choice among K is measured against."""

    revisits = True

    def __init__(self, context: Context):
        super().__init__(context)
        self.student = context.teacher

    def score(self, pool_N_K):
        return utility_target(self.student.p(self.problems, pool_N_K))


class Revisiting(Goldilocks):
    """Goldilocks whose candidates are drawn from all problems: the teacher alone."""

    revisits = True


# The lab's own, beside those of train.py.
OWN = {"category_skill": find_sampler("category"), "revisiting": Revisiting, "oracle": Oracle}
LAB = [*SAMPLERS, *sorted(path.stem for path in OTHERS.glob("*.py")), *OWN]


def find(name: str) -> type:
    """A sampler of the lab, or what --sampler means in train.py."""
    return OWN.get(name) or find_sampler(name)


@lru_cache(maxsize=1)
def world(n: int, readability: float, seed: int) -> tuple[np.ndarray, Bank, Bank]:
    """(the student's start, held-out problems, n problems): the same for every sampler, the first
    two for every n."""
    rng = np.random.default_rng(seed)
    start_S = rng.normal(START, 1.0, SKILLS)
    return start_S, Bank(HELD_OUT, 0, start_S, rng), Bank(n, readability, start_S, rng)


def simulate(name: str, n: int, readability: float, steps: int, seed: int) -> dict[str, float]:
    """One run: means over its steps, coverage, and the held-out success rate gained."""
    start_S, held_out, bank = world(n, readability, seed)
    student, rng = Student(start_S), np.random.default_rng([seed, 2])
    before = student.p(held_out, slice(None)).mean()
    column = "skill" if name == "category_skill" else "pass_rate"
    config = SimpleNamespace(candidates=K, epsilon=EPSILON, seed=seed, column=column)
    teacher = student if name == "oracle" else Reader(bank)
    sampler = find(name)(Context(bank, config, lambda index: True, teacher))
    dead, utility, trained = np.zeros(steps), np.zeros(steps), np.zeros(n, dtype=bool)
    for step in range(steps):
        index_N = sampler.propose(P).index_N
        p_N = student.p(bank, index_N)
        successes_N = rng.binomial(G, p_N)
        dead[step] = ((successes_N == 0) | (successes_N == G)).mean()
        utility[step] = utility_target(p_N).mean()
        sampler.observe(index_N, successes_N, G)
        student.learn(bank, index_N, successes_N)
        trained[index_N] = True
    return {
        "dead groups": dead.mean(),
        "utility selected": utility.mean(),
        "coverage": trained.mean(),
        "success gained": student.p(held_out, slice(None)).mean() - before,
    }


# What a sampler knows a problem by -> Okabe and Ito's colour.
COLOURS = {"nothing": "#000000", "history": "#D55E00", "column": "#009E73"}
COLOURS |= {"teacher": "#0072B2", "truth": "#000000"}
RUN = ["problems", "knows", "sampler", "r"]  # what runs that differ in the seed alone share


def knows(cls: type) -> str:
    """A key of COLOURS."""
    if cls.uses_teacher or cls is Oracle:
        return "teacher" if cls.uses_teacher else "truth"
    if "column" in cls.flags:
        return "column"
    return "history" if getattr(cls, "learned", ()) else "nothing"


def sweep(names, sizes, readabilities, steps: int, seeds: int) -> pd.DataFrame:
    """A row for each run: RUN and what simulate returns. r is "" where there is no teacher."""
    rows, found = [], {name: find(name) for name in names}
    for n, r, seed in itertools.product(sizes, readabilities, range(seeds)):
        for name, cls in found.items():
            label = name.rpartition(":")[2].lower()
            if cls.uses_teacher or r == readabilities[0]:
                run = (n, knows(cls), label, f"{r:g}" if cls.uses_teacher else "")
                rows.append(dict(zip(RUN, run, strict=True)) | simulate(name, n, r, steps, seed))
    runs = pd.DataFrame(rows)
    runs["knows"] = pd.Categorical(runs["knows"], list(COLOURS))
    return runs.sort_values(["problems", "knows"], kind="stable")


def table(runs: pd.DataFrame) -> str:
    """Means over the seeds, and the sample standard deviation of what was gained."""
    groups = runs.groupby(RUN, sort=False, observed=True)
    means = groups.mean().assign(std=groups["success gained"].std())
    return means.round(3).to_string(sparsify=False)


def draw(runs: pd.DataFrame, steps: int, out: Path) -> Path:
    """A panel for each metric and size, in it a line for each sampler and a mark for each run."""
    sizes, names = list(runs["problems"].unique()), list(runs["sampler"].unique())
    marks = dict(zip(runs["r"].unique(), itertools.cycle("Dos^vP"), strict=False))
    size = (2.6 + 2.7 * len(sizes), 1.6 + 0.5 * len(names))
    shared = {"sharex": "row", "sharey": True, "squeeze": False, "layout": "constrained"}
    figure, grid = plt.subplots(2, len(sizes), figsize=size, **shared)
    for line, metric in zip(grid, ("dead groups", "success gained"), strict=True):
        for axes, n in zip(line, sizes, strict=True):
            part = runs[runs["problems"] == n]
            for r, group in part.groupby("r", sort=False):
                y, colours = group["sampler"].map(names.index), list(group["knows"].map(COLOURS))
                axes.scatter(group[metric], y, c=colours, marker=marks[r], alpha=0.6)
            uniform = part.loc[part["sampler"] == "uniform", metric]
            axes.axvline(uniform.mean(), color="0.5", linewidth=0.8, linestyle=":", zorder=0)
            axes.set(xlabel=metric, title=f"{n:,} problems: {steps * P / n:.2g} passes")
            axes.set_yticks(range(len(names)), names)
            axes.grid(axis="y", alpha=0.25, linewidth=0.6)
    grid[0, 0].invert_yaxis()  # the first on top
    styles = [(f"known by its {x}", "D", COLOURS[x]) for x in ("history", "column")]
    styles += [(f"a teacher, readability {r}", marks[r], COLOURS["teacher"]) for r in marks if r]
    handles = [plt.Line2D([], [], ls="", label=x, marker=m, color=c) for x, m, c in styles]
    figure.legend(handles=handles, loc="outside upper center", ncols=3, frameon=False)
    path = out if out.suffix in (".png", ".pdf", ".svg") else out / "sampler_lab.png"
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150)
    plt.close(figure)
    return path


def main(argv=None) -> None:
    """The command line of `sweep`."""
    formatter = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=formatter)
    add = parser.add_argument
    sizes, readabilities = [1_000, 5_000, 3_000_000], [0.0, 0.5, 0.9]
    add("--problems", type=int, nargs="+", default=sizes, help="sizes of the data")
    add("--readability", type=float, nargs="+", default=readabilities, help="what can be read")
    add("--samplers", nargs="+", default=LAB, help=f"of {', '.join(LAB)}, or FILE.py:CLASS (all)")
    add("--steps", type=int, default=300, help=f"training steps of {P} groups (300)")
    add("--seeds", type=int, default=3, help="runs of each, seeds 0, 1, … (3)")
    add("--out", type=Path, default=Path("figures"), help="a folder, or a .png, .pdf or .svg file")
    args = parser.parse_args(argv)
    if min(args.problems) < P * K:
        parser.error(f"--problems {min(args.problems)}: a step draws {P * K}")
    if args.steps < 1 or args.seeds < 1 or not all(0 <= r <= 1 for r in args.readability):
        parser.error("--steps and --seeds must be at least 1, and --readability in [0, 1]")
    sizes, readabilities = sorted(set(args.problems)), sorted(set(args.readability))
    try:
        runs = sweep(args.samplers, sizes, readabilities, args.steps, args.seeds)
    except InputError as error:
        parser.error(str(error))
    print(table(runs))
    print(f"\n{draw(runs, args.steps, args.out)}")


if __name__ == "__main__":
    main()

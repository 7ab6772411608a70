"""Compare samplers on a simulated student, without a language model.

    python -m experiments.sampler_lab --problems 1000 300000 --samplers uniform mopps my.py:Mine

A problem has a skill k, one of 8, and a difficulty d ~ N(0, 3²). The student solves it with
probability p = σ(a_k - d), where a_k ~ N(-1, 1) at the start. A step on N groups, with shares p̂ of
right attempts, moves the student by the law of Eq. 2: each group adds 0.18/N · √(p̂(1-p̂)) to a_k,
and a tenth of that to every other skill. So the lab assumes that √(p(1-p)) is worth looking for; it
shows which sampler finds it. A problem teaches as much the tenth time as the first. All samplers
spend as many attempts as --steps steps of P groups of G; screening takes its share of them.

A teacher sees part of a question. With probability v, the visibility, it sees the skill (else a
random one), and of the difficulty it sees √v · d/3 + √(1-v) · noise: v is the share of the variance
that is visible. A sampler that takes a column gets the pass rate in 16 attempts of a model one unit
of ability ahead of the student's start.
"""

import itertools
from collections import deque
from functools import lru_cache

import numpy as np
import pandas as pd
from scipy.special import expit

from grpo import Completion, Group
from plumbing.command_line import count, fraction
from plumbing.config import Config
from sampler import (
    FOLDER,
    SAMPLERS,
    Context,
    Goldilocks,
    Pooled,
    Sampler,
    find_sampler,
    utility_target,
)
from scripts import analysis

P, G, K, EPSILON = 18, 16, 8, 0.2  # prompts, completions, candidates, ε: the paper's
SKILLS, SPREAD, START, RATE, TRANSFER, AHEAD = 8, 3.0, -1.0, 0.18, 0.1, 1.0
HELD_OUT = 4096  # problems that nobody trains on, for the success rate


class Bank:
    """n simulated problems, in the place of Problems."""

    def __init__(self, n: int, visibility: float, start_S: np.ndarray, rng: np.random.Generator):
        self.skill = rng.integers(SKILLS, size=n, dtype=np.int8)
        self.difficulty = rng.normal(0, SPREAD, n).astype(np.float32)
        ahead = expit(start_S[self.skill] + AHEAD - self.difficulty)
        self.rate = rng.binomial(16, ahead).astype(np.int8)
        noise, signal = rng.normal(size=n).astype(np.float32), self.difficulty / SPREAD
        self.seen_difficulty = np.sqrt(visibility) * signal + np.sqrt(1 - visibility) * noise
        random_skill = rng.integers(SKILLS, size=n, dtype=np.int8)
        visible = rng.random(n, dtype=np.float32) < visibility
        self.seen_skill = np.where(visible, self.skill, random_skill)
        self.is_read = False  # whether a question was

    def __len__(self) -> int:
        return len(self.skill)

    def question(self, index) -> str:
        """A problem's index, and in two words what is visible of it, for samplers that read."""
        self.is_read = True
        half_units = round(2 * float(self.seen_difficulty[index]))
        return f"{index} skill{self.seen_skill[index]} level{half_units + 20}"

    def column(self, name: str) -> tuple[list[str], np.ndarray]:
        """As Problems.column: the values, and each problem's place among them."""
        return [str(k / 16) for k in range(17)], self.rate


class Student:
    def __init__(self, ability_S: np.ndarray):
        self.ability_S = ability_S.copy()

    def p(self, bank: Bank, index) -> np.ndarray:
        """The true success rates."""
        return expit(self.ability_S[bank.skill[index]] - bank.difficulty[index])

    def learn(self, bank: Bank, index_N, y_N) -> None:
        """One training step on N groups, whose rewards have the std y."""
        gain_N = RATE * y_N / max(1, len(y_N))
        gain_S = np.bincount(bank.skill[index_N], weights=gain_N, minlength=SKILLS)
        self.ability_S += (1 - TRANSFER) * gain_S + TRANSFER * gain_S.sum()


class SimulatedTeacher:
    """f = 0.5 σ(w · φ), trained as in Alg. 2: on the latest 64 outcomes, after every 4th, 4 epochs
    of gradient descent on the MSE, here in one batch."""

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

    @staticmethod
    def indices(questions) -> np.ndarray:
        return np.array([int(question.split()[0]) for question in questions])

    def predict(self, questions) -> np.ndarray:
        return 0.5 * expit(self.features(self.indices(questions)) @ self.w)

    def update(self, question: str, y: float) -> None:
        self.replay.append((question, y))
        self.pushed += 1
        if self.pushed % 4 == 0:
            questions, y_B = zip(*self.replay, strict=True)
            phi_B_D = self.features(self.indices(questions))
            for _ in range(4):
                s_B = expit(phi_B_D @ self.w)
                slope_B = 2 * (0.5 * s_B - y_B) * 0.5 * s_B * (1 - s_B)
                self.w -= self.LEARNING_RATE * slope_B @ phi_B_D / len(y_B)


class Revisiting(Goldilocks):
    """Goldilocks whose candidates are drawn from all problems, so that passes play no part."""

    revisits = True


class Oracle(Pooled):
    """Knows p and takes the best of each pool: an upper bound for any choice among K."""

    revisits = True

    def __init__(self, context: Context):
        super().__init__(context)
        self.student = context.teacher

    def score(self, pool_N_K):
        return utility_target(self.student.p(self.problems, pool_N_K))


# The lab's own samplers, beside those of train.py's --sampler.
OWN = {"revisiting": Revisiting, "oracle": Oracle}
LAB = [*SAMPLERS, *sorted(path.stem for path in FOLDER.glob("*.py")), *OWN]
LAB.remove("embedded")  # the problems have no text


def sampler_class(name: str) -> type:
    return OWN.get(name) or find_sampler(name)


@lru_cache(maxsize=1)
def problems_and_start(n: int, visibility: float, seed: int) -> tuple[Bank, Bank, np.ndarray]:
    """n problems, held-out ones, and the student's start: the same for every sampler."""
    rng = np.random.default_rng(seed)
    start_S = rng.normal(START, 1.0, SKILLS)
    held_out = Bank(HELD_OUT, 0, start_S, rng)
    return Bank(n, visibility, start_S, rng), held_out, start_S


def take_step(sampler, student: Student, bank: Bank, rng) -> list[Group]:
    """Take the rounds of a step, without learning; return the groups of all. A completion has one
    token."""
    groups = []
    proposed = sampler.propose(P)
    while proposed:
        G_N = np.array([group.size - len(group.completions) for group in proposed])
        index_N = np.array([group.problem for group in proposed])
        right_N = rng.binomial(G_N, student.p(bank, index_N))
        for group, drawn, right in zip(proposed, G_N.tolist(), right_N.tolist(), strict=True):
            rewards = [1.0] * right + [0.0] * (drawn - right)
            group.completions += [Completion([0], [], True, reward=reward) for reward in rewards]
        groups += [group for group in proposed if group not in groups]
        sampler.observe(proposed)
        proposed = sampler.more(groups)
    return groups


def make_sampler(name: str, bank: Bank, student: Student, steps: int, seed: int) -> Sampler:
    """Make a sampler with the paper's settings. The oracle gets the student as its teacher."""
    config = Config(
        candidates=K,
        group_size=G,
        epsilon=EPSILON,
        column="pass_rate",
        prompts_per_step=P,
        seed=seed,
        steps=steps,
    )
    cls = sampler_class(name)
    teacher = student if name == "oracle" else SimulatedTeacher(bank)
    return cls(Context(bank, config, lambda index: True, teacher, dict(cls.settings)))


def train(sampler: Sampler, student: Student, bank: Bank, attempts: int, rng) -> dict[str, float]:
    """Train the student until so many attempts are spent. Return means over the groups trained on,
    the number of updates, and the share of the problems that were trained on."""
    dead = []
    utility = []
    trained = np.zeros(len(bank), dtype=bool)
    spent = 0
    while spent < attempts:
        groups = take_step(sampler, student, bank, rng)
        spent += sum(len(group.completions) for group in groups)
        chosen = sampler.train_on(groups, P)
        index_N = np.array([group.problem for group in chosen], dtype=np.int64)
        y_N = np.array([group.y for group in chosen])
        dead.append((y_N == 0).mean())
        utility.append(utility_target(student.p(bank, index_N)).mean())
        student.learn(bank, index_N, y_N)
        trained[index_N] = True
    return {
        "dead groups": np.mean(dead),
        "utility selected": np.mean(utility),
        "updates": len(dead),
        "coverage": trained.mean(),
    }


def simulate(name: str, n: int, visibility: float, steps: int, seed: int) -> dict[str, float]:
    """Run a sampler once; return what `train` measures, the held-out success rate gained, and
    whether it read the questions (`reads`)."""
    bank, held_out, start_S = problems_and_start(n, visibility, seed)
    bank.is_read = False  # by this sampler
    student = Student(start_S)
    sampler = make_sampler(name, bank, student, steps, seed)
    before = student.p(held_out, slice(None)).mean()
    rng = np.random.default_rng([seed, 2])
    measures = train(sampler, student, bank, steps * P * G, rng)
    after = student.p(held_out, slice(None)).mean()
    return measures | {"success gained": after - before, "reads": bank.is_read}


def sweep(names, sizes, visibilities, steps: int, seeds: int) -> pd.DataFrame:
    """A row for each run: problems, sampler, visibility ("" if unread), simulate's. Samplers that
    do not read the questions run at one visibility."""
    rows = []
    blind = set()
    for n, v, seed in itertools.product(sizes, visibilities, range(seeds)):
        for name in names:
            if name in blind and v != visibilities[0]:
                continue
            measures = simulate(name, n, v, steps, seed)
            if not measures.pop("reads"):
                blind.add(name)
            row = {"problems": n, "sampler": name.rpartition("/")[2]}
            row["visibility"] = "" if name in blind else f"{v:g}"
            rows.append(row | measures)
    return pd.DataFrame(rows)


def summary(runs: pd.DataFrame) -> pd.DataFrame:
    """Means over seeds, and the std of the success gained; with uniform among the samplers also the
    live groups as a multiple of uniform's."""
    groups = runs.groupby(["problems", "sampler", "visibility"])
    means = groups.mean().assign(std=groups["success gained"].std())
    if "uniform" in means.index.unique("sampler"):
        live = 1 - means["dead groups"]
        uniform = live.xs("uniform", level="sampler").droplevel("visibility")
        means["live ÷ uniform's"] = live / uniform
    return means


def main(argv=None) -> None:
    parser = analysis.parser(__doc__)
    add, sizes, visibilities = parser.add_argument, [1_000, 5_000, 3_000_000], [0.0, 0.5, 0.9]
    add("--problems", type=int, nargs="+", default=sizes, help="sizes of the data")
    add("--visibility", type=fraction, nargs="+", default=visibilities, help="what a teacher sees")
    add("--samplers", nargs="+", default=LAB, help=f"of {', '.join(LAB)}, or FILE.py:CLASS (all)")
    add("--steps", type=count, default=300, help=f"attempts, in steps of {P} groups of {G} (300)")
    add("--seeds", type=count, default=3, help="runs of each, seeds 0, 1, … (3)")
    args = parser.parse_args(argv)
    if min(args.problems) < P * K:
        parser.error(f"--problems {min(args.problems)}: must be at least {P * K}, a step's draws")
    with analysis.one_line("sampler_lab"):
        runs = sweep(args.samplers, args.problems, args.visibility, args.steps, args.seeds)
    print(summary(runs).round(3).to_string(sparsify=False))


if __name__ == "__main__":
    main()

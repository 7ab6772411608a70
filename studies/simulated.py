"""A simulated Student, with its problems and a stand-in for the Teacher, for full_length.py.

- **Problems**: text and columns of toy_task.py, and `pass_rate`, of 16 completions of the initial
  Student, for `static`. For `embedded`, embeddings: the means of random vectors of the words.
- **The Student**: each of 280 words has a log-odds θ, p of a problem is ∏ σ(θ) over its 1 to 3
  words, and rewards are draws with p. A step moves the θ of a word by `learning` times the mean,
  over the completions that are trained on, dead ones too, of Eq. 2 with θ as parameter: the factor
  of p̂ times ∂ logit(p)/∂θ = (1 - σ(θ)) / (1 - p). Left out is AdamW, which makes up for dead
  groups in part.
- **The Teacher**: the mean of its target at the Student's p of `delay` steps ago, plus an error of
  std `noise` that a problem keeps, cut to [0, 0.5]. It does not learn from outcomes.

Calibrated on uniform alone, at 301,000 problems and 20,000 steps: the log-odds of topics and words,
so that 0.6 to 0.7 of its groups are live, dead ones are mostly too hard, and p = σ(d) with a d of
std 3.5, because the paper's problems differ as widely; `learning`, so that its accuracy rises by
less than 10 points, as the paper's does.
"""

import time
from collections import deque
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from scipy.stats import binom

from grpo import Completion, Group, group_factor
from plumbing.command_line import fraction, natural, non_negative, number, opt
from plumbing.config import Config
from plumbing.data.problems import Problems
from plumbing.files import write_lines
from scripts import embed
from studies import toy_task

TOPIC_MEANS = (3.0, -3.5)  # of the log-odds of the words of the first and the last topic
WORD_SPREAD = 2.0  # of log-odds, around the topic's mean
KNOWN = 40.0  # log-odds of the word that fills up short problems: its rate is 1
HELD_OUT = 5000  # problems that accuracy is computed on
EMBEDDING_SIZE = 32


@dataclass
class Simulation:
    """Flags of full_length.py beside train.py's."""

    problems: int = opt(301_000, "distinct problems", type=number(int, 1, 10**7))
    parts: int = opt(20, "rows to print: five of 20 are a quarter of the run")
    learning: float = opt(0.02, "rate at which the Student learns", type=non_negative)
    forgetting: float = opt(0.0, "share of what was learned that a step loses", type=fraction)
    noise: float = opt(0.1, "std of the Teacher's error", type=non_negative)
    delay: int = opt(10, "steps by which the Teacher knows the Student late", type=natural)
    csv: str = opt("", "table to append the rows to")


class Student:
    """A Student whose skills are words. word_N_3: of the training problems, then of others."""

    def __init__(self, word_N_3, logit_V, config: Config, settings: Simulation):
        self.word_N_3 = word_N_3
        self.n_train = settings.problems
        self.initial_V = logit_V
        self.logit_V = logit_V
        self.recent = deque([logit_V], maxlen=settings.delay + 1)  # by step, oldest first
        self.std = config.advantage_std
        self.learning = settings.learning
        self.forgetting = settings.forgetting
        self.rng = np.random.default_rng([config.seed, 2])  # 1 is the sampler's

    def rates(self, index_M, logit_V) -> np.ndarray:
        """Compute σ(θ) of the words of problems: (M, 3)."""
        rate_V = 1 / (1 + np.exp(-logit_V))
        return rate_V[self.word_N_3[index_M]]

    def p(self, index_M, logit_V=None) -> np.ndarray:
        """Compute the pass rates of problems: (M,). logit_V: θ, by default today's."""
        logit_V = self.logit_V if logit_V is None else logit_V
        return self.rates(index_M, logit_V).prod(axis=1)

    def accuracy(self) -> float:
        """Compute the mean p of the problems that are not in training."""
        return float(self.p(slice(self.n_train, None)).mean())

    def rollout(self, groups: list[Group]) -> None:
        """Fill in the completions of groups."""
        p_M = self.p([group.problem for group in groups])
        right_M = self.rng.binomial([group.size for group in groups], p_M)
        for group, right in zip(groups, right_M.tolist(), strict=True):
            for i in range(group.size):
                reward = float(i < right)
                group.completions.append(Completion([], [], finished=True, reward=reward))

    def update(self, groups: list[Group]) -> None:
        """Forget, and learn from the groups that are trained on, if any."""
        self.logit_V = self.logit_V - self.forgetting * (self.logit_V - self.initial_V)
        if groups:
            index_M = [group.problem for group in groups]
            size_M = np.array([len(group.completions) for group in groups])
            p_hat_M = np.array([group.p_hat for group in groups])
            rate_M_3 = self.rates(index_M, self.logit_V)
            failure_M = 1 - rate_M_3.prod(axis=1) + 1e-12
            scale_M = size_M / size_M.sum() * group_factor(p_hat_M, self.std) / failure_M
            step_M_3 = self.learning * scale_M[:, None] * (1 - rate_M_3)
            np.add.at(self.logit_V, self.word_N_3[index_M], step_M_3)
        self.recent.append(self.logit_V)


class StandInTeacher:
    """A Teacher whose error is given. `seconds`: the CPU time that it has taken."""

    def __init__(self, student: Student, problems: Problems, config: Config, settings: Simulation):
        self.student = student
        self.problems = problems
        self.G = config.group_size
        self.noise = settings.noise
        self.seed = config.seed
        self.seconds = 0.0

    def aim_at(self, target) -> None:
        """Compute the mean of target(p̂), p̂ ~ Binomial(G, p) / G, on a grid of p."""
        n = len(self.problems)
        self.index_of = {self.problems.question(i): i for i in range(n)}
        self.error_N = np.random.default_rng([self.seed, 3]).normal(0, self.noise, n)
        successes = np.arange(self.G + 1)
        target_of = [float(target(right / self.G)) for right in successes.tolist()]
        self.grid = np.linspace(0, 1, 1001)
        self.mean = binom.pmf(successes, self.G, self.grid[:, None]) @ target_of

    def predict(self, questions: list[str]) -> np.ndarray:
        """Predict the target of each question, in [0, 0.5]."""
        start = time.process_time()
        index_M = [self.index_of[question] for question in questions]
        p_M = self.student.p(index_M, self.student.recent[0])
        f_M = np.interp(p_M, self.grid, self.mean) + self.error_N[index_M]
        self.seconds += time.process_time() - start
        return f_M.clip(0, 0.5)

    def update(self, question: str, y: float) -> None:
        """Learn nothing: the error is given."""

    def metrics(self) -> dict:
        return {}


def make_skills() -> tuple[dict, np.ndarray]:
    """Return the toy task's words by topic, with calibrated rates, and their log-odds: (V,), the
    last one KNOWN."""
    skills = toy_task.make_skills()
    means = np.linspace(*TOPIC_MEANS, len(skills))
    logits = []
    for mean, of_topic in zip(means, skills.values(), strict=True):
        of_words = mean + np.linspace(WORD_SPREAD, -WORD_SPREAD, len(of_topic))
        logits += of_words.tolist()
        for word, rate in zip(of_topic, (1 / (1 + np.exp(-of_words))).tolist(), strict=True):
            of_topic[word] = of_topic[word]._replace(rate=rate)
    return skills, np.array([*logits, KNOWN])


def make_problems(folder: Path, config: Config, settings: Simulation) -> tuple[Problems, Student]:
    """Write train.jsonl and its embeddings; return its problems, and a Student that also knows
    HELD_OUT others. Sets --train_data."""
    skills, logit_V = make_skills()
    n = settings.problems
    rows = toy_task.make_problems(n + HELD_OUT, skills, config.seed)
    words = [word for of_topic in skills.values() for word in of_topic]
    id_of = {word: i for i, word in enumerate(words)}
    word_N_3 = np.full((len(rows), 3), len(words))
    for word_3, row in zip(word_N_3, rows, strict=True):
        of_row = row["problem"].partition("Apply ")[2].rstrip(".").split()
        word_3[: len(of_row)] = [id_of[word] for word in of_row]
    student = Student(word_N_3, logit_V, config, settings)
    pass_rate_N = student.rng.binomial(16, student.p(slice(n))) / 16
    train = rows[:n]
    for row, pass_rate in zip(train, pass_rate_N.tolist(), strict=True):
        row["pass_rate"] = pass_rate
    path = folder / "train.jsonl"
    write_lines(path, train)
    config.train_data = str(path)
    problems = Problems(path, config.column)
    shape = len(logit_V), EMBEDDING_SIZE
    vector_V_D = np.random.default_rng([config.seed, 4]).normal(size=shape).astype(np.float32)
    embedding_N_D = vector_V_D[word_N_3[:n]].mean(axis=1)
    embed.save(torch.from_numpy(embedding_N_D), "random", path, problems.crc32)
    return problems, student

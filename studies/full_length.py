"""Run a sampler to the last step of a job in minutes, with a simulated Student: no model, no GPU.

    python -m studies.full_length --sampler goldilocks
    python -m studies.full_length --sampler my.py:Mine --candidates 64

It cannot know whether a live group is a useful one: this Student learns from all by one rule. It
shows what a short run hides: whether live groups run out late in a run, which problems return, what
a step costs and how much memory is held. The sampler, its checks, its rounds and the server beside
a Teacher are train.py's. Simulated are:

- **Problems**: text and columns of toy_task.py, and `pass_rate`, of 16 completions of the initial
  Student, for `static`. For `embedded`, embeddings: the means of random vectors of the words.
- **The Student**: each of 280 words has a log-odds θ, p of a problem is ∏ σ(θ) over its 1 to 3
  words, and rewards are draws with p. A step moves the θ of a word by `learning` times the mean,
  over the completions that are trained on, dead ones too, of Eq. 2 with θ as parameter: the factor
  of p̂ times ∂ logit(p)/∂θ = (1 - σ(θ)) / (1 - p). AdamW, which makes up for dead groups in part,
  is left out.
- **The Teacher**: the mean of its target at the Student's p of `delay` steps ago, plus an error of
  std `noise` that a problem keeps, cut to [0, 0.5]. It does not learn from outcomes.

Calibrated on uniform alone, at 301,000 problems and 20,000 steps: the log-odds of topics and words,
so that 0.6 to 0.7 of its groups are live, dead ones are mostly too hard, and p = σ(d) with a d of
std 3.5, because the paper's problems differ as widely; `learning`, so that its accuracy rises by
less than 10 points, as the paper's does.

Columns, by part of the run: live: share of live groups of all tried; trained: of those trained on;
again: share of groups whose problem was trained on before; distinct: problems trained on so far;
completions: drawn a step; p: mean over the problems trained on; accuracy: mean p of 5,000 others at
the part's end; us: CPU microseconds a step in the sampler, without the Student and the Teacher.
"""

import resource
import tempfile
import time
from collections import Counter, deque
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from scipy.stats import binom

from grpo import Completion, Group, group_factor
from plumbing import command_line
from plumbing.command_line import flag, non_negative, non_negative_int, number
from plumbing.config import Config
from plumbing.data.problems import Problems
from plumbing.errors import InputError
from plumbing.files import write_lines
from plumbing.plugins import construct
from plumbing.stopwatch import Stopwatch
from sampler import (
    Context,
    Sampler,
    check_proposals,
    check_trained,
    find_sampler,
    join,
    sampler_class,
    utility_target,
)
from scripts import embed
from scripts.command import exit_on_error
from studies import toy_task
from teacher import TeacherServer
from train import TeacherClient

# The flags of train.py that this command takes.
JOB = ["sampler", "sampler_args", "steps", "seed", "column", "prompts_per_step", "group_size"]
JOB += ["candidates", "epsilon", "resample_rounds", "advantage_std", "teacher_lag"]
TOPIC_MEANS = (3.0, -3.5)  # of the log-odds of the words of the first and the last topic
WORD_SPREAD = 2.0  # of log-odds, around the topic's mean
KNOWN = 40.0  # log-odds of the word that fills up short problems: its rate is 1
HELD_OUT = 5000  # problems that accuracy is computed on
EMBEDDING_SIZE = 32


@dataclass
class Simulation:
    """Flags beside those of train.py."""

    problems: int = flag(301_000, "distinct problems", type=number(int, 1, 10**7))
    parts: int = flag(20, "rows to print: five of 20 are a quarter of the run")
    learning: float = flag(0.02, "rate at which the Student learns", type=non_negative)
    noise: float = flag(0.1, "std of the Teacher's error", type=non_negative)
    delay: int = flag(
        10, "steps by which the Teacher knows the Student late", type=non_negative_int
    )


def answer(groups: list[Group], p_M: np.ndarray, rng: np.random.Generator) -> None:
    """Fill in the completions of groups, whose problems have the pass rates p_M."""
    right_M = rng.binomial([group.size for group in groups], p_M)
    for group, right in zip(groups, right_M.tolist(), strict=True):
        for i in range(group.size):
            reward = float(i < right)
            group.completions.append(Completion([], [], finished=True, reward=reward))


class Student:
    """A Student whose skills are words. word_N_3: of the training problems, then of others."""

    def __init__(self, word_N_3, logit_V, config: Config, settings: Simulation):
        self.word_N_3 = word_N_3
        self.n_train = settings.problems
        self.logit_V = logit_V
        self.recent = deque([logit_V], maxlen=settings.delay + 1)  # by step, oldest first
        self.std = config.advantage_std
        self.learning = settings.learning
        self.rng = np.random.default_rng([config.seed, 2])  # 1 is the sampler's

    def rates(self, index_M, logit_V) -> np.ndarray:
        """Compute σ(θ) of the words of problems: (M, 3)."""
        rate_V = 1 / (1 + np.exp(-logit_V))
        return rate_V[self.word_N_3[index_M]]

    def p(self, index_M, logit_V=None) -> np.ndarray:
        """Compute the pass rates of problems: (M,). logit_V: θ, by default today's."""
        logit_V = self.logit_V if logit_V is None else logit_V
        return self.rates(index_M, logit_V).prod(axis=1)

    def rollout(self, groups: list[Group]) -> None:
        """Fill in the completions of groups."""
        answer(groups, self.p([group.problem for group in groups]), self.rng)

    def update(self, groups: list[Group]) -> None:
        """Learn from the groups that are trained on, if any."""
        self.logit_V = self.logit_V.copy()  # `recent` keeps those of the steps before
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
    """A Teacher whose error is given. `watch`: the CPU time of the sampler's calls, and of the
    predictions in them."""

    def __init__(self, student: Student, problems: Problems, config: Config, settings: Simulation):
        self.student = student
        self.index_of = {problems.question(i): i for i in range(len(problems))}
        rng = np.random.default_rng([config.seed, 3])
        self.error_N = rng.normal(0, settings.noise, len(problems))
        self.G = config.group_size
        self.watch = Stopwatch(("sampler", "predict"), clock=time.process_time)

    def aim_at(self, target) -> None:
        """Compute the mean of target(p̂), p̂ ~ Binomial(G, p) / G, on a grid of p."""
        successes = np.arange(self.G + 1)
        target_of = [float(target(right / self.G)) for right in successes.tolist()]
        self.grid = np.linspace(0, 1, 1001)
        self.mean = binom.pmf(successes, self.G, self.grid[:, None]) @ target_of

    def predict(self, questions: list[str]) -> np.ndarray:
        """Predict the target of each question, in [0, 0.5]."""
        with self.watch("predict"):
            index_M = [self.index_of[question] for question in questions]
            p_M = self.student.p(index_M, self.student.recent[0])
            f_M = np.interp(p_M, self.grid, self.mean) + self.error_N[index_M]
        return f_M.clip(0, 0.5)

    def update(self, question: str, y: float) -> None:
        """Learn nothing: the error is given."""

    def metrics(self) -> dict:
        return {}


def make_problems(folder: Path, config: Config, settings: Simulation) -> tuple[Problems, Student]:
    """Write train.jsonl and its embeddings; return its problems, and a Student that also knows
    HELD_OUT others. Sets --train_data."""
    skills = toy_task.make_skills()
    mean_of_topic = np.linspace(*TOPIC_MEANS, len(skills))
    spread = np.linspace(WORD_SPREAD, -WORD_SPREAD, toy_task.WORDS_OF_TOPIC)
    logit_V = np.append(mean_of_topic[:, None] + spread, KNOWN)
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


def take_step(
    sampler: Sampler, student: Student, P: int, watch: Stopwatch
) -> tuple[list[Group], list[Group]]:
    """Take a step as train.train_step does; return all groups, and those that are trained on."""
    groups = []
    rounds = 0
    with watch("sampler"):
        proposed = sampler.propose(P)
    while proposed:
        check_proposals(proposed, student.n_train)
        student.rollout(proposed)
        groups += proposed
        rounds += 1
        with watch("sampler"):
            sampler.observe(proposed)
            proposed = sampler.more(groups, rounds)
    with watch("sampler"):
        trained = sampler.train_on(groups)
    check_trained(trained, groups)
    return join(groups), trained


def simulate(config: Config, settings: Simulation) -> Iterator[dict]:
    """Yield the row of each part. Raises InputError if a flag or the sampler cannot be used."""
    with tempfile.TemporaryDirectory() as folder:
        problems, student = make_problems(Path(folder), config, settings)
        teacher = StandInTeacher(student, problems, config, settings)
        cls = find_sampler(config.sampler)
        context = Context(problems, config, fits=lambda index: True)
        if cls.uses_teacher:
            context.teacher = teacher
        sampler = construct(cls, context, config.sampler, config.sampler_args)
        if cls.uses_teacher:  # as in train.py, in one process
            teacher.aim_at(getattr(sampler, "target", utility_target))
            sampler = TeacherClient.in_process(TeacherServer(sampler, config.teacher_lag))
        yield from rows(sampler, student, teacher, config, settings)


def rows(sampler: Sampler, student: Student, teacher, config, settings) -> Iterator[dict]:
    """Take all steps; yield a row after each part."""
    is_used = np.zeros(settings.problems, dtype=bool)
    ends = np.linspace(0, config.steps, settings.parts + 1).astype(int).tolist()
    for part in range(1, settings.parts + 1):
        steps = ends[part] - ends[part - 1]
        sums = Counter()
        teacher.watch.update(sampler=0.0, predict=0.0)
        for _ in range(steps):
            groups, trained = take_step(sampler, student, config.prompts_per_step, teacher.watch)
            index_P = [group.problem for group in trained]
            sums["groups"] += len(groups)
            sums["live"] += sum(group.live for group in groups)
            sums["completions"] += sum(len(group.completions) for group in groups)
            sums["trained"] += len(trained)
            sums["trained_live"] += sum(group.live for group in trained)
            sums["again"] += np.count_nonzero(is_used[index_P])
            sums["p"] += student.p(index_P).sum()
            is_used[index_P] = True
            student.update(trained)
        n_trained = sums["trained"] or np.nan  # a part may train on nothing
        own_seconds = teacher.watch["sampler"] - teacher.watch["predict"]
        yield {
            "part": part,
            "live": round(sums["live"] / sums["groups"], 4),
            "trained": round(sums["trained_live"] / n_trained, 4),
            "again": round(sums["again"] / n_trained, 4),
            "distinct": np.count_nonzero(is_used),
            "passes": sampler.metrics().get("passes"),
            "completions": round(sums["completions"] / steps, 1),
            "p": round(float(sums["p"] / n_trained), 4),
            "accuracy": round(float(student.p(slice(settings.problems, None)).mean()), 4),
            "us": round(1e6 * own_seconds / steps),
        }


def parse(argv: list[str] | None) -> tuple[Config, Simulation]:
    """Parse flags. Raises ValueError with one line."""
    parser = command_line.Parser(__doc__)
    command_line.add_fields(parser, Config, JOB)
    command_line.add_fields(parser, Simulation)
    given = vars(parser.parse_args(argv))
    config = Config(**{name: value for name, value in given.items() if name in JOB})
    settings = Simulation(**{name: value for name, value in given.items() if name not in JOB})
    sampler_class(config)  # rejects flags that the sampler does not take
    if settings.parts > config.steps:
        raise InputError(f"--parts {settings.parts}: must be at most --steps, {config.steps}")
    return config, settings


def main(argv: list[str] | None = None) -> None:
    """Run the simulation; print a row after each part."""
    with exit_on_error("full_length"):
        config, settings = parse(argv)
        start = time.perf_counter()
        live = []
        for row in simulate(config, settings):
            if not live:
                print(" ".join(f"{name:>11}" for name in row))
            print(" ".join(f"{value!s:>11}" for value in row.values()))
            live.append(row["live"])
        peak_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss  # on Linux
        print(
            f"{time.perf_counter() - start:.0f} s, {time.process_time():.0f} s of CPU, "
            f"at most {peak_kib * 1024 / 1e6:.0f} MB"
        )
        if settings.parts % 4 == 0:
            live_4 = np.reshape(live, (4, -1)).mean(axis=1)
            print("live groups by quarter:", *live_4.round(3).tolist())


if __name__ == "__main__":
    main()

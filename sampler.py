"""Problem selection: the utility target, Alg. 1, and the teacher's errors.

To write another sampler, start from `samplers/target.py`; `--sampler FILE.py:CLASS` runs it.
Shapes: N prompts, K candidates in a prompt's pool.

In a step train.py calls

    groups = propose(n)           n problems to try; the student fills in the completions
    observe(groups)               learn from their rewards
    more(groups)                  another round: further groups, or earlier ones with a larger size
    train_on(groups, n)           the groups that the student is trained on
"""

import math
import operator
from collections.abc import Callable, Iterable, Iterator
from copy import copy
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

import grpo
from grpo import Group
from plumbing import plugins
from plumbing.errors import InputError

if TYPE_CHECKING:  # another trainer may import the samplers where there is no torch
    from plumbing.config import Config
    from plumbing.data.problems import Problems
    from teacher import Teacher

Metrics = dict[str, float | None]  # by key of metrics.jsonl
Choice = tuple[np.ndarray, np.ndarray]  # chosen_N and explored_N, as epsilon_greedy returns them


def utility_target(p_hat):
    """Compute y = √(p̂(1-p̂)), the std of a group's rewards, in [0, 0.5] (Alg. 2, line 4)."""
    return grpo.group_factor(p_hat)


@dataclass
class Context:
    """Everything a sampler may use: the one argument of its constructor."""

    problems: "Problems"  # the training data: len(), question(index), column(name)
    config: "Config"  # its seed decides all randomness
    fits: Callable[[int], bool]  # whether a problem's prompt is short enough
    teacher: "Teacher | None" = None  # if the class has `uses_teacher`
    settings: dict[str, float] = field(default_factory=dict)  # the class's, with --sampler_args


class Sampler:
    """Base class of all samplers. A subclass must define `propose` alone. Where there is no
    teacher rank each student rank runs a replica; all must make the same proposals."""

    uses_teacher = False  # True: it runs where the teacher is, and has no rounds of its own
    needs_column = False  # whether --column must be given
    flags: tuple[str, ...] = ()  # which of candidates, epsilon and column it takes
    # Values at the start, by name. A subclass adds its own to those that it inherits.
    settings: dict[str, float] = {}  # changed by --sampler_args, which keeps their type
    learned: dict[str, object] = {}  # numbers, texts and arrays, kept in checkpoints
    per_problem: dict[str, np.generic] = {}  # arrays with an entry a problem, kept in checkpoints

    def __init_subclass__(cls):
        """Add to the dicts that a subclass declares what its base classes have in them. Python
        calls this when the subclass has been defined."""
        inherited = super(cls, cls)
        cls.settings = inherited.settings | cls.settings
        cls.learned = inherited.learned | cls.learned
        cls.per_problem = inherited.per_problem | cls.per_problem

    def __init__(self, context: Context):
        config = context.config
        self.problems = context.problems
        self.fits = context.fits
        self.teacher = context.teacher
        self.G = config.group_size
        self.settings = self.settings | context.settings
        self.rng = np.random.default_rng([config.seed, 1])
        self.values_C = []  # the distinct values of --column; value_of: each problem's place there
        if config.column and "column" in self.flags:
            self.values_C, self.value_of = self.problems.column(config.column)
        for name, value in self.learned.items():
            setattr(self, name, copy(value))
        for name, value in self.per_problem.items():
            array = np.full(len(self.problems), value)
            setattr(self, name, array)

    def propose(self, n: int) -> list[Group]:
        """Choose n distinct problems to train on next."""
        raise NotImplementedError

    def observe(self, groups: list[Group]) -> None:
        """Learn from the groups of a round, whose completions are graded. With a teacher and
        --teacher_lag 1 the next step's `propose` comes before this."""

    def more(self, groups: list[Group]) -> list[Group]:
        """Return another round, given all groups of the step: further groups, or some of these with
        a larger `size`, which keep their completions. [] ends the step's rounds."""
        return []

    @staticmethod
    def train_on(groups: list[Group], n: int) -> list[Group]:
        """Choose the groups that the student is trained on, where n were to be proposed. Static:
        student ranks call it while the sampler is on the teacher ranks."""
        return groups

    @classmethod
    def chooses_groups(cls) -> bool:
        """Whether the class decides about further rounds, or the groups of a step that count."""
        return cls.more is not Sampler.more or cls.train_on is not Sampler.train_on

    def metrics(self) -> Metrics:
        """Return numbers for metrics.jsonl."""
        return {}

    def state_dict(self) -> dict:
        """Return all state that a resume needs: numbers, texts, lists, dicts, arrays."""
        learned = self.learned | self.per_problem
        state = {name: getattr(self, name) for name in learned}
        return state | {"rng": self.rng.bit_generator.state}

    def load_state_dict(self, state: dict) -> None:
        for name in self.learned | self.per_problem:
            setattr(self, name, copy(state[name]))
        self.rng.bit_generator.state = state["rng"]

    def untried(self, index_N) -> list[Group]:
        """Make a group of each problem, of --group_size completions, without predictions."""
        return [Group(operator.index(index), self.G) for index in index_N]


class Uniform(Sampler):
    """The baseline: every problem once, in random order. Most samplers extend it. It draws from the
    problems not trained on in this pass over the data; a new pass begins when fewer are left than a
    draw needs. A prompt found too long is never drawn again."""

    flags = ("candidates", "epsilon")  # accepted and ignored: compared runs share flags
    UNSEEN, TRAINED, OVERLONG = range(3)
    learned = {"passes": 1}
    per_problem = {"status": np.int8(UNSEEN)}

    def propose(self, n):
        index_N = self.draw(n)
        self.take(index_N)
        return self.untried(index_N)

    def draw(self, k: int) -> np.ndarray:
        """Draw k distinct problems, int64. Raises InputError if fewer than k problems fit."""
        for _ in range(2):  # from the rest of this pass, or else from a new one
            left = np.flatnonzero(self.status == self.UNSEEN)
            drawn = self.first_fitting(self.shuffled(left), k)
            if len(drawn) == k:
                return np.array(drawn, dtype=np.int64)
            is_trained = self.status == self.TRAINED
            self.status[is_trained] = self.UNSEEN
            self.passes += 1
        raise InputError(
            f"a step draws {k} distinct problems, only {len(drawn)} of {len(self.status)} fit "
            "--max_prompt_tokens: add some, or raise it"
        )

    def shuffled(self, left: np.ndarray) -> Iterator[int]:
        """Yield indices in random order; only those that are asked for cost a random number."""
        while len(left):
            position = self.rng.integers(len(left))
            index = int(left[position])
            left[position] = left[-1]
            left = left[:-1]
            yield index

    def first_fitting(self, order: Iterable[int], k: int) -> list[int]:
        """Return the first k problems whose prompts fit, or all; mark the others as too long."""
        drawn = []
        for index in order:
            if self.fits(index):
                drawn.append(index)
            else:
                self.status[index] = self.OVERLONG
            if len(drawn) == k:
                break
        return drawn

    def take(self, index_N) -> None:
        """Mark problems as trained on."""
        self.status[index_N] = self.TRAINED

    def metrics(self):
        """Return `passes` over the data, `coverage` of this pass, number of `overlong` prompts."""
        unseen, trained, overlong = np.bincount(self.status, minlength=3).tolist()
        fitting = unseen + trained
        coverage = trained / max(1, fitting)
        return {"passes": self.passes, "coverage": coverage, "overlong": overlong}


def epsilon_greedy(utilities_N_K, epsilon: float, rng) -> Choice:
    """(Alg. 1, lines 10-16) Choose per row, with probability ε uniformly, else the highest utility.
    Returns chosen_N, int64 positions in the pool, and explored_N, bool: chosen uniformly."""
    N, K = utilities_N_K.shape
    explored_N = rng.random(N) < epsilon
    random_N = rng.integers(K, size=N)
    best_N = utilities_N_K.argmax(axis=1)
    chosen_N = np.where(explored_N, random_N, best_N)
    return chosen_N, explored_N


class Pooled(Uniform):
    """Base of samplers that `score` K distinct candidates for each prompt, and `choose` one."""

    flags = ("candidates",)
    revisits = False  # True: a problem may be trained on again at any time; there are no passes
    best_of_all = False  # True: pools are dealt by score, so that the best n of all are chosen

    def __init__(self, context: Context):
        super().__init__(context)
        self.K = context.config.candidates
        self.epsilon = context.config.epsilon if "epsilon" in self.flags else 0.0

    def propose(self, n):
        pool_N_K = self.draw(n * self.K).reshape(n, self.K)
        utilities_N_K = plugins.check_scores(self.score(pool_N_K), pool_N_K.shape)
        if self.best_of_all:
            dealt_N_K = deal(-utilities_N_K, n)
            pool_N_K = pool_N_K.flat[dealt_N_K]
            utilities_N_K = utilities_N_K.flat[dealt_N_K]
        return self.select(pool_N_K, utilities_N_K)

    def score(self, pool_N_K) -> np.ndarray:
        """Predict the utility, in [0, 0.5], of each candidate: float64 (N, K)."""
        raise NotImplementedError

    def choose(self, pool_N_K, utilities_N_K) -> Choice:
        """Choose one candidate of each pool."""
        return epsilon_greedy(utilities_N_K, self.epsilon, self.rng)

    def select(self, pool_N_K, utilities_N_K) -> list[Group]:
        """Make a group of the candidate that `choose` takes from each pool."""
        chosen_N, explored_N = self.choose(pool_N_K, utilities_N_K)
        pools = zip(pool_N_K.tolist(), utilities_N_K.tolist(), chosen_N, explored_N, strict=True)
        groups = []
        for pool, utilities, chosen, explored in pools:
            problem = pool[chosen]
            groups.append(Group(problem, self.G, pool, utilities, bool(explored)))
        if not self.revisits:
            self.take([group.problem for group in groups])
        return groups


def deal(rank, n: int) -> np.ndarray:
    """Deal out candidates to n pools in ascending order of `rank`: the first n go to one pool each,
    the next n follow, and so on. Returns their positions, (n, candidates of a pool)."""
    order = np.argsort(rank, axis=None, kind="stable")
    return order.reshape(-1, n).T


class Goldilocks(Pooled):
    """(Alg. 1) The teacher scores each candidate; one of each pool is chosen epsilon-greedily."""

    uses_teacher = True
    flags = ("candidates", "epsilon")

    def __init__(self, context: Context):
        super().__init__(context)
        self.std = context.config.advantage_std

    def target(self, p_hat):
        """Return the teacher's regression target, in [0, 0.5]: y, or the factor of Eq. 2 with
        another --advantage_std, halved for `mean`."""
        factor = grpo.group_factor(p_hat, self.std)
        return factor / 2 if self.std == "mean" else factor

    def score(self, pool_N_K):
        questions = [self.problems.question(i) for i in pool_N_K.ravel()]
        utilities = self.teacher.predict(questions)
        return utilities.reshape(pool_N_K.shape)

    def observe(self, groups):
        for group in groups:
            question = self.problems.question(group.problem)
            y = self.target(group.p_hat)  # Alg. 2, lines 3-4
            self.teacher.update(question, y)

    def state_dict(self):
        return super().state_dict() | {"teacher": self.teacher.state_dict()}

    def load_state_dict(self, state):
        super().load_state_dict(state)
        self.teacher.load_state_dict(state["teacher"])

    def metrics(self):
        return super().metrics() | self.teacher.metrics()


class DynamicSampling:
    """(Section 6) DAPO's resampling: up to `rounds` further proposals, until n groups are live."""

    def __init__(self, sampler: Sampler, rounds: int):
        self.sampler = sampler
        self.rounds = rounds

    def __getattr__(self, name: str):
        return getattr(self.sampler, name)

    def propose(self, n):
        self.n = n
        self.rounds_left = self.rounds  # in this step
        return self.sampler.propose(n)

    def more(self, groups):
        live = sum(group.live for group in groups)
        if live >= self.n or self.rounds_left == 0:
            return []
        self.rounds_left -= 1
        return self.sampler.propose(self.n)

    @staticmethod
    def train_on(groups, n):
        return best(groups, n, key=lambda group: group.live)


def best(groups: list[Group], n: int, key: Callable) -> list[Group]:
    """Return the n groups with the highest key, in the order of the step; ties keep their order."""
    best_first = sorted(groups, key=key, reverse=True)
    kept = best_first[:n]
    return [group for group in groups if group in kept]


SAMPLERS = {"goldilocks": Goldilocks, "uniform": Uniform}
FOLDER = Path(__file__).resolve().parent / "samplers"


def file_of(spec: str) -> Path | None:
    """Return the file of the class that --sampler names; None if it is this file."""
    if ".py" in spec:
        return plugins.path_of(spec)
    return None if spec in SAMPLERS else FOLDER / f"{spec}.py"


def find_sampler(spec: str) -> type[Sampler]:
    """Return the class that --sampler names: a key of SAMPLERS, the name of a file in samplers/
    (bag_of_words: BagOfWords), or FILE.py:CLASS. Raises InputError if that is no sampler."""
    cls = plugins.load_by_name(spec, "--sampler", SAMPLERS, FOLDER)
    plugins.check_class(cls, Sampler, spec)
    return cls


def step_metrics(groups: list[Group], trained: list[Group]) -> Metrics:
    """Compute the statistics of a step's groups, the share of live ones among those that are
    trained on, and the teacher's errors."""
    live = {"trained_live": _mean([group.live for group in trained])}
    return reward_metrics(groups) | live | teacher_metrics(groups)


def reward_metrics(groups: list[Group]) -> Metrics:
    """(Section 5.3) Compute the rewards' mean and std, and the share of dead groups."""
    completions = sum(len(group.completions) for group in groups)
    successes = sum(group.successes for group in groups)
    reward_mean = successes / completions
    return {
        "reward_mean": reward_mean,
        "reward_std_group": _mean([group.y for group in groups]),  # mean of the groups' std
        "reward_std_batch": utility_target(reward_mean),  # std of all rewards
        "zero_variance": _mean([not group.live for group in groups]),
        "zero_variance_easy": _mean([group.p_hat == 1 for group in groups]),
        "zero_variance_hard": _mean([group.p_hat == 0 for group in groups]),
        "groups": len(groups),
        "completions": completions,
    }


def teacher_metrics(groups: list[Group]) -> Metrics:
    """(Section 5.4) Compute the mean |f - y|, f from before the outcome: over all groups with a
    prediction (unseen problems while `passes` is 1), over those that explored, which have no
    selection bias, and over dead ones. It says nothing where the target is not y. teacher_mu and
    _sigma are over all candidates."""
    predicted = [group for group in groups if not math.isnan(group.utility)]
    error_N = np.array([abs(group.utility - group.y) for group in predicted])
    explored_N = np.array([group.explored for group in predicted], dtype=bool)
    live_N = np.array([group.live for group in predicted], dtype=bool)
    floors = [grpo.noise_floor(group.p_hat, len(group.completions)) for group in predicted]
    utilities = np.concatenate([group.utilities for group in groups])
    known = utilities[~np.isnan(utilities)]
    return {
        "teacher_mae": _mean(error_N),
        "teacher_mae_explore": _mean(error_N[explored_N]),
        "teacher_mae_dead": _mean(error_N[~live_N]),
        "teacher_noise_floor": _mean(floors),
        "teacher_mu": _mean(known),
        "teacher_sigma": float(known.std()) if len(known) else None,
    }


def _mean(values) -> float | None:
    return float(np.mean(values)) if len(values) else None

"""Problem selection: the utility target, Alg. 1, and the teacher's errors.

To write another sampler, start from `samplers/target.py`; `--sampler FILE.py:CLASS` runs it.
Shapes: N prompts, K candidates in a prompt's pool.

A step of train.py has one round of `propose` and `observe`, or as many as the sampler asks for:

    propose(n)  ->  Selections: N problems, completions of each, whether another round follows
    observe(Outcomes of the round)             ... until a proposal is not `again`
    train_on(Outcomes of the step, n)          the groups that the student is trained on
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import numpy as np

import grpo
from plumbing import plugins
from plumbing.errors import InputError
from plumbing.problems import Problems


def utility_target(p_hat, std: str = "population"):
    """Compute y = √(p̂(1-p̂)), the std of a group's rewards, in [0, 0.5] (Alg. 2, line 4). Eq. 2's
    scale is p̂(1-p̂) with `--advantage_std` none; with mean 1-p̂ if p̂ > 0, here halved."""
    return grpo.group_factor(p_hat, std) * (0.5 if std == "mean" else 1)


@dataclass
class Context:
    """Everything a sampler may use: the one argument of its constructor."""

    problems: Problems  # the training data: len(), question(index), column(name)
    config: object  # train.Config; its seed decides all randomness
    fits: Callable[[int], bool]  # whether a problem's prompt is short enough
    teacher: object = None  # teacher.Teacher (predict, update), if the class has `uses_teacher`
    settings: dict[str, float] = field(default_factory=dict)  # the class's, with --sampler_args


@dataclass
class Outcomes:
    """Results of N problems in a round, or in all rounds of a step."""

    step: int
    index_N: np.ndarray  # int64, distinct problems
    completions_N: np.ndarray  # int64, G of each problem
    successes_N: np.ndarray  # int64, how many of them were right
    tokens_N: np.ndarray  # int64, their response tokens
    truncated_N: np.ndarray  # int64, how many were cut at the token limit

    @property
    def p_hat_N(self) -> np.ndarray:
        """The pass rates."""
        return self.successes_N / self.completions_N

    @property
    def y_N(self) -> np.ndarray:
        """The std of each group's rewards."""
        return utility_target(self.p_hat_N)

    @property
    def live_N(self) -> np.ndarray:
        """Whether each group has right and wrong completions: the others have zero variance."""
        return (self.successes_N > 0) & (self.successes_N < self.completions_N)

    def positions(self, chosen) -> np.ndarray:
        """Return the positions that a sampler's `train_on` chose, sorted, each once. Raises
        InputError if there are no problems."""
        if not len(self.index_N):
            raise InputError("the sampler proposed no problem in this step")
        return np.unique(np.arange(len(self.index_N))[list(chosen)])


@dataclass
class Selections:
    """N proposals: for each its pool, the predictions, and the choice."""

    pool_N_K: np.ndarray  # int64, indices into Problems
    utilities_N_K: np.ndarray  # float64, in [0, 0.5]; NaN without a prediction
    chosen_N: np.ndarray  # int64, position in the pool; the chosen problems are distinct
    explored_N: np.ndarray  # bool, chosen by the uniform branch; all True without predictions
    completions_N: np.ndarray | None = None  # int64, of each problem; None: --group_size
    again: bool = False  # whether the sampler proposes again in this step, knowing the outcomes

    @classmethod
    def unscored(cls, index_N: np.ndarray, **rest) -> "Selections":
        """Make pools of one problem each, without predictions."""
        N, index_N = len(index_N), np.asarray(index_N, dtype=np.int64)
        unknown_N_1, first_N = np.full((N, 1), np.nan), np.zeros(N, int)
        return cls(index_N[:, None], unknown_N_1, first_N, np.ones(N, bool), **rest)

    @property
    def index_N(self) -> np.ndarray:
        """The selected problems."""
        return np.take_along_axis(self.pool_N_K, self.chosen_N[:, None], axis=1)[:, 0]

    @property
    def utility_N(self) -> np.ndarray:
        """The prediction for each selected problem when it was selected."""
        return np.take_along_axis(self.utilities_N_K, self.chosen_N[:, None], axis=1)[:, 0]

    def rows(self, G: int, n_problems=np.inf) -> list[int]:
        """Return the problem of each completion to generate. Raises InputError at bad proposals."""
        index_N = self.index_N
        counts = np.asarray(G if self.completions_N is None else self.completions_N)
        integers = index_N.dtype.kind in "iu" and counts.dtype.kind in "iu"
        wrong = not integers or not ((0 <= index_N) & (index_N < n_problems)).all()
        if wrong or (counts < 1).any() or len(np.unique(index_N)) < len(index_N):
            raise InputError("the sampler proposes a problem twice, a bad index, or 0 completions")
        return index_N.repeat(counts).tolist()

    def lines(self, outcomes: Outcomes, round: int) -> list[dict]:
        """Make the rows of selections.jsonl, in which `chosen` is a problem, not a position."""
        names = ("pool", "utilities", "chosen", "explored", "completions", "successes", "y")
        predicted = self.pool_N_K, self.utilities_N_K, self.index_N, self.explored_N
        columns = *predicted, outcomes.completions_N, outcomes.successes_N, outcomes.y_N
        rows = zip(*(column.tolist() for column in columns), strict=True)
        place = {"step": outcomes.step, "round": round}
        return [place | dict(zip(names, row, strict=True)) for row in rows]


class Sampler(Protocol):
    """The interface of a sampler, which train.py builds as `cls(context)`. If `uses_teacher`, it
    has the attribute `teacher`; if not, each student rank runs a replica."""

    uses_teacher: bool
    needs_column: bool  # whether --column must be given
    flags: tuple[str, ...]  # which of candidates, epsilon and column it takes
    settings: dict[str, float]  # defaults for --sampler_args, which keeps their type: int or float

    def propose(self, n: int) -> Selections:
        """Choose n problems to train on next."""

    def observe(self, outcomes: Outcomes) -> None:
        """Learn how many completions of each proposed problem were right. With a teacher and
        --teacher_lag 1 the next step's first `propose` comes before this."""

    @staticmethod
    def train_on(outcomes: Outcomes, n: int) -> np.ndarray:
        """Choose the groups that the student is trained on: distinct positions in `outcomes`."""

    def state_dict(self) -> dict:
        """Return all state that a resume needs: numbers, strings, lists, dicts, arrays."""

    def load_state_dict(self, state: dict) -> None: ...

    def metrics(self) -> dict[str, float]:
        """Return numbers for metrics.jsonl."""


class Uniform:
    """The baseline: every problem once, in random order. Other samplers extend it.

    It draws from the problems not trained on in this pass over the data; a new pass begins when
    fewer are left than a draw needs. A prompt found too long is never drawn again."""

    uses_teacher = needs_column = False
    flags: tuple[str, ...] = ("candidates", "epsilon")  # unused: compared runs share flags
    settings: dict[str, float] = {}
    learned: tuple[str, ...] = ()  # names of the numpy arrays in its state
    UNSEEN, TRAINED, OVERLONG = range(3)

    def __init__(self, context: Context):
        self.problems, self.fits, self.G = context.problems, context.fits, context.config.group_size
        self.settings = self.settings | context.settings
        self.rng = np.random.default_rng([context.config.seed, 1])
        self.status = np.full(len(self.problems), self.UNSEEN, dtype=np.int8)
        self.passes = 1

    def propose(self, n: int) -> Selections:
        index_N = self.draw(n)
        self.take(index_N)
        return Selections.unscored(index_N)

    def draw(self, k: int) -> np.ndarray:
        """Draw k distinct problems, int64. Raises InputError if fewer than k problems fit."""
        for _ in range(2):  # from the rest of this pass, or else from a new one
            left, drawn = np.flatnonzero(self.status == self.UNSEEN), []
            while len(left) and len(drawn) < k:
                position = self.rng.integers(len(left))
                index, left[position] = int(left[position]), left[-1]
                left = left[:-1]
                if self.fits(index):
                    drawn.append(index)
                else:
                    self.status[index] = self.OVERLONG
            if len(drawn) == k:
                return np.array(drawn, dtype=np.int64)
            self.status[self.status == self.TRAINED] = self.UNSEEN
            self.passes += 1
        fitting = f"only {len(drawn)} of {len(self.status)} fit --max_prompt_tokens"
        raise InputError(f"a step draws {k} distinct problems, {fitting}: add some, or raise it")

    def take(self, index_N: np.ndarray) -> None:
        """Mark problems as trained on."""
        self.status[index_N] = self.TRAINED

    def observe(self, outcomes: Outcomes) -> None:
        """Learn nothing."""

    @staticmethod
    def train_on(outcomes: Outcomes, n: int) -> np.ndarray:  # every group
        return np.arange(len(outcomes.index_N))

    def state_dict(self) -> dict:
        arrays = {name: getattr(self, name) for name in ("status", *self.learned)}
        return arrays | {"passes": self.passes, "rng": self.rng.bit_generator.state}

    def load_state_dict(self, state: dict) -> None:
        for name in ("status", *self.learned):
            setattr(self, name, state[name].copy())
        self.passes, self.rng.bit_generator.state = state["passes"], state["rng"]

    def metrics(self) -> dict[str, float]:
        """Return `passes` over the data, `coverage` of this pass, number of `overlong` prompts."""
        unseen, trained, overlong = np.bincount(self.status, minlength=3).tolist()
        coverage = trained / max(1, unseen + trained)
        return {"passes": self.passes, "coverage": coverage, "overlong": overlong}


def epsilon_greedy(utilities_N_K, epsilon: float, rng) -> tuple[np.ndarray, np.ndarray]:
    """(Alg. 1, lines 10-16) Choose per row, with probability ε uniformly, else the highest utility.
    Returns chosen_N, int64 positions in the pool, and explored_N, bool: chosen uniformly."""
    N, K = utilities_N_K.shape
    explored_N = rng.random(N) < epsilon
    random_N = rng.integers(K, size=N)
    return np.where(explored_N, random_N, utilities_N_K.argmax(axis=1)), explored_N


class Pooled(Uniform):
    """Base of samplers that choose one of a pool of K distinct candidates for each prompt.

    Subclasses define `score`, and where needed `choose`, `observe` and `learned`. The setting
    `best_of_all` deals pools in the order of scores: the highest of each are the best n of all."""

    flags = ("candidates",)
    epsilon = 0.0  # share of prompts that take any candidate of their pool; --epsilon if in `flags`
    revisits = False  # True: a problem may be trained on again at any time; there are no passes

    def __init__(self, context: Context):
        super().__init__(context)
        self.K = context.config.candidates
        self.epsilon = context.config.epsilon if "epsilon" in self.flags else self.epsilon

    def propose(self, n: int) -> Selections:
        pool_N_K = self.draw(n * self.K).reshape(n, self.K)
        utilities_N_K = self.score(pool_N_K)
        if np.isnan(utilities_N_K).any():
            raise InputError("the sampler's `score` is NaN")
        if self.settings.get("best_of_all"):
            dealt = np.argsort(-utilities_N_K, axis=None, kind="stable").reshape(self.K, n).T
            pool_N_K, utilities_N_K = pool_N_K.flat[dealt], utilities_N_K.flat[dealt]
        selections = Selections(pool_N_K, utilities_N_K, *self.choose(pool_N_K, utilities_N_K))
        if not self.revisits:
            self.take(selections.index_N)
        return selections

    def score(self, pool_N_K: np.ndarray) -> np.ndarray:
        """Predict the utility, in [0, 0.5], of each candidate: float64 (N, K)."""
        raise NotImplementedError

    def choose(self, pool_N_K, utilities_N_K) -> tuple[np.ndarray, np.ndarray]:
        """Choose from each pool; returns what epsilon_greedy does."""
        return epsilon_greedy(utilities_N_K, self.epsilon, self.rng)


class Goldilocks(Pooled):
    """(Alg. 1) The teacher scores each candidate; one of each pool is chosen epsilon-greedily."""

    uses_teacher = True
    flags = ("candidates", "epsilon")

    def __init__(self, context: Context):
        super().__init__(context)
        self.teacher, self.std = context.teacher, context.config.advantage_std

    def target(self, p_hat):
        """Return the teacher's regression target, in [0, 0.5]."""
        return utility_target(p_hat, self.std)

    def score(self, pool_N_K):
        questions = [self.problems.question(i) for i in pool_N_K.ravel()]
        return self.teacher.predict(questions).reshape(pool_N_K.shape)

    def observe(self, outcomes: Outcomes) -> None:
        groups = outcomes.index_N, outcomes.successes_N, outcomes.completions_N
        for index, successes, G in zip(*(x.tolist() for x in groups), strict=True):
            self.teacher.update(self.problems.question(index), successes, G, target=self.target)

    def state_dict(self) -> dict:
        return super().state_dict() | {"teacher": self.teacher.state_dict()}

    def load_state_dict(self, state: dict) -> None:
        super().load_state_dict(state)
        self.teacher.load_state_dict(state["teacher"])

    def metrics(self) -> dict[str, float]:
        return super().metrics() | self.teacher.metrics()


class DynamicSampling:
    """(Section 6) DAPO's resampling: calls `propose` up to `rounds` more times in a step, until n
    groups are live, and trains on live groups before dead ones."""

    def __init__(self, sampler: Sampler, rounds: int):
        self.sampler, self.rounds = sampler, rounds
        self.round = 0  # extra rounds asked for in this step; 0 from its last round on
        self.counts: dict[int, np.ndarray] = {}  # right, all completions of a problem in this step

    def __getattr__(self, name: str):
        return getattr(self.sampler, name)

    def propose(self, n: int) -> Selections:
        enough = sum(0 < right < G for right, G in self.counts.values()) >= n
        selections = Selections.unscored([]) if enough else self.sampler.propose(n)
        if selections.again:
            raise InputError("--resample_rounds: this sampler asks for rounds itself")
        selections.again = not enough and self.round < self.rounds
        self.round = self.round + 1 if selections.again else 0
        return selections

    def observe(self, outcomes: Outcomes) -> None:
        groups = outcomes.index_N, outcomes.successes_N, outcomes.completions_N
        for index, *counts in zip(*(x.tolist() for x in groups), strict=True):
            self.counts[index] = self.counts.get(index, 0) + np.array(counts)
        if not self.round:
            self.counts = {}
        if len(outcomes.index_N):
            self.sampler.observe(outcomes)

    @staticmethod
    def train_on(outcomes: Outcomes, n: int) -> np.ndarray:
        return np.sort(np.argsort(~outcomes.live_N, kind="stable")[:n])


SAMPLERS: dict[str, type[Sampler]] = {"goldilocks": Goldilocks, "uniform": Uniform}
FOLDER = Path(__file__).resolve().parent / "samplers"


def file_of(spec: str) -> Path | None:
    """Return the file of the class that --sampler names; None if it is this file."""
    if ".py" in spec:
        return plugins.path_of(spec)
    return None if spec in SAMPLERS else FOLDER / f"{spec}.py"


def find_sampler(spec: str) -> type[Sampler]:
    """Return the class that --sampler names: a key of SAMPLERS, the name of a file in samplers/
    (bag_of_words: BagOfWords), or FILE.py:CLASS. Raises InputError if that is no sampler."""
    if spec in SAMPLERS:
        return SAMPLERS[spec]
    if ".py" not in spec and not file_of(spec).is_file():
        names = ", ".join([*SAMPLERS, *sorted(path.stem for path in FOLDER.glob("*.py"))])
        raise InputError(f"--sampler {spec}: choose from {names}, or FILE.py:CLASS")
    camel = spec.title().replace("_", "")
    cls = plugins.load(spec if ".py" in spec else f"{file_of(spec)}:{camel}", "--sampler")
    required = [*Sampler.__annotations__, *(name for name in vars(Sampler) if name[0] != "_")]
    if missing := ", ".join(name for name in required if not hasattr(cls, name)):
        raise InputError(f"--sampler {spec}: lacks {missing} (see Sampler in sampler.py)")
    return cls


def step_metrics(rounds: list[tuple[Selections, Outcomes]], outcomes: Outcomes) -> dict:
    """Compute the reward statistics of a step's outcomes, and the teacher's errors.

    teacher_mae is the error of the scores that problems were selected with (Section 5.4): _explore
    on the uniform branch alone, which has no selection bias, _dead on dead groups. As p is unknown,
    teacher_noise_floor has p̂, a low estimate. teacher_mu and _sigma are over all candidates."""
    p_hat_N, live_N, G_N = outcomes.p_hat_N, outcomes.live_N, outcomes.completions_N
    reward_mean = outcomes.successes_N.sum() / G_N.sum()
    floor_N = np.array(list(map(grpo.noise_floor, p_hat_N.tolist(), G_N.tolist())))
    utilities = np.concatenate([selections.utilities_N_K.ravel() for selections, _ in rounds])
    explored_N = np.concatenate([selections.explored_N for selections, _ in rounds])
    error_N = np.concatenate([np.abs(s.utility_N - o.y_N) for s, o in rounds])
    dead_N = np.concatenate([~o.live_N for _, o in rounds])
    predicted_N = ~np.isnan(error_N)

    def mean(x, where=True):
        selected = x[~np.isnan(x) & where]
        return float(selected.mean()) if len(selected) else None

    return {
        "reward_mean": float(reward_mean),
        "reward_std_group": float(outcomes.y_N.mean()),  # mean of the groups' std
        "reward_std_batch": float(utility_target(reward_mean)),  # std of all rewards
        "zero_variance": float((~live_N).mean()),
        "zero_variance_easy": float((p_hat_N == 1).mean()),
        "zero_variance_hard": float((p_hat_N == 0).mean()),
        "groups": len(p_hat_N),
        "completions": int(G_N.sum()),
        "teacher_mae": mean(error_N),
        "teacher_mae_explore": mean(error_N, explored_N),
        "teacher_mae_dead": mean(error_N, dead_N),
        "teacher_noise_floor": mean(floor_N) if predicted_N.any() else None,
        "teacher_mu": mean(utilities),
        "teacher_sigma": float(utilities.std()) if predicted_N.all() else None,
    }

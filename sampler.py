"""Which problems the student is trained on: the utility target, Alg. 1, and the teacher's errors.

To write another sampler, start from `samplers/target.py`; `--sampler FILE.py:CLASS` runs it.
Samplers use the network of teacher.py through `teacher.predict(questions)` and
`teacher.update(question, successes, G)`. Shapes: N prompts, K candidates in a prompt's pool.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import numpy as np
import torch

from plumbing import plugins
from plumbing.errors import InputError
from plumbing.files import plain
from plumbing.problems import Problems


def utility_target(p_hat):
    """Compute y = √(p̂(1-p̂)), the std of a group's rewards, in [0, 0.5] (Alg. 2, line 4)."""
    return np.sqrt(p_hat * (1 - p_hat))


@dataclass
class Context:
    """Everything a sampler may use: the one argument of its constructor."""

    problems: Problems  # the training data: len(), question(index), column(name)
    config: object  # train.Config; its seed decides all randomness
    fits: Callable[[int], bool]  # whether a problem's prompt is short enough
    teacher: object = None  # teacher.Teacher, if the class has `uses_teacher`
    settings: dict[str, float] = field(default_factory=dict)  # the class's, with --sampler_args


@dataclass
class Selections:
    """N proposals: for each its pool, the predictions, and the choice."""

    pool_N_K: np.ndarray  # int64, indices into Problems
    utilities_N_K: np.ndarray  # float64, in [0, 0.5]; NaN without a prediction
    chosen_N: np.ndarray  # int64, position in the pool
    explored_N: np.ndarray  # bool, chosen by the uniform branch of epsilon-greedy

    @classmethod
    def unscored(cls, index_N: np.ndarray) -> "Selections":
        """Make pools of one problem each, without predictions."""
        N = len(index_N)
        return cls(index_N[:, None], np.full((N, 1), np.nan), np.zeros(N, int), np.ones(N, bool))

    @property
    def index_N(self) -> np.ndarray:
        """The selected problems."""
        return np.take_along_axis(self.pool_N_K, self.chosen_N[:, None], axis=1)[:, 0]

    @property
    def utility_N(self) -> np.ndarray:
        """The prediction for each selected problem when it was selected."""
        return np.take_along_axis(self.utilities_N_K, self.chosen_N[:, None], axis=1)[:, 0]

    def __add__(self, other: "Selections") -> "Selections":
        both = zip(vars(self).values(), vars(other).values(), strict=True)
        return Selections(*map(np.concatenate, both))

    def lines(self, step: int, successes_N: np.ndarray, G: int) -> list[dict]:
        """Make the rows of selections.jsonl, in which `chosen` is a problem, not a position."""
        names = ("pool", "utilities", "chosen", "explored", "successes", "y")
        predicted = (self.pool_N_K, self.utilities_N_K, self.index_N, self.explored_N)
        columns = (*predicted, successes_N, utility_target(successes_N / G))
        rows = zip(*(column.tolist() for column in columns), strict=True)
        return [{"step": step} | dict(zip(names, row, strict=True)) for row in rows]

    def state_dict(self) -> dict[str, torch.Tensor]:
        return tensors(vars(self))

    @classmethod
    def from_state(cls, state: dict) -> "Selections":
        """The inverse of state_dict."""
        return cls(**{name: tensor.numpy().copy() for name, tensor in state.items()})


def tensors(arrays: dict[str, np.ndarray]) -> dict[str, torch.Tensor]:
    """Copy arrays as a checkpoint holds them: torch.load with weights_only takes no numpy."""
    return {name: torch.from_numpy(array.copy()) for name, array in arrays.items()}


class Sampler(Protocol):
    """The interface of a sampler, which train.py builds as `cls(context)`. If `uses_teacher`, it
    has the attribute `teacher`; if not, each student rank runs a replica."""

    uses_teacher: bool
    flags: tuple[str, ...]  # which of candidates, epsilon, column it takes; others are rejected
    settings: dict[str, float]  # names and defaults of its own settings (--sampler_args)

    def propose(self, n: int) -> Selections:
        """Choose n problems to train on next."""

    def observe(self, index_N: np.ndarray, successes_N: np.ndarray, G: int) -> None:
        """Learn how many of the G completions of each proposed problem were right."""

    def state_dict(self) -> dict:
        """Return all state that a resume needs: numbers, strings, lists, dicts, tensors."""

    def load_state_dict(self, state: dict) -> None: ...

    def metrics(self) -> dict[str, float]:
        """Return numbers for metrics.jsonl."""


class Uniform:
    """The baseline: every problem once, in random order. Other samplers extend it.

    It draws from the problems not trained on in this pass over the data; a new pass begins when
    fewer are left than a draw needs. A prompt found too long is never drawn again.
    """

    uses_teacher = False
    flags: tuple[str, ...] = ("candidates", "epsilon")  # no effect: compared runs share flags
    settings: dict[str, float] = {}
    learned: tuple[str, ...] = ()  # names of the numpy arrays in its state
    UNSEEN, TRAINED, OVERLONG = range(3)

    def __init__(self, context: Context):
        self.problems, self.fits = context.problems, context.fits
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
        raise InputError(
            f"a step draws {k} distinct problems, but only {len(drawn)} of {len(self.status)} fit "
            "the prompt limit: add some, raise --max_prompt_tokens, or lower --prompts_per_step or "
            "--candidates"
        )

    def take(self, index_N: np.ndarray) -> None:
        """Mark problems as trained on."""
        self.status[index_N] = self.TRAINED

    def observe(self, index_N, successes_N, G) -> None:
        """Learn nothing."""

    def state_dict(self) -> dict:
        arrays = {name: getattr(self, name) for name in ("status", *self.learned)}
        return tensors(arrays) | {"passes": self.passes, "rng": self.rng.bit_generator.state}

    def load_state_dict(self, state: dict) -> None:
        for name in ("status", *self.learned):
            setattr(self, name, state[name].numpy().copy())
        self.passes, self.rng.bit_generator.state = state["passes"], state["rng"]

    def metrics(self) -> dict[str, float]:
        """Return `passes` over the data, `coverage` of this pass, number of `overlong` prompts."""
        overlong = int(np.count_nonzero(self.status == self.OVERLONG))
        trained = int(np.count_nonzero(self.status == self.TRAINED))
        coverage = trained / max(1, len(self.status) - overlong)
        return {"passes": self.passes, "coverage": coverage, "overlong": overlong}


def epsilon_greedy(
    utilities_N_K: np.ndarray, epsilon: float, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """(Alg. 1, lines 10-16) Choose per row, with probability ε uniformly, else the highest utility.
    Returns chosen_N, int64 positions in the pool, and explored_N, bool: chosen uniformly."""
    N, K = utilities_N_K.shape
    explored_N = rng.random(N) < epsilon
    random_N = rng.integers(K, size=N)
    return np.where(explored_N, random_N, utilities_N_K.argmax(axis=1)), explored_N


class Pooled(Uniform):
    """Base of samplers that choose one of a pool of K distinct candidates for each prompt.

    Subclasses define `score`, and where needed `choose` (default: the highest score), `observe` and
    `learned`. Methods that take the best n of n * K candidates are adapted to one of each pool, as
    in Alg. 1, so that they can be compared.
    """

    flags = ("candidates",)
    revisits = False  # True: a problem may be trained on again at any time; there are no passes

    def __init__(self, context: Context):
        super().__init__(context)
        self.K = context.config.candidates

    def propose(self, n: int) -> Selections:
        pool_N_K = self.draw(n * self.K).reshape(n, self.K)
        utilities_N_K = self.score(pool_N_K)
        selections = Selections(pool_N_K, utilities_N_K, *self.choose(pool_N_K, utilities_N_K))
        if not self.revisits:
            self.take(selections.index_N)
        return selections

    def score(self, pool_N_K: np.ndarray) -> np.ndarray:
        """Predict the utility, in [0, 0.5], of each candidate: float64 (N, K)."""
        raise NotImplementedError

    def choose(self, pool_N_K, utilities_N_K) -> tuple[np.ndarray, np.ndarray]:
        """Choose the highest score of each pool; returns what epsilon_greedy does."""
        return epsilon_greedy(utilities_N_K, 0.0, self.rng)


class Goldilocks(Pooled):
    """(Alg. 1) The teacher scores each candidate; one of each pool is chosen epsilon-greedily."""

    uses_teacher = True
    flags = ("candidates", "epsilon")
    target = staticmethod(utility_target)  # of p̂: the teacher's regression target

    def __init__(self, context: Context):
        super().__init__(context)
        self.teacher, self.epsilon = context.teacher, context.config.epsilon

    def score(self, pool_N_K):
        questions = [self.problems.question(i) for i in pool_N_K.ravel()]
        return self.teacher.predict(questions).reshape(pool_N_K.shape)

    def choose(self, pool_N_K, utilities_N_K):
        return epsilon_greedy(utilities_N_K, self.epsilon, self.rng)

    def observe(self, index_N, successes_N, G) -> None:
        for index, successes in zip(index_N, successes_N, strict=True):
            question = self.problems.question(index)
            self.teacher.update(question, int(successes), G, target=self.target)

    def state_dict(self) -> dict:
        return super().state_dict() | {"teacher": self.teacher.state_dict()}

    def load_state_dict(self, state: dict) -> None:
        super().load_state_dict(state)
        self.teacher.load_state_dict(state["teacher"])

    def metrics(self) -> dict[str, float]:
        return super().metrics() | self.teacher.metrics()


class Prefetching:
    """A sampler with a teacher that proposes ahead: observe(step t) makes step t+1's proposals.

    lag 1, the paper's asynchronous teacher: propose with what was learned up to step t-1, then
    learn from step t while the student trains. lag 0: learn first, exactly as in Alg. 1 and 2.
    deliver(selections, metrics) is called when proposals are ready.
    """

    def __init__(self, sampler: Sampler, n: int, lag: int):
        self.sampler, self.n, self.lag = sampler, n, lag
        self.teacher = sampler.teacher  # for checkpoints and export
        self.deliver: Callable = lambda selections, metrics: None
        self.next = None  # proposals, and the sampler's metrics when they were made
        self._metrics: dict[str, float] = {}

    def propose(self, n: int) -> Selections:
        """Return the `self.n` proposals that are ready, or make the first ones."""
        if self.next is None:
            self._prefetch()
        (selections, self._metrics), self.next = self.next, None
        return selections

    def observe(self, index_N, successes_N, G: int) -> None:
        if self.lag == 0:
            self.sampler.observe(index_N, successes_N, G)
        self._prefetch()
        self.deliver(*self.next)
        if self.lag == 1:
            self.sampler.observe(index_N, successes_N, G)

    def _prefetch(self) -> None:
        self.next = self.sampler.propose(self.n), self.sampler.metrics()

    def state_dict(self) -> dict:
        pending = None
        if self.next:
            selections, metrics = self.next
            # Seconds differ from rank to rank, and all ranks must return the same state.
            metrics = {k: 0.0 if k.endswith("_s") else v for k, v in metrics.items()}
            pending = selections.state_dict(), plain(metrics)
        return {"sampler": self.sampler.state_dict(), "next": pending}

    def load_state_dict(self, state: dict) -> None:
        self.sampler.load_state_dict(state["sampler"])
        self.next = None
        if state["next"]:
            selections, metrics = state["next"]
            self.next = Selections.from_state(selections), metrics

    def metrics(self) -> dict[str, float]:
        """Return the sampler's metrics when the latest proposals in use were made."""
        return self._metrics


SAMPLERS: dict[str, type[Sampler]] = {"goldilocks": Goldilocks, "uniform": Uniform}
FOLDER = Path(__file__).resolve().parent / "samplers"


def file_of(spec: str) -> Path | None:
    """Return the file of the class that --sampler names; None if it is this file."""
    if ".py" in spec:
        return plugins.path_of(spec)
    return None if spec in SAMPLERS else FOLDER / f"{spec}.py"


def find_sampler(spec: str) -> type[Sampler]:
    """Return the class that --sampler names: a key of SAMPLERS, the name of a file in samplers/
    (success_rate: SuccessRate), or FILE.py:CLASS. Raises InputError if that is no sampler."""
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


def noise_floor(p_hat_N: np.ndarray, G: int) -> float:
    """Estimate mean |ŷ - y| of a perfect teacher, ŷ = √(p(1-p)), as y comes from G rollouts only.

    Mean over the problems of E|√(p(1-p)) - √(k/G (1-k/G))|, k ~ Binomial(G, p), with p̂ in place of
    the unknown p. A low estimate, as dead groups contribute 0.
    """
    k = np.arange(G + 1)
    ways_k = np.array([math.comb(G, i) for i in k])
    p_N_1 = np.asarray(p_hat_N, dtype=float)[:, None]
    probability_N_k = ways_k * p_N_1**k * (1 - p_N_1) ** (G - k)
    error_N_k = np.abs(utility_target(p_N_1) - utility_target(k / G))
    return float((probability_N_k * error_N_k).sum(axis=1).mean())


def outcome_metrics(selections: Selections, successes_N: np.ndarray, G: int) -> dict:
    """Compute a step's reward statistics, and the teacher's errors, for metrics.jsonl.

    teacher_mae is the error of the scores that problems were selected with, before the teacher saw
    their outcomes (Section 5.4): _explore on the uniform branch alone, which has no selection bias,
    _dead on dead groups. teacher_mu and _sigma are over all candidates. None: nothing to average.
    """
    p_hat_N = successes_N / G
    easy_N, hard_N = p_hat_N == 1, p_hat_N == 0
    live_N = ~(easy_N | hard_N)
    error_N = np.abs(selections.utility_N - utility_target(p_hat_N))
    predicted_N = ~np.isnan(error_N)

    def mean(x, where=True):
        selected = x[predicted_N & where]
        return float(selected.mean()) if len(selected) else None

    return {
        "reward_mean": float(p_hat_N.mean()),
        "reward_std_group": float(utility_target(p_hat_N).mean()),  # mean of the groups' std
        "reward_std_batch": float(utility_target(p_hat_N.mean())),  # std of all rewards
        "zero_variance": float((~live_N).mean()),
        "zero_variance_easy": float(easy_N.mean()),
        "zero_variance_hard": float(hard_N.mean()),
        "live_hard": float((live_N & (p_hat_N <= 1 / 4)).mean()),
        "live_easy": float((live_N & (p_hat_N >= 3 / 4)).mean()),
        "groups": len(p_hat_N),
        "teacher_mae": mean(error_N),
        "teacher_mae_explore": mean(error_N, selections.explored_N),
        "teacher_mae_dead": mean(error_N, ~live_N),
        "teacher_noise_floor": noise_floor(p_hat_N, G) if predicted_N.any() else None,
        "teacher_mu": mean(selections.utilities_N_K),
        "teacher_sigma": float(selections.utilities_N_K.std()) if predicted_N.all() else None,
    }

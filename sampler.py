"""Which problems the student is trained on: the utility target, Alg. 1, and how well it predicts.

To fork: `samplers/target.py` is a whole sampler, and `--sampler FILE.py:CLASS` runs any. The
network that predicts utilities lives in teacher.py and is met here as `teacher.predict(questions)`
and `teacher.update(question, successes, G)`. Shapes: N prompts, K candidates in a prompt's pool.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
import torch

from plumbing import plugins
from plumbing.errors import InputError
from plumbing.files import plain
from plumbing.problems import Problems


def utility_target(p_hat):
    """y = √(p̂(1-p̂)), std of the group's rewards, in [0, 0.5] (Section 3.3; Alg. 2, line 4)."""
    return np.sqrt(p_hat * (1 - p_hat))


@dataclass
class Context:
    """What a sampler may use: the one argument of its constructor."""

    problems: Problems  # the training data: len(), question(index), column(name)
    config: object  # train.Config; its seed decides all randomness
    fits: Callable[[int], bool]  # whether a problem's prompt is short enough; asked when drawn
    teacher: object = None  # teacher.Teacher, where the class says `uses_teacher`


@dataclass
class Selections:
    """N proposals: for each its pool, what was predicted, the choice, and how it came about."""

    pool_N_K: np.ndarray  # int64, indices into Problems
    utilities_N_K: np.ndarray  # float64, in [0, 0.5]; NaN where nothing predicts
    chosen_N: np.ndarray  # int64, position in the pool
    explored_N: np.ndarray  # bool, by the uniform branch of epsilon-greedy

    @classmethod
    def unscored(cls, index_N: np.ndarray) -> "Selections":
        """Pools of one problem each, about which nothing was predicted."""
        N = len(index_N)
        return cls(index_N[:, None], np.full((N, 1), np.nan), np.zeros(N, int), np.ones(N, bool))

    @property
    def index_N(self) -> np.ndarray:
        """The selected problems."""
        return np.take_along_axis(self.pool_N_K, self.chosen_N[:, None], axis=1)[:, 0]

    @property
    def utility_N(self) -> np.ndarray:
        """The prediction that each selected problem was selected with."""
        return np.take_along_axis(self.utilities_N_K, self.chosen_N[:, None], axis=1)[:, 0]

    def __add__(self, other: "Selections") -> "Selections":
        both = zip(vars(self).values(), vars(other).values(), strict=True)
        return Selections(*map(np.concatenate, both))

    def lines(self, step: int, successes_N: np.ndarray, G: int) -> list[dict]:
        """The rows of selections.jsonl: each choice with its outcome. Its "chosen" is the problem,
        not the position in the pool."""
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
    """Copies, as a checkpoint holds them: torch.load with weights_only takes no numpy arrays."""
    return {name: torch.from_numpy(array.copy()) for name, array in arrays.items()}


class Sampler(Protocol):
    """What train.py asks of a sampler, which it builds as `cls(context)`. One that `uses_teacher`
    keeps it as `self.teacher`; of one without, each student rank runs a copy, in lockstep."""

    uses_teacher: bool
    flags: tuple[str, ...]  # which of candidates, epsilon, column it takes; others are refused

    def propose(self, n: int) -> Selections:
        """n problems to train on next."""

    def observe(self, index_N: np.ndarray, successes_N: np.ndarray, G: int) -> None:
        """How many of the G completions of each proposed problem were right."""

    def state_dict(self) -> dict:
        """All it needs to go on as if never stopped: numbers, strings, lists, dicts, tensors."""

    def load_state_dict(self, state: dict) -> None: ...

    def metrics(self) -> dict[str, float]:
        """Numbers for metrics.jsonl."""


class Uniform:
    """The baseline: every problem once, in random order. Others say what they change in it.

    Problems are drawn from those not trained on in this pass over the data; what is drawn and not
    taken can be drawn again. An over-long prompt is met when it is drawn, and dropped for good.
    When fewer problems are left than a draw needs, a new pass begins.
    """

    uses_teacher = False
    # Accepted and without effect: a comparison may share its command line.
    flags: tuple[str, ...] = ("candidates", "epsilon")
    learned: tuple[str, ...] = ()  # names of its numpy arrays that a checkpoint must hold
    UNSEEN, TRAINED, OVERLONG = range(3)

    def __init__(self, context: Context):
        self.problems, self.fits = context.problems, context.fits
        self.rng = np.random.default_rng([context.config.seed, 1])
        self.status = np.full(len(self.problems), self.UNSEEN, dtype=np.int8)
        self.passes = 1

    def propose(self, n: int) -> Selections:
        index_N = self.draw(n)
        self.take(index_N)
        return Selections.unscored(index_N)

    def draw(self, k: int) -> np.ndarray:
        """k distinct indices, int64. Raises InputError where fewer than k of all problems fit."""
        for _ in range(2):  # from what this pass has left, or else from a new one
            left, drawn = np.flatnonzero(self.status == self.UNSEEN), []
            while len(left) and len(drawn) < k:  # a shuffle, only as far as it is needed
                at = self.rng.integers(len(left))
                index, left[at] = int(left[at]), left[-1]
                left = left[:-1]
                if self.fits(index):
                    drawn.append(index)
                else:
                    self.status[index] = self.OVERLONG
            if len(drawn) == k:
                return np.array(drawn, dtype=np.int64)
            self.status[self.status == self.TRAINED] = self.UNSEEN
            self.passes += 1
        found = f"only {len(drawn)} of {len(self.status)} fit the prompt limit"
        advice = "add some, raise --max_prompt_tokens, or lower --prompts_per_step or --candidates"
        raise InputError(f"a step draws {k} distinct problems, but {found}: {advice}")

    def take(self, index_N: np.ndarray) -> None:
        """Marks problems as trained on."""
        self.status[index_N] = self.TRAINED

    def observe(self, index_N, successes_N, G) -> None:
        """Learns nothing."""

    def state_dict(self) -> dict:
        arrays = {name: getattr(self, name) for name in ("status", *self.learned)}
        return tensors(arrays) | {"passes": self.passes, "rng": self.rng.bit_generator.state}

    def load_state_dict(self, state: dict) -> None:
        for name in ("status", *self.learned):
            setattr(self, name, state[name].numpy().copy())
        self.passes, self.rng.bit_generator.state = state["passes"], state["rng"]

    def metrics(self) -> dict[str, float]:
        """`passes` over the data begun, `coverage` of this one in [0, 1], `overlong` met so far."""
        overlong = int(np.count_nonzero(self.status == self.OVERLONG))
        trained = int(np.count_nonzero(self.status == self.TRAINED))
        coverage = trained / max(1, len(self.status) - overlong)
        return {"passes": self.passes, "coverage": coverage, "overlong": overlong}


def epsilon_greedy(utilities_N_K, epsilon: float, rng) -> tuple[np.ndarray, np.ndarray]:
    """(Alg. 1, lines 10-16) per row: with probability ε any of the pool, else the best of it.

    Returns (chosen_N, int64 positions in the pool; explored_N, bool: which rows took the uniform
    branch, that may also pick the best). rng: a numpy Generator.
    """
    N, K = utilities_N_K.shape
    explored_N = rng.random(N) < epsilon
    random_N = rng.integers(K, size=N)
    return np.where(explored_N, random_N, utilities_N_K.argmax(axis=1)), explored_N


class Pooled(Uniform):
    """K candidates for each prompt, all distinct; each is scored, and one of each pool chosen.

    To extend: `score`; where not the highest score is chosen, `choose`; where it learns, `observe`
    and `learned`. Papers that take the best n of n * K candidates are brought to Alg. 1's one of
    each pool, so that they compare.
    """

    flags = ("candidates",)
    revisits = False  # True: candidates may have been trained on before, in no order of passes

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
        """The predicted utility, in [0, 0.5], of each candidate: float64 (N, K)."""
        raise NotImplementedError

    def choose(self, pool_N_K, utilities_N_K) -> tuple[np.ndarray, np.ndarray]:
        """(chosen_N, explored_N), as epsilon_greedy returns them: here the highest of each pool."""
        return epsilon_greedy(utilities_N_K, 0.0, self.rng)


class Goldilocks(Pooled):
    """(Alg. 1) The teacher scores each candidate; one of each pool is chosen epsilon-greedily."""

    uses_teacher = True
    flags = ("candidates", "epsilon")
    target = staticmethod(utility_target)  # of p̂: what the teacher is taught to predict

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
    """Fixes the order of effects around a sampler that learns, wherever it runs.

    observe(step t) leads to the proposals for step t+1. lag 1, the paper's asynchronous teacher:
    propose first, with what was learned up to step t-1, and learn from step t afterwards, while the
    student trains and rolls out. lag 0: learn first (Alg. 1 and 2 to the letter).
    deliver(selections, metrics) is called once they are ready.
    """

    def __init__(self, sampler, n: int, lag: int):
        self.sampler, self.n, self.lag = sampler, n, lag
        self.teacher = sampler.teacher  # the network behind it, for checkpoints and export
        self.deliver: Callable = lambda selections, metrics: None
        self.next = None  # proposals, and the sampler's metrics as they were made
        self._metrics: dict[str, float] = {}

    def propose(self, n: int):
        """The `self.n` proposals that are ready, or the first ones."""
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
        held = None
        if self.next:
            selections, metrics = self.next
            # Without seconds, which differ from rank to rank.
            metrics = {k: 0.0 if k.endswith("_s") else v for k, v in metrics.items()}
            held = selections.state_dict(), plain(metrics)
        return {"sampler": self.sampler.state_dict(), "next": held}

    def load_state_dict(self, state: dict) -> None:
        self.sampler.load_state_dict(state["sampler"])
        self.next = None
        if state["next"]:
            selections, metrics = state["next"]
            self.next = Selections.from_state(selections), metrics

    def metrics(self) -> dict[str, float]:
        """The sampler's, as they were when the proposals in use were made: of DAPO's rounds those
        of the last, with its seconds alone."""
        return self._metrics


SAMPLERS: dict[str, type[Sampler]] = {"goldilocks": Goldilocks, "uniform": Uniform}
OTHERS = Path(__file__).resolve().parent / "samplers"


def sampler_file(spec: str) -> Path | None:
    """The file of the class that --sampler names, for a checksum; None for those of this file."""
    own = None if spec in SAMPLERS else OTHERS / f"{spec}.py"
    return plugins.path_of(spec) if ".py" in spec else own


def find_sampler(spec: str) -> type[Sampler]:
    """The class that --sampler names: a key of SAMPLERS, FILE.py:CLASS, or the stem of a file in
    samplers/ (success_rate: its SuccessRate). Raises InputError where that is no sampler."""
    if spec in SAMPLERS:
        return SAMPLERS[spec]
    if ".py" not in spec and not sampler_file(spec).is_file():
        names = ", ".join([*SAMPLERS, *sorted(path.stem for path in OTHERS.glob("*.py"))])
        raise InputError(f"--sampler {spec}: there are {names}, and FILE.py:CLASS")
    camel = spec.title().replace("_", "")
    found = plugins.load(spec if ".py" in spec else f"{sampler_file(spec)}:{camel}", "--sampler")
    needed = [*Sampler.__annotations__, *(name for name in vars(Sampler) if name[0] != "_")]
    if lacking := ", ".join(name for name in needed if not hasattr(found, name)):
        raise InputError(f"--sampler {spec}: lacks {lacking} (see Sampler in sampler.py)")
    return found


def noise_floor(p_hat_N: np.ndarray, G: int) -> float:
    """Mean |ŷ - y| that a perfect teacher, ŷ = √(p(1-p)), would still show, as y is of G rollouts.

    E|√(p(1-p)) - √(k/G (1-k/G))|, k ~ Binomial(G, p), averaged over the step's problems with p̂ in
    place of the unknown p. Plug-in, so a dead group contributes 0: a low estimate.
    """
    k = np.arange(G + 1)
    ways_k = np.array([math.comb(G, i) for i in k])
    p_N_1 = np.asarray(p_hat_N, dtype=float)[:, None]
    probability_N_k = ways_k * p_N_1**k * (1 - p_N_1) ** (G - k)
    error_N_k = np.abs(utility_target(p_N_1) - utility_target(k / G))
    return float((probability_N_k * error_N_k).sum(axis=1).mean())


def outcome_metrics(selections: Selections, successes_N: np.ndarray, G: int) -> dict:
    """A step's rewards by group, and how good the predictions were, for metrics.jsonl.

    reward_std_group is the mean of the groups' std, which is their mean y; zero_variance the share
    of dead groups; live_hard and live_easy of live ones with p̂ ≤ 1/4 and p̂ ≥ 3/4. teacher_mae is
    the prequential error (Section 5.4), of the score a problem was selected with; _explore on the
    uniform branch alone, which is unbiased (the greedy one suffers the winner's curse); _dead on
    dead groups; teacher_mu and _sigma are over every candidate. None where there is nothing to
    average, as with a sampler that predicts nothing.
    """
    p_hat_N = successes_N / G
    easy_N, hard_N = p_hat_N == 1, p_hat_N == 0
    live_N = ~(easy_N | hard_N)
    error_N = np.abs(selections.utility_N - utility_target(p_hat_N))
    predicted_N = ~np.isnan(error_N)

    def mean(x, where=True):
        kept = x[predicted_N & where]
        return float(kept.mean()) if len(kept) else None

    return {
        "reward_mean": float(p_hat_N.mean()),
        "reward_std_group": float(utility_target(p_hat_N).mean()),
        "reward_std_batch": float(utility_target(p_hat_N.mean())),  # of rewards that are 0 or 1
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

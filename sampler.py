"""Problem selection: the utility target, Alg. 1, DAPO's rounds, and what a sampler must keep to.

To write another, extend Sampler (define `propose`), Uniform (draws without replacement), Pooled
(define `score`) or Goldilocks (change `choose` or `target`); `--sampler FILE.py:CLASS` runs it.
Shapes: P prompts of a step, K candidates in a prompt's pool.

In a step train.py calls

    groups = propose(P)       problems to try; the student fills in the completions
    observe(groups)           learn from their rewards
    more(groups, rounds)      another round of groups after so many, or []
    train_on(groups)          the groups that the student is trained on

Beside a Teacher that lags behind (--teacher_lag 1) the next `propose` comes before `observe`.
"""

import functools
import math
import operator
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

import grpo
from grpo import Group
from plumbing import plugins
from plumbing.data.problems import Problems
from plumbing.errors import InputError, print_line

if TYPE_CHECKING:
    from plumbing.config import Config
    from teacher import Teacher

Choice = tuple[np.ndarray, np.ndarray]  # chosen_P and explored_P, as epsilon_greedy returns them
MOST_CANDIDATES = 64  # of a pool, with --candidates auto
GIVEN = ("context", "problems", "teacher")  # attributes that a checkpoint leaves out


def utility_target(p_hat, std: str = "population"):
    """Compute y = √(p̂(1-p̂)), the std of rewards of 0 and 1 (Alg. 2, line 4), or the factor of Eq. 2
    with another --advantage_std, halved for `mean`. In [0, 0.5]."""
    factor = grpo.group_factor(p_hat, std)
    return factor / 2 if std == "mean" else factor


@dataclass
class Context:
    """Everything a sampler may use: the first argument of its constructor."""

    problems: Problems  # the training data: len(), question(index), column(name)
    config: "Config"  # its seed decides all randomness
    fits: Callable[[int], bool]  # whether a problem's prompt is short enough
    teacher: "Teacher | None" = None  # if the class has `uses_teacher`

    def too_few(self, k: int, fitting: int) -> InputError:
        """Make the error of a step that draws k problems, of which only `fitting` fit."""
        return InputError(
            f"a step draws {k} distinct problems, only {fitting} of {len(self.problems)} fit "
            "--max_prompt_tokens: add some, or lower --candidates or --prompts_per_step"
        )


class Sampler:
    """Base class of all samplers. A subclass must define `propose`; the rest is optional.

    Settings are keyword arguments of `__init__`, whole or decimal numbers that --sampler_args
    changes. State is what the object holds: a checkpoint keeps each attribute (numbers, texts,
    lists, dicts, arrays) except what `__init__` sets again: GIVEN, names that begin with "_", and
    settings, unless the sampler itself has changed them.

    Where there is no teacher rank each student rank runs a replica; all must make the same
    proposals, so all randomness comes from `self.rng`."""

    uses_teacher = False  # True: it gets context.teacher, and may not override `more` or `train_on`

    @classmethod
    def drawn_by_propose(cls, config: "Config") -> int:
        """Return how many distinct problems a step's first `propose` draws."""
        return config.prompts_per_step

    def __init__(self, context: Context):
        config = context.config
        self.context = context
        self.problems = context.problems
        self.teacher = context.teacher
        self.rng = np.random.default_rng([config.seed, 1])
        self.P = config.prompts_per_step
        self.G = config.group_size
        self.resample_rounds = config.resample_rounds

    def propose(self, P: int) -> list[Group]:
        """Choose P distinct problems to try next."""
        raise NotImplementedError

    def observe(self, groups: list[Group]) -> None:
        """Learn from a round's groups, whose completions are graded: all ranks get the same."""

    def more(self, groups: list[Group], rounds: int) -> list[Group]:
        """(Section 6) Return another round of new groups, given all groups of the step, of so many
        rounds; [] ends it.

        By default this is DAPO's resampling: up to --resample_rounds more proposals, until P groups
        are live. For more completions of a problem a subclass proposes a further group of it."""
        live = sum(group.live for group in groups)
        if live >= self.P or rounds > self.resample_rounds:
            return []
        return self.propose(self.P)

    def train_on(self, groups: list[Group]) -> list[Group]:
        """(Section 6) Choose the groups that the student is trained on: all of the step, or after
        resampling P of them, live ones first. --resample_rounds is rejected for a sampler that
        overrides `more` or `train_on`."""
        if not self.resample_rounds:
            return groups
        live_first = sorted(groups, key=lambda group: not group.live)
        kept = live_first[: self.P]
        return [group for group in groups if group in kept]

    def metrics(self) -> dict[str, float | None]:
        """Return numbers for metrics.jsonl."""
        return {}

    def state_dict(self) -> dict:
        """Return all state that a resume needs."""
        settings = plugins.all_settings(type(self), self.context.config.sampler_args)
        state = {}
        for name, value in vars(self).items():
            is_setting = isinstance(value, int | float) and value == settings.get(name)
            if name not in GIVEN and not name.startswith("_") and not is_setting:
                state[name] = value
        return state

    def load_state_dict(self, state: dict) -> None:
        vars(self).update(state)

    @classmethod
    def has_own_rounds(cls) -> bool:
        """Whether the class decides itself about further rounds, or the groups that count."""
        return cls.more is not Sampler.more or cls.train_on is not Sampler.train_on

    def new_groups(self, index_P) -> list[Group]:
        """Make a group of each problem, of --group_size completions, without predictions."""
        return [Group(operator.index(index), self.G) for index in index_P]

    def categories(self) -> tuple[list[str], np.ndarray]:
        """Read --column: its distinct values, and the index of each problem's value. Raises
        InputError without --column."""
        if not self.context.config.column:
            raise InputError("this sampler needs --column, a column of the training data")
        return self.problems.categories()


def join(groups: list[Group]) -> list[Group]:
    """Merge the groups of one problem into one, which takes the place of the first."""
    joined = {}
    for group in groups:
        empty = replace(group, size=0, completions=[])
        whole = joined.setdefault(group.problem, empty)
        whole.size += group.size
        whole.completions += group.completions
    return list(joined.values())


class Uniform(Sampler):
    """The baseline: each problem at most once a pass, in random order. Most samplers extend it.

    A new pass begins when a draw needs more problems than the pass has left. Then drawn problems
    can be drawn again. A prompt found too long is never drawn again."""

    LEFT, DRAWN, OVERLONG = range(3)  # a problem's status in this pass; OVERLONG: in all passes

    def __init__(self, context: Context):
        super().__init__(context)
        self.passes = 1
        self.status = np.full(len(self.problems), self.LEFT, dtype=np.int8)

    def propose(self, P):
        return self.new_groups(self.draw(P))

    def draw(self, k: int) -> np.ndarray:
        """Draw k distinct problems of this pass, or of a new one if it has fewer left: int64 (k,).
        Raises InputError if fewer than k problems fit --max_prompt_tokens."""
        drawn = self.draw_of_pass(k)
        if len(drawn) < k:
            is_drawn = self.status == self.DRAWN
            if is_drawn.any():
                self.status[is_drawn] = self.LEFT
                self.passes += 1
            drawn = self.draw_of_pass(k)
        if len(drawn) < k:
            raise self.context.too_few(k, fitting=len(drawn))
        self.status[drawn] = self.DRAWN
        return np.array(drawn, dtype=np.int64)

    def draw_of_pass(self, k: int) -> list[int]:
        """Return k distinct problems in random order that this pass has left and whose prompts fit,
        or fewer if there are no more. Does not mark them as drawn."""
        left = np.flatnonzero(self.status == self.LEFT)
        return self.first_fitting(self.shuffled(left), k)

    def shuffled(self, left: np.ndarray) -> Iterator[int]:
        """Yield indices in random order, with one draw from `rng` each."""
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
            if self.context.fits(index):
                drawn.append(index)
            else:
                self.status[index] = self.OVERLONG
            if len(drawn) == k:
                break
        return drawn

    def metrics(self):
        """Return `passes` over the data, `coverage`: the share of problems drawn in this pass, and
        the number of `overlong` prompts."""
        unseen, taken, overlong = np.bincount(self.status, minlength=3).tolist()
        coverage = taken / max(1, unseen + taken)
        return {"passes": self.passes, "coverage": coverage, "overlong": overlong}


def epsilon_greedy(utilities_P_K, epsilon: float, rng) -> Choice:
    """(Alg. 1, lines 10-16) Choose per row, with probability ε uniformly, else the highest utility.
    Returns chosen_P, int64 positions in the pool, and explored_P, bool: chosen uniformly."""
    P, K = utilities_P_K.shape
    explored_P = rng.random(P) < epsilon
    random_P = rng.integers(K, size=P)
    best_P = utilities_P_K.argmax(axis=1)
    chosen_P = np.where(explored_P, random_P, best_P)
    return chosen_P, explored_P


class Pooled(Uniform):
    """Base of samplers that `score` a pool of K candidates for each prompt and `choose` one of them
    (Alg. 1, lines 4-16). Candidates of a round are distinct. Each can be drawn again in the next
    pass over the data, chosen or not: if rejected ones returned within the same pass, its end would
    have little else (docs/log.md, 2026-11-29). A subclass that overrides `observe` must call this
    one, for --candidates auto."""

    best_of_all = False  # True: the best P of all candidates are chosen, without ε
    uses_epsilon = True  # False: `choose` explores in another way, or not at all

    @classmethod
    def drawn_by_propose(cls, config: "Config") -> int:
        K = 1 if config.candidates == "auto" else int(config.candidates)  # auto takes what fits
        return config.prompts_per_step * K

    def __init__(self, context: Context):
        super().__init__(context)
        config = context.config
        self.epsilon = config.epsilon if self.uses_epsilon and not self.best_of_all else 0.0
        self.is_auto = config.candidates == "auto"
        if self.is_auto and not self.epsilon:
            raise InputError(
                "--candidates auto estimates K from problems that are chosen with probability "
                "--epsilon, and here none are: set --candidates to a number, or, if the sampler "
                "uses --epsilon, set it above 0"
            )
        self.explored_count = 0.0  # groups that were drawn uniformly; both counts decay
        self.live_count = 0.0  # the live ones of these
        self.K = self.auto_K() if self.is_auto else config.candidates

    def candidates(self, P: int) -> np.ndarray:
        """Draw the candidates of P pools, int64 (P · K,). --candidates auto lowers K to the
        problems that fit --max_prompt_tokens."""
        try:
            return self.draw(P * self.K)
        except InputError:
            auto_K = self.auto_K()  # the failed draw has found all prompts that are too long
            if not self.is_auto or auto_K == self.K:
                raise
            self.K = auto_K
            return self.draw(P * self.K)

    def propose(self, P):
        pool_P_K = self.candidates(P).reshape(P, self.K)
        utilities_P_K = check_utilities("score", self.score(pool_P_K), pool_P_K.shape)
        if self.best_of_all:  # dealt like this, each of the best P is the best of one pool
            dealt_P_K = deal(-utilities_P_K, P)
            pool_P_K = pool_P_K.ravel()[dealt_P_K]
            utilities_P_K = utilities_P_K.ravel()[dealt_P_K]
        choice = self.choose(pool_P_K, utilities_P_K)
        return self.select(pool_P_K, utilities_P_K, choice)

    def observe(self, groups):
        """With --candidates auto count the groups that explored, drawn uniformly, and of these the
        live ones. Both counts decay by 0.98 a round."""
        if self.is_auto:
            drawn_uniformly = [group for group in groups if group.explored]
            live = sum(group.live for group in drawn_uniformly)
            self.explored_count = 0.98 * self.explored_count + len(drawn_uniformly)
            self.live_count = 0.98 * self.live_count + live
            self.K = self.auto_K()

    def auto_K(self) -> int:
        """Compute K = ⌈2/s⌉ for a share s of live groups: then a pool has 2 live ones on average.
        s = (live + 1) / (explored + 4), so at first s is 1/4 and K 8, the paper's.

        K is at most MOST_CANDIDATES, and a step chooses from at most half of the problems that fit:
        from more it would take the same ones again and again."""
        s = (self.live_count + 1) / (self.explored_count + 4)
        usable = int(np.count_nonzero(self.status != self.OVERLONG))
        most = max(1, usable // (2 * self.P))
        return min(math.ceil(2 / s), MOST_CANDIDATES, most)

    def metrics(self):
        """Return `candidates`, K, too."""
        return super().metrics() | {"candidates": self.K}

    def score(self, pool_P_K) -> np.ndarray:
        """Score each candidate, in [0, 0.5] or it is an InputError: float64 (P, K). The teacher_*
        metrics take scores as predictions of y."""
        raise NotImplementedError

    def choose(self, pool_P_K, utilities_P_K) -> Choice:
        """Choose one candidate of each pool."""
        return epsilon_greedy(utilities_P_K, self.epsilon, self.rng)

    def select(self, pool_P_K, utilities_P_K, choice: Choice) -> list[Group]:
        """Make a group of the candidate that is chosen from each pool."""
        rows = zip(pool_P_K.tolist(), utilities_P_K.tolist(), *choice, strict=True)
        groups = []
        for pool, utilities, chosen, explored in rows:
            group = Group(
                pool[chosen],
                self.G,
                pool=pool,
                utilities=utilities,
                explored=bool(explored),
            )
            groups.append(group)
        return groups


def deal(key, P: int) -> np.ndarray:
    """Deal out candidates to P pools as cards are dealt, those of the lowest `key` first. Returns
    (P, candidates of a pool): the position in key.ravel() of each pool's candidates."""
    order = np.argsort(key, axis=None, kind="stable")
    return order.reshape(-1, P).T


class Goldilocks(Pooled):
    """(Alg. 1) The teacher scores each candidate; one of each pool is chosen epsilon-greedily."""

    uses_teacher = True

    def target(self, p_hat):
        """Return the teacher's regression target for a group with this pass rate, in [0, 0.5]: with
        the default --advantage_std y. `observe` calls it with `Group.binary_p_hat`."""
        return utility_target(p_hat, self.context.config.advantage_std)

    def score(self, pool_P_K):
        questions = [self.problems.question(i) for i in pool_P_K.ravel()]
        utilities = self.teacher.predict(questions)
        return utilities.reshape(pool_P_K.shape)

    def observe(self, groups):
        super().observe(groups)
        for group in groups:
            question = self.problems.question(group.problem)
            # (Alg. 2, lines 3-4) The default `target` of this p̂ is group.y.
            y = check_utilities("target", self.target(group.binary_p_hat), ())
            self.teacher.update(question, y.item())

    def metrics(self):
        return super().metrics() | self.teacher.metrics()


SAMPLERS = {"goldilocks": Goldilocks, "uniform": Uniform}
FOLDER = Path(__file__).resolve().parent / "samplers"


def full_name(spec: str) -> str:
    """Return --sampler as FILE.py:CLASS: bag_of_words is BagOfWords in samplers/bag_of_words.py."""
    camel = spec.title().replace("_", "")
    return spec if ".py" in spec else f"{FOLDER / spec}.py:{camel}"


def file_of(spec: str) -> Path | None:
    """Return the file of the class that --sampler names; None if it is this file."""
    return None if spec in SAMPLERS else plugins.path_of(full_name(spec))


@functools.cache  # the checksums of a run are those of its start: later edits must not count
def find_sampler(spec: str) -> type[Sampler]:
    """Return the class that --sampler names: a key of SAMPLERS, the name of a file in samplers/, or
    FILE.py:CLASS. Raises InputError if that is no sampler. It is the same class, even if its file
    is edited, until `sampler_class` reads the file again."""
    file = file_of(spec)
    if file and not file.exists():
        names = sorted([*SAMPLERS, *(path.stem for path in FOLDER.glob("*.py"))])
        raise InputError(f"--sampler {spec}: no such file, nor one of {', '.join(names)}")
    cls = SAMPLERS.get(spec) or plugins.load(full_name(spec), "--sampler")
    if not isinstance(cls, type) or not issubclass(cls, Sampler):
        raise InputError(f"--sampler {spec}: must extend sampler.Sampler, or Uniform or Pooled")
    if cls.uses_teacher and cls.has_own_rounds():
        raise InputError(
            f"--sampler {spec}: a sampler with a teacher has no `more` or `train_on` of its own"
        )
    return cls


def sampler_class(config: "Config") -> type[Sampler]:
    """Return the class that --sampler names, for a new command: read from its file as it is now.
    Raises InputError also if it does not take --sampler_args or --resample_rounds."""
    find_sampler.cache_clear()
    cls = find_sampler(config.sampler)
    plugins.sampler_settings(cls, config.sampler_args)
    if config.resample_rounds and cls.has_own_rounds():
        raise InputError("--resample_rounds: this sampler has `more` or `train_on` of its own")
    return cls


def check_enough(context: Context) -> None:
    """Raise InputError if fewer problems fit --max_prompt_tokens than a step draws. Warn if a step
    chooses from more than half of all problems. Encode prompts only until enough fit."""
    config = context.config
    needed = find_sampler(config.sampler).drawn_by_propose(config)
    has_pools = needed > config.prompts_per_step
    if has_pools and needed > len(context.problems) / 2:  # docs/log.md, 2026-11-29
        print_line(
            f"warning: a step chooses from {needed:,} of {len(context.problems):,} problems, so it "
            "takes the same ones again and again: lower --candidates or --prompts_per_step"
        )
    fitting = 0
    for index in range(len(context.problems)):
        fitting += context.fits(index)
        if fitting == needed:
            return
    raise context.too_few(needed, fitting)


def check_utilities(method: str, utilities, shape: tuple[int, ...]) -> np.ndarray:
    """Return what a sampler's method has returned as float64. Raises InputError unless all are
    numbers in [0, 0.5], of this shape."""
    utilities = np.asarray(utilities, dtype=np.float64)
    is_in_range = (utilities >= 0) & (utilities <= 0.5)  # not NaN
    if utilities.shape != shape or not is_in_range.all():
        raise InputError(
            f"the sampler's `{method}` returns {utilities!r:.200}: must be in [0, 0.5], of shape "
            f"{shape}"
        )
    return utilities


def check_proposals(groups: list[Group], n_problems: int) -> None:
    """Raise InputError unless the groups of a round are new ones of distinct problems, of at least
    one completion."""
    problems = [group.problem for group in groups]
    are_distinct = len({*problems}) == len(problems)
    are_in_data = all(0 <= problem < n_problems for problem in problems)
    are_new = all(group.size > 0 and not group.completions for group in groups)
    if not (are_distinct and are_in_data and are_new):
        raise InputError(
            f"the sampler proposes problems {problems!r:.200}: must be new groups of distinct "
            f"problems below {n_problems}"
        )


def check_trained(trained: list[Group], groups: list[Group]) -> None:
    """Raise InputError if a sampler proposed nothing, or if the groups that its train_on has chosen
    hold a completion twice, or one that was not drawn in this step."""
    if not groups:
        raise InputError("the sampler proposed no problem in this step")
    drawn = [id(completion) for group in groups for completion in group.completions]
    used = [id(completion) for group in trained for completion in group.completions]
    is_twice = len({*used}) < len(used)
    is_foreign = {*used} - {*drawn}
    if is_twice or is_foreign:
        raise InputError("the sampler's train_on returns a completion twice, or not of this step")

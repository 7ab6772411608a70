"""Which problems the student is trained on: the dataset, the utility target, the selection rules.

To fork for a new sampler: extend the class nearest to it under "Samplers" and add it to `SAMPLERS`. Nothing else
changes: `train.py` runs it in-process, or on the teacher ranks behind `RemoteSampler` if it uses a teacher.

numpy only; the network that predicts utilities lives in teacher.py and is met here as `teacher.predict(questions)`
and `teacher.update(question, successes, G)`. Shapes: N prompts proposed, K candidates in each prompt's pool.
"""

import json
import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import datasets
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import torch

from plumbing.errors import InputError


def utility_target(p_hat):
    """y = √(p̂(1-p̂)), the std of the group's rewards, in [0, 0.5] (Section 3.3; Alg. 2, line 4)."""
    return np.sqrt(p_hat * (1 - p_hat))


# ----------------------------------------------------------------------------------------------------
# Problems


class Problems:
    """A JSONL or Parquet file of problems, memory-mapped: rows of `problem` and `expected_answer` (both text).

    Raises InputError or OSError with one line that names the file, and the line in it where that can be known.
    """

    COLUMNS = ("problem", "expected_answer")

    def __init__(self, path: str | Path):
        self.path = Path(path)
        if not self.path.is_file():
            raise FileNotFoundError(f"{path}: no such data file (--train_data, --val_data)")
        kind = {".jsonl": "json", ".json": "json", ".parquet": "parquet"}.get(self.path.suffix)
        if kind is None:
            raise InputError(f"{path}: expected a .jsonl or .parquet file")
        if self.path.stat().st_size == 0:
            raise InputError(f"{path}: the file is empty")
        with self.path.open(
            "rb"
        ) as file:  # `datasets` would unpack an archive, and keep what it had in it for good
            head = file.read(4)
        if (
            head != b"PAR1"
            if kind == "parquet"
            else head.strip(b"\xef\xbb\xbf \t\r\n")[:1] not in (b"{", b"[", b"")
        ):
            raise InputError(self._first_bad_line() or f"{path}: is no {kind} file")
        self._check(self._load(kind))
        rows = self._load(
            kind
        )  # anew: the check has mapped the whole file into memory, and a run reads few rows of it
        self.others, self.rows = (
            rows.remove_columns(list(self.COLUMNS)),
            rows.select_columns(list(self.COLUMNS)),
        )
        text = datasets.Features({name: datasets.Value("string") for name in self.COLUMNS})
        if self.rows.features != text:  # numbers become text; the cast rewrites the file
            self.rows = self.rows.cast(text)

    def _load(self, kind: str) -> datasets.Dataset:
        try:
            return datasets.load_dataset(kind, data_files=str(self.path), split="train")
        except (datasets.exceptions.DatasetGenerationError, ValueError) as error:
            why = str(error.__cause__ or error).partition("\n")[0]
            raise InputError(
                self._first_bad_line() or f"{self.path}: cannot be read as {kind}: {why}"
            ) from error

    def _check(self, rows: datasets.Dataset) -> None:
        wrong = None if len(rows) else "holds no problem"
        for name in self.COLUMNS:
            if name not in rows.column_names:
                wrong = wrong or f"lacks the field {name!r}"
            elif not _filled(rows.data.column(name)):
                wrong = (
                    wrong
                    or f"{name!r} must be text in every row (not blank, no date), or a number in every row"
                )
        if wrong:
            raise InputError(self._first_bad_line() or f"{self.path}: {wrong}")

    def __len__(self) -> int:
        return len(self.rows)

    def question(self, index: int) -> str:
        """The text of one problem."""
        return self.rows[int(index)]["problem"]

    def answer(self, index: int) -> str:
        """The gold answer of one problem; the teacher never sees it."""
        return self.rows[int(index)]["expected_answer"]

    def column(self, name: str) -> tuple[list, np.ndarray]:
        """Any other column of the file: its distinct values, and which of them each row has, int (n,)."""
        if name not in self.others.column_names:
            there = ", ".join(map(repr, self.others.column_names)) or "none"
            raise InputError(f"{self.path}: has no column {name!r} for --column; it has {there}")
        column = pc.dictionary_encode(
            self.others.data.column(name).combine_chunks(), null_encoding="encode"
        )
        return column.dictionary.to_pylist(), column.indices.to_numpy()

    def _first_bad_line(self) -> str | None:
        """Which line of a JSONL file is at fault: only called once loading has failed, for it reads them all."""
        if self.path.suffix == ".parquet":
            return None
        with self.path.open("rb") as lines:
            for number, line in enumerate(lines, 1):
                if not line.strip():
                    continue
                try:
                    row = json.loads(line.decode("utf-8-sig"))
                except (ValueError, RecursionError) as error:
                    return f"{self.path}, line {number}: not JSON ({error})"
                for name in self.COLUMNS:
                    value = row.get(name) if isinstance(row, dict) else None
                    if type(value) not in (str, int, float) or not str(value).strip():
                        return f"{self.path}, line {number}: lacks the field {name!r}, as text or a number"
        return None


def _filled(column) -> bool:
    """Whether all are text and not blank, or all numbers that their text can say exactly. Other types (mixed ones,
    which come as JSON in quotes, or dates) would not stay what the file says."""
    if column.null_count:
        return False
    if pa.types.is_integer(column.type):
        return True
    if pa.types.is_floating(column.type):  # NaN is not less either
        return pc.all(pc.less(pc.abs(column), 2**53)).as_py()
    if str(column.type) not in ("string", "large_string", "string_view"):
        return False
    try:  # nothing here makes a copy of the text
        return not pc.any(pc.or_(pc.equal(column, ""), pc.utf8_is_space(column))).as_py()
    except pa.ArrowInvalid:  # not UTF-8
        return False


class Unseen:
    """Problems not yet trained on in this pass, drawn without replacement; what is drawn and not taken returns.

    `order` is one permutation in three parts: [0, unseen) not yet trained on, [unseen, kept) already trained on,
    [kept, n) dropped for good because `fits(index)` was False (an over-long prompt, known only when drawn). A
    draw is a partial Fisher-Yates shuffle into the tail of the first part, so 3 million problems cost as little
    as 3. When fewer are left than one draw needs, a new pass begins.
    """

    def __init__(self, n_problems: int, rng: np.random.Generator, fits: Callable[[int], bool]):
        self.order = np.arange(n_problems, dtype=np.int32)
        self.rng, self.fits = rng, fits
        self.unseen = self.kept = n_problems
        self.passes = 1
        self.drawn_from = 0  # where the latest draw lies: order[drawn_from:unseen]

    def draw(self, k: int) -> np.ndarray:
        """k distinct unseen indices, int64. Raises InputError where the whole dataset has fewer that fit."""
        drawn = 0
        while drawn < k:
            if self.unseen < k:
                if self.kept < k:
                    raise InputError(
                        f"a step draws {k} distinct problems, but only {self.kept} of {len(self.order)} fit the "
                        "prompt limit: add problems, raise --max_prompt_tokens, or lower --candidates"
                    )
                self.unseen, self.passes, drawn = self.kept, self.passes + 1, 0
            last = self.unseen - 1 - drawn
            self._swap(self.rng.integers(last + 1), last)
            if self.fits(int(self.order[last])):
                drawn += 1
            else:  # out of the unseen part, then out of the kept part
                self._swap(last, self.unseen - 1)
                self._swap(self.unseen - 1, self.kept - 1)
                self.unseen, self.kept = self.unseen - 1, self.kept - 1
        self.drawn_from = self.unseen - k
        return self.order[self.drawn_from : self.unseen].astype(np.int64)

    def take(self, index_N: np.ndarray) -> None:
        """Mark indices of the latest draw as trained on."""
        for index in index_N:
            position = np.flatnonzero(self.order[self.drawn_from : self.unseen] == index)[-1]
            self._swap(self.drawn_from + int(position), self.unseen - 1)
            self.unseen -= 1

    def _swap(self, i: int, j: int) -> None:
        self.order[i], self.order[j] = self.order[j], self.order[i]

    def metrics(self) -> dict[str, float]:
        """`passes` over the data begun, `coverage` of this pass in [0, 1], problems `overlong` so far."""
        dropped = len(self.order) - self.kept
        return {
            "passes": self.passes,
            "coverage": 1 - self.unseen / max(1, self.kept),
            "overlong": dropped,
        }

    def state_dict(self) -> dict:
        return {
            "order": torch.from_numpy(self.order.copy()),
            "unseen": self.unseen,
            "kept": self.kept,
            "passes": self.passes,
            "rng": self.rng.bit_generator.state,
        }

    def load_state_dict(self, state: dict) -> None:
        if len(state["order"]) != len(self.order):
            raise InputError(
                f"the checkpoint saw {len(state['order'])} problems, the training data has {len(self.order)}"
            )
        self.order = np.asarray(state["order"], dtype=np.int32)
        self.unseen, self.kept, self.passes = state["unseen"], state["kept"], state["passes"]
        self.rng.bit_generator.state = state["rng"]


# ----------------------------------------------------------------------------------------------------
# Samplers


@dataclass
class Selections:
    """N proposals: pool and predicted utilities (NaN where nothing predicts), the choice, and how it came about."""

    pool_N_K: np.ndarray  # int64, indices into Problems
    utilities_N_K: np.ndarray  # float64, in [0, 0.5]
    chosen_N: np.ndarray  # int64, position in the pool
    explored_N: np.ndarray  # bool, by the uniform branch of epsilon-greedy

    @property
    def index_N(self) -> np.ndarray:
        """The selected problems."""
        return np.take_along_axis(self.pool_N_K, self.chosen_N[:, None], axis=1)[:, 0]

    @property
    def utility_N(self) -> np.ndarray:
        """The prediction that each selected problem was selected with."""
        return np.take_along_axis(self.utilities_N_K, self.chosen_N[:, None], axis=1)[:, 0]

    def pack(self) -> np.ndarray:
        """One float64 row a proposal, (N, 2K + 2): what goes over the wire and into checkpoints."""
        return np.column_stack(
            [self.pool_N_K, self.utilities_N_K, self.chosen_N, self.explored_N]
        ).astype(float)

    def take(self, rows):
        return Selections.unpack(self.pack()[rows])

    def __add__(self, other: "Selections") -> "Selections":
        return Selections.unpack(np.concatenate([self.pack(), other.pack()]))

    def lines(self, step: int, successes_N: np.ndarray, G: int) -> list[dict]:
        """The rows of selections.jsonl: each choice with its outcome."""
        names = ("pool", "utilities", "chosen", "explored", "successes", "y")
        y_N = utility_target(successes_N / G)
        columns = (
            self.pool_N_K,
            self.utilities_N_K,
            self.index_N,
            self.explored_N,
            successes_N,
            y_N,
        )
        rows = zip(*(column.tolist() for column in columns), strict=True)
        return [{"step": step} | dict(zip(names, row, strict=True)) for row in rows]

    @classmethod
    def unpack(cls, rows: np.ndarray) -> "Selections":
        """The inverse of pack."""
        rows = np.asarray(rows, dtype=float)
        K = (rows.shape[1] - 2) // 2
        pool, utilities, chosen, explored = np.split(rows, [K, 2 * K, 2 * K + 1], axis=1)
        return cls(
            pool.astype(np.int64), utilities, chosen[:, 0].astype(np.int64), explored[:, 0] > 0
        )


class Sampler(Protocol):
    """What train.py asks of a sampler. Built as `cls(problems, config, fits)`, and with a Teacher as fourth argument
    where `uses_teacher`: it then keeps it as `self.teacher`, its pools have `config.candidates` columns, and of its
    metrics those in `metric_names` travel from the teacher ranks. All randomness comes from `config.seed`: without a
    teacher every student rank runs its own copy, in lockstep."""

    uses_teacher: bool
    metric_names: tuple[str, ...]
    flags: tuple[
        str, ...
    ]  # which of candidates, epsilon, column it takes: train.parse refuses the others

    def propose(self, n: int) -> Selections:
        """n problems to train on next."""

    def observe(self, index_N: np.ndarray, successes_N: np.ndarray, G: int) -> None:
        """How many of the G completions of each proposed problem were right."""

    def state_dict(self) -> dict:
        """Everything needed to continue as if never interrupted: numbers, strings, lists, dicts, tensors."""

    def load_state_dict(self, state: dict) -> None: ...

    def metrics(self) -> dict[str, float]:
        """Numbers for metrics.jsonl."""


class Uniform:
    """The baseline: every problem once, in random order. Each sampler below says what it changes."""

    uses_teacher = False
    metric_names = ("passes", "coverage", "overlong")
    flags = (
        "candidates",
        "epsilon",
    )  # accepted and without effect: a comparison may share its command line
    learned: tuple[
        str, ...
    ] = ()  # the numpy arrays among the attributes that a checkpoint must hold

    def __init__(self, problems: Problems, config, fits: Callable[[int], bool]):
        self.problems = problems
        self.rng = np.random.default_rng([config.seed, 1])
        self.unseen = Unseen(len(problems), self.rng, fits)

    def propose(self, n: int) -> Selections:
        index_N = self.unseen.draw(n)
        self.unseen.take(index_N)
        return unscored(index_N)

    def observe(self, index_N, successes_N, G) -> None:
        """Learns nothing."""

    def state_dict(self) -> dict:
        arrays = {name: torch.from_numpy(getattr(self, name).copy()) for name in self.learned}
        return {"unseen": self.unseen.state_dict()} | arrays

    def load_state_dict(self, state: dict) -> None:
        self.unseen.load_state_dict(state["unseen"])
        for name in self.learned:
            setattr(self, name, state[name].numpy().copy())

    def metrics(self) -> dict[str, float]:
        return self.unseen.metrics()


def unscored(index_N: np.ndarray) -> Selections:
    """Pools of one problem each, about which nothing was predicted."""
    n = len(index_N)
    return Selections(
        index_N[:, None],
        np.full((n, 1), np.nan),
        np.zeros(n, dtype=np.int64),
        np.ones(n, dtype=bool),
    )


def epsilon_greedy(
    utilities_N_K: np.ndarray, epsilon: float, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """(Alg. 1, lines 11-16) per row: with probability ε uniform over the pool, else the highest utility.

    Returns (chosen_N int64 positions in the pool, explored_N bool). The uniform branch may pick the argmax.
    """
    N, K = utilities_N_K.shape
    explored_N = rng.random(N) < epsilon
    random_N = rng.integers(K, size=N)
    return np.where(explored_N, random_N, utilities_N_K.argmax(axis=1)), explored_N


def boltzmann(logits_N_K: np.ndarray, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Per row a position with probability softmax(logits), by Gumbel noise; returns what epsilon_greedy does."""
    return (logits_N_K + rng.gumbel(size=logits_N_K.shape)).argmax(axis=1), np.zeros(
        len(logits_N_K), dtype=bool
    )


class Pooled(Uniform):
    """A pool of K candidates for each prompt, all distinct; each candidate is scored, and one of each pool chosen.

    To extend: `score`; if not the highest score is chosen, `choose`; if it learns, `observe` and `learned`. Papers
    that take the best n of n * K candidates are brought to Alg. 1's one of each pool here, so that they compare.
    """

    flags = ("candidates",)
    revisits = False  # True: the candidates may have been trained on before, in no order of passes

    def __init__(self, problems: Problems, config, fits: Callable[[int], bool]):
        super().__init__(problems, config, fits)
        self.K = config.candidates

    def propose(self, n: int) -> Selections:
        pool_N_K = self.unseen.draw(n * self.K).reshape(n, self.K)
        utilities_N_K = self.score(pool_N_K)
        selections = Selections(pool_N_K, utilities_N_K, *self.choose(pool_N_K, utilities_N_K))
        if not self.revisits:
            self.unseen.take(selections.index_N)
        return selections

    def score(self, pool_N_K: np.ndarray) -> np.ndarray:
        """The predicted utility, in [0, 0.5], of each candidate: float64 (N, K)."""
        raise NotImplementedError

    def choose(
        self, pool_N_K: np.ndarray, utilities_N_K: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """(chosen_N, explored_N), as epsilon_greedy returns them: here the highest of each pool."""
        return epsilon_greedy(utilities_N_K, 0.0, self.rng)


class Goldilocks(Pooled):
    """(Alg. 1) The teacher scores a pool of K unseen candidates for each prompt; one is chosen epsilon-greedily."""

    uses_teacher = True
    metric_names = (
        *Uniform.metric_names,
        "teacher_loss",
        "teacher_updates",
        "teacher_learn_s",
        "teacher_predict_s",
    )
    flags = ("candidates", "epsilon")

    def __init__(self, problems: Problems, config, fits: Callable[[int], bool], teacher):
        super().__init__(problems, config, fits)
        self.teacher, self.epsilon = teacher, config.epsilon

    def score(self, pool_N_K):
        questions = [self.problems.question(i) for i in pool_N_K.ravel()]
        return self.teacher.predict(questions).reshape(pool_N_K.shape)

    def choose(self, pool_N_K, utilities_N_K):
        return epsilon_greedy(utilities_N_K, self.epsilon, self.rng)

    def observe(self, index_N, successes_N, G) -> None:
        for index, successes in zip(index_N, successes_N, strict=True):
            self.teacher.update(self.problems.question(index), int(successes), G)

    def state_dict(self) -> dict:
        return super().state_dict() | {"teacher": self.teacher.state_dict()}

    def load_state_dict(self, state: dict) -> None:
        super().load_state_dict(state)
        self.teacher.load_state_dict(state["teacher"])

    def metrics(self) -> dict[str, float]:
        return super().metrics() | self.teacher.metrics()


class Softmax(Goldilocks):
    """Goldilocks, but P(candidate) ∝ exp(utility / T) over its pool: the Boltzmann choice of Teacher-Student
    Curriculum Learning (Matiisen et al., 2017, arXiv 1707.00183)."""

    flags = ("candidates",)
    temperature = 0.05  # ours: a candidate 0.05 better is e times as likely; subclass to change

    def choose(self, pool_N_K, utilities_N_K):
        return boltzmann(utilities_N_K / self.temperature, self.rng)


class SuccessRate(Goldilocks):
    """Goldilocks with a teacher of p, not of √(p(1-p)): the candidate with predicted p nearest to 1/2, as in Prompt
    Curriculum Learning (Gao et al., 2025, arXiv 2510.01135), which has no epsilon (`--epsilon 0`)."""

    def score(self, pool_N_K):
        p_N_K = 2 * super().score(pool_N_K)  # the teacher's range is [0, 0.5]: it learns p/2
        return utility_target(p_N_K)  # falls with |p - 1/2|, so the highest is the nearest

    def observe(self, index_N, successes_N, G) -> None:
        for index, successes in zip(index_N, successes_N, strict=True):
            self.teacher.update(
                self.problems.question(index), int(successes), G, target=lambda p_hat: p_hat / 2
            )


class Thompson(Pooled):
    """History: p ~ Beta(α, β) of each problem, drawn from its posterior; of each pool the p nearest to 1/2, and
    problems come back: MoPPS (Qu et al., 2025, arXiv 2507.04632). Of a problem never tried it knows nothing."""

    revisits = True
    decay = 0.5  # of what was counted before, towards the prior Beta(1, 1), at each visit; their scripts' value
    learned = ("beta",)

    def __init__(self, problems: Problems, config, fits: Callable[[int], bool]):
        super().__init__(problems, config, fits)
        self.beta = np.ones((len(problems), 2), dtype=np.float32)  # α, β

    def score(self, pool_N_K):
        alpha_N_K, beta_N_K = np.moveaxis(self.beta[pool_N_K], -1, 0)
        return utility_target(self.rng.beta(alpha_N_K, beta_N_K))

    def observe(self, index_N, successes_N, G) -> None:
        counted = self.decay * self.beta[index_N] + (1 - self.decay)
        self.beta[index_N] = counted + np.column_stack([successes_N, G - successes_N])

    def metrics(self) -> dict[str, float]:
        """`coverage`: the share of all problems ever tried; there are no `passes`."""
        return super().metrics() | {
            "passes": 0,
            "coverage": float((self.beta > 1).any(axis=1).mean()),
        }


class Skip(Uniform):
    """History: Uniform, but a problem whose latest z groups were all dead is passed over, until the next pass, with
    probability 1 - 0.5^z: GRESO (Zheng et al., 2025, arXiv 2506.02177) without its adaptation of the 0.5."""

    flags = ()
    base, longest = 0.5, 5  # z counts to 5 only, so that a draw costs at most 32 on average
    learned = ("dead",)

    def __init__(self, problems: Problems, config, fits: Callable[[int], bool]):
        super().__init__(problems, config, fits)
        self.dead = np.zeros(len(problems), dtype=np.uint8)  # z: dead groups in a row up to now

    def propose(self, n: int) -> Selections:
        index_N = np.empty(0, dtype=np.int64)
        while len(index_N) < n:
            drawn = self.unseen.draw(n)[
                : n - len(index_N)
            ]  # n distinct ones must be left, or a new pass begins
            self.unseen.take(drawn)
            kept = self.rng.random(len(drawn)) < self.base ** self.dead[drawn]
            index_N = np.concatenate([index_N, drawn[kept & ~np.isin(drawn, index_N)]])
        return unscored(index_N)

    def observe(self, index_N, successes_N, G) -> None:
        dead_N = (successes_N == 0) | (successes_N == G)
        self.dead[index_N] = np.where(dead_N, np.minimum(self.dead[index_N] + 1, self.longest), 0)


class Category(Pooled):
    """A bandit whose arms are the values of --column: Self-Evolving Curriculum (Chen et al., 2025, arXiv 2505.14970).

    Its reward, a group's mean |Â|, is 2y; the value of an arm follows y here. Of the categories in a pool one is
    drawn with P(c) ∝ exp(value / T), and in it a problem uniformly. Of problems within a category it knows nothing.
    """

    flags = ("candidates", "column")
    rate, temperature = 0.5, 0.05  # ours, the temperature as in Softmax; subclass to change
    learned = ("value_C",)

    def __init__(self, problems: Problems, config, fits: Callable[[int], bool]):
        super().__init__(problems, config, fits)
        names_C, self.category = problems.column(config.column)
        self.value_C = np.zeros(len(names_C))

    def score(self, pool_N_K):
        return self.value_C[self.category[pool_N_K]]

    def choose(self, pool_N_K, utilities_N_K):
        category_N_K = self.category[pool_N_K]
        alike_N_K = (category_N_K[:, :, None] == category_N_K[:, None, :]).sum(
            axis=2
        )  # they share their category's P
        return boltzmann(utilities_N_K / self.temperature - np.log(alike_N_K), self.rng)

    def observe(self, index_N, successes_N, G) -> None:
        y_N, category_N = utility_target(successes_N / G), self.category[index_N]
        for c in np.unique(category_N):
            self.value_C[c] += self.rate * (y_N[category_N == c].mean() - self.value_C[c])


class Static(Pooled):
    """Difficulty known beforehand: --column holds some model's pass rate, such as the `pass_rate_72b_tir` of
    OpenMathReasoning (Moshkov et al., 2025, arXiv 2504.16891). It never learns that the student has moved on."""

    flags = ("candidates", "column")

    def __init__(self, problems: Problems, config, fits: Callable[[int], bool]):
        super().__init__(problems, config, fits)
        values_C, row = problems.column(config.column)
        p_C = np.array([_number(value) for value in values_C])
        wrong_C = (p_C < 0) | (p_C > 1) | np.isnan(p_C).all()
        if wrong_C.any():
            raise InputError(
                f"--column {config.column}: {values_C[wrong_C.argmax()]!r} is no pass rate in [0, 1]"
            )
        utility = utility_target(p_C)[row]
        self.unrated = float(np.isnan(utility).mean())
        self.utility = np.where(
            np.isnan(utility), np.nanmean(utility), utility
        )  # "n/a": as good as the mean

    def score(self, pool_N_K):
        return self.utility[pool_N_K]

    def metrics(self) -> dict[str, float]:
        """`unrated`: the share of problems whose pass rate is no number."""
        return super().metrics() | {"unrated": self.unrated}


def _number(value) -> float:
    try:
        return float(value)
    except (TypeError, ValueError):
        return math.nan


SAMPLERS: dict[str, type[Sampler]] = {
    "goldilocks": Goldilocks,
    "uniform": Uniform,
    "softmax": Softmax,
    "success_rate": SuccessRate,
    "thompson": Thompson,
    "skip": Skip,
    "category": Category,
    "static": Static,
}


class Prefetching:
    """Fixes the order of effects around a sampler that learns, wherever it runs.

    observe(step t) leads to the proposals for step t+1. lag 1, the paper's asynchronous teacher: propose first,
    with what was learned up to step t-1, and learn from step t afterwards, while the student trains and rolls
    out. lag 0: learn first (Alg. 1 and 2 to the letter). `deliver(selections, metrics)` is called once they are ready.
    """

    def __init__(self, sampler: Sampler, n: int, lag: int):
        self.sampler, self.n, self.lag = sampler, n, lag
        self.deliver: Callable[[Selections, dict], None] = lambda selections, metrics: None
        self.next: tuple[Selections, dict] | None = (
            None  # proposals, and the sampler's metrics as they were made
        )
        self._metrics: dict[str, float] = {}

    def propose(self, n: int) -> Selections:
        if self.next is None:
            self._prefetch()
        (selections, self._metrics), self.next = self.next, None
        return selections

    def observe(self, index_N, successes_N, G) -> None:
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
            timeless = {
                name: 0.0 if name.endswith("_s") else value for name, value in metrics.items()
            }
            held = torch.from_numpy(selections.pack()), timeless  # the same on every rank
        return {"sampler": self.sampler.state_dict(), "next": held}

    def load_state_dict(self, state: dict) -> None:
        self.sampler.load_state_dict(state["sampler"])
        self.next = state["next"] and (Selections.unpack(state["next"][0]), state["next"][1])

    def metrics(self) -> dict[str, float]:
        """The sampler's, as they were when the proposals in use were made."""
        return self._metrics

    @property
    def teacher(self):
        """The network behind the sampler, for checkpoints and export."""
        return self.sampler.teacher


# ----------------------------------------------------------------------------------------------------
# How good were the predictions?


def noise_floor(p_hat_N: np.ndarray, G: int) -> float:
    """Mean |ŷ - y| that a perfect teacher, ŷ = √(p(1-p)), would still show because y comes from G rollouts only.

    E|√(p(1-p)) - √(k/G (1-k/G))|, k ~ Binomial(G, p), averaged over the step's problems with p̂ in place of the
    unknown p. Plug-in, so a dead group contributes 0: a low estimate.
    """
    k = np.arange(G + 1)
    binomial = np.array([math.comb(G, i) for i in k])
    p = np.asarray(p_hat_N, dtype=float)[:, None]
    probability_N_k = binomial * p**k * (1 - p) ** (G - k)
    return float(
        (probability_N_k * np.abs(utility_target(p) - utility_target(k / G))).sum(axis=1).mean()
    )


def outcome_metrics(
    selections: Selections, successes_N: np.ndarray, G: int
) -> dict[str, float | None]:
    """A step's rewards by group, and how good the predictions were, for metrics.jsonl.

    reward_std_group is the mean of the groups' std, which is their mean y; zero_variance the share of dead groups.
    teacher_* is the prequential error (Section 5.4), the score a problem was selected with against its outcome:
    teacher_mae over all selected; _explore on the uniform branch alone, the unbiased one (the greedy branch suffers
    the winner's curse); _dead on dead groups; teacher_mu and teacher_sigma over every scored candidate. None where
    there is nothing to average, as with a sampler that predicts nothing.
    """
    p_hat_N = successes_N / G
    easy_N, hard_N = p_hat_N == 1, p_hat_N == 0
    error_N = np.abs(selections.utility_N - utility_target(p_hat_N))
    predicted_N = ~np.isnan(error_N)

    def mean(x, where=True):
        kept = x[predicted_N & where]
        return float(kept.mean()) if len(kept) else None

    return {
        "reward_mean": float(p_hat_N.mean()),
        "reward_std_group": float(utility_target(p_hat_N).mean()),
        "reward_std_batch": float(utility_target(p_hat_N.mean())),  # of rewards that are 0 or 1
        "zero_variance": float((easy_N | hard_N).mean()),
        "zero_variance_easy": float(easy_N.mean()),
        "zero_variance_hard": float(hard_N.mean()),
        "groups": len(p_hat_N),
        "teacher_mae": mean(error_N),
        "teacher_mae_explore": mean(error_N, selections.explored_N),
        "teacher_mae_dead": mean(error_N, easy_N | hard_N),
        "teacher_noise_floor": noise_floor(p_hat_N, G) if predicted_N.any() else None,
        "teacher_mu": mean(selections.utilities_N_K),
        "teacher_sigma": float(selections.utilities_N_K.std()) if predicted_N.all() else None,
    }

"""Scores of a study's runs, and the differences between its arms: gains, speed-ups, intervals.

A table of scores has a row for each evaluation of a run. Its columns:

    task, arm, seed         the run
    model_crc32             checksum of the weights that it began from
    problems                number of validation problems
    step, completions       done so far
    cpu_seconds             processor time of the steps so far, without evaluations
    live                    live groups so far
    dead                    mean share of dead groups since the last row that has it
    accuracy                greedy, in percent

What is not known is blank. Accuracy is read at five places over the last third of an amount and
averaged, linear between evaluations. That puts a curve that flattens too low, so a gain is marked
with ≈ where a run has no evaluation there. Intervals are 95%, over seeds, by which arms are paired.

Shapes: S seeds, A amounts of a cost.
"""

from dataclasses import dataclass

import numpy as np
import pandas as pd
from scipy import optimize, stats

from plumbing.errors import InputError
from scripts import analysis

RUN = ["task", "arm", "seed"]
TOTALS = ["completions", "cpu_seconds", "live"]
COLUMNS = [*RUN, "model_crc32", "problems", "step", *TOTALS, "dead", "accuracy"]
RATIOS = {"pace": "step", "cpu": "cpu_seconds", "r": "live"}  # of a summary: to the baseline's
SPENT = 0.95  # of the budget: a run that spent less is not compared
DRAWS = 2000  # of a bootstrap


def of_run(run: analysis.Run, usage: list[dict], **key) -> pd.DataFrame:
    """Compute the rows of a run. key: its task, arm and seed. usage: cpu_seconds and wall_seconds
    of its processes; a step's CPU seconds are its seconds times the share of a core that these
    used. Raises InputError if the run was never evaluated."""
    m = run.metrics.reindex(columns=["completions", "seconds", "groups", "zero_variance"])
    used = pd.DataFrame(usage, columns=["cpu_seconds", "wall_seconds"], dtype=float)
    used = used.sum(min_count=1)
    steps = m[["completions"]].assign(
        cpu_seconds=m.seconds * (used.cpu_seconds / used.wall_seconds),
        live=(1 - m.zero_variance) * m.groups,
    )
    steps[steps.index == 0] = 0.0  # step 0 only evaluates
    rows = steps.cumsum(skipna=False).assign(accuracy=run.accuracy)
    evaluations_before = rows.accuracy.notna().cumsum().shift(fill_value=0)
    rows["dead"] = m.zero_variance.groupby(evaluations_before).transform("mean")
    files = sorted(run.config.get("model_files", {}).items())
    weights = [str(crc32) for name, crc32 in files if name.endswith(("safetensors", "commit"))]
    rows = rows.dropna(subset="accuracy").reset_index(names="step")
    return rows.assign(**key, model_crc32="+".join(weights), problems=run.problems)


def read(path) -> pd.DataFrame:
    """Read a CSV of scores. Raises ValueError where a column is missing, OSError."""
    texts = {"task": str, "arm": str, "model_crc32": str}
    rows = pd.read_csv(path, dtype=texts, usecols=COLUMNS)
    return rows[COLUMNS].fillna(dict.fromkeys(texts, ""))


def together(parts: list[pd.DataFrame]) -> pd.DataFrame:
    """Put tables, which may be empty, into one. Raises InputError if runs that are to be paired
    began from different weights: a model that was made on another processor may have others."""
    filled = [part[COLUMNS] for part in parts if len(part)]
    rows = pd.concat(filled or [pd.DataFrame(columns=COLUMNS)], ignore_index=True)
    models = rows[rows.model_crc32 != ""].groupby(["task", "seed"]).model_crc32.nunique()
    if (models > 1).any():
        task, seed = models.idxmax()
        raise InputError(f"{task} seed {seed}: its runs have different models: choose new seeds")
    return rows


@dataclass(frozen=True)
class Gain:
    """Accuracy of an arm less the baseline's, when the arm has spent `amount` of a cost and the
    baseline `base_amount`. low, high, p: of a t-test paired by seed; NaN for one seed."""

    points: float
    low: float
    high: float
    p: float
    amount: float
    base_amount: float
    seeds: int
    interpolated: bool

    def __str__(self):
        text = "≈ " if self.interpolated else ""
        text += f"{self.points:+.1f}"
        if not np.isnan(self.low):
            text += f" ({self.low:+.1f} to {self.high:+.1f})"
        text += f" at {self.amount:,.0f}"
        if self.base_amount != self.amount:
            text += f", baseline {self.base_amount:,.0f}"
        return text


@dataclass(frozen=True)
class SpeedUp:
    """Completions at which the baseline first reaches its own accuracy at the budget, over those at
    which the arm first does. 0: the arm does not; its speed-up is below `bound`. NaN: the baseline
    is there from the start, or for an interval of one seed."""

    value: float
    low: float
    high: float
    bound: float

    def __str__(self):
        if np.isnan(self.value):
            return "–"
        text = f"{self.value:.2g}" if self.value else f"not reached, < {self.bound:.2g}"
        if not np.isnan(self.low):
            text += f" ({self.low:.2g} to {self.high:.2g})"
        return text


def curves(runs: pd.DataFrame, at_A, column="accuracy", cost="completions") -> pd.DataFrame:
    """Read the curves of an arm's runs at amounts of a cost, linear between the rows that have the
    column. Returns (S, A), by seed and amount."""
    known = runs.dropna(subset=column).sort_values("completions")
    curve_of = {}
    for seed, run in known.groupby("seed"):
        curve_of[seed] = np.interp(at_A, run[cost], run[column])
    return pd.DataFrame.from_dict(curve_of, orient="index", columns=at_A, dtype=float)


def reached(runs: pd.DataFrame, cost: str) -> float:
    """Return how much of a cost all runs have spent, NaN where that is not known."""
    most = runs.groupby("seed")[cost].max().min()
    return most if runs[cost].notna().all() else np.nan


def is_evaluated(runs: pd.DataFrame, cost: str, at_A) -> bool:
    """Whether each run has an evaluation in the range of the amounts where its curve is read."""
    first = at_A[0] * (1 - 1e-6)
    last = at_A[-1] * (1 + 1e-6)
    is_read = runs[cost].between(first, last) & runs.accuracy.notna()
    return is_read.groupby(runs.seed).any().all()


def gain(arm, base, at_A, cost="completions", ratio=1.0) -> Gain | None:
    """Compare paired runs of two arms when the baseline has spent `ratio` times the arm's amount of
    a cost: the most that all runs reached, of completions up to the budget. None if that is not
    known. at_A: completions where curves are read, the last of which is the budget."""
    most_arm = reached(arm, cost)
    most_base = reached(base, cost)
    if cost == "completions":  # a run that spent SPENT of the budget counts as one that spent it
        most_arm = at_A[-1]
        most_base = max(most_base, at_A[-1])
    amount = np.minimum(most_arm, most_base / ratio)
    if not amount > 0:
        return None
    arm_A = at_A * (amount / at_A[-1])
    base_A = arm_A * ratio
    arm_S = curves(arm, arm_A, cost=cost).mean(axis=1)
    base_S = curves(base, base_A, cost=cost).mean(axis=1)
    known = is_evaluated(arm, cost, arm_A) and is_evaluated(base, cost, base_A)
    points = (arm_S - base_S).mean()
    low = high = p = np.nan
    if len(arm_S) > 1:
        test = stats.ttest_rel(arm_S, base_S)
        low, high = test.confidence_interval()
        p = test.pvalue
    return Gain(points, low, high, p, amount, ratio * amount, len(arm_S), not known)


def holm(p: pd.Series) -> pd.Series:
    """Correct p-values for their number by Holm's method."""
    ordered = p.sort_values()
    larger = ordered * np.arange(len(p), 0, -1)
    return larger.cummax().clip(upper=1).reindex(p.index)


def first_reach(at_A, accuracy_A, level: float) -> float:
    """Return the completions at which a curve, made monotone by isotonic regression, first reaches
    a level, linear between its points; infinity if it does not."""
    monotone_A = optimize.isotonic_regression(accuracy_A).x
    after = int(np.searchsorted(monotone_A, level - 1e-9))  # of rounding
    if after == len(monotone_A):
        return np.inf
    points = slice(max(after - 1, 0), after + 1)
    return float(np.interp(level, monotone_A[points], at_A[points]))


def resamples(n: int) -> np.ndarray:
    """Return indices of n items (D, n): all of them and, of several, DRAWS times n drawn with
    replacement."""
    rng = np.random.default_rng(0)
    draws = rng.integers(n, size=(DRAWS if n > 1 else 0, n))
    return np.vstack([np.arange(n), draws])


def percentiles(statistic_D) -> tuple[float, float]:
    """Return the 95% bootstrap interval of a statistic over the draws of `resamples`, of which
    those where it is NaN are left out."""
    return tuple(np.nanquantile(statistic_D[1:], [0.025, 0.975]))


def first_reaches(runs: pd.DataFrame, seeds_D_S, level_D, budget: float) -> np.ndarray:
    """Return the completions, up to a budget, at which the mean curve of each draw of seeds first
    reaches a level (D,)."""
    evaluated = runs.completions[runs.accuracy.notna() & (runs.completions < budget)]
    at_A = np.union1d(evaluated, budget)
    curves_S_A = curves(runs, at_A).to_numpy()
    reached_D = []
    for seeds, level in zip(seeds_D_S, level_D, strict=True):
        mean_A = curves_S_A[seeds].mean(axis=0)
        reached_D.append(first_reach(at_A, mean_A, level))
    return np.array(reached_D)


def speed_up(arm: pd.DataFrame, base: pd.DataFrame, at_A) -> SpeedUp:
    """Compute an arm's speed-up from the mean curves of paired runs, within the budget; at_A as
    `gain` takes them. Its interval is a bootstrap over seeds."""
    level_S = curves(base, at_A).mean(axis=1).to_numpy()
    draws = resamples(len(level_S))
    levels = level_S[draws].mean(axis=1)
    base_D = first_reaches(base, draws, levels, at_A[-1])
    base_D[base_D == 0] = np.nan
    ratio_D = base_D / first_reaches(arm, draws, levels, at_A[-1])
    interval = percentiles(ratio_D) if len(level_S) > 1 else (np.nan, np.nan)
    return SpeedUp(ratio_D[0], *interval, bound=base_D[0] / at_A[-1])


def describe(runs: pd.DataFrame, at_A) -> dict:
    """Describe an arm at the budget: means over its runs, NaN where not known."""
    budget = at_A[-1]
    within = runs[runs.completions <= budget * (1 + 1e-6)].dropna(subset="dead")
    dead_S = [
        np.average(run.dead, weights=np.diff(run.step, prepend=0))
        for _, run in within.groupby("seed")
    ]
    row = {
        "seeds": runs.seed.nunique(),
        "problems": runs.problems.max(),
        "before": curves(runs, [0])[0].mean(),
        "accuracy": curves(runs, at_A).mean(axis=1).mean(),
        "dead": np.mean(dead_S) if dead_S else np.nan,
    }
    for name, column in RATIOS.items():
        row[name] = curves(runs, [budget], column)[budget].mean()
    return row


def compare(arm: pd.DataFrame, base: pd.DataFrame, at_A, ratio: float) -> dict:
    """Compare an arm with the baseline over the seeds that both have. ratio: its devices over the
    baseline's."""
    of_arm = arm[arm.seed.isin(base.seed)]
    pair = (of_arm, base[base.seed.isin(of_arm.seed)])
    if of_arm.empty or arm.equals(base):
        return dict.fromkeys(["gain", "matched", "cpu_seconds", "speed_up"])
    return {
        "gain": gain(*pair, at_A),
        "matched": gain(*pair, at_A, ratio=ratio),
        "cpu_seconds": gain(*pair, at_A, "cpu_seconds"),
        "speed_up": speed_up(*pair, at_A),
    }


def summarize(rows, baseline: str, budget: float, devices: dict, places: int = 5) -> pd.DataFrame:
    """Compare each arm of each task with the baseline: a row for each. Its gains are `gain` and
    `cpu_seconds` (at equal amounts) and `matched` (compute-matched). budget: in completions.
    devices: by arm, relative to one without a Teacher. places: where curves are read, over the last
    third of an amount. Raises InputError if there is nothing to compare with."""
    spent = rows.groupby(RUN).completions.transform("max")
    rows = rows[spent >= SPENT * budget]
    bases = dict([*rows[rows.arm == baseline].groupby("task", sort=False)])
    if not bases:
        raise InputError(f"no run of {baseline} has spent {budget:,.0f} completions")
    at_A = budget * (np.linspace(8, 12, places) / 12)
    lines = []
    for task, base in bases.items():
        for arm, runs in rows[rows.task == task].groupby("arm", sort=False):
            ratio = devices.get(arm, 1.0) / devices.get(baseline, 1.0)
            compared = compare(runs, base, at_A, ratio)
            lines.append({"task": task, "arm": arm} | describe(runs, at_A) | compared)
    summary = pd.DataFrame(lines)
    of_baseline = summary[summary.arm == baseline].set_index("task")
    partner = of_baseline.loc[summary.task].reset_index()  # of each row
    for name in RATIOS:
        summary[name] /= partner[name]
    return summary.assign(base_dead=partner.dead)


def select(rows: pd.DataFrame, names: dict[str, list[str]]) -> pd.DataFrame:
    """Return the rows of the arms and tasks in `names`, by default all."""
    arms = names.get("arms", rows.arm)
    tasks = names.get("tasks", rows.task)
    return rows[rows.arm.isin(arms) & rows.task.isin(tasks)]

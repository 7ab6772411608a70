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

import warnings
from collections.abc import Callable

import numpy as np
import pandas as pd
from scipy import optimize, stats

from plumbing.errors import InputError
from scripts import analysis

RUN = ["task", "arm", "seed"]
TOTALS = ["completions", "cpu_seconds", "live"]
COLUMNS = [*RUN, "model_crc32", "problems", "step", *TOTALS, "dead", "accuracy"]
RATIOS = {"cpu": "cpu_seconds", "r": "live"}  # of a summary: to the baseline's
SPENT = 0.95  # of the budget: a run that spent less is not compared
DRAWS = 2000  # of a bootstrap
ROUNDING = 1e-6  # relative, of amounts


def of_run(run: analysis.Run, cores: float, **key) -> pd.DataFrame:
    """Compute the rows of a run. key: its task, arm and seed. cores: how many its processes used: a
    step's CPU seconds are its seconds times these. Raises InputError if the run was never
    evaluated."""
    m = run.metrics.reindex(columns=["completions", "seconds", "groups", "zero_variance"])
    steps = m[["completions"]].assign(
        cpu_seconds=m.seconds * cores,
        live=(1 - m.zero_variance) * m.groups,
    )
    steps[steps.index == 0] = 0.0  # step 0 only evaluates
    rows = steps.cumsum(skipna=False)
    rows["accuracy"] = run.accuracy
    evaluations = rows.accuracy.notna().cumsum()
    evaluations_before = evaluations.shift(fill_value=0)
    since_evaluation = m.zero_variance.groupby(evaluations_before)
    rows["dead"] = since_evaluation.transform("mean")
    files = sorted(run.config.get("model_files", {}).items())
    weights = [str(crc32) for name, crc32 in files if name.endswith(("safetensors", "commit"))]
    known = rows.dropna(subset="accuracy")
    return known.reset_index(names="step").assign(
        **key,
        model_crc32="+".join(weights),
        problems=run.problems,
    )


def read(path) -> pd.DataFrame:
    """Read a CSV of scores. Raises ValueError where a column is missing, OSError."""
    texts = {"task": str, "arm": str, "model_crc32": str}
    rows = pd.read_csv(path, dtype=texts, usecols=COLUMNS)
    return rows[COLUMNS].fillna(dict.fromkeys(texts, ""))


def together(parts: list[pd.DataFrame]) -> pd.DataFrame:
    """Put tables into one. Raises InputError if there is none, or if runs that are to be paired
    began from different weights: a model that was made on another processor may have others."""
    if not parts:
        raise InputError("no run is finished")
    rows = pd.concat(parts, ignore_index=True)[COLUMNS]
    known = rows[rows.model_crc32 != ""]
    models = known.groupby(["task", "seed"]).model_crc32.nunique()
    if (models > 1).any():
        task, seed = models.idxmax()
        raise InputError(f"{task} seed {seed}: its runs have different models: choose new seeds")
    return rows


def read_curves(runs: pd.DataFrame, at_A, column="accuracy", cost="completions") -> pd.DataFrame:
    """Read a column of an arm's runs at amounts of a cost, linear between the rows that have it.
    Returns by seed its `level`, the mean over amounts, and whether a row is among them."""
    first = at_A[0] * (1 - ROUNDING)
    last = at_A[-1] * (1 + ROUNDING)
    lines = {}
    known = runs.dropna(subset=column).sort_values("completions")
    for seed, run in known.groupby("seed"):
        spent = run[cost]
        level_A = np.interp(at_A, spent, run[column])
        is_measured = spent.between(first, last).any()
        lines[seed] = (level_A.mean(), is_measured)
    return pd.DataFrame.from_dict(lines, orient="index", columns=["level", "measured"])


def gain(arm, base, at_A, cost="completions", ratio=1.0) -> dict:
    """Compare paired runs of two arms, whose curves are read at amounts of a cost, the baseline's
    at `ratio` times these. Returns the arm's points over the baseline, the limits of the interval
    and the p of a t-test paired by seed (NaN for one seed), the last amount `at`, and a text."""
    base_A = ratio * at_A
    arm_S = read_curves(arm, at_A, cost=cost)
    base_S = read_curves(base, base_A, cost=cost)
    difference_S = arm_S.level - base_S.level
    with warnings.catch_warnings(action="ignore"):  # of NaN for one seed, of equal differences
        test = stats.ttest_rel(arm_S.level, base_S.level)
    low, high = test.confidence_interval()
    points = difference_S.mean()
    seeds = len(difference_S)
    measured = arm_S.measured & base_S.measured
    at = at_A[-1]
    text = f"{points:+.1f}"
    if not measured.all():
        text = f"≈ {text}"
    if seeds > 1:
        text += f" ({low:+.1f} to {high:+.1f})"
    text += f" at {at:,.0f}"
    if ratio != 1:
        text += f", baseline {base_A[-1]:,.0f}"
    return {
        "points": points,
        "low": low,
        "high": high,
        "p": test.pvalue,
        "at": at,
        "seeds": seeds,
        "text": text,
    }


def holm(p: pd.Series) -> pd.Series:
    """Correct p-values for their number by Holm's method."""
    ordered = p.sort_values()
    n_left = np.arange(len(p), 0, -1)
    larger = ordered * n_left
    corrected = larger.cummax().clip(upper=1)
    return corrected.reindex(p.index)


def bootstrap(statistic: Callable, n: int) -> tuple[float, float, float]:
    """Return a statistic of n items, which takes their indices, and its 95% bootstrap interval, NaN
    if n is 1 or the statistic is NaN. Draws of which it is NaN are left out."""
    value = statistic(np.arange(n))
    if n == 1 or np.isnan(value):
        return value, np.nan, np.nan
    rng = np.random.default_rng(0)
    draws = rng.integers(n, size=(DRAWS, n))
    of_draws = [statistic(draw) for draw in draws]
    low, high = np.nanquantile(of_draws, [0.025, 0.975])
    return value, low, high


def until(budget: float, runs: pd.DataFrame) -> pd.DataFrame:
    """Return the accuracies of an arm's runs (A, S) at all evaluations up to a budget and there,
    linear between those of a run, by completions and seed."""
    accuracy = runs.pivot(index="completions", columns="seed", values="accuracy")
    completions = accuracy.index.union([budget])
    accuracy = accuracy.reindex(completions)
    known = accuracy.interpolate("index", limit_direction="both")
    return known.loc[:budget]


def first_reach(accuracy: pd.DataFrame, seeds, level: float) -> float:
    """Return the completions at which the mean curve of some seeds, columns of what `until`
    returns, first reaches a level; infinity if it does not. The curve is made monotone by isotonic
    regression, and is linear between its points."""
    accuracy_A_S = accuracy.to_numpy()
    mean_A = accuracy_A_S[:, seeds].mean(axis=1)
    monotone_A = optimize.isotonic_regression(mean_A).x
    after = np.searchsorted(monotone_A, level - 1e-9)  # of rounding
    if after == len(monotone_A):
        return np.inf
    before = max(after - 1, 0)
    points = [before, after]
    return np.interp(level, monotone_A[points], accuracy.index[points])


def speed_up(arm: pd.DataFrame, base: pd.DataFrame, at_A) -> dict:
    """Compare the completions at which the mean curves of paired runs first reach the baseline's
    level at the budget, the last of the amounts at which it is read. Returns the baseline's over
    the arm's as `value` (0: the arm does not reach it, and is below `bound`; NaN: the baseline is
    there from the start), its bootstrap interval over seeds (NaN for one seed), and a text."""
    budget = at_A[-1]
    level_S = read_curves(base, at_A).level.to_numpy()
    of_base = until(budget, base)
    of_arm = until(budget, arm)

    def reached_by_base(seeds, level) -> float:
        # A curve that falls at the end may not reach the mean over its last third.
        return min(budget, first_reach(of_base, seeds, level))

    def ratio(seeds) -> float:
        level = level_S[seeds].mean()
        by_base = reached_by_base(seeds, level)
        by_arm = first_reach(of_arm, seeds, level)
        return by_base / by_arm if by_base else np.nan

    seeds = len(level_S)
    value, low, high = bootstrap(ratio, seeds)
    reached = reached_by_base(range(seeds), level_S.mean())
    bound = reached / budget
    text = f"{value:.2g}"
    if not value:
        text = f"not reached, < {bound:.2g}"
    if low >= 0:
        text += f" ({low:.2g} to {high:.2g})"
    return {
        "value": value,
        "low": low,
        "high": high,
        "bound": bound,
        "text": text,
    }


def describe(runs: pd.DataFrame, at_A) -> dict:
    """Describe an arm at the budget: means over its runs, NaN where not known."""
    budget = at_A[-1]
    is_within = runs.completions <= budget * (1 + ROUNDING)
    within = runs[is_within].dropna(subset="dead")
    by_seed = within.groupby("seed")
    steps = by_seed.step.diff().fillna(within.step)
    dead_steps = (within.dead * steps).groupby(within.seed).sum()
    dead_S = dead_steps / by_seed.step.max()
    at_budget = {}
    for name, column in RATIOS.items():
        of_runs = read_curves(runs, [budget], column)
        at_budget[name] = of_runs.level.mean()
    return at_budget | {
        "seeds": runs.seed.nunique(),
        "problems": runs.problems.max(),
        "before": read_curves(runs, [0]).level.mean(),
        "accuracy": read_curves(runs, at_A).level.mean(),
        "dead": dead_S.mean(),
    }


def compare(arm: pd.DataFrame, base: pd.DataFrame, at_A, ratio: float) -> dict:
    """Compare an arm with the baseline over the seeds that both have, by amounts of completions.
    ratio: its devices over the baseline's. A run that has spent SPENT of the budget counts as one
    that spent all."""
    arm = arm[arm.seed.isin(base.seed)]
    base = base[base.seed.isin(arm.seed)]
    if arm.empty:
        return {}
    budget = at_A[-1]
    base_by_seed = base.groupby("seed")
    base_spent = base_by_seed.completions.max().min()
    matched = min(budget, max(budget, base_spent) / ratio)
    matched_A = at_A * (matched / budget)
    at_equal_cpu = {"text": "–"}
    both = pd.concat([arm, base])
    if both.cpu_seconds.notna().all():
        by_run = both.groupby(["arm", "seed"])
        cpu_seconds = by_run.cpu_seconds.max().min()
        cpu_A = at_A * (cpu_seconds / budget)
        at_equal_cpu = gain(arm, base, cpu_A, "cpu_seconds")
    return {
        "gain": gain(arm, base, at_A),
        "matched": gain(arm, base, matched_A, ratio=ratio),
        "cpu_seconds": at_equal_cpu,
        "speed_up": speed_up(arm, base, at_A),
    }


def summarize(rows, baseline: str, budget: float, devices: dict, places: int = 5) -> pd.DataFrame:
    """Compare each arm of each task with the baseline: a row for each. It has gains at equal
    completions (`gain_…`) and CPU seconds (`cpu_seconds_…`) and compute-matched (`matched_…`), and
    the `speed_up_…`. budget: in completions. devices: by arm, relative to one without a Teacher.
    places: where curves are read, over the last third of an amount. Raises InputError if there is
    nothing to compare."""
    twelfths = np.linspace(8, 12, places)
    at_A = budget * (twelfths / 12)
    spent = rows.groupby(RUN).completions.transform("max")
    finished = rows[spent >= SPENT * budget]
    lines = []
    for task, of_task in finished.groupby("task", sort=False):
        base = of_task[of_task.arm == baseline]
        of_base = describe(base, at_A)
        for arm, runs in of_task.groupby("arm", sort=False):
            line = describe(runs, at_A)
            line |= {"task": task, "arm": arm, "base": of_base}
            if arm != baseline:
                ratio = devices.get(arm, 1.0) / devices.get(baseline, 1.0)
                line |= compare(runs, base, at_A, ratio)
            lines.append(line)
    if not any("gain" in line for line in lines):
        raise InputError(
            f"no run of {baseline} and of another arm with its seed has spent {budget:,.0f} "
            "completions"
        )
    summary = pd.json_normalize(lines, sep="_")
    for name in RATIOS:
        summary[name] /= summary[f"base_{name}"]
    return summary


def select(rows: pd.DataFrame, arms: list[str], tasks: list[str]) -> pd.DataFrame:
    """Return the rows of these arms and tasks."""
    of_arms = rows[rows.arm.isin(arms)]
    return of_arms[of_arms.task.isin(tasks)]

"""Scores of a study's runs, and the differences between its arms: gains, speed-ups, intervals.

A table of scores has a row for each evaluation of a run. Its columns:

    task, arm, seed         the run
    model_crc32             checksum of the weights that it began from
    problems                number of validation problems
    step, completions       done so far
    cpu_seconds             processor time of the steps so far, without start and evaluations. Older
                            tables have process_cpu_seconds, with both, which are not compared
    by_clock                True where cpu_seconds are seconds by the clock, as on a GPU
    live                    live groups so far
    dead                    mean share of dead groups since the last row that has it
    accuracy                greedy, in percent
    code_crc32              checksum of the code that any run loads; joined by "+" if it changed

What is not known is blank. Accuracy is read at five places over the last third of an amount and
averaged, linear between evaluations. That puts a curve that flattens too low, so a gain is marked
with ≈ where a run has no evaluation there. Intervals are 95%, over seeds, by which arms are paired.

Shapes: S seeds, A amounts of a cost.
"""

import warnings

import numpy as np
import pandas as pd
from scipy import optimize, stats

from plumbing.errors import InputError

RUN = ["task", "arm", "seed"]
COLUMNS = [*RUN, "model_crc32", "problems", "step"]
COLUMNS += ["completions", "cpu_seconds", "by_clock", "live", "dead", "accuracy", "code_crc32"]
LATER = {"cpu_seconds", "by_clock", "code_crc32"}  # columns that older tables do not have
# Checksum -> columns: rows that agree in these must not differ in it.
SAME = {
    "model_crc32": ["task", "seed"],  # made on another processor, a model may be another
    "train_data_crc32": ["task"],
    "val_data_crc32": ["task"],
    "reward_crc32": ["task"],
    "own_code_crc32": ["task", "arm"],  # files that only some runs load: a sampler's, its parent's
}
UNKNOWN = ("model_crc32", "own_code_crc32")  # may be blank, which is no difference
MOVES = 2  # standard errors: by less an accuracy has not moved
SPENT = 0.95  # of the budget: a run that spent less is not compared
DRAWS = 2000  # of a bootstrap
ROUNDING = 1e-6  # relative, of amounts


def read(path) -> pd.DataFrame:
    """Read a CSV of scores; older ones have none of the LATER columns. Raises InputError where
    another column is missing, OSError."""
    texts = {"task": str, "arm": str, "model_crc32": str, "code_crc32": str}
    rows = pd.read_csv(
        path,
        dtype=texts,
        usecols=lambda name: name in COLUMNS,
        keep_default_na=False,  # an arm may be called None
        na_values=[""],
    )
    if missing := {*COLUMNS} - LATER - {*rows.columns}:
        raise InputError(f"{path}: has no columns {sorted(missing)}")
    return rows.reindex(columns=COLUMNS).fillna({"task": ""})


def concatenate(parts: list[pd.DataFrame]) -> pd.DataFrame:
    """Concatenate tables of scores. Raises InputError if they have no rows, or if runs differ in a
    checksum in which they must be the SAME."""
    if not any(map(len, parts)):
        raise InputError("there is no finished run of the plan's arms and tasks")
    rows = pd.concat(parts, ignore_index=True)
    for name in rows.columns.intersection([*SAME]):
        known = rows.dropna(subset=name) if name in UNKNOWN else rows
        for _, same in known.groupby(SAME[name]):
            different = same.drop_duplicates(name)[RUN]
            if len(different) > 1:
                runs = different.to_dict("records")
                raise InputError(
                    f"{runs[0]} and {runs[1]} differ in {name}: run one again, or choose new seeds"
                )
    return rows[COLUMNS]


def code_differences(rows: pd.DataFrame) -> list[str]:
    """Return a sentence for each task whose runs are of different versions of the code. It names
    the runs of each version."""
    runs = rows.dropna(subset="code_crc32").drop_duplicates(RUN)
    sentences = []
    for task, of_task in runs.groupby("task", sort=False):
        versions = []
        for _, of_version in of_task.groupby("code_crc32", sort=False):
            names = []
            for arm, seeds in of_version.groupby("arm", sort=False).seed:
                is_whole = len(seeds) == sum(of_task.arm == arm)
                numbers = ", ".join(map(str, sorted(seeds)))
                names.append(arm if is_whole else f"{arm} (seeds {numbers})")
            versions.append(", ".join(names))
        if len(versions) > 1:
            where = f" in {task}" if task else ""
            sentences.append(
                f"Runs of different code are compared{where}: {' | '.join(versions)}. `code` in "
                "each config.json has the checksums of the files."
            )
    return sentences


def read_curves(runs: pd.DataFrame, at_A, column="accuracy", cost="completions") -> pd.DataFrame:
    """Return a column of an arm's runs (A, S) by cost and seed, at all rows that have it and at
    at_A. It is linear between the rows of a run, and level before the first and after the last."""
    known = runs.dropna(subset=column)
    known = known.pivot(index=cost, columns="seed", values=column)
    amounts = known.index.union(at_A)
    return known.reindex(amounts).interpolate("index", limit_direction="both")


def read_levels(runs: pd.DataFrame, at_A, column="accuracy", cost="completions") -> pd.Series:
    """Return by seed the mean over amounts of a cost of what `read_curves` reads there."""
    curves = read_curves(runs, at_A, column, cost)
    return curves.loc[at_A].mean()


def are_measured(runs: pd.DataFrame, at_A, cost: str) -> bool:
    """Whether each run has an evaluation among amounts of a cost."""
    first = at_A[0]
    last = at_A[-1]
    margin = ROUNDING * last
    is_among = runs[cost].between(first - margin, last + margin)
    return is_among.groupby(runs.seed).any().all()


def gain(arm, base, at_A, cost="completions", ratio=1.0) -> dict:
    """Compare paired runs of two arms, whose curves are read at amounts of a cost, the baseline's
    at `ratio` times these. Returns the arm's points over the baseline, the limits of the interval
    and the p of a t-test paired by seed (NaN for one seed), the last amount `at`, and a text."""
    base_A = ratio * at_A
    arm_S = read_levels(arm, at_A, cost=cost)
    base_S = read_levels(base, base_A, cost=cost)
    with warnings.catch_warnings(action="ignore"):  # of NaN for one seed, of equal differences
        test = stats.ttest_rel(arm_S, base_S)
    low, high = test.confidence_interval()
    difference_S = arm_S - base_S
    points = difference_S.mean()
    seeds = len(arm_S)
    measured = are_measured(arm, at_A, cost) and are_measured(base, base_A, cost)
    at = at_A[-1]
    text = f"{points:+.1f}"
    if not measured:
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


def first_reach(accuracy: pd.DataFrame, seeds, level: float) -> float:
    """Return the completions at which the mean curve of some seeds, columns of `read_curves`, first
    reaches a level; infinity if it does not. The curve is made monotone by isotonic regression, and
    is linear between its points."""
    accuracy_A_S = accuracy.to_numpy()
    mean_A = accuracy_A_S[:, seeds].mean(axis=1)
    monotone_A = optimize.isotonic_regression(mean_A).x
    after = np.searchsorted(monotone_A, level - 1e-9)  # of rounding
    if after == len(monotone_A):
        return np.inf
    before = max(after - 1, 0)
    points = [before, after]
    return np.interp(level, monotone_A[points], accuracy.index[points])


def standard_error(accuracy: float, problems: float, runs: int) -> float:
    """Return the standard error of an accuracy, in points: the mean of runs that each answered so
    many problems. Runs are taken as independent."""
    share = accuracy / 100
    return 100 * np.sqrt(share * (1 - share) / (problems * runs or np.nan))


def speed_up(arm: pd.DataFrame, base: pd.DataFrame, at_A) -> dict:
    """Compare the completions at which the mean curves of paired runs first reach the baseline's
    level at the budget, the last of the amounts at which it is read. Returns the baseline's over
    the arm's as `value` (0: the arm does not reach it, and is below `bound`), its bootstrap
    interval over seeds (NaN for one seed), and a text. All are NaN, and the text says why, if the
    baseline's level is not above its first accuracy by MOVES standard errors: over problems or over
    seeds, whichever is more. Two seeds may rise by the same, far too little for a ratio."""
    budget = at_A[-1]
    level_S = read_levels(base, at_A).to_numpy()
    level = level_S.mean()
    rise_S = level_S - read_levels(base, [0]).to_numpy()
    rise = rise_S.mean()
    errors = [standard_error(level, base.problems.max(), len(level_S))]
    if len(level_S) > 1:
        errors.append(stats.sem(rise_S))
    error = MOVES * np.nanmax(errors)
    if rise <= error:
        moves = f"does not rise: {rise:+.1f}"
        if rise > 0:
            moves = f"hardly moves: {rise:+.1f} ± {error:.1f} points"
        nothing = dict.fromkeys(["value", "low", "high", "bound"], np.nan)
        return nothing | {"text": f"not defined, the baseline {moves}"}
    of_base = read_curves(base, [budget]).loc[:budget]
    of_arm = read_curves(arm, [budget]).loc[:budget]

    def reached_by_base(seeds) -> float:
        reached = first_reach(of_base, seeds, level_S[seeds].mean())
        # A curve that falls at the end may not reach the mean over its last third.
        return min(budget, reached)

    def ratio(seeds) -> float:
        by_arm = first_reach(of_arm, seeds, level_S[seeds].mean())
        return (reached_by_base(seeds) or np.nan) / by_arm

    n = len(level_S)
    seeds = range(n)
    value = ratio(seeds)
    low = high = np.nan
    if n > 1 and value >= 0:
        rng = np.random.default_rng(0)
        draws = rng.integers(n, size=(DRAWS, n))
        of_draws = [ratio(draw) for draw in draws]
        low, high = np.nanquantile(of_draws, [0.025, 0.975])  # without those whose baseline is flat
    bound = reached_by_base(seeds) / budget
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


def mean_dead(runs: pd.DataFrame, budget: float) -> float:
    """Return the share of dead groups up to a budget, mean over an arm's runs; NaN if not known."""
    is_within = runs.completions.between(1, budget * (1 + ROUNDING))
    within = runs[is_within].dropna(subset="dead")
    dead_S = []
    for _, run in within.groupby("seed"):
        steps = np.diff(run.step, prepend=0)  # since the row before
        dead = np.average(run.dead, weights=steps)
        dead_S.append(dead)
    return pd.Series(dead_S, dtype=float).mean()


def describe(runs: pd.DataFrame, base: pd.DataFrame, at_A) -> dict:
    """Describe an arm at the budget: means over its runs, NaN where not known, and ratios to the
    baseline's. `end`, `best`: of its mean curve, with the standard errors of their difference and
    of a change since the first evaluation. `seconds`: what a report calls those that were
    measured."""
    budget = at_A[-1]
    curve = read_curves(runs, [0, budget]).mean(axis=1).loc[:budget]
    problems = runs.problems.max()
    first, end, best = curve.iloc[0], curve.iloc[-1], curve.max()
    errors = [standard_error(value, problems, runs.seed.nunique()) for value in (first, end, best)]

    def ratio(column: str) -> float:
        own_S = read_levels(runs, [budget], column)
        base_S = read_levels(base, [budget], column)
        return own_S.mean() / (base_S.mean() or np.nan)

    return {
        "seeds": runs.seed.nunique(),
        "problems": problems,
        "end": end,
        "best": best,
        "end_error": np.hypot(errors[0], errors[1]),
        "best_error": np.hypot(errors[1], errors[2]),
        "before": read_levels(runs, [0]).mean(),
        "accuracy": read_levels(runs, at_A).mean(),
        "dead": mean_dead(runs, budget),
        "base_dead": mean_dead(base, budget),
        "r": ratio("live"),
        "seconds": "seconds" if runs.by_clock.eq(True).any() else "CPU seconds",
        "cpu": ratio("cpu_seconds"),
    }


def compare(arm: pd.DataFrame, base: pd.DataFrame, at_A, ratio: float) -> dict:
    """Compare an arm with the baseline over the seeds that both have, by amounts of completions.
    ratio: its devices over the baseline's. A run that has spent SPENT of the budget counts as one
    that spent all."""
    arm = arm.query("seed in @base.seed")
    base = base.query("seed in @arm.seed")
    if arm.empty:
        return {}
    budget = at_A[-1]
    base_by_seed = base.groupby("seed")
    base_spent = base_by_seed.completions.max().min()
    # The arm's completions, beside which the baseline has `ratio` times as many: all of the budget
    # if the baseline went on beyond it, otherwise 3/4 of it.
    matched = min(budget, max(budget, base_spent) / ratio)
    matched_A = at_A * (matched / budget)
    at_equal_cpu = {"text": "–"}
    both = pd.concat([arm, base])
    if both.cpu_seconds.notna().all():
        by_run = both.groupby(RUN)
        cpu_seconds = by_run.cpu_seconds.max().min()
        cpu_A = at_A * (cpu_seconds / budget)
        at_equal_cpu = gain(arm, base, cpu_A, "cpu_seconds")
    return {
        "gain": gain(arm, base, at_A),
        "matched": gain(arm, base, matched_A, ratio=ratio),
        "cpu_seconds": at_equal_cpu,
        "speed_up": speed_up(arm, base, at_A),
    }


def places_of(budget: float, places: int) -> np.ndarray:
    """Return the completions at which accuracy is read: over the last third of a budget, (A,)."""
    return budget * (np.linspace(12, 8, places)[::-1] / 12)  # a single place is the last


def summarize(rows, baseline: str, budget, devices: dict, places: int = 5) -> pd.DataFrame:
    """Compare each arm of each task with the baseline: a row for each. It has gains at equal
    completions (`gain_…`) and CPU seconds (`cpu_seconds_…`) and compute-matched (`matched_…`), and
    the `speed_up_…`. budget: in completions, of all tasks or by task. devices: by arm, relative to
    one without a Teacher. places: where curves are read, over the last third of an amount. Raises
    InputError if there is nothing to compare."""
    budgets = budget if isinstance(budget, dict) else dict.fromkeys(rows.task, budget)
    spent = rows.groupby(RUN).completions.transform("max")
    finished = rows[spent >= SPENT * rows.task.map(budgets)]
    lines = []
    for task, of_task in finished.groupby("task", sort=False):
        at_A = places_of(budgets[task], places)
        base = of_task[of_task.arm == baseline]
        for arm, runs in of_task.groupby("arm", sort=False):
            line = {"task": task, "arm": arm}
            line |= describe(runs, base, at_A)
            if arm != baseline:
                ratio = devices[arm] / devices[baseline]
                line |= compare(runs, base, at_A, ratio)
            lines.append(line)
    summary = pd.json_normalize(lines, sep="_")
    if "gain_points" not in summary:
        amounts = " or ".join(f"{each:,.0f}" for each in sorted({*budgets.values()}))
        raise InputError(
            f"no run of {baseline} and of another arm with its seed has spent {amounts} completions"
        )
    return summary


def select(rows: pd.DataFrame, arms: list[str], tasks: list[str]) -> pd.DataFrame:
    """Return the rows of these arms and tasks."""
    return rows.query("arm in @arms and task in @tasks")

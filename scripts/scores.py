"""Scores of a study's runs, and the differences between its arms: gains, speed-ups, intervals.

A table of scores has a row for each evaluation of a run. Its columns:

    task, arm, seed         the run
    model_crc32             checksum of the weights that it began from
    problems                number of validation problems
    step, completions       done so far
    tokens, cpu_seconds     so far: response tokens; processor time of steps, without evaluations
    updates, live           so far: steps with a live group; live groups
    dead                    mean share of dead groups since the last row that has it
    accuracy                greedy, in percent

What is not known is blank. Accuracy is read at five places over the last third of an amount and
averaged, linear between evaluations. That puts a curve that flattens too low, so a gain is marked
with ≈ where a run has no evaluation there. Intervals are 95%, over seeds, by which arms are paired.
"""

from dataclasses import dataclass

import numpy as np
import pandas as pd
from scipy import optimize, stats

from plumbing.errors import InputError
from scripts import analysis

RUN = ["task", "arm", "seed"]
TOTALS = ["completions", "tokens", "cpu_seconds", "updates", "live"]
COLUMNS = [*RUN, "model_crc32", "problems", "step", *TOTALS, "dead", "accuracy"]
COSTS = {"cpu_seconds": "CPU seconds", "tokens": "response tokens", "updates": "live updates"}
SPENT = 0.95  # of the budget: a run that spent less is not compared
DRAWS = 2000  # of a bootstrap


def of_run(run: analysis.Run, usage: list[dict]) -> pd.DataFrame:
    """Compute the rows of a run, but for its task and arm. usage: cpu_seconds and wall_seconds of
    its processes. A step's CPU seconds are its seconds times the share of a core that these used.
    Raises InputError if it was never evaluated."""
    m = run.metrics.reindex(columns=["completions", "completion_tokens", "seconds", "groups"])
    live = 1 - run.metrics.zero_variance
    wall = sum(process["wall_seconds"] for process in usage) or np.nan
    share = sum(process["cpu_seconds"] for process in usage) / wall
    each = [m.completions, m.completion_tokens, m.seconds * share, live > 0, live * m.groups]
    totals = pd.DataFrame(dict(zip(TOTALS, each, strict=True))).astype(float)
    totals[totals.index == 0] = 0.0  # step 0 only evaluates
    steps = run.accuracy.index
    rows = totals.cumsum(skipna=False).loc[steps].reset_index(names="step")
    rows["accuracy"] = run.accuracy.to_numpy()
    before = [0, *steps[:-1]]
    spans = [run.metrics.zero_variance.loc[a + 1 : b] for a, b in zip(before, steps, strict=True)]
    rows["dead"] = [span.mean() for span in spans]
    weights = sorted(run.config.get("model_files", {}).items())
    crc32 = [str(crc32) for name, crc32 in weights if name.endswith(("safetensors", "commit"))]
    return rows.assign(model_crc32="+".join(crc32), problems=run.problems)


def read(path) -> pd.DataFrame:
    """Read a CSV of scores. Raises InputError, OSError."""
    texts = {"task": str, "arm": str, "model_crc32": str}
    rows = pd.read_csv(path, dtype=texts).fillna(dict.fromkeys(texts, ""))
    if missing := [name for name in COLUMNS if name not in rows]:
        raise InputError(f"{path}: has no column {missing[0]}; scripts.study writes such a CSV")
    return rows[COLUMNS]


def together(parts: list[pd.DataFrame]) -> pd.DataFrame:
    """Put tables, which may be empty, into one. Raises InputError if runs that are to be paired
    began from different weights: a model that was made on another processor may have others."""
    filled = [part[COLUMNS] for part in parts if len(part)]
    rows = pd.concat(filled, ignore_index=True) if filled else pd.DataFrame(columns=COLUMNS)
    known = rows[rows.model_crc32 != ""]
    for (task, seed), models in known.groupby(["task", "seed"]).model_crc32.unique().items():
        if len(models) > 1:
            run = f"{task} seed {seed}".strip()
            raise InputError(f"{run}: models {' and '.join(models)} differ: choose new seeds")
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
        interval = "" if np.isnan(self.low) else f" ({self.low:+.1f} to {self.high:+.1f})"
        base = "" if self.base_amount == self.amount else f", baseline {self.base_amount:,.0f}"
        mark = "≈ " * self.interpolated
        return f"{mark}{self.points:+.1f}{interval} at {self.amount:,.0f}{base}"


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
        value = f"{self.value:.2g}" if self.value else f"not reached, < {self.bound:.2g}"
        return value if np.isnan(self.low) else f"{value} ({self.low:.2g} to {self.high:.2g})"


class Arm:
    """The runs of an arm on a task that spent a budget of completions, by seed. devices: relative
    to those of an arm without a Teacher; places: over the last third of an amount."""

    def __init__(self, rows: pd.DataFrame, budget: float, devices: float, places: int):
        self.budget = budget
        self.devices = devices
        self.places = np.linspace(8, 12, places) / 12
        runs = {seed: run.sort_values("completions") for seed, run in rows.groupby("seed")}
        self.runs = {s: run for s, run in runs.items() if run.completions.max() >= SPENT * budget}

    def curve(self, seed: int, cost: str = "completions") -> tuple[np.ndarray, np.ndarray]:
        """Return the cost and the accuracy of a seed's evaluations."""
        run = self.runs[seed].dropna(subset="accuracy")
        return run[cost].to_numpy(), run.accuracy.to_numpy()

    def reached(self, seeds: list[int], cost: str) -> float:
        """Return how much of a cost all these runs have spent; what is within SPENT of the budget
        counts as the budget."""
        least = min(self.runs[seed][cost].max(skipna=False) for seed in seeds)
        return max(least, self.budget) if cost == "completions" else least

    def accuracy_at(self, seeds: list[int], amount: float, cost: str = "completions"):
        """Return each seed's accuracy at an amount of a cost, and whether a run has no evaluation
        where it is read."""
        at = amount * self.places
        curves = [self.curve(seed, cost) for seed in seeds]
        accuracy = np.array([np.interp(at, *curve).mean() for curve in curves])
        rounding = 1e-6 * amount
        inside = [(spent > at[0] - rounding) & (spent < at[-1] + rounding) for spent, _ in curves]
        return accuracy, not all(each.any() for each in inside)

    def mean_at(self, column: str, amount: float) -> float:
        """Return the mean over seeds of a running total at an amount of completions."""
        runs = [run.dropna(subset=column) for run in self.runs.values()]
        return mean([np.interp(amount, run.completions, run[column]) for run in runs if len(run)])

    def dead(self, amount: float) -> float:
        """Return the mean share of dead groups within an amount of completions."""
        within = [run[run.completions <= amount * (1 + 1e-6)] for run in self.runs.values()]
        runs = [run.dropna(subset="dead") for run in within]
        gaps = [np.diff(run.step, prepend=0) for run in runs]
        shares = zip(runs, gaps, strict=True)
        return mean([np.average(run.dead, weights=steps) for run, steps in shares if len(run)])


def mean(values: list[float]) -> float:
    """Return the mean, NaN of nothing."""
    return float(np.mean(values)) if values else np.nan


def gain(arm: Arm, base: Arm, cost: str = "completions", ratio: float = 1.0) -> Gain | None:
    """Compare two arms when the baseline has spent `ratio` times the arm's amount of a cost: the
    budget of completions, or the most that all runs reached. None if nothing can be compared."""
    seeds = sorted(arm.runs.keys() & base.runs.keys())
    if not seeds:
        return None
    most = [arm.reached(seeds, cost), base.reached(seeds, cost) / ratio]
    if cost == "completions":
        most.append(arm.budget)
    if np.isnan(most).any() or min(most) == 0:
        return None
    amount = min(most)
    of_arm, is_between = arm.accuracy_at(seeds, amount, cost)
    of_base, base_is_between = base.accuracy_at(seeds, ratio * amount, cost)
    low = high = p = np.nan
    if len(seeds) > 1:
        test = stats.ttest_rel(of_arm, of_base)
        low, high = test.confidence_interval()
        p = test.pvalue
    points = float((of_arm - of_base).mean())
    interpolated = is_between or base_is_between
    return Gain(points, low, high, p, amount, ratio * amount, len(seeds), interpolated)


def holm(p: pd.Series) -> pd.Series:
    """Correct p-values for their number by Holm's method; NaN are left out."""
    ordered = p.dropna().sort_values()
    return (ordered * np.arange(len(ordered), 0, -1)).cummax().clip(upper=1)


def first_reach(completions: np.ndarray, accuracy: np.ndarray, level: float) -> float:
    """Return the completions at which a curve, made monotone by isotonic regression, first reaches
    a level, linear between its points; infinity if it does not."""
    monotone = optimize.isotonic_regression(accuracy).x
    after = int(np.searchsorted(monotone, level - 1e-9))  # of rounding
    if after == len(monotone):
        return np.inf
    points = slice(max(after - 1, 0), after + 1)
    return float(np.interp(level, monotone[points], completions[points]))


def speed_up(arm: Arm, base: Arm) -> SpeedUp:
    """Compute an arm's speed-up from the mean curves, within the budget, over the seeds that both
    have. Its interval is a bootstrap over seeds."""
    seeds = sorted(arm.runs.keys() & base.runs.keys())
    curves = []
    for each in (arm, base):
        of_seeds = [each.curve(seed) for seed in seeds]
        every = np.unique(np.concatenate([spent for spent, _ in of_seeds] + [[arm.budget]]))
        at = every[every <= arm.budget]
        curves.append((at, np.array([np.interp(at, *curve) for curve in of_seeds])))
    level_S, _ = base.accuracy_at(seeds, arm.budget)

    def ratio(chosen) -> float:
        level = level_S[chosen].mean()
        needs = [first_reach(at, accuracy_S[chosen].mean(0), level) for at, accuracy_S in curves]
        return needs[1] / needs[0] if needs[1] else np.nan

    at, accuracy_S = curves[1]
    bound = first_reach(at, accuracy_S.mean(0), level_S.mean()) / arm.budget
    low = high = np.nan
    if len(seeds) > 1:
        rng = np.random.default_rng(0)
        draws = [ratio(rng.integers(len(seeds), size=len(seeds))) for _ in range(DRAWS)]
        low, high = np.nanquantile(draws, [0.025, 0.975])
    return SpeedUp(ratio(np.arange(len(seeds))), low, high, bound)


def summarize(rows, baseline: str, budget: float, devices: dict, places: int = 5) -> pd.DataFrame:
    """Compare each arm of each task with the baseline: a row for each. budget: in completions, NaN
    for the most that all runs of a task reached. devices: by arm; places: as Arm takes them."""
    lines = []
    for task, of_task in rows.groupby("task", sort=False):
        least = of_task.groupby(["arm", "seed"]).completions.max().min()
        amount = least if np.isnan(budget) else budget
        parts = of_task.groupby("arm", sort=False)
        arms = {name: Arm(part, amount, devices.get(name, 1.0), places) for name, part in parts}
        base = arms.get(baseline)
        if base is None or not base.runs:
            continue
        of_this = [
            {"task": task, "arm": name} | numbers(arm, base)
            for name, arm in arms.items()
            if arm.runs
        ]
        p = holm(pd.Series([line["gain"].p if line["gain"] else np.nan for line in of_this]))
        lines += [line | {"holm": p.get(i, np.nan)} for i, line in enumerate(of_this)]
    return pd.DataFrame(lines)


def numbers(arm: Arm, base: Arm) -> dict:
    """Compute what the report says of an arm. r: its live groups over the baseline's."""
    seeds = [*arm.runs]
    amount = arm.budget
    steps, cpu, live = [
        arm.mean_at(name, amount) / max(base.mean_at(name, amount), 1e-9)
        for name in ("step", "cpu_seconds", "live")
    ]
    row = {"seeds": len(seeds), "problems": arm.runs[seeds[0]].problems.max()}
    row["before"] = mean([arm.curve(seed)[1][0] for seed in seeds])
    row["accuracy"] = float(arm.accuracy_at(seeds, amount)[0].mean())
    row |= {"dead": arm.dead(amount), "base_dead": base.dead(amount)}
    row |= {"steps": arm.mean_at("step", amount), "pace": steps, "cpu": cpu, "r": live}
    row |= dict.fromkeys(["gain", "matched", "speed_up", *COSTS])
    if arm is not base and arm.runs.keys() & base.runs.keys():
        row["gain"] = gain(arm, base)
        row["matched"] = gain(arm, base, ratio=arm.devices / base.devices)
        row["speed_up"] = speed_up(arm, base)
        row |= {cost: gain(arm, base, cost) for cost in COSTS}
    return row

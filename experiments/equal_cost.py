"""Scores of a study's runs from their logs, and comparisons at equal cost: see real_model.py.

The score at an amount of a cost is the mean accuracy over the last third of that amount. Accuracy
is interpolated linearly between evaluations, which underestimates a curve that flattens: a gain is
marked as interpolated if a run has no evaluation in that third.
"""

from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from plumbing.data.problems import Problems
from plumbing.metrics import VERDICT
from scripts import analysis, plot
from scripts.evaluate import forgive
from verify import Verifier

COSTS = {  # column of the CSV -> its name in the report
    "completions": "completions",
    "response_tokens": "response tokens",
    "cpu_seconds": "CPU seconds",
    "live_updates": "updates with a live group",
}
LAST_THIRD = 2 / 3  # of an amount: from here on it counts
SCORES = ("strict", "lenient")  # a missing box is wrong, or forgiven


def scores(folder: Path, usage: list[dict], by: str, verifier: Verifier) -> pd.DataFrame:
    """Compute a row for each evaluation of a run, from its logs: `step`, COSTS, `dead` (mean share
    of dead groups since the previous one), SCORES in percent and, for each value of the column
    `by`, its strict score. usage: cpu_seconds and wall_seconds of each process of the run."""
    run = analysis.Run.load(folder)
    path = run.config["val_data"]
    analysis.check_unchanged(path, run.config["val_data_crc32"])
    problems = Problems(path)
    labels = analysis.labels_of(problems, by) if by else []
    costs = spent(run, usage)
    dead = run.metrics.zero_variance
    rows = []
    previous = 0
    for step in run.accuracy.index:
        verdicts = analysis.read_table(folder / "evals" / f"step_{step}.jsonl", *VERDICT)
        forgive(verdicts, problems, verifier)
        row = {"step": step, **costs.loc[step]}
        row["dead"] = dead.loc[previous + 1 : step].mean()
        row["strict"] = 100 * verdicts.reward.mean()
        row["lenient"] = 100 * verdicts.lenient.mean()
        if labels:
            p_of = analysis.by_label(verdicts, labels).p
            row |= (100 * p_of).add_prefix("strict: ")
        rows.append(row)
        previous = step
    return pd.DataFrame(rows)


def spent(run: analysis.Run, usage: list[dict]) -> pd.DataFrame:
    """Return the running totals of COSTS by step. A step's CPU seconds are its seconds, which are
    without evaluation, times the share of a core that the run's processes used: one share for the
    whole run, start-up and evaluation included."""
    wall = sum(process["wall_seconds"] for process in usage)
    cpu = sum(process["cpu_seconds"] for process in usage)
    m = run.metrics
    each = {
        "completions": m.completions,
        "response_tokens": m.completion_tokens,
        "cpu_seconds": m.seconds * cpu / wall,
        "live_updates": (m.zero_variance < 1).astype(float),
    }
    table = pd.DataFrame(each)
    table[table.index == 0] = 0.0  # step 0 only evaluates
    return table.cumsum()


def value_at(run: pd.DataFrame, score: str, cost: str, amount: float) -> float:
    """Return the mean score from two thirds of an amount of a cost to the amount, linear between
    evaluations. NaN beyond the run's last evaluation. run: the rows of one run, step 0 first."""
    window = np.linspace(LAST_THIRD * amount, amount, 50)
    curve = np.interp(window, run[cost], run[score], left=np.nan, right=np.nan)
    return float(curve.mean())


def is_evaluated(run: pd.DataFrame, cost: str, amount: float) -> bool:
    """Whether a run has an evaluation from two thirds of an amount of a cost to the amount."""
    return run[cost].between(LAST_THIRD * amount, amount).any()


def gain(method: pd.DataFrame, base: pd.DataFrame, score: str, cost: str) -> str:
    """Format a method's gain over the baseline on common seeds, at the largest amount of a cost
    that all these runs reached: points, the 95% t-interval over seeds, the amount, the number of
    seeds, and whether a run's score is interpolated."""
    seeds = sorted({*method.seed} & {*base.seed})
    if not seeds:
        return "–"
    runs = [split(rows, seeds) for rows in (method, base)]
    amount = min(run[cost].max() for of_arm in runs for run in of_arm)
    of_method, of_base = [
        [value_at(run, score, cost, amount) for run in of_arm]  # by seed
        for of_arm in runs
    ]
    at = f"at {amount:,.0f}, n = {len(seeds)}"
    if not all(is_evaluated(run, cost, amount) for of_arm in runs for run in of_arm):
        at += ", interpolated"
    if len(seeds) == 1:
        points = of_method[0] - of_base[0]
        return f"{points:+.1f} {at}"
    points, interval, _ = analysis.t_difference(of_method, of_base, paired=True)
    low, high = interval
    return f"{points:+.1f} ({low:+.1f} to {high:+.1f}) {at}"


def split(rows: pd.DataFrame, seeds) -> list[pd.DataFrame]:
    """Return the rows of each of these seeds' runs."""
    return [rows[rows.seed == seed] for seed in seeds]


def report(rows: pd.DataFrame, against: str) -> str:
    """Format each arm's scores, and its gains over another at equal cost, strict and lenient."""
    header = ["arm", "seeds", "before", "last third", "dead"]
    header += [f"gain at equal {name}" for name in COSTS.values()]
    base = rows[rows.arm == against]
    tables = []
    for score in SCORES:
        lines = []
        for arm, part in rows.groupby("arm", sort=False):
            gains = ["–"] * len(COSTS)
            if arm != against:
                gains = [gain(part, base, score, cost) for cost in COSTS]
            lines.append([arm, *ends(part, score), *gains])
        tables.append(analysis.table(f"Accuracy, {score}", header, lines))
    return "\n".join(tables)


def ends(part: pd.DataFrame, score: str) -> list:
    """Return the cells of an arm: seeds, score before training and over the last third of the
    steps, share of dead groups."""
    runs = split(part, part.seed.unique())
    before = part[part.step == 0][score].mean()
    after = [value_at(run, score, "step", run.step.max()) for run in runs]
    dead = part.dead.mean()
    return [
        len(runs),
        f"{before:.1f}%",
        analysis.spread(after),
        f"{dead:.0%}",
    ]


def draw(rows: pd.DataFrame, arms: list[str]) -> Figure:
    """Draw strict accuracy and the share of dead groups of some arms against completions. Readable
    at a width of 420 pixels."""
    figure = Figure(figsize=(4.2, 5), layout="constrained", facecolor="white")
    accuracy, dead = figure.subplots(2, 1, sharex=True)
    for arm, colour in zip(arms, plot.COLOURS, strict=False):
        part = rows[rows.arm == arm]
        draw_band(accuracy, part, part.strict, colour, arm)
        draw_band(dead, part, 100 * part.dead, colour, arm)
    accuracy.set_ylabel("accuracy, %")
    dead.set_ylabel("dead groups, %")
    dead.set_xlabel("completions")
    handles, labels = accuracy.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", ncols=2)
    return figure


def draw_band(axes, part: pd.DataFrame, values: pd.Series, colour: str, label: str) -> None:
    """Draw the mean over seeds, and a band of one standard deviation to each side."""
    curves = []
    for run in split(part, part.seed.unique()):
        curve = values.loc[run.index].set_axis(run.completions)
        curves.append(curve.dropna())
    together = plot.together(curves)
    mean = together.mean(axis=1)
    deviation = together.std(axis=1).fillna(0)
    axes.plot(mean, color=colour, linewidth=1.6, label=label)
    low = mean - deviation
    high = mean + deviation
    axes.fill_between(mean.index, low, high, color=colour, alpha=0.15, linewidth=0)
    axes.grid(alpha=0.25)

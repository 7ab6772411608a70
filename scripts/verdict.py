"""What a comparison of arms found: sentences and tables for the reports of studies and of runs."""

from operator import attrgetter

import numpy as np
import pandas as pd
from scipy import stats

from scripts import analysis, scores
from scripts.analysis import Run
from scripts.scores import COSTS, Gain

TEACHER = 4 / 3  # devices of a run whose Teacher has 2 of 8, relative to those without
COLUMNS = {  # of a report's first table -> format of a row of scores.summarize
    "arm": "{0.arm}",
    "seeds": "{0.seeds}",
    "accuracy": "{0.before:.1f} → {0.accuracy:.1f}%",
    "gain at equal completions": "{0.gain}",
    "p (Holm)": "{0.holm:.3f}",
    "compute-matched": "{0.matched}",
    "speed-up": "{0.speed_up}",
    "dead": "{0.dead:.1%}",
    "live ×": "{0.r:.2f}",
    "steps": "{0.steps:.0f}",
    "CPU time ×": "{0.cpu:.2f}",
}
# A sentence about an arm; its numbers are those of a Gain.
VERDICT = (
    "{arm} − {baseline}: {points:+.1f} points ({low:+.1f} to {high:+.1f}) at {amount:,.0f} "
    "completions: {finding}. These {seeds} seeds resolve about ±{half:.1f} points{more}."
)
ONE_SEED = (
    "{arm} − {baseline}: {points:+.1f} points at {amount:,.0f} completions, with one seed, which "
    "has no interval: use at least 5."
)
OTHER_COLUMNS = {"arm": "{0.arm}"} | {title: f"{{0.{cost}}}" for cost, title in COSTS.items()}


def of_methods(methods: dict[str, list[Run]]) -> tuple[pd.DataFrame, str]:
    """Summarize methods of training at the completions that all their runs spent; also return the
    baseline: uniform sampling, else the first. Raises InputError if one was never evaluated, or if
    they have different validation sets."""
    parts = []
    for name, runs in methods.items():
        for run in runs:
            parts.append(scores.of_run(run, [], task="", arm=name, seed=run.config["seed"]))
    analysis.check_comparable([run for runs in methods.values() for run in runs])
    first = {name: runs[0].config for name, runs in methods.items()}
    baseline = min(first, key=lambda name: first[name]["sampler"] != "uniform")
    devices = {name: TEACHER for name in first if first[name]["teacher_model"]}
    rows = scores.together(parts)
    budget = rows.groupby(scores.RUN).completions.max().min()
    return scores.summarize(rows, baseline, budget, devices), baseline


def seeds_needed(half_width: float, seeds: int, wanted: float) -> int:
    """Return how many seeds would have an interval of ± `wanted`, from that of so many now."""
    deviation = half_width * np.sqrt(seeds) / stats.t.ppf(0.975, seeds - 1)
    needed = seeds
    while stats.t.ppf(0.975, needed - 1) * deviation / np.sqrt(needed) > wanted:
        needed += 1
    return needed


def verdict(arm: str, baseline: str, gain: Gain | None) -> str:
    """Say in a sentence or two what the gain at equal completions shows."""
    if gain is None:
        return f"{arm} and {baseline} have no seed in common that can be compared."
    form = ONE_SEED if gain.seeds == 1 else VERDICT
    finding = "not distinguishable from 0"
    if gain.low > 0 or gain.high < 0:
        finding = f"{arm} is {'ahead' if gain.low > 0 else 'behind'}"
    half = (gain.high - gain.low) / 2
    more = f"; ±1.0 would take about {seeds_needed(half, gain.seeds, 1.0)}" if half > 1 else ""
    numbers = vars(gain) | {"half": half, "more": more}
    return form.format(arm=arm, baseline=baseline, finding=finding, **numbers)


def fit(summary: pd.DataFrame) -> str:
    """Fit log S = a log r over the arms that make as many steps of the budget as the baseline.
    Returns a sentence, "" for fewer than three points."""
    arms = summary[summary.speed_up.notna() & summary.pace.between(0.99, 1.01)]
    points = pd.DataFrame({"S": arms.speed_up.map(attrgetter("value")), "r": arms.r})
    logs = np.log(points[(points > 0).all(axis=1)].astype(float))
    if len(logs) < 3:
        return ""
    y_D_n, x_D_n = logs.to_numpy().T[:, scores.resamples(len(logs))]
    a_D = (x_D_n * y_D_n).sum(axis=1) / (x_D_n**2).sum(axis=1)
    low, high = scores.percentiles(a_D)
    return (
        f"log S = a log r: a = {a_D[0]:.2f} ({low:.2f} to {high:.2f}, points drawn) "
        f"over {len(logs)} points, {len(arms) - len(logs)} without S or r left out. 1/2: fewer "
        "dead groups act as a larger batch. 1: learning follows the number of live groups."
    )


def tested(summary: pd.DataFrame, test: dict[str, list[str]]) -> str:
    """Correct the p-values of compute-matched gains, of some arms on some tasks, for their number.
    Returns a sentence."""
    rows = summary[summary.arm.isin(test["arms"]) & summary.task.isin(test["tasks"])]
    names = rows.task + ", " + rows.arm
    corrected = scores.holm(rows.matched.set_axis(names)).dropna()
    each = "; ".join(f"{name}: {value:.3f}" for name, value in corrected.items())
    return f"Compute-matched gains, p by Holm's method over {len(corrected)}: {each or '–'}."


def sentences(summary: pd.DataFrame, baseline: str, test: dict | None = None) -> list[str]:
    """Say what was found, arm by arm. test: arms and tasks of `tested`."""
    lines = []
    for task, rows in summary.groupby("task", sort=False):
        prefix = f"{task}: " if task else ""
        each = 100 / rows.problems.max()
        if each >= 1:
            lines.append(f"{prefix}one validation problem is {each:.1f} points: too coarse.")
        for row in rows[rows.arm != baseline].itertuples():
            lines.append(prefix + verdict(row.arm, baseline, row.gain))
    if test:
        lines.append(tested(summary, test))
    return [line for line in (*lines, fit(summary)) if line]


def tables(summary: pd.DataFrame) -> list[tuple[str, list, list]]:
    """Return (title, header, rows of texts) of two tables for each task."""
    found = []
    for task, rows in summary.groupby("task", sort=False):
        found.append(texts(task or "Arms", rows, COLUMNS))
        found.append(texts("Gain at other equal costs", rows, OTHER_COLUMNS))
    return found


def texts(title: str, rows: pd.DataFrame, columns: dict[str, str]) -> tuple[str, list, list]:
    """Format rows of a summary as a table, with – for what is not known."""
    lines = [[form.format(row) for form in columns.values()] for row in rows.itertuples()]
    unknown = ("None", "nan", "nan%")
    return (
        title,
        [*columns],
        [["–" if cell in unknown else cell for cell in line] for line in lines],
    )


def markdown(findings: list[str], of_tasks: list[tuple[str, list, list]]) -> str:
    """Format tables, then sentences."""
    parts = [analysis.table(*each) for each in of_tasks]
    return "\n".join([*parts, *(f"- {line}" for line in findings)]) + "\n"

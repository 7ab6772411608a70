"""What a comparison of arms found: sentences and tables for the reports of studies and of runs."""

from operator import attrgetter

import numpy as np
import pandas as pd
from scipy import stats

from plumbing.errors import InputError
from scripts import analysis, scores
from scripts.analysis import Run
from scripts.scores import Gain

TEACHER = 4 / 3  # devices of a run whose Teacher has 2 of 8, relative to those without
COLUMNS = {  # of a report's tables -> format of a row of scores.summarize
    "arm": "{0.arm}",
    "seeds": "{0.seeds}",
    "accuracy": "{0.before:.1f} → {0.accuracy:.1f}%",
    "gain at equal completions": "{0.gain}",
    "compute-matched": "{0.matched}",
    "at equal CPU seconds": "{0.cpu_seconds}",
    "speed-up": "{0.speed_up}",
    "dead": "{0.dead:.1%}",
    "live ×": "{0.r:.2f}",
    "CPU time ×": "{0.cpu:.2f}",
}
UNKNOWN = ("None", "nan", "nan%")  # cells that are not known
# A sentence about an arm; its numbers are those of a Gain.
VERDICT = (
    "{arm} − {baseline}: {points:+.1f} points ({low:+.1f} to {high:+.1f}) at {amount:,.0f} "
    "completions: {finding}. These {seeds} seeds resolve about ±{half:.1f} points{more}."
)
ONE_SEED = (
    "{arm} − {baseline}: {points:+.1f} points at {amount:,.0f} completions, with one seed, which "
    "has no interval: use at least 5."
)


def of_methods(methods: dict[str, list[Run]]) -> tuple[list[str], list[tuple]]:
    """Compare methods of training at the completions that all their runs spent, with uniform
    sampling or, without it, the first. Returns `sentences` and `tables`. Raises InputError if a run
    was not evaluated after a step, or if they have different validation sets."""
    parts = []
    for name, runs in methods.items():
        for run in runs:
            parts.append(scores.of_run(run, [], task="", arm=name, seed=run.config["seed"]))
    analysis.check_comparable([run for runs in methods.values() for run in runs])
    rows = scores.together(parts)
    budget = rows.groupby(scores.RUN).completions.max().min()
    if not budget:
        raise InputError("a run was not evaluated after a step: nothing can be compared yet")
    first = {name: runs[0].config for name, runs in methods.items()}
    baseline = min(first, key=lambda name: first[name]["sampler"] != "uniform")
    devices = {name: TEACHER for name in first if first[name]["teacher_model"]}
    summary = scores.summarize(rows, baseline, budget, devices)
    return sentences(summary, baseline), tables(summary)


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
    S = arms.speed_up.map(attrgetter("value"))
    points = pd.DataFrame({"r": arms.r, "S": S}, dtype=float)
    logs = np.log(points[(points > 0).all(axis=1)])
    if len(logs) < 3:
        return ""
    draws = scores.resamples(len(logs))
    x_D_n = logs.r.to_numpy()[draws]
    y_D_n = logs.S.to_numpy()[draws]
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
    rows = scores.select(summary, test)
    matched = rows.matched.set_axis(rows.task + ", " + rows.arm).dropna()
    corrected = scores.holm(matched.map(attrgetter("p")).dropna())
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
    """Return (title, header, rows of texts) of a table for each task, with – for what is not
    known."""
    found = []
    for task, rows in summary.groupby("task", sort=False):
        lines = []
        for row in rows.itertuples():
            texts = [form.format(row) for form in COLUMNS.values()]
            lines.append(["–" if text in UNKNOWN else text for text in texts])
        found.append((task or "Arms", [*COLUMNS], lines))
    return found


def markdown(findings: list[str], of_tasks: list[tuple[str, list, list]]) -> str:
    """Format tables, then sentences."""
    parts = [analysis.table(*each) for each in of_tasks]
    parts += [f"- {line}" for line in findings]
    return "\n".join(parts) + "\n"

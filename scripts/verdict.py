"""What a comparison of arms found: sentences and tables for the reports of studies and of runs."""

import numpy as np
import pandas as pd
from scipy import stats

from scripts import analysis, scores
from scripts.analysis import Run
from scripts.scores import COSTS, DRAWS, Gain

TEACHER = 4 / 3  # devices of a run whose Teacher has 2 of 8, relative to those without


def of_methods(methods: dict[str, list[Run]]) -> tuple[pd.DataFrame, str]:
    """Summarize methods of training at the completions that all their runs spent; also return the
    baseline: uniform sampling, else the first. Raises InputError if one was never evaluated, or if
    they have different validation sets."""
    parts = []
    for name, runs in methods.items():
        for run in runs:
            rows = scores.of_run(run, [])
            parts.append(rows.assign(task="", arm=name, seed=run.config["seed"]))
    every = [run for runs in methods.values() for run in runs]
    analysis.check_comparable(every)
    baseline = min(methods, key=lambda name: methods[name][0].config["sampler"] != "uniform")
    with_teacher = [name for name, runs in methods.items() if runs[0].config["teacher_model"]]
    devices = dict.fromkeys(with_teacher, TEACHER)
    return scores.summarize(scores.together(parts), baseline, np.nan, devices), baseline


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
    difference = f"{arm} − {baseline}: {gain.points:+.1f} points"
    at = f"at {gain.amount:,.0f} completions"
    if gain.seeds == 1:
        return f"{difference} {at}, with one seed, which has no interval: use at least 5."
    finding = "not distinguishable from 0"
    if gain.low > 0 or gain.high < 0:
        finding = f"{arm} is {'ahead' if gain.low > 0 else 'behind'}"
    half = (gain.high - gain.low) / 2
    wanted = f"; ±1.0 would take about {seeds_needed(half, gain.seeds, 1.0)}" if half > 1 else ""
    interval = f"({gain.low:+.1f} to {gain.high:+.1f})"
    resolution = f"These {gain.seeds} seeds resolve about ±{half:.1f} points{wanted}."
    return f"{difference} {interval} {at}: {finding}. {resolution}"


def fit(summary: pd.DataFrame) -> str:
    """Fit log S = a log r over the arms that make as many steps of the budget as the baseline.
    Returns a sentence, "" for fewer than three points."""
    arms = summary[summary.speed_up.notna() & summary.pace.between(0.99, 1.01)]
    S = np.array([each.value for each in arms.speed_up], float)
    r = arms.r.to_numpy(float)
    known = np.isfinite(S) & (S > 0) & (r > 0)
    if known.sum() < 3:
        return ""
    x = np.log(r[known])
    y = np.log(S[known])
    draws = np.random.default_rng(0).integers(len(x), size=(DRAWS, len(x)))
    slopes = (x[draws] * y[draws]).sum(1) / (x[draws] ** 2).sum(1)
    low, high = np.nanquantile(slopes, [0.025, 0.975])
    return (
        f"log S = a log r: a = {(x * y).sum() / (x**2).sum():.2f} ({low:.2f} to {high:.2f}, points "
        f"drawn) over {len(x)} points, {len(S) - len(x)} without S or r left out. 1/2: fewer dead "
        "groups act as a larger batch. 1: learning follows the number of live groups."
    )


def tested(summary: pd.DataFrame, test: dict[str, list[str]]) -> str:
    """Correct the p-values of compute-matched gains, of some arms on some tasks, for their number.
    Returns a sentence."""
    rows = summary[summary.arm.isin(test["arms"]) & summary.task.isin(test["tasks"])]
    names = rows.task + ", " + rows.arm
    p = scores.holm(pd.Series([gain.p if gain else np.nan for gain in rows.matched], names))
    each = "; ".join(f"{name}: {value:.3f}" for name, value in p.items())
    return f"Compute-matched gains, p by Holm's method over {len(p)}: {each or '–'}."


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
    header = ["arm", "seeds", "accuracy", "gain at equal completions", "p (Holm)"]
    header += ["compute-matched", "speed-up", "dead", "live ×", "steps", "CPU time ×"]
    found = []
    for task, rows in summary.groupby("task", sort=False):
        lines = []
        for row in rows.itertuples():
            line = [row.arm, row.seeds, f"{row.before:.1f} → {row.accuracy:.1f}%", row.gain]
            line += [f"{row.holm:.3f}", row.matched, row.speed_up, f"{row.dead:.1%}"]
            lines.append([*line, f"{row.r:.2f}", f"{row.steps:.0f}", f"{row.cpu:.2f}"])
        others = rows[["arm", *COSTS]].to_numpy().tolist()
        costs = ["arm", *COSTS.values()]
        found.append((task or "Arms", header, known(lines)))
        found.append(("Gain at other equal costs", costs, known(others)))
    return found


def known(lines: list[list]) -> list[list[str]]:
    """Write – for what is not known."""
    unknown = ("None", "nan", "nan%")
    return [["–" if str(cell) in unknown else str(cell) for cell in line] for line in lines]


def markdown(findings: list[str], of_tasks: list[tuple[str, list, list]]) -> str:
    """Format tables, then sentences."""
    parts = [analysis.table(*each) for each in of_tasks]
    return "\n".join([*parts, *(f"- {line}" for line in findings)]) + "\n"

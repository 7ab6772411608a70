"""What a comparison of arms shows: sentences and tables for the reports of studies and of runs."""

import numpy as np
import pandas as pd
from scipy import stats

from scripts.study import scores
from scripts.study.page import Report, Table

COLUMNS = {  # of a report's tables -> format of a row of scores.summarize, as is the name
    "arm": "{arm}",
    "seeds": "{seeds}",
    "accuracy": "{before:.1f} → {accuracy:.1f}%",
    "gain at equal completions": "{gain_text}",
    "compute-matched": "{matched_text}",
    "at equal {seconds}": "{cpu_seconds_text}",
    "speed-up": "{speed_up_text}",
    "dead": "{dead:.1%}",
    "live ×": "{r:.2f}",
    "{seconds} ×": "{cpu:.2f}",
}
UNKNOWN = ("nan", "nan%")  # cells that are not known
COSTS = {"matched_text": "Compute-matched", "cpu_seconds_text": "At equal {seconds}"}
LEGEND = (
    "Accuracy: at first → mean over the last third. Speed-up: completions in which the baseline "
    "reaches its late accuracy, over the arm's. dead: groups of the arm's own training; the probe "
    "has those of the untrained model. live ×: live groups over the baseline's. {seconds} ×: those "
    "of the steps over the baseline's at equal completions, with rollout, grading and the "
    "Teacher's updates, without start and evaluations."
)
BY_CLOCK = "Seconds are by the clock: other programs on the machine lengthen them."
SLOWER = 1 / 3  # of a learning rate that is too high, to try next
# Sentences about an arm, a row of scores.summarize.
GAIN = (
    "{arm} − {baseline}: {gain_points:+.1f} points ({gain_low:+.1f} to {gain_high:+.1f}) at "
    "{gain_at:,.0f} completions: {finding}. {costs}These {gain_seeds:.0f} seeds resolve about "
    "±{half:.1f} points{more}."
)
ONE_SEED = (
    "{arm} − {baseline}: {gain_points:+.1f} points at {gain_at:,.0f} completions, with one "
    "seed, which has no interval: use at least 5. {costs}"
)


def warn(arm: dict, baseline: str, rate: float) -> str:
    """Warn of an arm, a row of scores.summarize or of scores.describe, whose training went wrong;
    "" if it did not. The baseline must not end below its first accuracy, nor by more than 2
    standard errors below its best; another arm not below the untrained model. rate: the learning
    rate of its run."""
    falls = arm["before"] - arm["end"]
    loses = arm["best"] - arm["end"]
    is_sure = falls > 2 * arm["end_error"] or loses > 2 * arm["best_error"]
    is_baseline = arm["arm"] == baseline
    if not (falls > 0 or (is_baseline and is_sure)):
        return ""
    name = f"{arm['task']}: {arm['arm']}" if arm["task"] else arm["arm"]
    text = (
        f"WARNING: {name} ends at {arm['end']:.1f}%, from {arm['before']:.1f}% before training and "
        f"{arm['best']:.1f}% at best"
    )
    text += ": what is ahead of it need not have learned." if is_baseline else "."
    slower = f"--learning_rate {rate * SLOWER:.1g} and another --out"
    if is_sure:
        return f"{text} Likely --learning_rate {rate:g} is too high: run again with {slower}."
    return (
        f"{text} That is within the error of an evaluation: it has not learned. Give it more live "
        f"groups (easier data) or steps, or run again with {slower}."
    )


def warnings(summary: pd.DataFrame, baseline: str, rates: dict) -> list[str]:
    """Warn of arms whose training went wrong, the baseline first. rates: learning rate by (task,
    arm)."""
    ordered = summary.sort_values("arm", key=lambda arm: arm != baseline, kind="stable")
    texts = [
        warn(row, baseline, rates[row["task"], row["arm"]]) for row in ordered.to_dict("records")
    ]
    return [*filter(None, texts)]


def seeds_needed(half_width: float, seeds: int) -> int:
    """Return how many seeds would have an interval of ±1, from that of so many now."""
    n = np.arange(seeds, 10**5)
    factor_n = stats.t.ppf(0.975, n - 1) / np.sqrt(n)  # ± over the standard deviation
    return n[factor_n <= factor_n[0] / half_width][0]


def describe_gain(arm: dict, baseline: str) -> str:
    """Return a sentence or two about the gain at equal completions of an arm, a row of
    scores.summarize."""
    seeds = arm["gain_seeds"]
    form = ONE_SEED if seeds == 1 else GAIN
    finding = "not distinguishable from 0"
    if arm["gain_low"] > 0:
        finding = f"{arm['arm']} is ahead"
    if arm["gain_high"] < 0:
        finding = f"{arm['arm']} is behind"
    half = (arm["gain_high"] - arm["gain_low"]) / 2
    more = f"; ±1.0 would take about {seeds_needed(half, seeds):.0f}" if half > 1 else ""
    known = {arm["gain_text"], "–"}
    costs = [
        f"{name.format(**arm)}: {arm[key]}. "
        for key, name in COSTS.items()
        if arm[key] not in known
    ]
    text = form.format(
        **arm,
        baseline=baseline,
        costs="".join(costs),
        finding=finding,
        half=half,
        more=more,
    )
    return text.rstrip()


def tested(summary: pd.DataFrame, arms: list[str], tasks: list[str]) -> str:
    """Correct the p-values of compute-matched gains, of some arms on some tasks, for their number.
    Returns a sentence."""
    rows = scores.select(summary, arms, tasks)
    matched_p = rows.matched_p.set_axis(rows.task + ", " + rows.arm)
    p = scores.holm(matched_p.dropna())
    each = [f"{name}: {value:.3f}" for name, value in p.items()]
    return f"Compute-matched gains, p by Holm's method over {len(p)}: {'; '.join(each) or '–'}."


def sentences(summary: pd.DataFrame, baseline: str, test: dict | None = None) -> list[str]:
    """Return the sentences about all arms. test: arms and tasks of `tested`."""
    lines = []
    for task, rows in summary.groupby("task", sort=False):
        prefix = f"{task}: " if task else ""
        each = 100 / rows.problems.max()
        if each >= 1:
            lines.append(f"{prefix}one validation problem is {each:.1f} points: too coarse.")
        for arm in rows.dropna(subset="gain_points").to_dict("records"):
            lines.append(prefix + describe_gain(arm, baseline))
    if test:
        lines.append(tested(summary, **test))
    seconds = summary.seconds.iloc[0]
    lines.append(LEGEND.format(seconds=seconds))
    if seconds == "seconds" and summary.cpu.notna().any():
        lines.append(BY_CLOCK)
    return lines


def tables(summary: pd.DataFrame) -> list[Table]:
    """Make a table for each task, with – for what is not known."""
    found = []
    compared = summary.dropna(subset="gain_points")
    is_matched = (compared.matched_text != compared.gain_text).any()  # an arm has more devices
    columns = {
        name: form for name, form in COLUMNS.items() if is_matched or name != "compute-matched"
    }
    for task, rows in summary.groupby("task", sort=False):
        lines = []
        for row in rows.to_dict("records"):
            texts = [form.format(**row) for form in columns.values()]
            lines.append(["–" if text in UNKNOWN else text for text in texts])
        header = [name.format(seconds=rows.seconds.iloc[0]) for name in columns]
        found.append(Table(task or "Arms", header, lines))
    return found


def add_to(
    report: Report, summary: pd.DataFrame, baseline: str, rates: dict, test: dict | None = None
) -> None:
    """Add the warnings, tables and sentences of a comparison to a report. rates: learning rate by
    (task, arm). test: arms and tasks of `tested`."""
    report.warnings += warnings(summary, baseline, rates)
    report.tables += tables(summary)
    report.sentences += sentences(summary, baseline, test)

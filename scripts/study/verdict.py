"""What a comparison of arms found: sentences and tables for the reports of studies and of runs."""

import numpy as np
import pandas as pd
from scipy import stats

from plumbing.errors import InputError
from scripts.study import scores
from scripts.study.runs import Run, table

TEACHER = 4 / 3  # devices of a run whose Teacher has 2 of 8, relative to those without
COLUMNS = {  # of a report's tables -> format of a row of scores.summarize
    "arm": "{arm}",
    "seeds": "{seeds}",
    "accuracy": "{before:.1f} → {accuracy:.1f}%",
    "gain at equal completions": "{gain_text}",
    "compute-matched": "{matched_text}",
    "at equal CPU seconds": "{cpu_seconds_text}",
    "speed-up": "{speed_up_text}",
    "dead": "{dead:.1%}",
    "live ×": "{r:.2f}",
    "CPU time ×": "{cpu:.2f}",
}
UNKNOWN = ("nan", "nan%")  # cells that are not known
COSTS = {"matched_text": "Compute-matched", "cpu_seconds_text": "At equal CPU seconds"}
LEGEND = (
    "Accuracy: at first → mean over the last third. Speed-up: completions in which the baseline "
    "reaches its late accuracy, over the arm's. dead: groups of the arm's own training; the probe "
    "has those of the untrained model. live ×: live groups over the baseline's. CPU time ×: CPU "
    "seconds of the steps over the baseline's at equal completions, with rollout, grading and the "
    "Teacher's updates, without start and evaluations."
)
FIGURES = ["table", "task", "arm", "steps", "base", "accuracy"]  # columns of a CSV
PAPER_COLUMNS = ["task", "arm", "steps", "base model", "runs", "accuracy", "paper: steps"]
PAPER_COLUMNS += ["paper: base model", "paper: runs", "paper: accuracy"]
PAPER_LEGEND = (
    f"Beside the paper: percent, of a run the mean of its last {scores.LAST} evaluations (or of as "
    "many as it has), ± the sample standard deviation over runs, that is seeds."
)
SLOWER = 1 / 3  # of a learning rate that is too high, to try next
# Sentences about an arm, a row of scores.summarize.
VERDICT = (
    "{arm} − {baseline}: {gain_points:+.1f} points ({gain_low:+.1f} to {gain_high:+.1f}) at "
    "{gain_at:,.0f} completions: {finding}. {costs}These {gain_seeds:.0f} seeds resolve about "
    "±{half:.1f} points{more}."
)
ONE_SEED = (
    "{arm} − {baseline}: {gain_points:+.1f} points at {gain_at:,.0f} completions, with one "
    "seed, which has no interval: use at least 5. {costs}"
)


def of_methods(methods: dict[str, list[Run]]) -> tuple[list, list, list]:
    """Compare methods of training at the completions that all their runs spent, with uniform
    sampling or, without it, the first. Returns `warnings`, `sentences` and `tables`, none for one
    method.
    Raises InputError if a run was not evaluated after a step, or the validation sets differ."""
    if len(methods) < 2:
        return [], [], []
    parts = [
        run.scores(
            cores=1.0 if run.config["world_size"] == 1 else np.nan,  # seconds by the clock
            checksums=["val_data_crc32"],
            task="",
            arm=name,
            seed=run.config["seed"],
        )
        for name, runs in methods.items()
        for run in runs
    ]
    rows = scores.together(parts)
    budget = rows.groupby(scores.RUN).completions.max().min()
    if not budget:
        raise InputError("a run was not evaluated after a step: nothing can be compared yet")
    config_of = {name: runs[0].config for name, runs in methods.items()}
    devices = {  # on one device the Teacher's cost is in the seconds of the steps
        name: TEACHER if config["teacher_model"] and config["world_size"] > 1 else 1.0
        for name, config in config_of.items()
    }
    baseline = min(config_of, key=lambda name: config_of[name]["sampler"] != "uniform")
    summary = scores.summarize(rows, baseline, budget, devices)
    rates = {("", name): config["learning_rate"] for name, config in config_of.items()}
    found = [*scores.code_differences(rows), *sentences(summary, baseline)]
    if rows.cpu_seconds.notna().any():
        found.append("Seconds are by the clock: other programs on the machine lengthen them.")
    return warnings(summary, baseline, rates), found, tables(summary)


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


def verdict(arm: dict, baseline: str) -> str:
    """Say in a sentence or two what an arm's gain at equal completions shows: a row of
    scores.summarize."""
    seeds = arm["gain_seeds"]
    form = ONE_SEED if seeds == 1 else VERDICT
    finding = "not distinguishable from 0"
    if arm["gain_low"] > 0:
        finding = f"{arm['arm']} is ahead"
    if arm["gain_high"] < 0:
        finding = f"{arm['arm']} is behind"
    half = (arm["gain_high"] - arm["gain_low"]) / 2
    more = f"; ±1.0 would take about {seeds_needed(half, seeds):.0f}" if half > 1 else ""
    known = {arm["gain_text"], "–"}
    costs = [f"{name}: {arm[key]}. " for key, name in COSTS.items() if arm[key] not in known]
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
    """Say what was found, arm by arm. test: arms and tasks of `tested`."""
    lines = []
    for task, rows in summary.groupby("task", sort=False):
        prefix = f"{task}: " if task else ""
        each = 100 / rows.problems.max()
        if each >= 1:
            lines.append(f"{prefix}one validation problem is {each:.1f} points: too coarse.")
        for arm in rows.dropna(subset="gain_points").to_dict("records"):
            lines.append(prefix + verdict(arm, baseline))
    if test:
        lines.append(tested(summary, **test))
    return [*lines, LEGEND]


def tables(summary: pd.DataFrame) -> list[tuple]:
    """Return (title, header, rows of texts) of a table for each task, with – for what is not
    known."""
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
        found.append((task or "Arms", [*columns], lines))
    return found


def mean_and_deviation(values: pd.Series) -> str:
    """Format the mean of percentages and, of several, the sample standard deviation, as the paper
    does: 30.2 ± 0.48."""
    values = values.dropna()
    if values.empty:
        return "–"
    text = f"{values.mean():.1f}"
    return text if len(values) == 1 else f"{text} ± {values.std(ddof=1):.2f}"


def read_figures(figures: str, table: str) -> pd.DataFrame:
    """Read the figures of one of the paper's tables from a CSV, a row a run, blank where the paper
    prints none. Raises InputError if the CSV lacks the table, ValueError if a column, OSError."""
    printed = pd.read_csv(figures, dtype={"steps": "Int64"}, usecols=FIGURES)
    printed = printed[printed.table == table]
    if printed.empty:
        raise InputError(f"{figures}: has no rows of {table}")
    return printed


def beside_paper(rows: pd.DataFrame, figures: str, table: str) -> tuple:
    """Return a table, as those of `tables`: the accuracy of runs as the paper reports it, beside
    the paper's figures. Raises InputError, OSError as `read_figures`."""
    printed = read_figures(figures, table)
    ours = scores.last_evaluations(rows)
    keys = ["task", "arm"]
    lines = []
    for task, arm in pd.concat([ours[keys], printed[keys]]).drop_duplicates().to_numpy():
        of_ours = ours.query("task == @task and arm == @arm")
        of_paper = printed.query("task == @task and arm == @arm")
        line = [task, arm]
        for steps, base, accuracy in (
            (of_ours.step, of_ours.before, of_ours.accuracy),
            (of_paper.steps, of_paper.base, of_paper.accuracy),
        ):
            counts = ", ".join(f"{count:,}" for count in steps.dropna().unique())
            each = ", ".join(f"{value:.1f}" for value in accuracy)
            mean_base = "–" if base.isna().all() else f"{base.mean():.1f}"
            line += [counts or "–", mean_base, each or "–", mean_and_deviation(accuracy)]
        lines.append(line)
    return f"Beside the paper's {table}", PAPER_COLUMNS, lines


def markdown(findings: list[str], of_tasks: list[tuple], warned: list[str] = ()) -> str:
    """Format warnings, then tables, then sentences."""
    parts = [f"{line}\n" for line in warned]
    parts += [table(*each) for each in of_tasks]
    parts += [f"- {line}" for line in findings]
    return "".join(f"{part}\n" for part in parts)

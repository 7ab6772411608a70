"""Accuracies as the paper reports them, beside the paper's figures."""

import pandas as pd

from plumbing.errors import InputError
from scripts.study.page import Table
from scripts.study.scores import RUN

LAST = 5  # evaluations that the paper averages (Section 5.2)
FIGURES = ["table", "task", "arm", "steps", "base", "accuracy"]  # columns of a CSV
COLUMNS = ["task", "arm", "steps", "base model", "runs", "accuracy", "paper: steps"]
COLUMNS += ["paper: base model", "paper: runs", "paper: accuracy"]
LEGEND = (
    f"Beside the paper: percent, of a run the mean of its last {LAST} evaluations (or of as "
    "many as it has), ± the sample standard deviation over runs, that is seeds."
)


def last_evaluations(rows: pd.DataFrame) -> pd.DataFrame:
    """Return for each run what the paper reports of it: `before`, the accuracy before the first
    step, NaN if not known; `accuracy`, the mean of the LAST evaluations after it; `step`, the last
    of these."""
    ordered = rows.sort_values("step", kind="stable")
    before = ordered[ordered.step == 0].set_index(RUN).accuracy
    last = ordered[ordered.step > 0].groupby(RUN, sort=False).tail(LAST)
    by_run = last.groupby(RUN, sort=False)
    return pd.DataFrame(
        {
            "before": before.reindex(by_run.size().index),
            "accuracy": by_run.accuracy.mean(),
            "step": by_run.step.max(),
        }
    ).reset_index()


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


def compare(rows: pd.DataFrame, tasks: list[str], figures: str, table: str) -> Table:
    """Make a table of the accuracy of runs as the paper reports it, beside the paper's figures of
    these tasks. Raises InputError, OSError as `read_figures`."""
    printed = read_figures(figures, table)
    printed = printed[printed.task.isin(tasks)]
    ours = last_evaluations(rows)
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
    return Table(f"Beside the paper's {table}", COLUMNS, lines)

"""Score the runs of a study, compare its arms and write the report."""

import math
from pathlib import Path

import pandas as pd

from plumbing.errors import InputError
from plumbing.files import write_atomic
from scripts.study import categories, figures, findings, paper, scores
from scripts.study.page import DPI, Report, Table
from scripts.study.plan import Plan
from scripts.study.runner import Job, note
from scripts.study.runs import Run

SPEED_UP = ["task", "arm", "base_dead", "dead", "r"]  # columns of summary.csv
SPEED_UP += ["speed_up_value", "speed_up_low", "speed_up_high", "speed_up_bound"]


def score(jobs: list[Job], cpu_seconds: bool = True) -> list[pd.DataFrame]:
    """Compute the scores of each run. cpu_seconds: whether seconds are the cost of a run, on a GPU
    those by the clock: not where several ranks wait for each other."""
    parts = []
    for job in jobs:
        run = Run.load(job.run)
        on_gpu = run.config.get("device") == "cuda"
        cores = 1.0 if on_gpu else job.cores()
        part = run.scores(
            cores=cores if cpu_seconds else math.nan,
            checksums=scores.SAME,
            by_clock=on_gpu,
            task=job.task,
            arm=job.arm,
            seed=job.seed,
        )
        parts.append(part)
    return parts


def category_tables(jobs: list[Job], plan: Plan) -> list[Table]:
    """Make a table by category for each arm of the tasks that have --column, from finished runs.
    Data that cannot be read any more are reported on stderr."""
    tables = []
    for task in plan.tasks:
        if column := plan.column(task):
            arms = {}
            for job in jobs:
                if job.task == task:
                    arms.setdefault(job.arm, []).append(Run.load(job.run))
            try:
                tables += categories.tables(arms, column, task)
            except InputError as error:
                note(f"no tables by {column}: {error}")
    return tables


def compare(rows: pd.DataFrame, plan: Plan) -> tuple[pd.DataFrame, Report]:
    """Compare the arms of a plan. Returns the summary, as scores.summarize, and the report. Raises
    InputError if there is nothing to compare."""
    report = Report(warnings=scores.code_differences(rows))
    if plan.paper:
        report.tables.append(paper.compare(rows, [*plan.tasks], **plan.paper))
        report.sentences.append(paper.LEGEND)
    try:
        summary = scores.summarize(
            rows,
            plan.baseline,
            plan.budgets(),
            plan.devices,
            plan.places,
        )
    except InputError as error:
        if not plan.paper:  # its table needs no pairs of runs
            raise
        report.sentences.append(f"Arms are not compared: {error}.")
        return pd.DataFrame(columns=SPEED_UP), report
    findings.add_to(report, summary, plan.baseline, plan.learning_rates(), plan.test)
    return summary, report


def write_report(
    rows: pd.DataFrame,
    plan: Plan,
    folder: Path,
    by_category: list[Table],
    first: str = "",
) -> str:
    """Compare the arms and write all files of the report. by_category: tables after those of the
    arms. first: a warning before all others. Returns the text. Raises InputError."""
    summary, report = compare(rows, plan)
    report.tables += by_category
    if by_category:
        report.sentences.append(categories.LEGEND)
    if first:
        report.warnings.insert(0, first)
    speed_ups = summary.dropna(subset="speed_up_bound")[SPEED_UP].round(4)
    figure = figures.draw_study(rows)
    text = report.markdown()
    write_atomic(folder / "report.md", text)
    write_atomic(folder / "report.html", report.html(plan.out, {"figure": figure}, views={}))
    write_atomic(folder / "summary.csv", speed_ups.to_csv(index=False))
    figure.savefig(folder / "figure.png", dpi=DPI)
    return text

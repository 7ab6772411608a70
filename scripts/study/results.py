"""Score the runs of a study, compare its arms and write the report."""

import math
from pathlib import Path

import pandas as pd

from plumbing.errors import InputError
from plumbing.files import write_atomic
from scripts.study import categories, figures, page, scores, verdict
from scripts.study.plan import Plan
from scripts.study.runner import Job, note
from scripts.study.runs import Run

SPEED_UP = ["task", "arm", "base_dead", "dead", "r"]  # columns of summary.csv
SPEED_UP += ["speed_up_value", "speed_up_low", "speed_up_high", "speed_up_bound"]


def score(jobs: list[Job], cpu_seconds: bool = True) -> list[pd.DataFrame]:
    """Compute the scores of each run. cpu_seconds: whether processor time is the cost of a run: not
    where several ranks wait for each other, or for a GPU."""
    return [
        Run.load(job.run).scores(
            cores=job.cores() if cpu_seconds else math.nan,
            checksums=scores.SAME,
            task=job.task,
            arm=job.arm,
            seed=job.seed,
        )
        for job in jobs
    ]


def category_tables(jobs: list[Job], plan: Plan) -> list[tuple]:
    """Make the tables by category of the tasks that have --column, of finished runs: of each arm.
    Data that cannot be read any more are reported on stderr."""
    tables = []
    for task in plan.tasks:
        arms = {}
        for job in jobs:
            if job.task == task:
                arms.setdefault(job.arm, []).append(Run.load(job.run))
        if column := plan.column(task):
            try:
                tables += categories.tables(arms, column, task)
            except InputError as error:
                note(f"no tables by {column}: {error}")
    return tables


def write_report(
    rows: pd.DataFrame,
    plan: Plan,
    folder: Path,
    by_category: list[tuple],
) -> str:
    """Compare the arms, and write all files of the report, with tables `by_category` after its own.
    Returns the text. Raises InputError."""
    tables = []
    findings = [plan.note] if plan.note else []
    findings += scores.code_differences(rows)
    warned = []
    if plan.paper:
        tables.append(verdict.beside_paper(rows, **plan.paper))
        findings.append(verdict.PAPER_LEGEND)
    try:
        summary = scores.summarize(
            rows,
            plan.baseline,
            plan.budgets(),
            plan.devices,
            plan.places,
        )
        warned = verdict.warnings(summary, plan.baseline, plan.learning_rates())
        findings += verdict.sentences(summary, plan.baseline, plan.test)
        tables += verdict.tables(summary)
    except InputError as error:
        if not plan.paper:  # its table needs no pairs of runs
            raise
        summary = pd.DataFrame(columns=SPEED_UP)
        findings.append(f"Arms are not compared: {error}.")
    legend = [categories.LEGEND] if by_category else []
    speed_ups = summary.dropna(subset="speed_up_bound")[SPEED_UP].round(4)
    drawn = {"figure": figures.draw_study(rows)}
    if plan.curve:
        rows_of_curve = [scores.select(speed_ups, **plan.curve)]
        for label, path in plan.beside.items():
            other = pd.read_csv(path)
            rows_of_curve.append(other.assign(arm=f"{label}: " + other.arm))
        drawn["speed_up"] = figures.draw_speed(pd.concat(rows_of_curve), plan.lines)
    files = {
        "report.md": verdict.markdown(findings, tables, warned)
        + verdict.markdown(legend, by_category),
        "report.html": page.render(
            title=plan.out,
            verdict=warned + findings + legend,
            tables=tables + by_category,
            figures=drawn,
            views={},
        ),
        "summary.csv": speed_ups.to_csv(index=False),
    }
    for name, content in files.items():
        write_atomic(folder / name, content)
    for name, figure in drawn.items():
        figure.savefig(folder / f"{name}.png", dpi=150)
    return files["report.md"]

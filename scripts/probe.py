"""Probe before a study: how many groups of the untrained model are dead, how long will a run take?

A probe is a short run of uniform sampling with a learning rate of 0, so all its groups are of the
untrained model. It is kept in OUT/probe and not repeated.
"""

import math
import shlex
from pathlib import Path

import numpy as np
import pandas as pd

from plumbing.data.problems import Problems
from scripts import analysis
from scripts.runner import Job, Runner

STUDY = Path(__file__).resolve().parent.parent / "studies" / "sparsity"
CURVES = {  # the first that exists is used; it has the columns of a study's summary.csv
    STUDY / "summary.csv": "in our study of sparsity",
    STUDY / "pilot.csv": "in a pilot of 1 to 3 seeds",
}
TIMED = 3  # steps of a run that only measures time
EDGES = [0, 1e-9, 0.25, 0.5, 0.75, 1, 2]  # of p̂
BINS = ["all wrong", "p̂ < 1/4", "p̂ < 1/2", "p̂ < 3/4", "p̂ < 1", "all right"]


def job(folder: Path, task: str, arm: str, flags: str, steps: int) -> Job:
    """Return a run that trains nothing: its learning rate is 0."""
    run = folder / task / arm.replace("/", "-")
    every = f"--eval_every {steps} --checkpoint_every {steps} --keep 1"
    return Job(
        task,
        arm,
        0,
        run,
        f"{flags} --learning_rate 0 --steps {steps} {every} --out {shlex.quote(str(run))}",
    )


def pass_rates(run: analysis.Run) -> pd.Series:
    """Return p̂ of each group."""
    return run.selections.successes / run.selections.completions


def describe(run: analysis.Run) -> str:
    """Format the distribution of p̂; 0 and 1 are dead groups."""
    p = pass_rates(run)
    counts = p.groupby(pd.cut(p, EDGES, right=False, labels=BINS), observed=False).size()
    c = run.config
    title = f"Probe: {len(p)} training problems × {c['group_size']} completions, untrained model"
    live = (p > 0) & (p < 1)
    note = f"Live groups: {live.mean():.1%}. Mean p̂ {p.mean():.1%}; validation accuracy, greedy, "
    note += f"{run.accuracy.iloc[0]:.1f}%."
    cells = [f"{count / len(p):.1%}" for count in counts]
    return analysis.table(title, BINS, [cells], note)


def by_column(run: analysis.Run, columns: str) -> str:
    """Format the same shares by category."""
    names, value_of = Problems(run.config["train_data"]).column(columns)
    p = pass_rates(run)
    lines = []
    for value, of_value in p.groupby(value_of[run.selections.chosen]):
        shares = [(of_value == 0).mean(), (of_value == 1).mean(), of_value.mean()]
        live = 1 - shares[0] - shares[1]
        cells = [f"{share:.0%}" for share in (shares[0], live, *shares[1:])]
        lines.append([names[value], len(of_value), *cells])
    header = [columns, "groups", "all wrong", "live", "all right", "mean p̂"]
    return analysis.table(f"By {columns}", header, lines)


def advice(all_wrong: float, all_right: float, problems: int) -> str:
    """Say what a study with so many dead groups is likely to find. all_wrong, all_right: shares of
    `problems` groups."""
    dead = all_wrong + all_right
    if all_wrong == 1:
        return (
            f"No problem of {problems} is within reach: a cold start or easier data first. "
            "A sampler cannot find what is not there."
        )
    if all_right > 0.5:
        return f"{all_right:.0%} are mastered: harder data first."
    path = next(path for path in CURVES if path.exists())
    table = pd.read_csv(path)
    table = table[table.arm.str.startswith("Goldilocks") & (table.speed_up_value > 0)]
    live = np.log(np.clip(1 - table.base_dead, 1e-4, 1))
    distance = (live - math.log(max(1 - dead, 1e-4))).abs()
    nearest = table[distance <= distance.min() + 1e-9]
    row = nearest.loc[nearest.speed_up_value.idxmax()]
    fewest, most = 1 / row.speed_up_high, 1 / row.speed_up_low
    found = f"{row.arm} needed {fewest:.2g} to {most:.2g} of uniform's completions {CURVES[path]}"
    at = f"where {row.base_dead:.0%} were dead"
    if row.speed_up_low <= 1:
        return f"{dead:.0%} of groups are dead: little to gain, begin with uniform ({found}, {at})."
    return f"{dead:.0%} of groups are dead: {found}, {at}."


def minutes(run: analysis.Run, budget: float) -> float:
    """Predict the minutes of a run that spends a budget of completions, from the steps of a short
    one; without the start."""
    m = run.metrics[run.metrics.index > 0]
    steps = budget / m.completions.mean()
    evaluations = 1 + steps / run.config["eval_every"]
    return (steps * m.seconds.median() + evaluations * run.metrics.eval_s.max()) / 60


def execute(jobs: list[Job], at_a_time: int) -> bool:
    """Run what is missing of probes; return whether all are finished."""
    Runner(jobs, at_a_time, discards=True).run()
    return all(job.finished() for job in jobs)


def probe(plan, task: str, problems: int, at_a_time: int, column: str) -> str | None:
    """Probe a task of a plan (study.Plan): measure the groups of the baseline, and the time of it
    and of the first arm with a Teacher. Returns the text, None if a run failed."""
    folder = Path(plan.out) / "probe"
    config = plan.config(plan.baseline)
    steps = math.ceil(problems / config.prompts_per_step)
    with_teacher = [arm for arm in plan.arms if plan.devices[arm] > 1][:1]
    arms = {plan.baseline: steps} | dict.fromkeys(with_teacher, TIMED)
    jobs = [job(folder, task, arm, plan.flags_of(task, arm), n) for arm, n in arms.items()]
    if not execute(jobs, at_a_time):
        return None
    runs = {arm: analysis.Run.load(job.run) for arm, job in zip(arms, jobs, strict=True)}
    first = runs[plan.baseline]
    p = pass_rates(first)
    times = []
    for arm, run in runs.items():
        run.config["eval_every"] = plan.config(arm).eval_every
        times.append(f"{arm} about {minutes(run, plan.spends(arm)):.2g} minutes")
    parts = [describe(first)]
    if column:
        parts.append(by_column(first, column))
    parts.append(f"A run takes: {', '.join(times)}.")
    parts.append(advice((p == 0).mean(), (p == 1).mean(), len(p)))
    prefix = f"# {task}\n\n" if task else ""
    return prefix + "\n".join(parts) + "\n"

"""Probe before a study: how many groups of the untrained model are dead, how long will a run take?

A probe is a short run of uniform sampling with a learning rate of 0, so all its groups are of the
untrained model. It is kept in OUT/probe, and repeated only with other flags, data or weights.
"""

import math
import shutil
from pathlib import Path

import numpy as np
import pandas as pd
from scipy.special import logit

from plumbing.config import ROOT
from plumbing.data.problems import Problems
from plumbing.errors import Fault
from plumbing.files import file_crc32
from plumbing.run.facts import model_files
from scripts import analysis
from scripts.runner import Job, Runner
from scripts.verdict import TEACHER

CURVE = ROOT / "studies/sparsity/summary.csv"
ARM = "Goldilocks, K=auto"  # of CURVE
BANDIT = "bins"
TIMED = 8  # steps of a run that only measures time, of which the later half counts
EDGES = [0, 1e-9, 0.25, 0.5, 0.75, 1, 2]  # of p̂
BINS = ["all wrong", "p̂ < 1/4", "p̂ < 1/2", "p̂ < 3/4", "p̂ < 1", "all right"]


def describe(run: analysis.Run, selections: pd.DataFrame, p: pd.Series, column: str) -> str:
    """Format the distribution of the p̂ of a run's selections, of all groups and by category: by a
    problem's value in a column of the data, "" for none."""
    bins = pd.cut(p, EDGES, right=False, labels=BINS)
    groups = pd.get_dummies(bins).assign(mean=p)
    parts = [("all", groups)]
    if column:
        names, value_of = Problems(run.config["train_data"], column).categories()
        category = [names[value_of[problem]] for problem in selections.chosen]
        parts += groups.groupby(category)
    lines = []
    for name, part in parts:
        means = part.mean()
        shares = means.map("{:.1%}".format)
        lines.append([name, len(part), *shares])
    size = run.config["group_size"]
    return analysis.table(
        f"Probe: {len(p)} training problems × {size} completions, untrained model",
        [column or "problems", "groups", *BINS, "mean p̂"],
        lines,
    )


def advice(p: pd.Series) -> str:
    """Say what a study is likely to find where the groups of a probe have these p̂."""
    all_wrong = (p == 0).mean()
    all_right = (p == 1).mean()
    if all_wrong == 1:
        return (
            f"No problem of {len(p)} is within reach, so at most {3 / len(p):.1%} are (95%): "
            "probe more with --problems, or begin with a cold start or easier data."
        )
    if all_right > 0.5:
        return f"{all_right:.0%} are mastered: harder data first."
    dead = all_wrong + all_right
    curve = pd.read_csv(CURVE, index_col=["arm", "task"]).drop("unnamed", level="task")
    within_0_1 = np.clip(dead, 1e-4, 1 - 1e-4)
    distance = logit(curve.loc[ARM].base_dead) - logit(within_0_1)
    task = distance.abs().idxmin()
    row = curve.loc[ARM, task]
    bandit = curve.loc[BANDIT, task]
    text = (
        f"{dead:.1%} of groups are dead. In our study of a toy task, where {row.base_dead:.1%} "
        f"were, Goldilocks with --candidates auto was {row.speed_up_low:.2g} to "
        f"{row.speed_up_high:.2g} times as fast as uniform; its Teacher costs 4/3. The bandit "
        f"learnability_bins, whose --column told difficulty, was {bandit.speed_up_low:.2g} to "
        f"{bandit.speed_up_high:.2g} times as fast."
    )
    if row.speed_up_low <= TEACHER:
        text += " Little to gain: begin with uniform."
    return text


def minutes(run: analysis.Run, budget: float, eval_every: int) -> float:
    """Predict the minutes of a run that spends a budget of completions, from the steps of a short
    one; without the start."""
    m = run.metrics[run.metrics.index > 0]
    steps = budget / m.completions.mean()
    evaluations = 1 + steps / eval_every
    later = m.seconds[len(m) // 2 :]  # the Teacher's buffer fills in the first steps
    training = steps * later.median()
    evaluating = evaluations * run.metrics.eval_s.max()
    return (training + evaluating) / 60


def jobs_of(plan, task: str, problems: int) -> list[Job]:
    """Return the runs of a probe: of the first arm with a Teacher, for its time, and last of the
    baseline, over so many problems."""
    with_teacher = [arm for arm, devices in plan.devices.items() if devices > 1]
    per_step = plan.config(plan.baseline, task).prompts_per_step
    steps = dict.fromkeys(with_teacher[:1], TIMED)
    steps[plan.baseline] = math.ceil(problems / per_step)
    jobs = []
    for arm, n in steps.items():
        flags = plan.flags_of(task, arm)
        flags += f" --learning_rate 0 --steps {n} --eval_every {n} --checkpoint_every {n} --keep 1"
        jobs.append(Job(Path(plan.out, "probe"), task, arm, 0, flags))
    return jobs


def is_current(job: Job) -> bool:
    """Whether a probe has finished, with these flags, and files of these contents."""
    if not job.finished() or job.other_flags():
        return False
    config = analysis.read_config(job.run)
    contents = {"model_files": model_files(config["model"])}
    for name in ("train_data", "val_data"):
        contents[f"{name}_crc32"] = file_crc32(Path(config[name]))
    return contents.items() <= config.items()


def probe(plan, task: str, problems: int, runner: Runner) -> str:
    """Probe a task of a plan (study.Plan), by category if an arm has --column. Returns the text.
    Raises Fault if a run failed."""
    jobs = jobs_of(plan, task, problems)
    for job in jobs:
        if not is_current(job):
            shutil.rmtree(job.run, ignore_errors=True)
    if runner.run(jobs, discard=True):
        raise Fault(f"the probe failed: see {plan.out}/probe")
    parts = [f"# {task}\n"] if task else []
    if not all(job.finished() for job in jobs):
        return "".join([*parts, "The probe was stopped.\n"])
    configs = {arm: plan.config(arm, task) for arm in plan.arms}
    for job in jobs:
        run = analysis.Run.load(job.run)
        predicted = minutes(run, plan.spends(job.arm, task), configs[job.arm].eval_every)
        parts.append(f"A run of {job.arm} takes about {predicted:.2g} minutes.")
    planned = [each for each in plan.jobs() if each.task == task]
    parts.append(f"{len(planned)} runs are planned.")
    columns = [c.column for c in configs.values()]
    column = max(columns, key=len)  # any that is given
    selections = analysis.read_table(run.folder / "selections.jsonl", "successes")
    p = selections.successes / selections.completions
    parts += [
        "",
        describe(run, selections, p, column),
        f"Validation accuracy, greedy: {run.accuracy.iloc[0]:.1f}%.",
        advice(p),
        "",
    ]
    return "\n".join(parts)

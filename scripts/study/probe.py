"""Probe before a study: how many groups of the untrained model are dead, how long will a run take?

A probe is a short run of uniform sampling with a learning rate of 0, so all its groups are of the
untrained model. It is kept in OUT/probe, and repeated only with other flags, data, weights or
reward. Its report also shows the speed-ups that our studies measured at the nearest shares of dead
groups.
"""

import math
import shutil
from pathlib import Path

import numpy as np
import pandas as pd
from scipy.special import logit

from plumbing.config import ROOT, Config
from plumbing.errors import Fault
from plumbing.files import file_crc32
from plumbing.plugins import path_of
from plumbing.run.facts import model_files
from scripts.study.categories import natural_sort_key, read_categories
from scripts.study.page import Table
from scripts.study.plan import Plan
from scripts.study.runner import Job, Runner, parse
from scripts.study.runs import Run, read_config, read_table

MEASURED = ROOT / "studies/speed_ups.csv"  # of our studies, by dead groups before training
LEGEND = (
    "A range has uniform's completions until its late accuracy, over the sampler's: 95% over "
    "seeds, lowest to highest over the shares and settings named. 0.0: the sampler may not reach "
    "that accuracy. Ranges disagree if one begins above 1 and another does not. The seconds of a "
    "completion are compared for samplers with a Teacher alone. The toy task's runs are in part of "
    "an older rule of candidates."
)
NEAR = 0.25  # in log-odds: tasks that are no farther than this beyond the nearest count, too
UNIFORM = "uniform sampling"  # a run of the probe beside a baseline that samples otherwise
TIMED = 8  # steps of a run that only measures time, of which the later half counts
EDGES = [0, 1e-9, 0.25, 0.5, 0.75, 1, 2]  # of p̂
BINS = ["all wrong", "p̂ < 1/4", "p̂ < 1/2", "p̂ < 3/4", "p̂ < 1", "all right"]
GUESSED = "(perhaps guessed)"
WHY_GUESSED = (
    "all live groups have p̂ < 1/4. A lucky guess teaches nothing: a sampler may choose such groups "
    "in vain."
)
MANY_GUESSED = 1 / 4  # of the live groups: from this share on speed-ups may be lower than ours


def read_groups(run: Run, column: str) -> pd.DataFrame:
    """Read a probe's groups, rows of selections.jsonl. With a column of the data they also have the
    problem's value of it, `category`, and whether this is perhaps `guessed`: all its live groups
    have p̂ < 1/4. Raises InputError."""
    groups = read_table(run.folder / "selections.jsonl", "p_hat")
    if not column:
        return groups.assign(guessed=False)
    config = run.config
    categories = read_categories(config["train_data"], config["train_data_crc32"], column)
    category = groups.chosen.map(categories)
    live_p = groups.p_hat.where(groups.y > 0)
    highest = live_p.groupby(category).transform("max")  # NaN if none is live
    return groups.assign(category=category, guessed=highest < 1 / 4)


def describe(groups: pd.DataFrame, column: str, size: int) -> str:
    """Format the distribution of p̂ over groups of some size, with a column also by category."""
    bins = pd.get_dummies(pd.cut(groups.p_hat, EDGES, right=False, labels=BINS))
    shares = bins.assign(mean=groups.p_hat)
    parts = {"all": shares}
    if column:
        by_category = dict(list(shares.groupby(groups.category)))
        guessed = {*groups.category[groups.guessed]}
        for name in sorted(by_category, key=natural_sort_key):
            parts[f"{name} {GUESSED}" if name in guessed else name] = by_category[name]
    lines = [[name, len(part), *part.mean().map("{:.1%}".format)] for name, part in parts.items()]
    table = Table(
        f"Probe: {len(groups)} training problems × {size} completions, untrained model",
        [column or "problems", "groups", *BINS, "mean p̂"],
        lines,
    )
    text = table.markdown()
    if groups.guessed.any():
        text += f"\n{GUESSED}: {WHY_GUESSED}\n"
    return text


def count_overlong(run: Run, drawn: int) -> str:
    """Report how many of the problems that were tried have prompts over --max_prompt_tokens; "" for
    none. drawn: problems whose prompts fit."""
    metrics = run.metrics.reindex(columns=["overlong"]).overlong.dropna()
    overlong = int(metrics.iloc[-1]) if len(metrics) else 0
    if not overlong:
        return ""
    return (
        f"{overlong} of {overlong + drawn} problems ({overlong / (overlong + drawn):.1%}) are "
        f"longer than --max_prompt_tokens {run.config['max_prompt_tokens']}: training drops them, "
        "an evaluation counts them as wrong. They are not among the groups above."
    )


def nearest(measured: pd.DataFrame, dead: float) -> pd.DataFrame:
    """Return the rows of the tasks whose untrained share of dead groups is nearest, in log-odds: of
    each model those that are within NEAR of its nearest."""
    within_0_1 = np.clip(dead, 1e-4, 1 - 1e-4)
    distance = (logit(measured.untrained) - logit(within_0_1)).abs()
    least = distance.groupby(measured.model).transform("min")
    return measured[distance <= least + NEAR]


def describe_range(rows: pd.DataFrame) -> str:
    """Format the range of a sampler's speed-ups on one model, and what it is over."""
    shares = (100 * rows.untrained).map("{:.3g}%".format).unique()
    over = [f"{' and '.join(shares)} dead"]
    if rows.column.any():
        over.append(f"by {' or '.join(rows.column.replace('', 'no column').unique())}")
    if rows.arm.nunique() > 1:
        over.append(f"{rows.arm.nunique()} settings")
    on = f"{rows.model.iloc[0]} ({'; '.join(over)})"
    return f"{rows.low.min():.1f} to {rows.high.max():.1f} on {on}"


def conclude(low: float, cost: float, where: str) -> str:
    """Return the sentence about samplers, "{}", whose ranges begin at `low` or above. cost: seconds
    of their completions over uniform's. where: the models, if others have no range of theirs."""
    if low <= 1:
        return "There may be nothing to gain from {}: begin with uniform."
    sentence = f"At least {low} times as fast as uniform, in completions{where}"
    if low <= cost:
        sentence += f", but one takes {cost:.1f} times the seconds here, which may cost the gain"
    return f"{sentence}: {{}}."


def advice(groups: pd.DataFrame, arms: list[Config], cost: float = 1.0) -> str:
    """Return what a study of these arms may find after a probe with these groups (`read_groups`):
    for each sampler the ranges of its speed-ups in our studies at the nearest shares of dead
    groups, by model, and what the lowest means. cost: seconds of a completion of an arm with a
    Teacher, over uniform's."""
    p = groups.p_hat
    if (p == 0).all():
        return (
            f"No problem of {len(p)} is within reach, so at most {3 / len(p):.1%} are (95%): "
            "probe more with --problems, or begin with a cold start or easier data.\n"
        )
    mastered = (p == 1).mean()
    if mastered > 0.5:
        return f"{mastered:.0%} are mastered: harder data first.\n"
    costs = {c.sampler: cost if c.teacher_model else 1.0 for c in arms}
    dead = (groups.y == 0).mean()
    measured = pd.read_csv(MEASURED, comment="#").fillna({"column": "", "case": ""})
    near = nearest(measured.dropna(subset="low"), dead)
    lines = []
    samplers_of = {}  # by sentence
    for (sampler, case), rows in near[near.sampler.isin(costs)].groupby(["sampler", "case"]):
        name = f"`{sampler}` {case}".strip()
        by_model = rows.groupby("model", sort=False)
        ranges = [describe_range(of_model) for _, of_model in by_model]
        lows = by_model.low.min().round(1)
        verdict = ": they disagree" if lows.min() <= 1 < lows.max() else ""
        lines.append(f"- {name}: {', '.join(ranges)}{verdict}.")
        is_everywhere = len(lows) == near.model.nunique()
        where = "" if is_everywhere else f", on {' and '.join(lows.index)} alone"
        samplers_of.setdefault(conclude(lows.min(), costs[sampler], where), []).append(name)
    if unknown := [f"`{sampler}`" for sampler in costs if sampler not in {*near.sampler}]:
        samplers_of["Not measured there: {}."] = unknown
    undefined = nearest(measured, dead).query("low.isna()")
    for row in undefined.itertuples():
        lines.append(
            f"- On {row.model} ({row.untrained:.1%} dead) uniform hardly learned, so that no range "
            "is defined. docs/results.md has the gains."
        )
    text = "".join(f"{line}\n" for line in lines)
    if lines:
        text = f"## Measured at the nearest shares of dead groups\n\n{text}\n{LEGEND}\n\n"
    sentences = [sentence.format(", ".join(names)) for sentence, names in samplers_of.items()]
    guessed = groups.guessed[groups.y > 0].mean()
    if lines and guessed >= MANY_GUESSED:
        sentences.append(
            f"{guessed:.0%} of the live groups are perhaps guessed: these figures may be too high."
        )
    return f"{text}{' '.join(sentences)}\n"


def seconds_of_completion(run: Run) -> float:
    """Return the seconds that a short run took for a completion, without evaluations."""
    m = run.metrics[run.metrics.index > 0]
    later = m[len(m) // 2 :]  # the Teacher's buffer fills in the first steps
    return later.seconds.median() / later.completions.mean()


def minutes(run: Run, budget: float, eval_every: int) -> float:
    """Predict the minutes of a run that spends a budget of completions, from the steps of a short
    one; without the start."""
    per_step = run.metrics.completions[run.metrics.index > 0].mean()
    steps = budget / per_step
    evaluations = 1 + steps / eval_every
    training = budget * seconds_of_completion(run)
    evaluating = evaluations * run.metrics.eval_s.max()
    return (training + evaluating) / 60


def jobs_of(plan: Plan, task: str, problems: int) -> list[Job]:
    """Return the runs of a probe: of the first arm with a Teacher, for its time, and last of the
    baseline, or of uniform sampling with its other flags, over so many problems."""
    with_teacher = [arm for arm in plan.arms if plan.config(task, arm).teacher_model]
    runs = [(arm, plan.flags_of(task, arm), TIMED) for arm in with_teacher[:1]]
    baseline = plan.config(task, plan.baseline)
    name, flags = plan.baseline, plan.flags_of(task, plan.baseline)
    if baseline.sampler != "uniform":  # it may choose groups that are less often dead
        name, flags = UNIFORM, f"{flags} --sampler uniform --sampler_args ''"
    runs.append((name, flags, math.ceil(problems / baseline.prompts_per_step)))
    jobs = []
    for arm, flags, n in runs:
        flags += f" --learning_rate 0 --steps {n} --eval_every {n} --checkpoint_every {n} --keep 1"
        jobs.append(Job(Path(plan.out, "probe"), task, arm, 0, flags))
    return jobs


def is_current(job: Job) -> bool:
    """Whether a probe has finished, with these flags, and files of these contents."""
    if not job.finished() or job.other_flags():
        return False
    config = read_config(job.run)
    files = {
        "train_data": config["train_data"],
        "val_data": config["val_data"],
        "reward": path_of(config["reward"]),
    }
    contents = {f"{name}_crc32": file_crc32(Path(file)) for name, file in files.items() if file}
    contents["model_files"] = model_files(config["model"])
    return contents.items() <= config.items()


def probe(plan: Plan, task: str, problems: int, runner: Runner) -> str:
    """Probe a task of a plan, by category if an arm has --column. Returns the text. Raises Fault if
    a run failed."""
    jobs = jobs_of(plan, task, problems)
    for job in jobs:
        if not is_current(job):
            shutil.rmtree(job.run, ignore_errors=True)
    if runner.run(jobs, discard=True):
        raise Fault(f"the probe failed: see {plan.out}/probe")
    lines = [f"# {task}\n"] if task else []
    if not all(job.finished() for job in jobs):
        return "\n".join([*lines, "The probe was stopped.\n"])
    configs = {arm: plan.config(task, arm) for arm in plan.arms}
    seconds = {}
    for job in jobs:
        run = Run.load(job.run)
        arm = plan.baseline if job.arm == UNIFORM else job.arm
        predicted = minutes(run, plan.spends(task, arm), configs[arm].eval_every)
        lines.append(f"A run of {job.arm} takes about {predicted:.2g} minutes.")
        seconds[job.arm] = seconds_of_completion(run)
    planned = [each for each in plan.jobs() if each.task == task]
    lines.append(f"{len(planned)} runs are planned.")
    # The last run is of uniform sampling.
    lines.append(f"Validation accuracy, greedy: {run.accuracy.iloc[0]:.1f}%.\n")
    column = plan.column(task)
    groups = read_groups(run, column)
    lines.append(describe(groups, column, run.config["group_size"]))
    if overlong := count_overlong(run, groups.chosen.nunique()):
        lines.append(f"{overlong}\n")
    others = [c for arm, c in configs.items() if arm != plan.baseline and c.sampler != "uniform"]
    cost = max(seconds.values()) / seconds[job.arm]
    lines.append(advice(groups, others or [parse("--sampler goldilocks")], cost))
    return "\n".join(lines)

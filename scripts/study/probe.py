"""Probe before a study: how many groups of the untrained model are dead, how long will a run take?

A probe is a short run of uniform sampling with a learning rate of 0, so all its groups are of the
untrained model. It is kept in OUT/probe, and repeated only with other flags, data or weights. What
it expects of a study is what ours measured at the nearest share of dead groups before training.
"""

import math
import shutil
import tomllib
from pathlib import Path

import numpy as np
import pandas as pd
from scipy.special import logit

from plumbing.config import ROOT, Config
from plumbing.errors import Fault
from plumbing.files import file_crc32
from plumbing.run.facts import model_files
from sampler import Pooled, find_sampler
from scripts.study.categories import read_categories
from scripts.study.plan import Plan
from scripts.study.runner import Job, Runner, parse
from scripts.study.runs import Run, natural_order, read_config, read_table, table

UNTRAINED = ROOT / "studies/untrained.csv"  # tasks of our studies -> dead groups before training
NEAR = 0.25  # in log-odds: tasks that are no farther than this beyond the nearest count, too
TIMED = 8  # steps of a run that only measures time, of which the later half counts
EDGES = [0, 1e-9, 0.25, 0.5, 0.75, 1, 2]  # of p̂
BINS = ["all wrong", "p̂ < 1/4", "p̂ < 1/2", "p̂ < 3/4", "p̂ < 1", "all right"]
GUESSED = " (perhaps guessed)"  # after a category whose live groups all have p̂ < 1/4


def describe(
    run: Run,
    p: pd.Series,
    live: pd.Series,
    category: pd.Series | None,
    column: str,
) -> str:
    """Format the distribution of the p̂ of a run's groups, of all and by category: by a problem's
    value in a column of the data. None and "": there is no column. A category whose live groups all
    have p̂ < 1/4 is marked."""
    bins = pd.cut(p, EDGES, right=False, labels=BINS)
    groups = pd.get_dummies(bins).assign(mean=p)
    parts = [("all", groups)]
    if category is not None:
        of_category = dict(list(groups.groupby(category)))
        guessed = guessed_categories(p, live, category)
        for name in sorted(of_category, key=natural_order):
            label = name + GUESSED if name in guessed else name
            parts.append((label, of_category[name]))
    lines = []
    for name, part in parts:
        means = part.mean()
        shares = means.map("{:.1%}".format)
        lines.append([name, len(part), *shares])
    size = run.config["group_size"]
    return table(
        f"Probe: {len(p)} training problems × {size} completions, untrained model",
        [column or "problems", "groups", *BINS, "mean p̂"],
        lines,
    )


def guessed_categories(p: pd.Series, live: pd.Series, category: pd.Series) -> set[str]:
    """Return the categories that have live groups, all of them with p̂ < 1/4."""
    highest = p[live].groupby(category[live]).max()
    return {*highest.index[highest < 1 / 4]}


def warn_of_guesses(p: pd.Series, live: pd.Series, category: pd.Series) -> str:
    """Say which share of the live groups are of categories whose answers are perhaps guessed; ""
    for none."""
    guessed = guessed_categories(p, live, category)
    if not guessed:
        return ""
    share = category[live].isin(guessed).mean()
    names = ", ".join(sorted(guessed, key=natural_order))
    return (
        f"{share:.0%} of the live groups are of {names}, where no group has p̂ of 1/4 or more: "
        "perhaps guessed. Live is not learned: a sampler may spend its groups there in vain."
    )


def count_overlong(run: Run, drawn: int) -> str:
    """Say how many of the problems that were tried have prompts over --max_prompt_tokens; "" for
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


def settings(c: Config) -> tuple[str, str, str]:
    """Return what tells two arms of one study apart: sampler, K if it draws pools, column."""
    is_pooled = issubclass(find_sampler(c.sampler), Pooled)
    return c.sampler, str(c.candidates) if is_pooled else "", c.column


def read_measured() -> pd.DataFrame:
    """Read the speed-ups that our studies found: a row for each task and arm with a sampler other
    than uniform. Columns: those of a summary.csv, model, untrained (share of dead groups before
    training; base_dead is uniform's in training), sampler, K, column."""
    parts = []
    tasks = pd.read_csv(UNTRAINED, comment="#", dtype={"task": str}).fillna({"task": ""})
    for (plan_file, summary), of_plan in tasks.groupby(["plan", "summary"], sort=False):
        plan = tomllib.loads((ROOT / plan_file).read_text(encoding="utf-8"))
        found = pd.read_csv(ROOT / summary, dtype={"task": str}).fillna({"task": ""})
        found = found.merge(of_plan, on="task").dropna(subset="speed_up_low")
        rows = []
        for task, arm in zip(found.task, found.arm, strict=True):
            replaced = plan.get("replace", {}).get(task, {})
            flags = replaced.get(arm, plan["arms"][arm]["flags"])
            rows.append(settings(parse(f"{plan['flags']} {flags}")))
        parts.append(found.join(pd.DataFrame(rows, columns=["sampler", "K", "column"])))
    measured = pd.concat(parts, ignore_index=True)
    return measured[measured.sampler != "uniform"]


def nearest(measured: pd.DataFrame, dead: float) -> pd.DataFrame:
    """Return the rows of one model's tasks whose untrained share of dead groups is nearest, in
    log-odds: all that are within NEAR of the nearest."""
    within_0_1 = np.clip(dead, 1e-4, 1 - 1e-4)
    distance = (logit(measured.untrained) - logit(within_0_1)).abs()
    return measured[distance <= distance.min() + NEAR]


def times(low: float, high: float) -> str:
    """Format an interval of a speed-up, in which 0 stands for a level that was not reached."""
    if high == 0:
        return "less than 1"
    if low == 0:
        return f"at most {high:.1f}"
    return f"{low:.1f} to {high:.1f}"


def of_sampler(near: pd.DataFrame, c: Config) -> pd.DataFrame:
    """Return the rows of an arm's sampler: those with its K or, if there are none, with any."""
    sampler, K, _ = settings(c)
    rows = near[near.sampler == sampler]
    same = rows[rows.K == K]
    return rows if same.empty else same


def intervals(near: pd.DataFrame, c: Config) -> dict[str, tuple[float, float]]:
    """Return the lowest and highest speed-up of an arm's sampler, by the column that it read, ""
    for none: over all limits of the arms that `of_sampler` has."""
    by_column = of_sampler(near, c).groupby("column")
    lows = by_column.speed_up_low.min()
    highs = by_column.speed_up_high.max()
    return {column: (lows[column], highs[column]) for column in lows.index}


def found_for(near: pd.DataFrame, c: Config) -> str:
    """Say how fast an arm's sampler was in the nearest tasks of a model."""
    name, K, _ = settings(c)
    others = sorted({*of_sampler(near, c).K} - {K}, key=natural_order)
    if others:
        name += f" (K = {' and '.join(others)})"
    found = [
        f"by {column} {times(*limits)}" if column else times(*limits)
        for column, limits in intervals(near, c).items()
    ]
    return f"{name} {', '.join(found) or 'not measured'}"


def conclude(near: dict[str, pd.DataFrame], c: Config, cost: float) -> list[str]:
    """Say for an arm, where the nearest tasks disagree, which interval is the cautious one, and
    whether there is little to gain. near: by model. cost: seconds of a completion over uniform's.
    """
    limits = [pair for rows in near.values() for pair in intervals(rows, c).values()]
    if not limits:
        return []
    low, high = min(limits)
    says_faster = {round(each[0], 1) > 1 for each in limits}
    are_apart = max(limits)[0] > min(each[1] for each in limits)
    sentences = []
    if len(says_faster) > 1 or are_apart:
        sentences.append(f"They disagree on {c.sampler}: count on {times(low, high)}.")
    if round(low, 1) <= 1:
        sentences.append(f"There may be nothing to gain from {c.sampler}: begin with uniform.")
    elif low <= cost:
        sentences.append(
            f"A completion takes {cost:.1f} times uniform's seconds with {c.sampler}, which may "
            "eat up the gain."
        )
    return sentences


def advice(p: pd.Series, live: pd.Series, arms: list[Config], cost: float = 1.0) -> str:
    """Say what a study of these arms is likely to find where the groups of a probe have these p̂ and
    are live or not: what our studies measured at the nearest share, with a toy model and with a
    pretrained one. cost: seconds of a completion of an arm with a Teacher, over uniform's."""
    dead = 1 - live.mean()
    all_right = (p == 1).mean()
    if (p == 0).all():
        return (
            f"No problem of {len(p)} is within reach, so at most {3 / len(p):.1%} are (95%): "
            "probe more with --problems, or begin with a cold start or easier data."
        )
    if all_right > 0.5:
        return f"{all_right:.0%} are mastered: harder data first."
    near = {
        model: nearest(rows, dead) for model, rows in read_measured().groupby("model", sort=False)
    }
    sentences = [
        f"{dead:.1%} of groups are dead before training. How many times as fast as uniform, in "
        "completions, samplers were at the nearest shares that we measured:"
    ]
    for model, rows in near.items():
        shares = rows.drop_duplicates("task")
        before = " and ".join(f"{share:.1%}" for share in shares.untrained)
        during = " and ".join(f"{share:.1%}" for share in shares.base_dead)
        found = "; ".join(found_for(rows, c) for c in arms)
        sentences.append(f"{model} ({before}; while uniform trains {during}): {found}.")
    for c in arms:
        sentences += conclude(near, c, cost if c.teacher_model else 1.0)
    return " ".join(sentences)


def seconds_of_completion(run: Run) -> float:
    """Return the seconds that a short run took for a completion, without evaluations."""
    m = run.metrics[run.metrics.index > 0]
    later = m[len(m) // 2 :]
    return later.seconds.median() / later.completions.mean()


def minutes(run: Run, budget: float, eval_every: int) -> float:
    """Predict the minutes of a run that spends a budget of completions, from the steps of a short
    one; without the start."""
    m = run.metrics[run.metrics.index > 0]
    steps = budget / m.completions.mean()
    evaluations = 1 + steps / eval_every
    later = m.seconds[len(m) // 2 :]  # the Teacher's buffer fills in the first steps
    training = steps * later.median()
    evaluating = evaluations * run.metrics.eval_s.max()
    return (training + evaluating) / 60


def jobs_of(plan: Plan, task: str, problems: int) -> list[Job]:
    """Return the runs of a probe: of the first arm with a Teacher, for its time, and last of the
    baseline, over so many problems."""
    with_teacher = [arm for arm in plan.arms if plan.config(arm, task).teacher_model]
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
    config = read_config(job.run)
    contents = {"model_files": model_files(config["model"])}
    for name in ("train_data", "val_data"):
        contents[f"{name}_crc32"] = file_crc32(Path(config[name]))
    return contents.items() <= config.items()


def probe(plan: Plan, task: str, problems: int, runner: Runner) -> str:
    """Probe a task of a plan, by category if an arm has --column. Returns the text.
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
    seconds = {}
    for job in jobs:
        run = Run.load(job.run)
        predicted = minutes(run, plan.spends(job.arm, task), configs[job.arm].eval_every)
        parts.append(f"A run of {job.arm} takes about {predicted:.2g} minutes.")
        seconds[job.arm] = seconds_of_completion(run)
    planned = [each for each in plan.jobs() if each.task == task]
    parts.append(f"{len(planned)} runs are planned.")
    column = plan.column(task)
    groups = read_table(run.folder / "selections.jsonl", "p_hat")
    live = groups.y > 0
    category = None
    if column:
        category = groups.chosen.map(read_categories(run.config["train_data"], column))
    others = [c for arm, c in configs.items() if arm != plan.baseline and c.sampler != "uniform"]
    cost = max(seconds.values()) / seconds[plan.baseline]
    lines = [
        count_overlong(run, len(groups)),
        f"Validation accuracy, greedy: {run.accuracy.iloc[0]:.1f}%.",
        advice(groups.p_hat, live, others or [parse("--sampler goldilocks")], cost),
        "" if category is None else warn_of_guesses(groups.p_hat, live, category),
    ]
    parts += ["", describe(run, groups.p_hat, live, category, column), *filter(None, lines), ""]
    return "\n".join(parts)

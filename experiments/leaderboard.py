"""Judge samplers on toy tasks at equal completions; all scores are in docs/leaderboard.csv.

    python -m experiments.leaderboard                          # run what is missing, report
    python -m experiments.leaderboard my.py:Mine --tasks demo  # with a sampler of your own
    python -m experiments.leaderboard --minutes 0              # report on the CSV alone
    python -m experiments.leaderboard --tasks FOLDER --csv my.csv --out runs/mine

A run has one process and one thread, so that results do not depend on the machine's cores. It is
resumed with more steps until it has spent as many completions as uniform sampling in 120 steps,
screening included, so its learning rate must not depend on the number of steps. Its score is the
mean of its accuracy at 8/12, 9/12, 10/12, 11/12 and 12/12 of them, interpolated between
evaluations. docs/samplers.md has the rules of judgement.

A task may be a folder with model/, train.jsonl, val.jsonl and task.toml, all keys optional:

    flags = "--prompt_footer Answer:"     # of train.py, over --preset demo
    category = "task"    # the column that takes the place of topic
    level = "level"      # the column that takes the place of length
    seeds = 6
    steps = 120          # of uniform sampling
"""

import argparse
import json
import math
import os
import shlex
import sys
import time
import tomllib
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd
from filelock import FileLock, Timeout
from matplotlib.figure import Figure
from scipy import stats

from experiments import toy_task
from experiments.processes import beside, cpu_seconds, log_usage, start, usage_file
from experiments.toy_task import MASTERED, OUT, REACH, Task
from plumbing.command_line import count, file_path, natural, non_negative, user_path
from plumbing.errors import InputError
from sampler import find_sampler
from scripts import analysis, plot

ROOT = Path(__file__).resolve().parent.parent
CSV = ROOT / "docs" / "leaderboard.csv"
COLUMNS = ["task", "sampler", "seed", "cpu_seconds"]  # then the keys of `score`
COLUMNS += ["steps", "completions", "live", "curve", "right"]
STEP = 12 * 16  # completions of a step of the demo
SPENT = 0.95  # of the budget: a run that spent less is not compared
PLACES = np.arange(8, 13)  # where accuracy is read, in twelfths of the budget
TASKS = {
    "demo": Task(),
    "topic not named": Task(named=False),
    # Five topics within reach, but every other word of theirs is out of reach.
    "half of the words": Task(rates=(MASTERED, *5 * [REACH], *4 * [OUT]), lost=2),
    "hard chains": Task(rates=(MASTERED, *4 * [(0.95, 0.1)], *5 * [OUT]), lengths=(3, 4, 5)),
    "all within reach": Task(rates=(MASTERED, *9 * [REACH])),
}
NUMBER_OF_SEEDS = {task: 12 if i < 2 else 6 for i, task in enumerate(TASKS)}


@dataclass(frozen=True)
class Entry:
    """A sampler with its flags; completions: of one step on the demo, from seed 100; devices:
    relative to uniform's, where the teacher takes 2 of 8."""

    flags: str
    completions: int = STEP
    devices: float = 1.0


ENTRIES = {  # in the order of comparison
    "uniform": Entry("--sampler uniform"),
    "Goldilocks": Entry("--sampler goldilocks", devices=4 / 3),
    "SEC": Entry("--sampler sec --column topic"),
    "bag of words": Entry("--sampler bag_of_words"),
    "DAPO": Entry("--sampler uniform --resample_rounds 2", 576),
    "GRESO": Entry("--sampler greso", 1132),
    "SPEED": Entry("--sampler speed", 233),
    "LILO": Entry("--sampler lilo", 426),
    "Reinforce-Ada": Entry("--sampler reinforce_ada", 359),
    "Knapsack": Entry("--sampler knapsack"),
    "VCRL": Entry("--sampler vcrl", 223),
    "MoPPS": Entry("--sampler mopps"),
    "PCL": Entry("--sampler pcl", devices=4 / 3),
    "headroom": Entry("--sampler headroom --epsilon 0.05", devices=4 / 3),
    "Goldilocks, frozen": Entry("--sampler goldilocks --teacher_mode frozen"),
    "Goldilocks, few updates": Entry(  # the charge is counted, for --teacher_ranks 0
        "--sampler goldilocks --teacher_update_every 12 --teacher_epochs 1", devices=1.02
    ),
    "noisy AND": Entry("--sampler noisy_and --column topic --candidates 16"),
    "noisy AND, text": Entry("--sampler noisy_and --candidates 16"),
    "learnability bins": Entry("--sampler learnability_bins --column topic,length"),
    "difficulty pools": Entry("--sampler difficulty_pools"),
}


@dataclass(frozen=True)
class Place:
    """A task's data and base model, and the flags of its runs."""

    name: str
    folder: Path
    flags: str = "--max_completion_tokens 80"
    category: str = "topic"
    level: str = "length"
    seeds: int = 6
    steps: int = 120  # of uniform sampling

    @property
    def budget(self) -> int:
        """The completions that a run may spend."""
        return self.steps * STEP


@dataclass(frozen=True)
class Job:
    """A run: a sampler on a task, with a seed."""

    place: Place
    sampler: str
    entry: Entry
    seed: int


def find_place(out: Path, task: str) -> Place:
    """Find one of TASKS, or the folder of another task. Raises InputError, OSError."""
    if task in TASKS:
        folder = ROOT / "demo" if task == "demo" else out / "tasks" / task
        return Place(task, folder, seeds=NUMBER_OF_SEEDS[task])
    folder = Path(os.path.realpath(task))  # before Python 3.13 resolve fails at a loop of links
    if folder.name in TASKS:
        raise InputError(f"--tasks {task}: rename the folder, as {folder.name!r} is another task")
    for name in ("model", "train.jsonl", "val.jsonl"):
        if not (folder / name).exists():
            missing = f"no {name} in this folder, and not one of {[*TASKS]}"
            raise InputError(f"--tasks {task}: {missing}")
    file = folder / "task.toml"
    try:
        settings = tomllib.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
        place = Place(folder.name, folder, **settings)
        check_settings(settings)
        shlex.split(place.flags)
    except (ValueError, TypeError) as error:
        raise InputError(f"{file}: {error}") from error
    return place


def check_settings(settings: dict) -> None:
    """Raise ValueError if a value of task.toml has not the type of its default."""
    for name, value in settings.items():
        is_number = type(getattr(Place, name)) is int
        if is_number and (type(value) is not int or value < 1):
            raise ValueError(f"{name} = {value!r}: must be a whole number above 0")
        if not is_number and type(value) is not str:
            raise ValueError(f"{name} = {value!r}: must be a text")


def command(job: Job, run: Path, eval_every: int) -> list[str]:
    """Return the command line of a run, without its steps."""
    place = job.place
    own = shlex.split(job.entry.flags)
    columns = {"topic": place.category, "topic,length": f"{place.category},{place.level}"}
    flags = ["--preset", "demo", *shlex.split(place.flags)]
    flags += [columns.get(word, word) for word in own]
    flags += ["--seed", str(job.seed), "--out", str(run)]
    flags += ["--eval_every", str(eval_every), "--checkpoint_every", "10000"]
    files = {"model": "model", "train_data": "train.jsonl", "val_data": "val.jsonl"}
    if find_sampler(own[1]).uses_teacher:
        files["teacher_model"] = "model"
    for flag, file in files.items():
        flags += [f"--{flag}", str(place.folder / file)]
    return [sys.executable, str(ROOT / "train.py"), *flags]


def places(spent: np.ndarray, budget: float, run: str) -> np.ndarray:
    """Return the completions at PLACES. spent: those at each evaluation after step 0, ascending.
    Raises InputError if none is at or before the first place."""
    completions = budget * PLACES / 12
    if completions[0] < spent[0]:
        raise InputError(
            f"{run}: no evaluation after step 0 within {completions[0]:.0f} completions"
        )
    return completions


def counted(spent: np.ndarray, budget: int, run: str) -> np.ndarray:
    """Return the positions of the last evaluations at or before each of PLACES, as `places`."""
    return np.searchsorted(spent, places(spent, budget, run), side="right") - 1


def score(run: analysis.Run, budget: int) -> dict:
    """Compute the row of a run within a budget of completions: the completions that it spent, the
    share of its groups that are live, the accuracy of each evaluation after its completions
    (`curve`), and for each validation problem in how many of the five evaluations before PLACES it
    was right (a digit). Raises InputError if the run spent less than 95% of the budget, or if an
    evaluation is missing."""
    spent = run.metrics.completions.fillna(0).cumsum().astype(int)
    total = int(spent.iloc[-1])
    if total < SPENT * budget:
        raise InputError(f"{run.folder}: spent {total} of {budget} completions, less than 95%")
    last = spent.index[spent <= budget][-1]
    row = {"steps": last, "completions": min(total, budget)}
    row |= {"live": round(1 - run.metrics.zero_variance.loc[1:last].mean(), 4)}
    curve = run.accuracy[run.accuracy.index <= last].items()
    row |= {"curve": " ".join(f"{spent[step]}:{accuracy:.2f}" for step, accuracy in curve)}
    steps = run.accuracy.index[run.accuracy.index > 0]
    steps = steps[counted(spent[steps].to_numpy(), budget, str(run.folder))]
    files = [run.folder / "evals" / f"step_{step}.jsonl" for step in steps]
    right = sum(analysis.read_table(file, "reward").reward for file in files)
    return row | {"right": "".join(map(str, right.astype(int)))}


def execute(line: list[str], run: Path) -> int:
    """Run a command to its end, log its output and what it used, and return its exit status."""
    began = time.time()
    process = start(line, run)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = log_usage(run, shlex.join(line[2:]), status, usage, began)
    return process.returncode


def spend(line: list[str], run: Path, steps: int, budget: int) -> bool:
    """Begin a run, or resume it, until it has spent its budget of completions. steps: those that
    are expected to. Returns False if a process failed."""
    if (run / "config.json").exists():  # an earlier command may have extended it
        steps = max(steps, analysis.read_config(run)["steps"])
    else:
        usage_file(run).unlink(missing_ok=True)  # of a run that was deleted
    while execute([*line, "--steps", str(steps)], run) == 0:
        completions = analysis.Run.load(run).metrics.completions
        done = int(completions.index[-1])
        spent = completions.sum()
        if spent >= budget:
            return True
        steps = done + math.ceil((budget - spent) * done / spent)
    return False


def run_one(out: Path, csv: Path, end: float, job: Job) -> bool:
    """Run one job and append its row to the CSV; start nothing after `end`. False if it failed."""
    if time.time() >= end:
        return True
    place = job.place
    steps = math.ceil(place.budget / job.entry.completions)
    run = out / place.name / job.sampler.replace("/", "-") / f"seed{job.seed}"
    run.parent.mkdir(parents=True, exist_ok=True)
    line = command(job, run, eval_every=max(1, round(steps / 12)))
    if not spend(line, run, steps, place.budget):
        print(f"FAILED: {beside(run, 'log')}", flush=True)
        return False
    row = {"task": place.name, "sampler": job.sampler, "seed": job.seed}
    row["cpu_seconds"] = round(cpu_seconds(run), 1)
    row |= score(analysis.Run.load(run), place.budget)
    with FileLock(f"{csv}.lock"):
        pd.DataFrame([row]).to_csv(csv, mode="a", header=not csv.exists(), index=False)
    print(f"done: {place.name}, {job.sampler}, seed {job.seed}", flush=True)
    return True


def scores_within(rows: pd.DataFrame, budget: int, devices: float = 1.0) -> pd.Series:
    """Return each seed's score within a budget of completions, in percent: the mean of its curve at
    PLACES, which are the same for each sampler, however often it was evaluated; in between it is
    interpolated. devices: relative to uniform's, which divide the budget. Raises InputError if the
    first place is before the first evaluation after step 0."""
    means = {}
    for row in rows.itertuples():
        points = np.array([point.split(":") for point in row.curve.split()], float)
        spent, accuracy = points[points[:, 0] > 0].T
        run = f"{row.task}, {row.sampler}, seed {row.seed}"
        at = places(spent, budget / devices, run)
        means[row.seed] = np.interp(at, spent, accuracy).mean()
    return pd.Series(means)


def right(rows: pd.DataFrame, budget: int) -> pd.DataFrame:
    """Return accuracies in percent, a row for each seed and a column for each problem. A seed's
    mean is that of its curve. Raises InputError if an evaluation is missing."""
    digits = pd.DataFrame(map(list, rows.right), index=rows.seed)
    percent = 20 * digits.astype(float).sort_index()
    # In rows made before 2026-11-25 `right` is of the last five evaluations, which for samplers of
    # more or fewer completions a step than expected are other ones than those that count.
    return percent.add(scores_within(rows, budget) - percent.mean(axis=1), axis=0)


def compare(method: pd.DataFrame, base: pd.DataFrame) -> tuple[float, tuple, tuple, float]:
    """Compare two samplers' `right` on common seeds: the difference in points, its 95% interval
    over seeds (t), over seeds and problems (bootstrap of both), and p over seeds."""
    seeds = method.index.intersection(base.index)
    difference_S_V = (method.loc[seeds] - base.loc[seeds]).to_numpy()
    test = stats.ttest_1samp(difference_S_V.mean(1), 0)
    rng, (S, V) = np.random.default_rng(0), difference_S_V.shape
    draws = ((rng.integers(S, size=S), rng.integers(V, size=V)) for _ in range(2000))
    means = [difference_S_V[s].mean(0)[v].mean() for s, v in draws]
    both = tuple(np.quantile(means, [0.025, 0.975]))
    return difference_S_V.mean(), tuple(test.confidence_interval()), both, test.pvalue


def holm(p: pd.Series) -> pd.Series:
    """Correct p-values for their number by Holm's method; NaN are left out."""
    ordered = p.dropna().sort_values()
    return (ordered * np.arange(len(ordered), 0, -1)).cummax().clip(upper=1)


def compute_matched_gain(
    method: pd.DataFrame, base: pd.DataFrame, budget: int, entries: dict
) -> float:
    """Return one sampler's mean gain over another on common seeds, where the devices of their
    entries reduce their budgets."""
    scores = []
    for rows in (method, base):
        entry = entries[rows.sampler.iloc[0]]
        scores.append(scores_within(rows, budget, entry.devices))
    of_method, of_base = scores
    return (of_method - of_base).mean()


def standings(rows: pd.DataFrame, task: str, against: str, entries=ENTRIES) -> pd.DataFrame:
    """Compare each sampler of a task with one of them, the best first; holm: p by Holm's method;
    compute_matched: the gain where the devices of `entries` reduce the budget."""
    of_task = rows[rows.task == task]
    parts = dict(list(of_task.groupby("sampler")))
    budget = of_task.completions.max()  # some sampler spends all of it
    base = parts[against]
    base_scores = right(base, budget)
    lines = []
    for name, part in parts.items():
        scores = right(part, budget)
        line = {"sampler": name, "seeds": len(part), "accuracy": scores.to_numpy().mean()}
        line["live"] = part.live.mean()
        line["updates"] = part.steps.mean()
        line["time"] = part.cpu_seconds.mean() / base.cpu_seconds.mean()
        line |= {"gain": np.nan, "p": np.nan, "compute_matched": np.nan}
        common = scores.index.intersection(base_scores.index)
        if name != against and len(common) > 1:
            columns = ("gain", "seeds_95", "both_95", "p")
            line |= zip(columns, compare(scores, base_scores), strict=True)
            if name in entries and against in entries:
                line["compute_matched"] = compute_matched_gain(part, base, budget, entries)
        lines.append(line)
    table = pd.DataFrame(lines).sort_values("accuracy", ascending=False, ignore_index=True)
    table["holm"] = holm(table.p)
    return table


def show(task: str, table: pd.DataFrame, against: str) -> str:
    """Format the standings of a task as a Markdown table."""
    lines = []
    for row in table.itertuples():
        line = [row.sampler, row.seeds, f"{row.accuracy:.1f}%", f"{1 - row.live:.0%}"]
        line += [f"{row.updates:.0f}", f"{row.time:.2f}"]
        if np.isfinite(row.gain):
            line += [f"{row.gain:+.1f} ({row.seeds_95[0]:+.1f} to {row.seeds_95[1]:+.1f})"]
            line += [f"{row.both_95[0]:+.1f} to {row.both_95[1]:+.1f}", f"{row.holm:.3f}"]
            line += [f"{row.compute_matched:+.1f}" if np.isfinite(row.compute_matched) else "–"]
        lines.append([*line, *["–"] * (10 - len(line))])
    header = ["sampler", "seeds", "accuracy", "dead", "updates", "time", f"gain over {against}"]
    header += ["over seeds and problems", "p (Holm)", "compute-matched"]
    return analysis.table(task, header, lines)


def draw(tables: dict[str, pd.DataFrame], against: str) -> Figure:
    """Draw each sampler's gain with its interval over seeds, a panel for each task."""
    figure = Figure(figsize=(3 + 2.2 * len(tables), 4.5), layout="constrained")
    panels = figure.subplots(1, len(tables), sharey=True, squeeze=False)[0]
    names = dict.fromkeys([*ENTRIES, *pd.concat(tables.values()).sampler])
    for axes, (task, table) in zip(panels, tables.items(), strict=True):
        ordered = table.set_index("sampler").reindex(names)
        for name, row in ordered.dropna(subset="gain").iterrows():
            ends = [[row.gain - row.seeds_95[0]], [row.seeds_95[1] - row.gain]]
            axes.errorbar(row.gain, name, xerr=ends, fmt="o", capsize=3, color=plot.COLOURS[0])
        axes.axvline(0, color="0.3", linewidth=1)
        axes.set(title=task, xlabel=f"points over {against}")
    panels[0].invert_yaxis()
    return figure


def read(csv: Path) -> pd.DataFrame:
    """Return the rows of a CSV of scores, none if there is no file. Raises InputError."""
    if not csv.exists():
        return pd.DataFrame(columns=COLUMNS)
    try:
        rows = pd.read_csv(csv, dtype={"right": str})
    except ValueError as error:
        raise InputError(f"{csv} cannot be read: {error}") from error
    if [*rows.columns] != COLUMNS or rows.duplicated(COLUMNS[:3]).any():
        raise InputError(f"{csv}: not the columns {', '.join(COLUMNS)}, or a run has two rows")
    if rows.right.str.len().groupby(rows.task).nunique().max() > 1:
        raise InputError(f"{csv}: `right` differs in length; delete the row that was cut off")
    budgets = rows.groupby("task").completions.transform("max")
    short = rows[rows.completions < SPENT * budgets]
    if len(short):
        task, name, seed = short.iloc[0][COLUMNS[:3]]
        row = (
            f"{len(short)} rows spent less than 95% of their budget, as {task}, {name}, seed {seed}"
        )
        raise InputError(f"{csv}: {row}: delete them")
    return rows


def prepare(place: Place, done: pd.DataFrame) -> None:
    """Make the files of one of TASKS if they are missing. Raises InputError if its base model is
    not the one that the CSV's runs of the task began with."""
    if place.name not in TASKS:
        return
    file = place.folder / "statistics.json"
    if not file.exists():
        toy_task.make(TASKS[place.name], file.parent, 0)
    base = f"0:{100 * json.loads(file.read_text())['validation']['all']['greedy']:.2f}"
    if {curve.split()[0] for curve in done.curve[done.task == place.name]} - {base}:
        differs = "the base model differs from its CSV's, maybe by the processor"
        raise InputError(f"{place.name}: {differs}: run --tasks demo, or give a new --csv")


def select_entries(args: argparse.Namespace) -> dict[str, Entry]:
    """Return the entries to run, by name: those of --only and the samplers of the command line, all
    with --flags. Raises InputError."""
    if args.completions != STEP and not args.samplers:
        raise InputError("--completions: only used with a FILE.py:CLASS; name one")
    try:
        shlex.split(args.flags)
    except ValueError as error:
        raise InputError(f"--flags {args.flags}: {error}") from error
    entries = {name: ENTRIES[name] for name in args.only}
    for spec in args.samplers:
        devices = 4 / 3 if find_sampler(spec).uses_teacher else 1.0
        entries[spec] = Entry(f"--sampler {shlex.quote(spec)}", args.completions, devices)
    return {
        name: replace(entry, flags=f"{entry.flags} {args.flags}") for name, entry in entries.items()
    }


def missing_jobs(
    places: list[Place], entries: dict[str, Entry], seeds: range, done: pd.DataFrame
) -> list[Job]:
    """Return the jobs that have no row in the CSV, seed by seed. Each place runs the first
    `place.seeds` of the seeds. done: the rows of the CSV."""
    known = set(done[COLUMNS[:3]].itertuples(index=False, name=None))
    return [
        Job(place, name, entry, seed)
        for seed in seeds
        for place in places
        if seed < seeds.start + place.seeds
        for name, entry in entries.items()
        if (place.name, name, seed) not in known
    ]


def run_jobs(jobs: list[Job], done: pd.DataFrame, args: argparse.Namespace) -> bool:
    """Make the tasks that the jobs need, then run the jobs. Returns False if one failed."""
    for place in dict.fromkeys(job.place for job in jobs):
        prepare(place, done)
    end = time.time() + 60 * args.minutes
    with ThreadPoolExecutor(args.jobs) as pool:
        passed = [*pool.map(partial(run_one, args.out, args.csv, end), jobs)]
    return all(passed)


def report(csv: Path, against: str, tasks: list[str], entries: dict[str, Entry]) -> None:
    """Print the standings of TASKS and further tasks, and draw them in a figure beside the CSV.
    Raises InputError if the CSV has no rows of the sampler to compare with."""
    rows = read(csv)
    with_base = set(rows.task[rows.sampler == against])
    judged = [task for task in dict.fromkeys([*TASKS, *tasks]) if task in with_base]
    if not judged:
        raise InputError(f"--against {against}: {csv} has no rows of it")
    tables = {task: standings(rows, task, against, entries) for task in judged}
    print(*(show(task, table, against) for task, table in tables.items()), sep="\n")
    draw(tables, against).savefig(csv.with_suffix(".png"), dpi=120)


def run_and_report(args: argparse.Namespace) -> bool:
    """Run what the CSV lacks, then report on it. Returns False if a run failed. Raises InputError,
    OSError."""
    if args.flags and args.csv.resolve() == CSV:
        raise InputError("--flags: add --csv and --out, for scores and runs of their own")
    entries = select_entries(args)
    done = read(args.csv)
    if args.against not in {*entries, *done.sampler}:
        raise InputError(f"--against {args.against}: choose from {[*entries]}")
    places = [find_place(args.out, task) for task in args.tasks]
    passed = True
    if args.minutes:
        seeds = range(args.first_seed, args.first_seed + args.seeds)
        passed = run_jobs(missing_jobs(places, entries, seeds, done), done, args)
    report(args.csv, args.against, [place.name for place in places], ENTRIES | entries)
    return passed


def arguments(argv) -> argparse.Namespace:
    """Parse the command line."""
    parser = analysis.parser(__doc__)
    add = parser.add_argument
    add("samplers", nargs="*", metavar="FILE.py:CLASS", help="more samplers")
    add("--completions", type=count, default=STEP, help="of one step of theirs (%(default)s)")
    add("--only", nargs="*", choices=ENTRIES, default=list(ENTRIES), help="entries to run (all)")
    add("--flags", default="", help="more flags of train.py, with --out and --csv of their own")
    tasks = f"to run, of {', '.join(TASKS)} (all), or folders"
    add("--tasks", nargs="+", type=user_path, default=list(TASKS), help=tasks)
    add("--seeds", type=count, default=12, help="at most so many for a task (%(default)s)")
    add("--first_seed", type=natural, default=20, help="of those that are run (%(default)s)")
    add("--against", default="uniform", help="sampler to compare with (%(default)s)")
    runs = Path("runs/leaderboard")
    add("--out", type=file_path, default=runs, help="folder of runs (%(default)s)")
    add("--csv", type=file_path, default=CSV, help="scores, read and appended to (%(default)s)")
    add("--jobs", type=count, default=2, help="runs at a time, one thread each (%(default)s)")
    help = "start no run after (%(default)s); 0: report"
    add("--minutes", type=non_negative, default=600, help=help)
    return parser.parse_args(argv)


def main(argv=None) -> int:
    """Run the command; return its exit status, 1 if a run failed."""
    args = arguments(argv)
    with analysis.one_line("leaderboard", Timeout):
        args.out.mkdir(parents=True, exist_ok=True)
        with FileLock(args.out / "lock", timeout=0):
            passed = run_and_report(args)
    return int(not passed)


if __name__ == "__main__":
    sys.exit(main())

"""Does choosing problems pay, for this model and these problems? Run the arms of a study.

    python -m scripts.study --model M --train_data T --val_data V --samplers goldilocks --seeds 5
    python -m scripts.study PLAN.toml --jobs 2 --until 18:00      # start, stop, resume
    python -m scripts.study PLAN.toml --report                    # on the runs that are finished
    python -m scripts.study PLAN.toml --report --csv scores.csv   # on a CSV alone
    python -m scripts.study studies/paper/table1.toml --dry_run   # commands, GPU hours, disk
    python -m scripts.study studies/paper/table1.toml --miniature # on the demo's model, 4 CPU ranks

A plan comes first; without one it takes all flags of train.py, too. A plan, whose paths are
relative to the working directory:

    out = "runs/study"      # a run is in OUT/TASK/ARM/seedN, without TASK if there are no tasks
    flags = "--preset demo --eval_every 10"     # of train.py, for all runs
    baseline = "uniform"    # the arm that others are compared with
    budget = 23040          # completions of a run; if left out, those of train.py's steps
    seeds = [1, 2, 3, 4, 5]
    compute_matched = true      # also give the baseline 4/3 of the steps; by default with `launch`
    [tasks]                 # more flags by task; may be left out
    demo = "--train_data demo/train.jsonl"
    [arms]                  # may have `seeds` of their own, and `devices` relative to the baseline
    uniform = {flags = "--sampler uniform"}
    # A step may draw 3 times as many, so fewer steps: a run is extended until its budget is spent.
    DAPO = {flags = "--sampler uniform --resample_rounds 2 --steps 40", seeds = [1, 2, 3]}
    [replace.demo]          # an arm's flags on one task
    DAPO = "--sampler speed --steps 20"

For a machine with several GPUs, where runs are started one at a time and no probe is made:

    launch = "torchrun --standalone --nproc_per_node 8"
    gpu_hours = 1000        # of a run with its preset's steps, for --dry_run
    report = "table1"       # the report is in OUT/table1: plans with one OUT share their runs
    [paper]                 # figures that are printed beside, from a CSV
    figures = "studies/paper/figures.csv"
    table = "Table 1"

First it probes: how many groups of the untrained model are dead, also by category if an arm has
--column, and how long will a run take? Then it trains, seed by seed, in processes of one thread.
Every run spends the budget. On one device the cost of a Teacher is in the measured seconds. With
`launch` over several, where it takes 2 of 8, the baseline goes on to 4/3 (compute-matched). Runs
are resumed by the same command. The report is printed; OUT has it as report.md, report.html and
figure.png, with scores.csv and summary.csv. A run of the baseline that loses accuracy is reported
when it ends.
"""

import math
import shlex
import signal
import sys
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from itertools import product
from pathlib import Path

import torch
from filelock import FileLock, Timeout
from transformers import AutoTokenizer

import train
from plumbing import command_line
from plumbing.command_line import flag, non_negative_int
from plumbing.data.problems import Problems
from plumbing.distributed.layout import device_type
from plumbing.errors import InputError, print_line
from plumbing.files import write_atomic
from plumbing.model_checks import reject_on_error
from plumbing.plugins import construct
from sampler import Context, find_sampler
from scripts.command import exit_on_error
from scripts.study import dry_run, findings, paper, probe, scores
from scripts.study.plan import Arm, Plan
from scripts.study.results import category_tables, score, write_report
from scripts.study.runner import STOPPED, Job, Runner, launcher, note, parse

MINIATURE = "In miniature: the demo's model, not the plan's."


def warn_if_baseline_failed(job: Job, plan: Plan) -> None:
    """Print a warning if a finished run of the baseline lost accuracy: the other runs may wait."""
    if job.arm != plan.baseline:
        return
    try:
        rows = scores.concatenate(score([job], cpu_seconds=False))
    except InputError as error:
        note(str(error))
        return
    _, spent = job.done()
    at_A = scores.places_of(job.budget or spent, plan.places)
    row = {"task": job.task, "arm": job.arm} | scores.describe(rows, rows, at_A)
    if text := findings.warn(row, plan.baseline, parse(job.flags).learning_rate):
        note(text)


def time_of_day(text: str) -> float:
    """An argparse type: the next time that a clock shows HH:MM, in seconds since 1970."""
    clock = datetime.strptime(text, "%H:%M").time()
    now = datetime.now()
    end = datetime.combine(now, clock)
    if end < now:
        end += timedelta(days=1)
    return end.timestamp()


@dataclass
class Options:
    """The flags of this command, beside those of train.py."""

    samplers: tuple = flag(
        ("goldilocks",),
        "arms beside uniform, with settings in quotes: 'goldilocks --candidates 64'",
        nargs="+",
        type=str,
        metavar="SAMPLER",
    )
    seeds: int = flag(5, "how many, from train.py's --seed on")
    steps: int = flag(0, "of a run with a Teacher; 0: those of the preset", type=non_negative_int)
    out: str = flag("", "directory of the runs or, with a plan, of the report")
    probe: bool = flag(False, "only probe")
    problems: int = flag(200, "training problems of a probe")
    report: bool = flag(False, "only report on what is finished")
    csv: str = flag("", "only report, on the plan's arms in a table of scores")
    dry_run: bool = flag(False, "only print each run's command, steps, disk and GPU hours")
    miniature: bool = flag(False, "the plan on the demo's model and data, 4 CPU ranks, few steps")
    jobs: int = flag(
        0,
        "runs at a time; 0: 1 on a GPU or by a plan's launch command, else 2",
        type=non_negative_int,
    )
    until: float = flag(math.inf, "stop at this time of day", type=time_of_day, metavar="HH:MM")
    discard: bool = flag(False, "delete the weights of finished runs")


def plan_of_flags(options: Options, words: list[str]) -> Plan:
    """Make the plan of a command line without one. words: the flags of train.py that were given."""
    arms = {"uniform": Arm("--sampler uniform")}
    for text in options.samplers:
        spec, *settings = shlex.split(text)
        arms[text] = Arm(shlex.join(["--sampler", spec, *settings]))
    if any(word.partition("=")[0] == "--sampler" for word in words):
        raise InputError("--sampler: name arms by --samplers")
    c = train.parse([*words, "--sampler", "goldilocks"])
    steps = options.steps or c.steps
    return Plan(
        out=options.out or "runs/study",
        flags=shlex.join(words),
        arms=arms,
        seeds=[*range(c.seed, c.seed + options.seeds)],
        budget=steps * c.prompts_per_step * c.group_size,
    )


def parse_arguments(argv) -> tuple[Options, Plan]:
    """Parse the command line. Raises ValueError, OSError."""
    words = sys.argv[1:] if argv is None else argv
    path = ""
    if words and not words[0].startswith("-"):
        path, *words = words
    parser = command_line.Parser(
        __doc__,
        usage="python -m scripts.study [PLAN.toml] [FLAGS]",
        epilog="Without a plan all other flags are train.py's.",
    )
    command_line.add_fields(parser, Options)
    given, flags = parser.parse_known_args(words)
    options = Options(**vars(given))
    if not path:
        plan = plan_of_flags(options, flags)
        options.out = ""  # it is the runs', and the report is among them
    elif flags:
        parser.error(f"{' '.join(flags)}: a plan has these flags")
    else:
        plan = Plan.read(path)
    if options.miniature:
        plan = plan.miniature()
    return options, plan


def check(plan: Plan) -> None:
    """Read the data, build each arm's sampler, load the tokenizers: mistakes show before hours of
    runs. Raises InputError, OSError, ValueError."""
    if plan.paper:
        paper.read_figures(**plan.paper)
    data = {}
    models = set()
    for task, arm in product(plan.tasks, plan.arms):
        c = plan.config(task, arm)
        models.add(c.model)
        device_type(c.device)
        for place in ((c.train_data, c.column), (c.val_data, "")):
            data[place] = data.get(place) or Problems(*place)
        problems = data[c.train_data, c.column]
        cls = find_sampler(c.sampler)
        if not cls.uses_teacher:
            context = Context(problems, c, lambda index: True)
            construct(cls, context, c.sampler, c.sampler_args)
        if arm == plan.baseline and (warning := problems.overlap(data[c.val_data, ""])):
            note(warning)
    for model in sorted(models):
        with reject_on_error(model, "cannot be used"):
            AutoTokenizer.from_pretrained(model)


def run(plan: Plan, jobs: list[Job], options: Options) -> int:
    """Probe the tasks of which no run is finished, then run the jobs. Returns an exit status: 1 if
    a run failed, train.py's if a signal stopped it."""
    if plan.launch and options.jobs > 1:
        raise InputError(f"--jobs {options.jobs}: a run by `launch` takes the whole machine")
    launch = launcher(plan.launch) if plan.launch else []
    at_a_time = options.jobs or (1 if launch or torch.cuda.is_available() else 2)
    runner = Runner(at_a_time, options.until, launch)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, runner.stop)
    try:
        with FileLock(Path(plan.out, "lock"), timeout=0):
            check(plan)
            for task in plan.tasks:
                finished = any(job.finished() for job in jobs if job.task == task)
                if options.probe or not (finished or launch):
                    print_line(probe.probe(plan, task, options.problems, runner))
            runner.on_finish = partial(warn_if_baseline_failed, plan=plan)  # not of a probe's runs
            failures = 0 if options.probe else runner.run(jobs, options.discard)
    except Timeout as error:
        raise InputError(f"{plan.out} is in use by another study ({error})") from error
    if not runner.end:
        note("stopped: the same command resumes")
        return STOPPED[0]
    return min(failures, 1)


def check_flags(jobs: list[Job]) -> None:
    """Raise InputError if a run was made with other flags."""
    for job in jobs:
        if others := job.other_flags():
            raise InputError(
                f"{job.run} was made with {others[0]}, but now has {job.flags}: undo the change, "
                "choose another `out`, or delete it"
            )


def main(argv=None) -> int:
    """Run the command; return its exit status."""
    with exit_on_error("study"):
        options, plan = parse_arguments(argv)
        folder = Path(options.out or Path(plan.out, plan.report))
        first = MINIATURE if options.miniature else ""
        if options.csv:
            rows = scores.select(scores.read(options.csv), [*plan.arms], [*plan.tasks])
            rows = scores.concatenate([rows])
            print_line(write_report(rows, plan, folder, [], first).rstrip())
            return 0
        jobs = plan.jobs()
        check_flags(jobs)
        if options.dry_run:
            print(dry_run.describe(plan, jobs), end="")
            return 0
        status = 0 if options.report else run(plan, jobs, options)
        if options.probe or status in STOPPED:
            return status
        finished = [job for job in jobs if job.finished()]
        note(f"{len(finished)} of {len(jobs)} runs are finished")
        rows = scores.concatenate(score(finished, cpu_seconds=not plan.launch))
        by_category = category_tables(finished, plan)
        print_line(write_report(rows, plan, folder, by_category, first).rstrip())
        write_atomic(folder / "scores.csv", rows.round(4).to_csv(index=False))
    return status


if __name__ == "__main__":
    sys.exit(main())

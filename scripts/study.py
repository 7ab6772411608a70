"""Does choosing problems pay, for this model and these problems? Run the arms of a study.

    python -m scripts.study --model M --train_data T --val_data V --samplers goldilocks --seeds 5
    python -m scripts.study PLAN.toml --jobs 2 --until 18:00      # start, stop, resume
    python -m scripts.study PLAN.toml --report                    # on the runs that are finished
    python -m scripts.study PLAN.toml --report --csv scores.csv   # on a CSV alone
    python -m scripts.study runs/demo-*                           # on runs of train.py

It takes all flags of train.py, too. A plan, whose paths are relative to the working directory:

    out = "runs/study"      # a run is in OUT/TASK/ARM/seedN, without TASK if there are no tasks
    flags = "--preset demo --eval_every 10"     # of train.py, for all runs
    baseline = "uniform"    # the arm that others are compared with
    budget = 23040          # completions of a run; without it those of the first arm with a Teacher
    seeds = [1, 2, 3, 4, 5]
    [tasks]                 # more flags by task; may be left out
    demo = "--train_data demo/train.jsonl"
    [arms]                  # may have `seeds` of their own, and `devices` relative to the baseline
    uniform = {flags = "--sampler uniform"}
    DAPO = {flags = "--sampler uniform --resample_rounds 2 --steps 40", seeds = [1, 2, 3]}
    [replace.demo]          # an arm's flags on one task
    DAPO = "--sampler greso --steps 20"

First it probes: how many groups of the untrained model are dead, and how long will a run take? Then
it trains, seed by seed, in processes of one thread. Every run spends the budget; where an arm has a
Teacher, which takes 2 of 8 devices, the baseline goes on to 4/3 of it (compute-matched). Runs are
resumed by the same command. The report is printed; OUT has it as report.md, report.html and
figure.png, with scores.csv and summary.csv; with three tasks or more
speed_up.png has speed-ups by the share of dead groups.
"""

import math
import shlex
import signal
import sys
import time
import tomllib
from argparse import RawDescriptionHelpFormatter
from dataclasses import dataclass, field, fields
from datetime import datetime, timedelta
from functools import cached_property
from pathlib import Path

import pandas as pd
from filelock import FileLock, Timeout

import train
from plumbing import command_line
from plumbing.config import Config
from plumbing.errors import InputError
from plumbing.files import write_atomic
from plumbing.plugins import has_rounds
from sampler import Sampler, find_sampler
from scripts import analysis, plot, probe, report, scores, verdict
from scripts.runner import Job, Runner, note

FIRST_LEG = 12  # part of its steps after which a run of unknown spending is extended to the budget
CONTENTS = ("train_data_crc32", "val_data_crc32", "reward_crc32")  # the same for a task's runs


@dataclass
class Plan:
    """The keys of a plan file. places: at how many places over the last third of an amount accuracy
    is read. test: arms and tasks whose compute-matched gains get p-values together."""

    out: str
    flags: str
    arms: dict[str, dict]
    seeds: list[int]
    baseline: str = "uniform"
    budget: float = 0.0
    tasks: dict[str, str] = field(default_factory=lambda: {"": ""})
    replace: dict[str, dict[str, str]] = field(default_factory=dict)
    test: dict[str, list[str]] = field(default_factory=dict)
    places: int = 5

    def __post_init__(self):
        for name, arm in self.arms.items():
            if {*arm} - {"seeds", "devices"} != {"flags"}:
                raise InputError(f"arm {name!r} must have flags, and may have seeds and devices")
            seeds = arm.get("seeds", self.seeds)
            if len({*seeds}) != len(seeds):  # two processes would write to one run
                raise InputError(f"seeds {seeds}: must be distinct")
        if self.baseline not in self.arms:
            raise InputError(f"baseline {self.baseline!r} is none of {[*self.arms]}")

    @classmethod
    def read(cls, path: Path) -> "Plan":
        """Read a plan. Raises InputError, OSError."""
        try:
            return cls(**tomllib.loads(path.read_text(encoding="utf-8")))
        except (ValueError, TypeError) as error:
            raise InputError(f"{path}: {error}") from error

    def flags_of(self, task: str, arm: str) -> str:
        """Return the flags of an arm on a task, for any seed."""
        own = self.replace.get(task, {}).get(arm, self.arms[arm]["flags"])
        return " ".join(part for part in (self.flags, self.tasks[task], own) if part)

    def config(self, arm: str) -> Config:
        """Parse the flags of an arm on the first task. Raises ValueError."""
        return train.parse(shlex.split(self.flags_of(next(iter(self.tasks)), arm)))

    @cached_property
    def devices(self) -> dict[str, float]:
        """The devices of each arm, relative to those of one without a Teacher."""
        devices = {}
        for name, arm in self.arms.items():
            has_teacher = find_sampler(self.config(name).sampler).uses_teacher
            devices[name] = arm.get("devices", verdict.TEACHER if has_teacher else 1.0)
        return devices

    @cached_property
    def completions(self) -> float:
        """The budget: by default the completions of the first arm with a Teacher, else of the
        baseline."""
        with_teacher = [arm for arm, devices in self.devices.items() if devices > 1]
        c = self.config([*with_teacher, self.baseline][0])
        return self.budget or c.steps * c.prompts_per_step * c.group_size

    def spends(self, arm: str) -> float:
        """Return the completions of an arm's runs: the baseline's are compute-matched."""
        ratio = max(self.devices.values()) if arm == self.baseline else 1.0
        return self.completions * ratio

    def jobs(self) -> list[Job]:
        """Return all runs, seed by seed and task by task. Raises ValueError if train.py rejects the
        flags, or a learning rate is not constant."""
        jobs = []
        for task in self.tasks:
            for arm, spec in self.arms.items():
                flags = self.flags_of(task, arm)
                flags += first_leg(flags, self.spends(arm))
                for seed in spec.get("seeds", self.seeds):
                    run = Path(self.out) / task / arm.replace("/", "-") / f"seed{seed}"
                    own = f"{flags} --seed {seed} --out {shlex.quote(str(run))}"
                    jobs.append(Job(task, arm, seed, run, own, self.spends(arm)))
        return sorted(jobs, key=lambda job: job.seed)  # tasks and arms keep their order


def first_leg(flags: str, budget: float) -> str:
    """Return flags for the steps of a run's first process, if they are to be others than by
    default. Raises ValueError."""
    words = shlex.split(flags)
    c = train.parse(words)
    if c.lr_schedule != "constant":
        # At equal completions, arms that spend more a step would be at a higher rate.
        raise InputError(f"{flags}: --lr_schedule {c.lr_schedule}: must be constant")
    if "--steps" in words:
        return ""
    steps = math.ceil(budget / (c.prompts_per_step * c.group_size))
    if c.resample_rounds or has_rounds(find_sampler(c.sampler), Sampler):
        steps = math.ceil(steps / FIRST_LEG)
        return f" --steps {steps} --eval_every {max(1, c.eval_every // 4)}"
    return f" --steps {steps}"


def plan_of_flags(args, given: dict) -> Plan:
    """Make the plan of a command line: its samplers, with the flags of train.py that were given."""
    own = dict(given)
    first_seed = own.pop("seed", 0)
    out = own.pop("out", "runs/study")
    c = train.parse([*words_of(own), "--sampler", "goldilocks"])  # steps of a run with a Teacher
    budget = c.steps * c.prompts_per_step * c.group_size
    own.pop("steps", None)
    flags = shlex.join(words_of(own))
    arms = {}
    for spec in dict.fromkeys([args.baseline, *args.samplers]):
        name = analysis.method_name(spec)
        if name in arms:
            raise InputError(f"--samplers {spec}: another sampler has this name, {name}")
        arms[name] = {"flags": shlex.join(["--sampler", spec])}
    seeds = [*range(first_seed, first_seed + args.seeds)]
    return Plan(out, flags, arms, seeds, analysis.method_name(args.baseline), budget)


def words_of(given: dict) -> list[str]:
    """Spell settings of train.py as flags."""
    words = []
    for name, value in given.items():
        if isinstance(value, bool):
            words.append(f"--{name}" if value else f"--no-{name}")
        else:
            words += [f"--{name}", str(value)]
    return words


def score(jobs: list[Job]) -> pd.DataFrame:
    """Compute the scores of runs. Raises InputError if those of a task began from other files."""
    first = {}
    parts = []
    for job in jobs:
        run = analysis.Run.load(job.run)
        facts = {(job.task, fact): run.config.get(fact) for fact in CONTENTS}
        facts[job.task, job.arm, "sampler_crc32"] = run.config.get("sampler_crc32")
        for key, value in facts.items():
            other, checksum = first.setdefault(key, (job.run, value))
            if checksum != value:
                raise InputError(f"{other} and {job.run} differ in {key[-1]}: run one again")
        rows = scores.of_run(run, job.usage())
        parts.append(rows.assign(task=job.task, arm=job.arm, seed=job.seed))
    return scores.together(parts)


def compare_runs(folders: list[str]) -> str:
    """Compare runs of train.py at the completions that all of them spent. Raises InputError."""
    methods = analysis.load_methods(folders)
    summary, baseline = verdict.of_methods(methods)
    return verdict.markdown(verdict.sentences(summary, baseline), verdict.tables(summary))


def ready(jobs: list[Job]) -> list[Job]:
    """Return the finished jobs; print how many are not. Raises InputError if one was made with
    other flags."""
    done = [job for job in jobs if job.finished()]
    for job in done:
        job.check()
    if len(done) < len(jobs):
        note(f"{len(jobs) - len(done)} of {len(jobs)} runs are not finished, and left out")
    return done


def deadline(until: str | None, minutes: float | None) -> float:
    """Return the end of the study in seconds since 1970: the next time that a clock shows `until`,
    HH:MM, or in so many minutes; infinity without either. Raises InputError."""
    if minutes is not None:
        return time.time() + 60 * minutes
    if until is None:
        return math.inf
    try:
        clock = datetime.strptime(until, "%H:%M").time()
    except ValueError as error:
        raise InputError(f"--until {until}: must be a time such as 18:00") from error
    end = datetime.combine(datetime.now(), clock)
    if end < datetime.now():
        end += timedelta(days=1)
    return end.timestamp()


def probe_all(plan: Plan, jobs: list[Job], args) -> int:
    """Probe the tasks, with --probe all of them, else those of which nothing is finished; print
    what is found. Returns how many failed."""
    begun = {job.task for job in jobs if job.finished()}
    failed = 0
    for task in plan.tasks:
        if args.probe or task not in begun:
            found = probe.probe(plan, task, args.problems, args.jobs, vars(args).get("column", ""))
            failed += found is None
            print(found or f"the probe failed: see {plan.out}/probe")
    return failed


def run(plan: Plan, jobs: list[Job], args, end: float) -> int:
    """Run the jobs that are not finished until `end`; return how many failed. Raises Timeout if
    another process runs them."""
    Path(plan.out).mkdir(parents=True, exist_ok=True)
    with FileLock(Path(plan.out) / "lock", timeout=0):
        runner = Runner(jobs, args.jobs, end, args.discard)
        note(f"{len(runner.finished)} of {len(jobs)} runs are finished")
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, runner.stop)
        runner.run()
    return runner.failed


def curve(summary: pd.DataFrame) -> pd.DataFrame:
    """Return each arm's speed-up beside the share of the baseline's groups that are dead."""
    rows = summary[summary.speed_up.notna()]
    table = rows[["task", "arm", "base_dead", "dead", "r"]].reset_index(drop=True)
    numbers = pd.DataFrame([vars(each) for each in rows.speed_up]).add_prefix("speed_up_")
    return pd.concat([table, numbers], axis=1).round(4)


def write_report(rows: pd.DataFrame, plan: Plan, devices: dict, budget: float, out: str) -> str:
    """Compare the arms, and write all files of the report into a folder unless `out` is "". Returns
    the text. Raises InputError."""
    summary = scores.summarize(rows, plan.baseline, budget, devices, plan.places)
    if summary.empty:
        raise InputError(f"no finished run of {plan.baseline} to compare with")
    findings = verdict.sentences(summary, plan.baseline, plan.test)
    tables = verdict.tables(summary)
    printed = verdict.markdown(findings, tables)
    if out:
        folder = Path(out)
        folder.mkdir(parents=True, exist_ok=True)
        figures = {"figure": plot.draw_study(rows, summary, plan.baseline)}
        if summary.task.nunique() > 2:
            figures["speed_up"] = plot.draw_speed(summary)
        for name, figure in figures.items():
            figure.savefig(folder / f"{name}.png", dpi=150)
        pictures = {name: report.encode(figure) for name, figure in figures.items()}
        page = report.render(title=plan.out, verdict=findings, tables=tables, pictures=pictures)
        write_atomic(folder / "report.html", page)
        write_atomic(folder / "scores.csv", rows.round(4).to_csv(index=False))
        write_atomic(folder / "summary.csv", curve(summary).to_csv(index=False))
        write_atomic(folder / "report.md", printed)
    return printed


def arguments(argv):
    """Parse the command line into its own flags, and the settings of train.py that were given.
    Raises ValueError."""
    parser = command_line.Parser(description=__doc__, formatter_class=RawDescriptionHelpFormatter)
    add = parser.add_argument
    add(
        "inputs",
        nargs="*",
        default=[],
        metavar="PLAN | RUN",
        help="a TOML file, or run directories",
    )
    add(
        "--samplers",
        nargs="+",
        default=["goldilocks"],
        help="arms beside the baseline [%(default)s]",
    )
    add("--baseline", default="uniform", help="[%(default)s]")
    add("--seeds", type=command_line.count, default=5, help="from --seed on [%(default)s]")
    add("--probe", action="store_true", default=False, help="only probe")
    add("--problems", type=command_line.count, default=200, help="of a probe [%(default)s]")
    add("--report", action="store_true", default=False, help="only report on what is finished")
    add(
        "--csv",
        type=command_line.file_path,
        default=None,
        help="scores of runs that are not run again",
    )
    add("--jobs", type=command_line.count, default=2, help="runs at a time [%(default)s]")
    add("--until", default=None, help="stop at this time of day, HH:MM")
    add("--minutes", type=command_line.non_negative, default=None, help="stop after so many")
    add("--discard", action="store_true", default=False, help="delete the weights of finished runs")
    command_line.add_fields(parser, Config, {f.name for f in fields(Config)} - {"sampler"})
    args = parser.parse_args(argv)
    names = {f.name for f in fields(Config)}
    given = {name: value for name, value in vars(args).items() if name in names}
    return args, given


def main(argv=None) -> int:
    """Run the command; return its exit status, 1 if a run failed."""
    with analysis.one_line("study", ValueError, Timeout):
        args, given = arguments(argv)
        end = deadline(args.until, args.minutes)
        if args.inputs and not args.inputs[0].endswith(".toml"):
            print(compare_runs(args.inputs), end="")
            return 0
        plan = Plan.read(Path(args.inputs[0])) if args.inputs else plan_of_flags(args, given)
        old = scores.read(args.csv) if args.csv else scores.together([])
        in_csv = {*old[scores.RUN].itertuples(index=False, name=None)}
        jobs = [job for job in plan.jobs() if (job.task, job.arm, job.seed) not in in_csv]
        failed = 0
        if not args.report:
            failed = probe_all(plan, jobs, args)
            if args.probe or failed:
                return int(failed > 0)
            failed = run(plan, jobs, args, end)
        rows = scores.together([old, score(ready(jobs))])
        out = given.get("out", plan.out)
        print(write_report(rows, plan, plan.devices, plan.completions, out), end="")
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())

"""Does choosing problems pay, for this model and these problems? Run the arms of a study.

    python -m scripts.study --model M --train_data T --val_data V --samplers goldilocks --seeds 5
    python -m scripts.study PLAN.toml --jobs 2 --until 18:00      # start, stop, resume
    python -m scripts.study PLAN.toml --report                    # on the runs that are finished
    python -m scripts.study PLAN.toml --report --csv scores.csv   # on a CSV alone
    python -m scripts.study runs/demo-*                           # on runs of train.py

A plan or run directories come first; without them it takes all flags of train.py, too. A plan,
whose paths are relative to the working directory:

    out = "runs/study"      # a run is in OUT/TASK/ARM/seedN, without TASK if there are no tasks
    flags = "--preset demo --eval_every 10"     # of train.py, for all runs
    baseline = "uniform"    # the arm that others are compared with
    budget = 23040          # completions of a run
    seeds = [1, 2, 3, 4, 5]
    [tasks]                 # more flags by task; may be left out
    demo = "--train_data demo/train.jsonl"
    [arms]                  # may have `seeds` of their own, and `devices` relative to the baseline
    uniform = {flags = "--sampler uniform"}
    DAPO = {flags = "--sampler uniform --resample_rounds 2 --steps 40", seeds = [1, 2, 3]}
    [replace.demo]          # an arm's flags on one task
    DAPO = "--sampler greso --steps 20"

First it probes: how many groups of the untrained model are dead, also by category if an arm has
--column, and how long will a run take? Then it trains, seed by seed, in processes of one thread.
Every run spends the budget; where an arm has a Teacher, which takes 2 of 8 devices, the baseline
goes on to 4/3 of it (compute-matched). Runs are resumed by the same command. The report is printed;
OUT has it as report.md, report.html and figure.png, with scores.csv and summary.csv; with three
tasks or more speed_up.png has speed-ups by the share of dead groups.
"""

import math
import shlex
import signal
import sys
import tomllib
from argparse import RawDescriptionHelpFormatter
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import cached_property
from itertools import product, takewhile
from pathlib import Path

import pandas as pd
from filelock import FileLock, Timeout

import train
from plumbing import command_line
from plumbing.command_line import count, natural, opt
from plumbing.config import Config
from plumbing.errors import InputError
from plumbing.files import write_atomic
from plumbing.plugins import has_rounds
from sampler import Sampler, find_sampler
from scripts import analysis, plot, probe, report, scores, verdict
from scripts.runner import Job, Runner, note

FIRST_LEG = 12  # part of its steps after which a run of unknown spending is extended to the budget
# Checksums in config.json that are the same for all runs of a task -> only for those of an arm.
CONTENTS = dict.fromkeys(["train_data_crc32", "val_data_crc32", "reward_crc32"], False)
CONTENTS["sampler_crc32"] = True


@dataclass
class Arm:
    """An arm of a plan. seeds: if others than the plan's. devices: relative to those of an arm
    without a Teacher, if others than by default."""

    flags: str
    seeds: list[int] | None = None
    devices: float | None = None


@dataclass
class Plan:
    """The keys of a plan file. places: at how many places over the last third of an amount accuracy
    is read. test: arms and tasks whose compute-matched gains get p-values together. curve: arms and
    tasks of the figure of speed-ups. lines: label -> height of a line in it."""

    out: str
    flags: str
    arms: dict[str, Arm]
    seeds: list[int]
    budget: float
    baseline: str = "uniform"
    tasks: dict[str, str] = field(default_factory=lambda: {"": ""})
    replace: dict[str, dict[str, str]] = field(default_factory=dict)
    test: dict[str, list[str]] = field(default_factory=dict)
    curve: dict[str, list[str]] = field(default_factory=dict)
    lines: dict[str, float] = field(default_factory=dict)
    places: int = 5

    @classmethod
    def read(cls, path: Path) -> "Plan":
        """Read a plan. Raises InputError, OSError."""
        try:
            plan = cls(**tomllib.loads(path.read_text(encoding="utf-8")))
            plan.arms = {name: Arm(**arm) for name, arm in plan.arms.items()}
        except (ValueError, TypeError) as error:
            raise InputError(f"{path}: {error}") from error
        if plan.baseline not in plan.arms:
            raise InputError(f"{path}: baseline {plan.baseline!r} is none of {[*plan.arms]}")
        return plan

    def flags_of(self, task: str, arm: str) -> str:
        """Return the flags of an arm on a task, for any seed."""
        own = self.replace.get(task, {}).get(arm, self.arms[arm].flags)
        return f"{self.flags} {self.tasks[task]} {own}"

    def config(self, arm: str) -> Config:
        """Parse the flags of an arm on the first task. Raises ValueError."""
        return train.parse(shlex.split(self.flags_of(next(iter(self.tasks)), arm)))

    @cached_property
    def devices(self) -> dict[str, float]:
        """The devices of each arm, relative to those of one without a Teacher."""
        return {
            name: arm.devices or (verdict.TEACHER if self.config(name).teacher_model else 1.0)
            for name, arm in self.arms.items()
        }

    def spends(self, arm: str) -> float:
        """Return the completions of an arm's runs: the baseline's are compute-matched."""
        ratio = max(self.devices.values()) if arm == self.baseline else 1.0
        return self.budget * ratio

    def jobs(self) -> list[Job]:
        """Return all runs, seed by seed and task by task. Raises ValueError if train.py rejects the
        flags, or a learning rate is not constant."""
        jobs = []
        for task, name in product(self.tasks, self.arms):
            budget = self.spends(name)
            flags = with_steps(self.flags_of(task, name), budget)
            for seed in self.arms[name].seeds or self.seeds:
                run = Path(self.out, task, name.replace("/", "-"), f"seed{seed}")
                own = f"{flags} --seed {seed} --out {shlex.quote(str(run))}"
                jobs.append(Job(task, name, seed, run, own, budget))
        return sorted(jobs, key=lambda job: job.seed)  # tasks and arms keep their order


def with_steps(flags: str, budget: float) -> str:
    """Add to flags without --steps those steps that spend a budget or, where a step may have more
    rounds, a part of them, with more evaluations. Raises ValueError."""
    c = train.parse(shlex.split(flags))
    if c.lr_schedule != "constant":
        # At equal completions, arms that spend more a step would be at a higher rate.
        raise InputError(f"{flags}: --lr_schedule {c.lr_schedule}: must be constant")
    if "--steps" in flags:
        return flags
    steps = math.ceil(budget / (c.prompts_per_step * c.group_size))
    if c.resample_rounds or has_rounds(find_sampler(c.sampler), Sampler):
        steps = math.ceil(steps / FIRST_LEG)
        flags += f" --eval_every {max(1, c.eval_every // 4)}"
    return f"{flags} --steps {steps}"


def plan_of_flags(options: "Options", words: list[str]) -> Plan:
    """Make the plan of a command line without one. words: the flags of train.py that were given."""
    specs = dict.fromkeys(["uniform", *options.samplers])
    arms = {analysis.method_name(spec): Arm(f"--sampler {shlex.quote(spec)}") for spec in specs}
    if len(arms) < len(specs):
        raise InputError(f"--samplers {' '.join(specs)}: two have one name of {[*arms]}")
    c = train.parse([*words, "--sampler", "goldilocks"])
    budget = (options.steps or c.steps) * c.prompts_per_step * c.group_size
    seeds = [*range(c.seed, c.seed + options.seeds)]
    return Plan(options.out or "runs/study", shlex.join(words), arms, seeds, budget)


def score(jobs: list[Job]) -> pd.DataFrame:
    """Compute the scores of runs. Raises InputError if one was made with other flags than a job's,
    or runs of a task began from other files."""
    first = {}
    parts = []
    for job in jobs:
        job.check()
        run = analysis.Run.load(job.run)
        for fact, is_of_arm in CONTENTS.items():
            crc32 = run.config.get(fact)
            key = (job.task, fact, job.arm if is_of_arm else "")
            other, known = first.setdefault(key, (job.run, crc32))
            if crc32 != known:
                raise InputError(f"{other} and {job.run} differ in {fact}: run one again")
        parts.append(scores.of_run(run, job.usage(), task=job.task, arm=job.arm, seed=job.seed))
    return scores.together(parts)


def time_of_day(text: str) -> float:
    """An argparse type: the next time that a clock shows HH:MM, in seconds since 1970."""
    clock = datetime.strptime(text, "%H:%M")
    end = datetime.now().replace(hour=clock.hour, minute=clock.minute, second=0, microsecond=0)
    return (end + timedelta(days=end < datetime.now())).timestamp()


def run(plan: Plan, jobs: list[Job], options: "Options") -> int:
    """Probe the tasks, with --probe all, else those of which nothing is finished; then run the jobs
    that are not. Returns how many failed. Raises Timeout if another process runs them."""
    for task in plan.tasks:
        finished = [job.finished() for job in jobs if job.task == task]
        if options.probe or (finished and not any(finished)):
            print(probe.probe(plan, task, options.problems, options.jobs))
    if options.probe:
        return 0
    out = Path(plan.out)
    out.mkdir(parents=True, exist_ok=True)
    with FileLock(out / "lock", timeout=0):
        runner = Runner(jobs, options.jobs, options.until, options.discard)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, runner.stop)
        return runner.run()


def curve(summary: pd.DataFrame) -> pd.DataFrame:
    """Return each arm's speed-up beside the share of the baseline's groups that are dead."""
    rows = summary.dropna(subset="speed_up").reset_index()
    numbers = pd.DataFrame(map(vars, rows.speed_up)).add_prefix("speed_up_")
    return rows[["task", "arm", "base_dead", "dead", "r"]].join(numbers).round(4)


def write_report(rows: pd.DataFrame, plan: Plan, folder: Path) -> str:
    """Compare the arms, and write all files of the report. Returns the text. Raises InputError."""
    summary = scores.summarize(rows, plan.baseline, plan.budget, plan.devices, plan.places)
    findings = verdict.sentences(summary, plan.baseline, plan.test)
    tables = verdict.tables(summary)
    text = verdict.markdown(findings, tables)
    figures = {"figure": plot.draw_study(rows, summary, plan.baseline)}
    speed_ups = curve(summary)
    if summary.task.nunique() > 2:
        drawn = scores.select(speed_ups, plan.curve)
        figures["speed_up"] = plot.draw_speed(drawn, plan.lines)
    pictures = {name: report.encode(figure) for name, figure in figures.items()}
    page = report.render(title=plan.out, verdict=findings, tables=tables, pictures=pictures)
    folder.mkdir(parents=True, exist_ok=True)
    for name, figure in figures.items():
        figure.savefig(folder / f"{name}.png", dpi=150)
    files = {
        "report.html": page,
        "report.md": text,
        "scores.csv": rows.round(4).to_csv(index=False),
        "summary.csv": speed_ups.to_csv(index=False),
    }
    for name, content in files.items():
        write_atomic(folder / name, content)
    return text


@dataclass
class Options:
    """The flags of this command, beside those of train.py."""

    samplers: tuple = opt(
        ("goldilocks",), "arms beside uniform", nargs="+", type=str, metavar="SAMPLER"
    )
    seeds: int = opt(5, "how many, from train.py's --seed on", type=count)
    steps: int = opt(0, "of a run with a Teacher; 0: those of the preset", type=natural)
    out: str = opt("", "directory of the runs or, with a plan, of the report")
    probe: bool = opt(False, "only probe")
    problems: int = opt(200, "training problems of a probe", type=count)
    report: bool = opt(False, "only report on what is finished")
    csv: str = opt("", "scores of runs that are not run again")
    jobs: int = opt(2, "runs at a time", type=count)
    until: float = opt(math.inf, "stop at this time of day", type=time_of_day, metavar="HH:MM")
    discard: bool = opt(False, "delete the weights of finished runs")


def arguments(argv: list[str] | None) -> tuple[Options, list[str], list[str]]:
    """Parse the command line: returns the options, the plan or run directories, and the flags of
    train.py, which a plan has itself. Raises ValueError."""
    words = sys.argv[1:] if argv is None else argv
    inputs = [*takewhile(lambda word: not word.startswith("-"), words)]
    parser = command_line.Parser(
        usage="study.py [PLAN.toml | RUN ...] [FLAGS]",
        description=__doc__,
        epilog="Without a plan all other flags are train.py's.",
        formatter_class=RawDescriptionHelpFormatter,
    )
    command_line.add_fields(parser, Options)
    given, flags = parser.parse_known_args(words[len(inputs) :])
    if inputs and flags:
        parser.error(f"{' '.join(flags)}: a plan or a run has these flags")
    return Options(**vars(given)), inputs, flags


def main(argv=None) -> int:
    """Run the command; return its exit status, 1 if a run failed."""
    with analysis.one_line("study", ValueError, Timeout):
        options, inputs, flags = arguments(argv)
        if inputs and not (len(inputs) == 1 and inputs[0].endswith(".toml")):
            methods = analysis.load_methods(inputs)
            print(verdict.markdown(*verdict.of_methods(methods)), end="")
            return 0
        plan = Plan.read(Path(inputs[0])) if inputs else plan_of_flags(options, flags)
        old = scores.read(options.csv) if options.csv else scores.together([])
        known = {*zip(old.task, old.arm, old.seed, strict=True)}
        jobs = [job for job in plan.jobs() if (job.task, job.arm, job.seed) not in known]
        failed = 0 if options.report else run(plan, jobs, options)
        if options.probe:
            return 0
        done = [job for job in jobs if job.finished()]
        note(f"{len(done)} of {len(jobs)} runs are finished")
        rows = scores.together([old, score(done)])
        print(write_report(rows, plan, Path(options.out or plan.out)), end="")
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())

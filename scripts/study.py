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
    [curve]                 # draws speed_up.png: speed-ups by the share of dead groups
    arms = ["DAPO"]
    tasks = ["demo"]

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

import dataclasses
import math
import shlex
import signal
import sys
import tomllib
from dataclasses import dataclass, field, fields
from datetime import datetime, timedelta
from functools import cached_property, partial
from itertools import product
from pathlib import Path

import pandas as pd
from filelock import FileLock, Timeout
from transformers import AutoTokenizer

import train
from plumbing import command_line
from plumbing.command_line import natural, opt
from plumbing.config import DEMO, PRESETS, Config
from plumbing.data.problems import Problems
from plumbing.distributed.layout import device_type
from plumbing.errors import InputError, print_line
from plumbing.files import write_atomic
from plumbing.models import trial
from plumbing.plugins import construct
from sampler import Context, find_sampler
from scripts import analysis, categories, dry_run, plot, probe, report, scores, verdict
from scripts.runner import STOPPED, Job, Runner, launcher, note, parse

SPEED_UP = ["task", "arm", "base_dead", "dead", "r"]  # columns of summary.csv
SPEED_UP += ["speed_up_value", "speed_up_low", "speed_up_high", "speed_up_bound"]
# A plan in miniature: flags that replace those of its runs, steps of an arm with a Teacher, launch.
MINIATURE = f"--preset demo {PRESETS['demo']} --teacher_model {DEMO}/model --prompts_per_step 6"
MINIATURE += " --group_size 4 --eval_every 2 --checkpoint_every 2 --keep 1"
MINIATURE_STEPS = 6
MINIATURE_LAUNCH = "torchrun --standalone --nproc_per_node 4"


@dataclass
class Arm:
    """An arm of a plan. seeds: if others than the plan's. devices: relative to those of an arm
    without a Teacher, if others than by default."""

    flags: str
    seeds: list | None = None
    devices: int | float | None = None


@dataclass
class Plan:
    """The keys of a plan file. tasks: name -> flags. replace: task -> arm -> flags. budget: 0: runs
    take train.py's steps. launch: command that starts a run's ranks. gpu_hours: of a run with its
    preset's steps. compute_matched: whether arms with a Teacher are charged with its devices, by
    default where runs have a launch command. report: its folder in `out`. note: a sentence of it.
    paper: `table` of the CSV `figures`, printed beside. places: at how many places over the last
    third of an amount accuracy is read. test: `arms` and `tasks` whose compute-matched gains get
    p-values together. curve: `arms` and `tasks` of the figure of speed-ups. lines: label -> height
    of a line in it. beside: label -> summary.csv of another study that is drawn in it, too."""

    out: str
    flags: str
    arms: dict
    seeds: list
    budget: int | float = 0
    baseline: str = "uniform"
    tasks: dict = field(default_factory=lambda: {"": ""})
    replace: dict = field(default_factory=dict)
    test: dict = field(default_factory=dict)
    curve: dict = field(default_factory=dict)
    lines: dict = field(default_factory=dict)
    beside: dict = field(default_factory=dict)
    places: int = 5
    launch: str = ""
    gpu_hours: int | float = 0
    compute_matched: bool | None = None
    report: str = ""
    note: str = ""
    paper: dict = field(default_factory=dict)

    @classmethod
    def read(cls, path: str) -> "Plan":
        """Read a plan. Raises InputError, OSError."""
        try:
            text = Path(path).read_text(encoding="utf-8")
            plan = typed(cls, tomllib.loads(text))
            plan.arms = {name: typed(Arm, arm) for name, arm in plan.arms.items()}
            arms = {plan.baseline}.union(*plan.replace.values())
            tasks = {*plan.replace}
            for chosen in filter(None, (plan.test, plan.curve)):
                if {*chosen} != {"arms", "tasks"}:
                    raise ValueError(f"{chosen}: must have `arms` and `tasks`")
                arms |= {*chosen["arms"]}
                tasks |= {*chosen["tasks"]}
            if plan.paper and {*plan.paper} != {"figures", "table"}:
                raise ValueError(f"{plan.paper}: must have `figures` and `table`")
            unknown = (arms - {*plan.arms}) | (tasks - {*plan.tasks})
            if unknown:
                raise ValueError(f"no arm or task: {sorted(unknown)}")
        except (ValueError, TypeError) as error:
            raise InputError(f"{path}: {error}") from error
        return plan

    def flags_of(self, task: str, arm: str) -> str:
        """Return the flags of an arm on a task, for any seed."""
        replaced = self.replace.get(task, {})
        own = replaced.get(arm, self.arms[arm].flags)
        return f"{self.flags} {self.tasks[task]} {own}"

    def config(self, arm: str, task: str | None = None) -> Config:
        """Parse the flags of an arm on a task, by default the first. Raises ValueError."""
        task = next(iter(self.tasks)) if task is None else task
        return parse(self.flags_of(task, arm))

    def column(self, task: str) -> str:
        """Return the longest --column of a task's arms, "" if none has one."""
        return max((self.config(arm, task).column for arm in self.arms), key=len)

    @cached_property
    def devices(self) -> dict[str, float]:
        """The devices of each arm, relative to those of one without a Teacher."""
        is_charged = self.compute_matched
        if is_charged is None:
            is_charged = bool(self.launch)
        of_teacher = verdict.TEACHER if is_charged else 1.0
        return {
            name: arm.devices or (of_teacher if self.config(name).teacher_model else 1.0)
            for name, arm in self.arms.items()
        }

    def spends(self, arm: str, task: str) -> float:
        """Return the completions of an arm's runs on a task: the baseline's are compute-matched if
        the plan is. Without a budget they are those of train.py's steps, of which a run without a
        Teacher has 4/3."""
        if not self.budget:
            c = self.config(arm, task)
            return c.steps * c.prompts_per_step * c.group_size
        ratio = max(self.devices.values()) if arm == self.baseline else 1.0
        return self.budget * ratio

    def budgets(self) -> dict[str, float]:
        """The completions at which the arms are compared, by task."""
        return {
            task: self.budget or min(self.spends(arm, task) for arm in self.arms)
            for task in self.tasks
        }

    def learning_rates(self) -> dict[tuple[str, str], float]:
        """The student's learning rate by task and arm."""
        pairs = product(self.tasks, self.arms)
        return {(task, arm): self.config(arm, task).learning_rate for task, arm in pairs}

    def miniature(self) -> "Plan":
        """Return this plan with the demo's model and data, 4 CPU ranks and few steps, and an `out`
        of its own. An arm without a Teacher has 4/3 of the steps. Raises ValueError."""

        def small(flags: str) -> str:
            flags = f"{flags} {MINIATURE}"
            c = parse(f"{self.flags} {flags}")
            steps = MINIATURE_STEPS
            if not c.teacher_model:
                steps = train.baseline_steps(steps, c.eval_every)
            return f"{flags} --steps {steps}"

        return dataclasses.replace(
            self,
            out=f"{self.out}_miniature",
            launch=MINIATURE_LAUNCH,
            budget=0,
            gpu_hours=0,
            note=f"In miniature: the demo's model, not the plan's. {self.note}".rstrip(),
            arms={
                name: dataclasses.replace(arm, flags=small(arm.flags))
                for name, arm in self.arms.items()
            },
            replace={
                task: {name: small(flags) for name, flags in arms.items()}
                for task, arms in self.replace.items()
            },
        )

    def jobs(self) -> list[Job]:
        """Return all runs, seed by seed and task by task. Without --steps a run gets those that
        spend its budget if no step draws more or, without a budget, train.py's. Raises ValueError
        if train.py rejects the flags, or a learning rate is not constant."""
        jobs = []
        for task, name in product(self.tasks, self.arms):
            budget = self.spends(name, task)
            flags = self.flags_of(task, name)
            c = parse(flags)
            if c.lr_schedule != "constant":
                # At equal completions, arms that spend more a step would be at a higher rate.
                raise InputError(f"{flags}: --lr_schedule {c.lr_schedule}: must be constant")
            if "--steps" not in flags:
                per_step = c.prompts_per_step * c.group_size
                flags += f" --steps {math.ceil(budget / per_step)}"
            for seed in dict.fromkeys(self.arms[name].seeds or self.seeds):
                own = f"{flags} --seed {seed}"
                job = Job(Path(self.out), task, name, seed, own, budget if self.budget else 0.0)
                jobs.append(job)
        return sorted(jobs, key=lambda job: job.seed)  # tasks and arms keep their order


def typed(cls: type, table: dict):
    """Make a Plan or an Arm of a table of TOML. Raises TypeError at a key or a type that it does
    not have."""
    if unknown := table.keys() - {key.name for key in fields(cls)}:
        raise TypeError(f"no such key: {sorted(unknown)}; see python -m scripts.study --help")
    made = cls(**table)
    for key in fields(cls):
        value = getattr(made, key.name)
        if not isinstance(value, key.type):
            raise TypeError(f"{key.name} = {value!r}: must be {key.type}")
    return made


def plan_of_flags(options: "Options", words: list[str]) -> Plan:
    """Make the plan of a command line without one. words: the flags of train.py that were given."""
    arms = {"uniform": Arm("--sampler uniform")}
    for text in options.samplers:
        spec, *settings = shlex.split(text)
        if text in arms and text != "uniform":
            raise InputError(f"--samplers: {text} is there twice")
        arms[text] = Arm(shlex.join(["--sampler", spec, *settings]))
    if "--sampler" in words:
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


def score(jobs: list[Job], cpu_seconds: bool = True) -> list[pd.DataFrame]:
    """Compute the scores of each run. cpu_seconds: whether processor time is the cost of a run: not
    where several ranks wait for each other, or for a GPU."""
    return [
        analysis.Run.load(job.run).scores(
            cores=job.cores() if cpu_seconds else math.nan,
            checksums=scores.SAME,
            task=job.task,
            arm=job.arm,
            seed=job.seed,
        )
        for job in jobs
    ]


def warn_of(job: Job, plan: Plan) -> None:
    """Print a warning if a finished run of the baseline went wrong: the other runs may wait."""
    if job.arm != plan.baseline:
        return
    try:
        rows = scores.together(score([job], cpu_seconds=False))
    except InputError as error:
        note(str(error))
        return
    at_A = scores.places_of(job.budget or job.done()[1], plan.places)
    row = {"task": job.task, "arm": job.arm} | scores.describe(rows, rows, at_A)
    if text := verdict.warn(row, plan.baseline, parse(job.flags).learning_rate):
        note(text)


def time_of_day(text: str) -> float:
    """An argparse type: the next time that a clock shows HH:MM, in seconds since 1970."""
    clock = datetime.strptime(text, "%H:%M").time()
    end = datetime.combine(datetime.now(), clock)
    return (end + timedelta(days=end < datetime.now())).timestamp()


def category_tables(jobs: list[Job], plan: Plan) -> list[tuple]:
    """Make the tables by category of the tasks that have --column, of finished runs: of each arm.
    Data that cannot be read any more are reported on stderr."""
    tables = []
    for task in plan.tasks:
        arms = {}
        for job in jobs:
            if job.task == task:
                arms.setdefault(job.arm, []).append(analysis.Run.load(job.run))
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
    figures = {"figure": plot.draw_study(rows)}
    if plan.curve:
        drawn = [scores.select(speed_ups, **plan.curve)]
        for label, path in plan.beside.items():
            other = pd.read_csv(path)
            drawn.append(other.assign(arm=f"{label}: " + other.arm))
        figures["speed_up"] = plot.draw_speed(pd.concat(drawn), plan.lines)
    files = {
        "report.md": verdict.markdown(findings, tables, warned)
        + verdict.markdown(legend, by_category),
        "report.html": report.render(
            title=plan.out,
            verdict=warned + findings + legend,
            tables=tables + by_category,
            figures=figures,
            views={},
        ),
        "summary.csv": speed_ups.to_csv(index=False),
    }
    for name, content in files.items():
        write_atomic(folder / name, content)
    for name, figure in figures.items():
        figure.savefig(folder / f"{name}.png", dpi=150)
    return files["report.md"]


@dataclass
class Options:
    """The flags of this command, beside those of train.py."""

    samplers: tuple = opt(
        ("goldilocks",),
        "arms beside uniform, with settings in quotes: 'goldilocks --candidates 64'",
        nargs="+",
        type=str,
        metavar="SAMPLER",
    )
    seeds: int = opt(5, "how many, from train.py's --seed on")
    steps: int = opt(0, "of a run with a Teacher; 0: those of the preset", type=natural)
    out: str = opt("", "directory of the runs or, with a plan, of the report")
    probe: bool = opt(False, "only probe")
    problems: int = opt(200, "training problems of a probe")
    report: bool = opt(False, "only report on what is finished")
    csv: str = opt("", "only report, on the plan's arms in a table of scores")
    dry_run: bool = opt(False, "only print each run's command, steps, disk and GPU hours")
    miniature: bool = opt(False, "the plan on the demo's model and data, 4 CPU ranks, few steps")
    jobs: int = opt(0, "runs at a time; 0: 2 or, by a plan's launch command, 1", type=natural)
    until: float = opt(math.inf, "stop at this time of day", type=time_of_day, metavar="HH:MM")
    discard: bool = opt(False, "delete the weights of finished runs")


def arguments(argv) -> tuple[Options, Plan]:
    """Parse the command line. Raises ValueError, OSError."""
    words = sys.argv[1:] if argv is None else argv
    has_plan = bool(words) and not words[0].startswith("-")
    parser = command_line.Parser(
        __doc__,
        usage="study.py [PLAN.toml] [FLAGS]",
        epilog="Without a plan all other flags are train.py's.",
    )
    command_line.add_fields(parser, Options)
    given, flags = parser.parse_known_args(words[has_plan:])
    options = Options(**vars(given))
    if has_plan and flags:
        parser.error(f"{' '.join(flags)}: a plan has these flags")
    plan = Plan.read(words[0]) if has_plan else plan_of_flags(options, flags)
    return options, plan.miniature() if options.miniature else plan


def check(plan: Plan) -> None:
    """Read the data, build each arm's sampler, load the tokenizers: mistakes show before hours of
    runs. Raises InputError, OSError, ValueError."""
    if plan.paper:
        verdict.read_figures(**plan.paper)
    data = {}
    models = set()
    for task, arm in product(plan.tasks, plan.arms):
        c = plan.config(arm, task)
        models.add(c.model)
        device_type(c.device)
        for place in ((c.train_data, c.column), (c.val_data, "")):
            data[place] = data.get(place) or Problems(*place)
        problems = data[c.train_data, c.column]
        cls = find_sampler(c.sampler)
        if not cls.uses_teacher:
            context = Context(problems, c, lambda index: True)
            construct(cls, context, c.sampler, c.sampler_args)
        warning = arm == plan.baseline and problems.overlap(data[c.val_data, ""])
        if warning:
            note(warning)
    for model in sorted(models):
        with trial(model, "cannot be used"):
            AutoTokenizer.from_pretrained(model)


def run(plan: Plan, jobs: list[Job], options: Options) -> int:
    """Probe the tasks of which no run is finished, then run the jobs. Returns an exit status: 1 if
    a run failed, train.py's if a signal stopped it."""
    if plan.launch and options.jobs > 1:
        raise InputError(f"--jobs {options.jobs}: a run by `launch` takes the whole machine")
    launch = launcher(plan.launch) if plan.launch else []
    at_a_time = options.jobs or (1 if launch else 2)
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
            runner.on_finish = partial(warn_of, plan=plan)  # not of a probe's runs
            failed = not options.probe and runner.run(jobs, options.discard) > 0
    except Timeout as error:
        raise InputError(f"{plan.out} is in use by another study ({error})") from error
    if not runner.end:
        note("stopped: the same command resumes")
        return STOPPED[0]
    return int(failed)


def main(argv=None) -> int:
    """Run the command; return its exit status."""
    with analysis.one_line("study"):
        options, plan = arguments(argv)
        status = 0
        by_category = []
        if options.csv:
            rows = scores.select(scores.read(options.csv), [*plan.arms], [*plan.tasks])
            rows = scores.together([rows])
        else:
            jobs = plan.jobs()
            for job in jobs:
                if others := job.other_flags():
                    raise InputError(
                        f"{job.run} was made with {others[0]}, but now has {job.flags}: undo the "
                        "change, choose another `out`, or delete it"
                    )
            if options.dry_run:
                print(dry_run.describe(plan, jobs), end="")
                return status
            if not options.report:
                status = run(plan, jobs, options)
            if options.probe or status in STOPPED:
                return status
            done = [job for job in jobs if job.finished()]
            note(f"{len(done)} of {len(jobs)} runs are finished")
            rows = scores.together(score(done, cpu_seconds=not plan.launch))
            by_category = category_tables(done, plan)
        folder = Path(options.out or Path(plan.out, plan.report))
        print_line(write_report(rows, plan, folder, by_category).rstrip())
        if not options.csv:  # it would lose the arms that the plan lacks
            write_atomic(folder / "scores.csv", rows.round(4).to_csv(index=False))
    return status


if __name__ == "__main__":
    sys.exit(main())

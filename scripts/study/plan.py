"""The plan of a study: its arms, tasks and seeds, and the runs that follow from them."""

import dataclasses
import math
import tomllib
from dataclasses import dataclass, field, fields
from functools import cached_property
from itertools import product
from pathlib import Path

import train
from plumbing.config import DEMO, PRESETS, Config
from plumbing.errors import InputError
from scripts.study.runner import Job, parse

TEACHER_DEVICES = 4 / 3  # of a run whose Teacher has 2 of 8, relative to one without
# A plan in miniature: flags that replace those of its runs, steps of an arm with a Teacher, launch.
MINIATURE = f"--preset demo {PRESETS['demo']} --teacher_model {DEMO}/model --prompts_per_step 6"
MINIATURE += " --group_size 4 --eval_every 2 --checkpoint_every 2 --keep 1"
MINIATURE_STEPS = 6
MINIATURE_LAUNCH = "torchrun --standalone --nproc_per_node 4"


@dataclass
class Arm:
    """An arm of a plan."""

    flags: str
    seeds: list | None = None  # by default the plan's
    devices: int | float | None = None  # by default those of `Plan.devices`


@dataclass
class Plan:
    """The keys of a plan file: see `python -m scripts.study --help` for those that most plans need.
    Devices are relative to those of an arm without a Teacher."""

    out: str  # directory of the runs
    flags: str  # of train.py, for all runs
    arms: dict  # name -> Arm
    seeds: list
    budget: int | float = 0  # completions of a run; 0: those of train.py's steps
    baseline: str = "uniform"
    tasks: dict = field(default_factory=lambda: {"": ""})  # name -> more flags
    replace: dict = field(default_factory=dict)  # task -> arm -> flags in place of the arm's
    # Whether arms with a Teacher are charged with its devices; by default if there is `launch`.
    compute_matched: bool | None = None
    places: int = 5  # at which accuracy is read, over the last third of an amount
    test: dict = field(default_factory=dict)  # arms, tasks: their gains get p-values together
    launch: str = ""  # command that starts the ranks of a run
    gpu_hours: int | float = 0  # of a run with its preset's steps
    report: str = ""  # directory of the report, in `out`
    paper: dict = field(default_factory=dict)  # table, and figures: the CSV that has it

    @classmethod
    def read(cls, path: str) -> "Plan":
        """Read a plan. Raises InputError, OSError."""
        try:
            text = Path(path).read_text(encoding="utf-8")
            plan = typed(cls, tomllib.loads(text))
            plan.arms = {name: typed(Arm, arm) for name, arm in plan.arms.items()}
            plan.check_names()
        except (ValueError, TypeError) as error:
            raise InputError(f"{path}: {error}") from error
        return plan

    def check_names(self) -> None:
        """Raise ValueError unless all arms and tasks that the plan names are there."""
        arms = {self.baseline}.union(*self.replace.values())
        tasks = {*self.replace}
        if self.test:
            if {*self.test} != {"arms", "tasks"}:
                raise ValueError(f"{self.test}: must have `arms` and `tasks`")
            arms.update(self.test["arms"])
            tasks.update(self.test["tasks"])
        if self.paper and {*self.paper} != {"figures", "table"}:
            raise ValueError(f"{self.paper}: must have `figures` and `table`")
        unknown = (arms - {*self.arms}) | (tasks - {*self.tasks})
        if unknown:
            raise ValueError(f"no arm or task: {sorted(unknown)}")

    def flags_of(self, task: str, arm: str) -> str:
        """Return the flags of an arm on a task, for any seed."""
        replaced = self.replace.get(task, {})
        own = replaced.get(arm, self.arms[arm].flags)
        return f"{self.flags} {self.tasks[task]} {own}"

    def config(self, task: str, arm: str) -> Config:
        """Parse the flags of an arm on a task. Raises ValueError."""
        return parse(self.flags_of(task, arm))

    def column(self, task: str) -> str:
        """Return the longest --column of a task's arms, "" if none has one."""
        columns = [self.config(task, arm).column for arm in self.arms]
        return max(columns, key=len)

    @cached_property
    def devices(self) -> dict[str, float]:
        """The devices of each arm, relative to those of one without a Teacher."""
        is_charged = self.compute_matched
        if is_charged is None:
            is_charged = bool(self.launch)
        first_task, *_ = self.tasks
        devices = {}
        for name, arm in self.arms.items():
            has_teacher = self.config(first_task, name).teacher_model
            by_default = TEACHER_DEVICES if is_charged and has_teacher else 1.0
            devices[name] = arm.devices or by_default
        return devices

    def spends(self, task: str, arm: str) -> float:
        """Return the completions of an arm's runs on a task: the baseline's are compute-matched if
        the plan is. Without a budget they are those of train.py's steps, of which a run without a
        Teacher has 4/3."""
        if not self.budget:
            c = self.config(task, arm)
            return c.steps * c.prompts_per_step * c.group_size
        ratio = max(self.devices.values()) if arm == self.baseline else 1.0
        return self.budget * ratio

    def budgets(self) -> dict[str, float]:
        """The completions at which the arms are compared, by task."""
        return {
            task: self.budget or min(self.spends(task, arm) for arm in self.arms)
            for task in self.tasks
        }

    def learning_rates(self) -> dict[tuple[str, str], float]:
        """The student's learning rate by task and arm."""
        pairs = product(self.tasks, self.arms)
        return {(task, arm): self.config(task, arm).learning_rate for task, arm in pairs}

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
            spent = self.spends(task, name)
            flags = self.flags_of(task, name)
            c = parse(flags)
            if c.lr_schedule != "constant":
                # At equal completions, arms that spend more a step would be at a higher rate.
                raise InputError(f"{flags}: --lr_schedule {c.lr_schedule}: must be constant")
            if "--steps" not in flags:
                per_step = c.prompts_per_step * c.group_size
                flags += f" --steps {math.ceil(spent / per_step)}"
            budget = spent if self.budget else 0.0
            for seed in dict.fromkeys(self.arms[name].seeds or self.seeds):  # each once
                job = Job(Path(self.out), task, name, seed, f"{flags} --seed {seed}", budget)
                jobs.append(job)
        return sorted(jobs, key=lambda job: job.seed)  # tasks and arms keep their order


def typed(cls: type, table: dict):
    """Make a Plan or an Arm of a table of TOML. Raises TypeError at a key or a type that it does
    not have."""
    made = cls(**table)
    for key in fields(cls):
        value = getattr(made, key.name)
        if not isinstance(value, key.type):
            raise TypeError(f"{key.name} = {value!r}: must be {key.type}")
    return made

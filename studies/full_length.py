"""Run a sampler to the last step of a job in minutes, with a simulated Student: no model, no GPU.

    python -m studies.full_length --sampler goldilocks
    python -m studies.full_length --sampler my.py:Mine --candidates 64 --csv rows.csv

It cannot know whether a live group is a useful one: this Student learns from all by one rule. It
shows what a short run hides: whether live groups run out late in a run, which problems return, what
a step costs and how much memory is held. simulated.py has the problems, the Student and the
Teacher; the sampler, its checks, its rounds and the server beside a Teacher are train.py's.

Columns, by part of the run: live: share of live groups of all tried; trained: of those trained on;
again: share of groups whose problem was trained on before; distinct: problems trained on so far;
completions: drawn a step; p: mean over the problems trained on; accuracy: mean p of 5,000 others at
the part's end; us: CPU microseconds a step in the sampler, without the Student and the Teacher.
"""

import resource
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pandas as pd

from grpo import Group
from plumbing import command_line
from plumbing.config import Config
from plumbing.errors import InputError
from plumbing.files import check_writable
from plumbing.plugins import sampler_settings
from sampler import (
    Context,
    Sampler,
    check_proposals,
    check_trained,
    find_sampler,
    join,
    utility_target,
)
from scripts.command import exit_on_error
from scripts.study.runs import method_name
from studies.simulated import Simulation, StandInTeacher, Student, make_problems
from teacher import TeacherServer
from train import TeacherClient

JOB = ["sampler", "sampler_args", "steps", "seed", "column", "prompts_per_step", "group_size"]
JOB += ["candidates", "epsilon", "resample_rounds", "advantage_std", "teacher_lag"]
NOT_OF_ARM = ["sampler", "steps", "seed", "problems", "parts", "csv"]  # flags not in its name
FIGURES = ["part", "live", "trained", "again", "distinct", "passes", "completions", "p", "accuracy"]
COLUMNS = ["arm", "problems", "steps", "seed", *FIGURES, "us", "wall_s", "cpu_s", "peak_mb"]


class Stopwatch:
    """CPU seconds of the calls of a sampler, without those of its Teacher."""

    def __init__(self, teacher: StandInTeacher):
        self.teacher = teacher
        self.seconds = 0.0

    def __call__(self, method: Callable, *args):
        start = time.process_time() - self.teacher.seconds
        result = method(*args)
        self.seconds += time.process_time() - self.teacher.seconds - start
        return result


def take_step(sampler: Sampler, student: Student, P: int, watch) -> tuple[list, list]:
    """Take a step as train.train_step does; return all groups, and those that are trained on."""
    groups = []
    proposed = watch(sampler.propose, P)
    while proposed:
        check_proposals(proposed, student.n_train)
        student.rollout(proposed)
        groups += proposed
        watch(sampler.observe, proposed)
        proposed = watch(sampler.more, groups)
    trained = watch(sampler.train_on, groups)
    check_trained(trained, groups)
    return join(groups), trained


def add(sums: Counter, groups: list[Group], trained: list[Group]) -> None:
    """Add a step's groups to the sums of a part."""
    sums["groups"] += len(groups)
    sums["live"] += sum(group.live for group in groups)
    sums["completions"] += sum(len(group.completions) for group in groups)
    sums["trained"] += len(trained)
    sums["trained_live"] += sum(group.live for group in trained)


def simulate(config: Config, settings: Simulation) -> Iterator[dict]:
    """Yield the row of each part. Raises InputError if a flag or the sampler cannot be used."""
    with tempfile.TemporaryDirectory() as folder:
        problems, student = make_problems(Path(folder), config, settings)
        teacher = StandInTeacher(student, problems, config, settings)
        cls = find_sampler(config.sampler)
        context = Context(problems, config, fits=lambda index: True)
        if cls.uses_teacher:
            context.teacher = teacher
        sampler = cls(context, **sampler_settings(cls, config.sampler_args))
        if cls.uses_teacher:  # as in train.Selection.build, in one process
            teacher.aim_at(getattr(sampler, "target", utility_target))
            server = TeacherServer(sampler, config.teacher_lag)
            sampler = TeacherClient(context, server.latest, server.answer)
        yield from rows(sampler, student, teacher, config, settings.parts)


def rows(sampler, student: Student, teacher, config: Config, parts: int) -> Iterator[dict]:
    """Take all steps; yield a row after each part."""
    is_used = np.zeros(student.n_train, dtype=bool)
    ends = np.linspace(0, config.steps, parts + 1).astype(int).tolist()
    for part in range(1, parts + 1):
        steps = ends[part] - ends[part - 1]
        sums = Counter()
        watch = Stopwatch(teacher)
        for _ in range(steps):
            groups, trained = take_step(sampler, student, config.prompts_per_step, watch)
            add(sums, groups, trained)
            index_P = [group.problem for group in trained]
            sums["again"] += np.count_nonzero(is_used[index_P])
            sums["p"] += student.p(index_P).sum()
            is_used[index_P] = True
            student.update(trained)
        n_trained = sums["trained"] or np.nan  # a part may train on nothing
        yield {
            "part": part,
            "live": round(sums["live"] / sums["groups"], 4),
            "trained": round(sums["trained_live"] / n_trained, 4),
            "again": round(sums["again"] / n_trained, 4),
            "distinct": np.count_nonzero(is_used),
            "passes": sampler.metrics().get("passes"),
            "completions": round(sums["completions"] / steps, 1),
            "p": round(float(sums["p"] / n_trained), 4),
            "accuracy": round(student.accuracy(), 4),
            "us": round(1e6 * watch.seconds / steps),
        }


def parse(argv: list[str] | None) -> tuple[Config, Simulation, str]:
    """Parse flags; also return the name of the arm: the sampler, and flags that change it. Raises
    ValueError with one line."""
    parser = command_line.Parser(__doc__)
    command_line.add_fields(parser, Config, JOB)
    command_line.add_fields(parser, Simulation)
    given = vars(parser.parse_args(argv))
    config = Config(**{name: value for name, value in given.items() if name in JOB})
    settings = Simulation(**{name: value for name, value in given.items() if name not in JOB})
    cls = find_sampler(config.sampler)
    sampler_settings(cls, config.sampler_args)
    if config.resample_rounds and cls.has_own_rounds():
        raise InputError("--resample_rounds: this sampler has `more` or `train_on` of its own")
    if settings.parts > config.steps:
        raise InputError(f"--parts {settings.parts}: must be at most --steps, {config.steps}")
    if settings.csv:
        check_table(Path(settings.csv))
    changes = [f"{name}={value}" for name, value in given.items() if name not in NOT_OF_ARM]
    return config, settings, ", ".join([method_name(config.sampler), *changes])


def check_table(path: Path) -> None:
    """Raise InputError or OSError, before the run, unless rows can be appended to a file."""
    check_writable(path)
    if path.exists() and [*pd.read_csv(path, nrows=0)] != COLUMNS:
        raise InputError(f"--csv {path}: has other columns: give a new name")


def peak_megabytes() -> int:
    """Return the most memory that this process has held, in MB."""
    kibibytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss  # on Linux
    return round(kibibytes * 1024 / 1e6)


def main(argv: list[str] | None = None) -> None:
    """Run the simulation; print a row after each part."""
    with exit_on_error("full_length"):
        config, settings, arm = parse(argv)
        wall = -time.perf_counter()
        print(arm)
        finished = []
        for row in simulate(config, settings):
            if not finished:
                print(" ".join(f"{name:>11}" for name in row))
            print(" ".join(f"{value!s:>11}" for value in row.values()))
            finished.append(row)
        cost = {
            "wall_s": round(wall + time.perf_counter()),
            "cpu_s": round(time.process_time()),
            "peak_mb": peak_megabytes(),
        }
        print("{wall_s} s, {cpu_s} s of CPU, at most {peak_mb} MB".format(**cost))
        if settings.parts % 4 == 0:
            live_4 = np.reshape([row["live"] for row in finished], (4, -1)).mean(axis=1)
            print("live groups by quarter:", *live_4.round(3).tolist())
        if settings.csv:
            size = {"problems": settings.problems, "steps": config.steps, "seed": config.seed}
            table = pd.DataFrame(finished).assign(arm=arm, **size, **cost)
            path = Path(settings.csv)
            table[COLUMNS].to_csv(path, mode="a", header=not path.exists(), index=False)


if __name__ == "__main__":
    main()

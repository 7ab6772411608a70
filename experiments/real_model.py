"""Run the arms of a study from a plan, and compare them at equal cost.

    python -m experiments.real_model run PLAN.toml --jobs 2 --until 18:00   # start, resume, stop
    python -m experiments.real_model table PLAN.toml --csv scores.csv       # scores, report, figure
    python -m experiments.real_model table PLAN.toml --csv scores.csv --add # keeps its other runs
    python -m experiments.real_model report PLAN.toml --csv scores.csv      # from the CSV alone

A plan, whose paths are relative to the working directory:

    out = "runs/study"          # a run is in OUT/ARM/seedN, its output in seedN.log
    flags = "--model M --train_data T --val_data V --steps 100 --eval_every 10"     # of train.py
    by = "task"                 # column of the validation data: accuracies in the CSV
    against = "uniform"         # the arm that others are compared with
    seeds = [1, 2, 3, 4, 5]
    [arms]
    uniform = {flags = "--sampler uniform"}
    DAPO = {flags = "--sampler uniform --resample_rounds 2", seeds = [1, 2, 3]}

Runs have one process and one thread, and start seed by seed, so that a study that is stopped has
complete pairs. At the deadline each run stops after its step with a checkpoint. `table` has the
finished runs. It needs their logs alone: with `run --discard` their weights, 3.5 GB a run of
SmolLM2-135M, are deleted.

A model that is made again on another processor may have other weights. To continue a study from it,
set `seeds`, also those of arms, to new ones, and add their scores with `table --add`. Gains compare
runs of one seed, which must have begun from the same model. Means over seeds then mix models.
"""

import argparse
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
import tomllib
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta
from pathlib import Path

import numpy as np
import pandas as pd
from filelock import FileLock, Timeout

import train
from experiments.equal_cost import COSTS, SCORES, draw, report, scores
from experiments.processes import log_usage, start, usage_file
from plumbing.command_line import count, file_path, non_negative, unused
from plumbing.config import Config
from plumbing.errors import InputError
from plumbing.files import read_lines, write_atomic
from plumbing.run.facts import CONTENTS, FREE, INEXACT, differences
from scripts import analysis, plot
from verify import Verifier

TRAIN = Path(train.__file__).resolve()
MODELS = ("model", "teacher_model")
# By train.py's exit status. While it starts it has no handler, and the signal ends it.
OUTCOMES = {0: "finished", 128 + signal.SIGTERM: "stopped", -signal.SIGTERM: "stopped"}


@dataclass(frozen=True)
class Job:
    """A run of the plan."""

    arm: str
    seed: int
    run: Path
    flags: str  # of train.py

    @property
    def usage(self) -> Path:
        """The log of the run's processes."""
        return usage_file(self.run)

    def config(self) -> Config:
        """Parse the flags. Raises ValueError."""
        return train.parse(shlex.split(self.flags))

    def check(self) -> None:
        """Raise InputError if the run was made with other flags, with which it could not resume."""
        if not (self.run / "config.json").exists():
            return
        old = analysis.read_config(self.run)
        for name, text in differences(old, asdict(self.config())).items():
            if name not in FREE | INEXACT:
                remedy = "undo that, or choose another `out`"
                raise InputError(f"{self.run} differs from the plan: {text}; {remedy}")

    def finished(self) -> bool:
        """Whether the latest process ended a run with these flags."""
        processes = read_lines(self.usage, torn=True)
        if not processes or not self.run.exists():  # it was deleted, to be run again
            return False
        last = processes[-1]
        return last["status"] == 0 and last["flags"] == self.flags

    def discard(self) -> None:
        """Delete all weights of the run, which can then be scored, but not evaluated or resumed."""
        for name in ("checkpoints", "student", "teacher"):
            if (self.run / name).exists():
                shutil.rmtree(self.run / name)

    def evaluated(self) -> bool:
        """Whether the run has an evaluation after step 0."""
        rows = read_lines(self.run / "metrics.jsonl", torn=True)
        return any(row["step"] and "val_accuracy" in row for row in rows)


@dataclass
class Plan:
    """The keys of a plan file."""

    out: str
    flags: str
    arms: dict[str, dict]
    seeds: list[int]
    against: str = "uniform"
    by: str = ""

    @classmethod
    def read(cls, path: Path) -> "Plan":
        """Read a plan. Raises InputError, OSError."""
        try:
            plan = cls(**tomllib.loads(path.read_text(encoding="utf-8")))
        except (ValueError, TypeError) as error:
            raise InputError(f"{path}: {error}") from error
        for name, arm in plan.arms.items():
            if not isinstance(arm, dict) or {*arm} - {"seeds"} != {"flags"}:
                raise InputError(f"{path}: arm {name!r} must have flags, and may have seeds")
        for seeds in [plan.seeds, *(arm.get("seeds", plan.seeds) for arm in plan.arms.values())]:
            is_list = isinstance(seeds, list) and all(type(seed) is int for seed in seeds)
            if not is_list or len({*seeds}) != len(seeds) or min(seeds, default=-1) < 0:
                raise InputError(
                    f"{path}: seeds {seeds!r}: must be a list of distinct whole numbers"
                )
        if plan.against not in plan.arms:
            raise InputError(f"{path}: against {plan.against!r} is none of {[*plan.arms]}")
        return plan

    def jobs(self) -> list[Job]:
        """Return all runs, seed by seed. Raises ValueError if train.py rejects the flags, or a
        learning rate is not constant."""
        jobs = []
        for name, arm in self.arms.items():
            for seed in arm.get("seeds", self.seeds):
                run = Path(self.out) / name.replace("/", "-") / f"seed{seed}"
                own = f"--seed {seed} --out {shlex.quote(str(run))}"
                flags = f"{self.flags} {arm['flags']} {own}"
                job = Job(name, seed, run, flags)
                schedule = job.config().lr_schedule
                if schedule != "constant":
                    # At equal cost, arms that spend more a step would be at a higher rate.
                    raise InputError(f"arm {name!r}: --lr_schedule {schedule}: must be constant")
                jobs.append(job)
        return sorted(jobs, key=lambda job: job.seed)  # the arms keep their order


class Runner:
    """Runs jobs as processes, so many at a time, until `end`, in seconds since 1970. discards:
    whether to delete the weights of finished runs."""

    def __init__(self, jobs: list[Job], at_a_time: int, end: float, discards: bool = False):
        self.finished = [job for job in jobs if job.finished()]
        self.waiting = [job for job in jobs if job not in self.finished]
        self.at_a_time = at_a_time
        self.end = end
        self.discards = discards
        self.running: dict[subprocess.Popen, tuple[Job, float]] = {}
        self.failed = 0
        print(f"{len(self.finished)} of {len(jobs)} runs are finished", flush=True)

    def stop(self, *_) -> None:
        """Stop as at the deadline: a signal handler."""
        self.end = 0

    def run(self) -> None:
        """Run all jobs that are not finished; return when they, or those begun by `end`, ended."""
        if self.discards:
            for job in self.finished:
                job.discard()
        is_stopping = False
        while self.running or (self.waiting and time.time() < self.end):
            if time.time() < self.end:
                while self.waiting and len(self.running) < self.at_a_time:
                    self.start(self.waiting.pop(0))
            elif not is_stopping:
                is_stopping = True
                for process in self.running:
                    # It stops after its step. `terminate` may reap it, and `poll` would fail.
                    os.kill(process.pid, signal.SIGTERM)
            for process in [*self.running]:
                self.poll(process)
            time.sleep(0.2)

    def start(self, job: Job) -> None:
        job.run.parent.mkdir(parents=True, exist_ok=True)
        if not job.run.exists():
            job.usage.unlink(missing_ok=True)
        line = [sys.executable, str(TRAIN), *shlex.split(job.flags)]
        process = start(line, job.run)
        self.running[process] = (job, time.time())
        print(f"{datetime.now():%H:%M} started: {job.arm}, seed {job.seed}", flush=True)

    def poll(self, process: subprocess.Popen) -> None:
        """If a process has ended, log what it used."""
        pid, status, usage = os.wait4(process.pid, os.WNOHANG)
        if not pid:
            return
        job, began = self.running.pop(process)
        process.returncode = log_usage(job.run, job.flags, status, usage, began)
        outcome = OUTCOMES.get(process.returncode, "FAILED")
        self.failed += outcome == "FAILED"
        if outcome == "finished" and self.discards:
            job.discard()
        print(f"{datetime.now():%H:%M} {outcome}: {job.arm}, seed {job.seed}", flush=True)


def all_scores(plan: Plan) -> pd.DataFrame:
    """Compute the scores of the finished runs; print the names of the others. Raises InputError if
    there are none, or if a run was made with other flags than the plan's."""
    parts = []
    verifiers = {}  # by reward
    with ExitStack() as stack:
        for job in to_score(plan.jobs()):
            config = analysis.read_config(job.run)
            reward = config["reward"]
            if reward not in verifiers:
                verifiers[reward] = stack.enter_context(Verifier(workers=1, reward=reward))
            usage = read_lines(job.usage, torn=True)
            rows = scores(job.run, usage, plan.by, verifiers[reward])
            rows.insert(0, "arm", job.arm)
            rows.insert(1, "seed", job.seed)
            rows.insert(2, "model_crc32", model_crc32(config))
            parts.append(rows)
    if not parts:
        raise InputError(f"{plan.out}: no run of the plan is finished")
    return pd.concat(parts, ignore_index=True)


def model_crc32(config: dict) -> str:
    """Return the CRC-32 of the student's weights that a run began from."""
    files = sorted(config.get("model_files", {}).items())
    return "+".join(str(crc32) for name, crc32 in files if name.endswith(".safetensors"))


def merge(old: pd.DataFrame, new: pd.DataFrame) -> pd.DataFrame:
    """Return the rows of both by seed, without the old ones of runs that have new ones. Raises
    InputError unless all runs of a seed began from one model, as far as its weights tell."""
    if "model_crc32" not in old or old.model_crc32.isna().any():
        raise InputError("--add: rows of the CSV lack the model's checksum, model_crc32")
    run = ["arm", "seed"]
    is_replaced = old.set_index(run).index.isin(new.set_index(run).index)
    rows = pd.concat([old[~is_replaced], new], ignore_index=True)
    for seed, models in rows.groupby("seed").model_crc32.unique().items():
        if len(models) > 1:
            names = " and ".join(models)
            remedy = "choose new seeds for a model that was made again"
            raise InputError(f"--add: seed {seed} has runs of models {names}: {remedy}")
    return rows.sort_values("seed", kind="stable")


def check_contents(jobs: list[Job]) -> None:
    """Raise InputError if what a path holds had changed between two runs: data, an edited sampler
    or reward; or, between runs of one seed, a model that was made again on another processor."""
    first = {}  # (setting, path, seed of a model) -> run, checksum
    for job in jobs:
        config = analysis.read_config(job.run)
        for setting, fact in CONTENTS.items():
            path = config[setting]
            seed = job.seed if setting in MODELS else None
            run, checksum = first.setdefault((setting, path, seed), (job.run, config.get(fact)))
            if config.get(fact) != checksum:
                raise InputError(
                    f"{run} and {job.run} began from different files of {path}: "
                    "to compare them, run one again"
                )


def to_score(jobs: list[Job]) -> list[Job]:
    """Return the jobs whose runs are finished; print the names of the others. Raises InputError if
    a run was made with other flags or from other files."""
    ready = []
    for job in jobs:
        job.check()
        if not job.finished():
            print(f"note: {job.run} is not finished", file=sys.stderr)
        elif not job.evaluated():
            print(f"note: {job.run} has no evaluation after step 0", file=sys.stderr)
        else:
            ready.append(job)
    check_contents(ready)
    return ready


def deadline(until: str | None, minutes: float | None) -> float:
    """Return the end of the study in seconds since 1970: the next time that a clock shows `until`,
    HH:MM, or in so many minutes; infinity without either. Raises InputError."""
    if minutes is not None:
        return time.time() + 60 * minutes
    if until is None:
        return np.inf
    try:
        clock = datetime.strptime(until, "%H:%M").time()
    except ValueError as error:
        raise InputError(f"--until {until}: must be a time such as 18:00") from error
    end = datetime.combine(datetime.now(), clock)
    if end < datetime.now():
        end += timedelta(days=1)
    return end.timestamp()


def run_study(plan: Plan, at_a_time: int, end: float, discards: bool) -> int:
    """Run the plan; return the number of runs that failed. Raises Timeout if it is being run."""
    jobs = plan.jobs()
    Path(plan.out).mkdir(parents=True, exist_ok=True)
    with FileLock(Path(plan.out) / "lock", timeout=0):
        runner = Runner(jobs, at_a_time, end, discards)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, runner.stop)
        runner.run()
    return runner.failed


def read_scores(path: Path) -> pd.DataFrame:
    """Read the CSV of `table`. Raises InputError if it is another one."""
    rows = pd.read_csv(path, dtype={"model_crc32": str})
    for name in ("arm", "seed", "step", "dead", *COSTS, *SCORES):
        if name not in rows:
            raise InputError(f"{path}: has no column {name}; `table` writes such a CSV")
    return rows


def write_scores(plan: Plan, path: Path, adds: bool) -> None:
    """Write the CSV of `table`. adds: whether to keep its rows of other runs."""
    path.parent.mkdir(parents=True, exist_ok=True)
    old = read_scores(path) if adds else None
    rows = all_scores(plan)
    if adds:
        rows = merge(old, rows)
    write_atomic(path, rows.round(3).to_csv(index=False))


USED = {  # by command, the flags that it uses
    "run": {"jobs", "until", "minutes", "discard"},
    "table": {"csv", "add", "draw"},
    "report": {"csv", "draw"},
}


def arguments(argv) -> argparse.Namespace:
    """Parse the command line. Raises InputError at a flag that the command does not use."""
    parser = analysis.parser(__doc__)
    add = parser.add_argument
    add("command", choices=("run", "table", "report"), help="see above")
    add("plan", type=file_path, help="TOML file")
    add("--jobs", type=count, default=2, help="runs at a time (%(default)s)")
    add("--until", help="stop at this time of day, HH:MM")
    add("--minutes", type=non_negative, help="stop after so many")
    add("--discard", action="store_true", help="delete the weights of finished runs")
    csv = Path("runs/study.csv")
    add("--csv", type=file_path, default=csv, help="scores; the figure is beside it (%(default)s)")
    add("--add", action="store_true", help="table: keep the CSV's other runs")
    add("--draw", nargs="+", metavar="ARM", help="arms in the figure (the first seven)")
    args = parser.parse_args(argv)
    for name in unused(args, parser, {"command", "plan", *USED[args.command]}):
        raise InputError(f"--{name}: {args.command} does not use it")
    if args.until and args.minutes is not None:
        raise InputError("--until, --minutes: give one of them")
    return args


def main(argv=None) -> int:
    """Run the command; return its exit status, 1 if a run failed."""
    with analysis.one_line("real_model", ValueError, Timeout):
        args = arguments(argv)
        if args.draw and len(args.draw) > len(plot.COLOURS):
            raise InputError(f"--draw: at most {len(plot.COLOURS)} arms")
        plan = Plan.read(args.plan)
        if args.command == "run":
            end = deadline(args.until, args.minutes)
            failed = run_study(plan, args.jobs, end, args.discard)
            return int(failed > 0)
        if args.command == "table":
            write_scores(plan, args.csv, args.add)
        rows = read_scores(args.csv)
        first = [*rows.arm.unique()][: len(plot.COLOURS)]
        arms = args.draw or first
        missing = {*arms, plan.against} - {*rows.arm}
        if missing:
            raise InputError(f"{args.csv}: has no arm {min(missing)!r}")
        print(report(rows, plan.against), end="")
        draw(rows, arms).savefig(args.csv.with_suffix(".png"), dpi=200)
    return 0


if __name__ == "__main__":
    sys.exit(main())

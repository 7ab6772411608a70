"""Run train.py as processes of one thread, and resume runs until they have spent their budget.

Beside a run's directory are seedN.log, what its processes printed, and seedN.usage.jsonl, a line a
process: flags, status, cpu_seconds, wall_seconds.
"""

import math
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import train
from plumbing.config import Config
from plumbing.errors import InputError
from plumbing.files import read_lines, write_lines
from scripts import analysis

# By train.py's exit status. While it starts it has no handler, and the signal ends it.
OUTCOMES = {0: "finished", 128 + signal.SIGTERM: "stopped", -signal.SIGTERM: "stopped"}


@dataclass(frozen=True)
class Job:
    """A run: an arm on a task with a seed. flags: of train.py. budget: completions that it is to
    spend; 0: those of its steps."""

    task: str
    arm: str
    seed: int
    run: Path
    flags: str
    budget: float = 0.0

    def __str__(self):
        return ", ".join([self.task] * bool(self.task) + [self.arm, f"seed {self.seed}"])

    @property
    def log(self) -> Path:
        """What the run's processes printed."""
        return self.run.with_name(f"{self.run.name}.log")

    @property
    def usage_file(self) -> Path:
        """The log of the run's processes."""
        return self.run.with_name(f"{self.run.name}.usage.jsonl")

    def usage(self) -> list[dict]:
        """Return the processes of the run; none if it was deleted, to be run again."""
        return read_lines(self.usage_file, torn=True) if self.run.exists() else []

    def config(self) -> Config:
        """Parse the flags. Raises ValueError."""
        return train.parse(shlex.split(self.flags))

    def done(self) -> tuple[int, float]:
        """Return how many steps the run has finished, and the completions that these spent."""
        rows = read_lines(self.run / "metrics.jsonl", torn=True)
        spent = {row["step"]: row.get("completions") or 0 for row in rows if row["step"]}
        return max(spent, default=0), sum(spent.values())

    def finished(self) -> bool:
        """Whether the run has ended and spent its budget."""
        processes = self.usage()
        if not processes or processes[-1]["status"]:
            return False
        return self.done()[1] >= self.budget - 0.5

    def steps(self) -> int:
        """Return the steps that the next process is to reach: those of the flags or, when they are
        done, as many more as the rest of the budget needs."""
        steps = self.config().steps
        if (self.run / "config.json").exists():  # an earlier process may have extended it
            steps = max(steps, analysis.read_config(self.run)["steps"])
        done, spent = self.done()
        if spent and done >= steps:
            steps = done + math.ceil((self.budget - spent) * done / spent)
        return steps

    def check(self) -> None:
        """Raise InputError if the run was made with other flags."""
        for made in {process["flags"] for process in self.usage()} - {self.flags}:
            if settings(made) != settings(self.flags):
                raise InputError(
                    f"{self.run} was made with {made}, but now has {self.flags}: undo the change, "
                    "or choose another `out`"
                )

    def discard(self) -> None:
        """Delete all weights of the run, which can then be scored, but not evaluated or resumed."""
        for name in ("checkpoints", "student", "teacher"):
            if (self.run / name).exists():
                shutil.rmtree(self.run / name)


def settings(flags: str) -> dict:
    """Return the settings that flags of train.py give, but for the number of steps, which the
    budget decides, and --out. Raises InputError."""
    try:
        config = train.parse(shlex.split(flags))
    except ValueError as error:
        raise InputError(f"flags {flags}: {error}") from error
    return vars(config) | {"steps": 0, "out": ""}


class Runner:
    """Runs jobs as processes, so many at a time, until `end`, in seconds since 1970. discards:
    whether to delete the weights of finished runs."""

    def __init__(self, jobs: list[Job], at_a_time: int = 1, end=math.inf, discards=False):
        self.finished = [job for job in jobs if job.finished()]
        self.waiting = [job for job in jobs if job not in self.finished]
        self.at_a_time = at_a_time
        self.end = end
        self.discards = discards
        self.running: dict[subprocess.Popen, tuple[Job, float]] = {}
        self.failed = 0

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
            job.usage_file.unlink(missing_ok=True)
        flags = [*shlex.split(job.flags), "--steps", str(job.steps())]
        line = [sys.executable, str(Path(train.__file__).resolve()), *flags]
        environment = os.environ | {"OMP_NUM_THREADS": "1"}
        with job.log.open("a") as file:
            process = subprocess.Popen(line, stdout=file, stderr=file, env=environment)
        self.running[process] = (job, time.time())
        note(f"started: {job}")

    def poll(self, process: subprocess.Popen) -> None:
        """If a process has ended, log what it used; start it again if budget is left."""
        pid, status, usage = os.wait4(process.pid, os.WNOHANG)
        if not pid:
            return
        job, began = self.running.pop(process)
        process.returncode = os.waitstatus_to_exitcode(status)
        row = {"flags": job.flags, "status": process.returncode}
        row["cpu_seconds"] = usage.ru_utime + usage.ru_stime
        row["wall_seconds"] = time.time() - began
        write_lines(job.usage_file, [row], "a")
        outcome = OUTCOMES.get(process.returncode, f"FAILED, see {job.log}")
        if outcome == "finished" and not job.finished():
            self.waiting.insert(0, job)
            return
        self.failed += process.returncode not in OUTCOMES
        if outcome == "finished" and self.discards:
            job.discard()
        note(f"{outcome}: {job}")


def note(text: str) -> None:
    """Print a line with the time of day, on stderr: stdout is the report's."""
    print(f"{datetime.now():%H:%M} {text}", file=sys.stderr, flush=True)

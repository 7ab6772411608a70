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
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime
from itertools import repeat
from pathlib import Path

import train
from plumbing.files import read_lines, write_lines

# train.py's exit status when it stops early. While it starts, the signal ends it.
STOPPED = (128 + signal.SIGTERM, -signal.SIGTERM)


@dataclass(frozen=True)
class Job:
    """A run, in OUT/TASK/ARM/seedN: an arm on a task with a seed. flags: of train.py, but --out.
    budget: completions that it is to spend; 0: those of its steps."""

    out: Path
    task: str
    arm: str
    seed: int
    flags: str
    budget: float = 0.0

    @property
    def run(self) -> Path:
        """The run's directory."""
        return self.out / self.task / self.arm.replace("/", "-") / f"seed{self.seed}"

    def usage(self) -> list[dict]:
        """Return the processes of the run; none if it was deleted, to be run again."""
        return (
            read_lines(self.run.with_suffix(".usage.jsonl"), torn=True) if self.run.exists() else []
        )

    def cores(self) -> float:
        """Return how many cores the run's processes used."""
        used = self.usage()
        cpu_seconds = sum(process["cpu_seconds"] for process in used)
        return cpu_seconds / sum(process["wall_seconds"] for process in used)

    def done(self) -> tuple[int, float]:
        """Return how many steps the run has finished, and the completions that these spent."""
        rows = read_lines(self.run / "metrics.jsonl", torn=True)
        spent = [row["completions"] for row in rows if row["step"]]
        return len(spent), sum(spent)

    def finished(self) -> bool:
        """Whether the run has ended and spent its budget."""
        ends = [process["status"] for process in self.usage()]
        return ends[-1:] == [0] and self.done()[1] >= self.budget - 0.5

    def steps(self) -> int:
        """Return the steps that the next process is to reach: those of the flags or, when they are
        done, as many more as the rest of the budget needs."""
        steps = parse(self.flags).steps
        done, spent = self.done()
        if spent and done >= steps:
            steps = done + max(0, math.ceil((self.budget - spent) * done / spent))
        return steps

    def other_flags(self) -> list[str]:
        """Return the flags of processes that made the run with other settings. A budget decides its
        steps."""
        free = {"out": ""}
        if self.budget:
            free["steps"] = 0
        wanted = vars(parse(self.flags)) | free
        flags = [process["flags"] for process in self.usage()]
        return [made for made in flags if vars(parse(made)) | free != wanted]

    def discard(self) -> None:
        """Delete all weights of the run, which can then be scored, but not evaluated or resumed."""
        for name in ("checkpoints", "student", "teacher"):
            if (self.run / name).exists():
                shutil.rmtree(self.run / name)


def parse(flags: str) -> train.Config:
    """Return the settings that flags of train.py give. Raises ValueError."""
    return train.parse(shlex.split(flags))


@dataclass
class Runner:
    """Runs jobs as processes, so many at a time, until `end`, in seconds since 1970."""

    at_a_time: int = 1
    end: float = math.inf

    def stop(self, *_) -> None:
        """Stop as at the deadline: a signal handler."""
        self.end = 0

    def run(self, jobs: list[Job], discard: bool = False) -> int:
        """Run all jobs that are not finished; return how many failed, when they, or those begun by
        `end`, have ended. discard: delete the weights of finished runs."""
        with ThreadPoolExecutor(self.at_a_time) as pool:
            return sum(pool.map(self.fails, jobs, repeat(discard)))

    def fails(self, job: Job, discard: bool) -> bool:
        """Run a job until it has spent its budget, or `end`. Returns whether a process failed."""
        while not job.finished() and time.time() < self.end:
            note(f"starts: {job.run}")
            status = self.run_process(job)
            if status in STOPPED:
                note(f"stopped: {job.run}")
                return False
            if status:
                log = job.run.with_suffix(".log")
                last_line = log.read_text(errors="replace").strip().rpartition("\n")[2]
                note(f"FAILED, see {log}: {last_line}")
                return True
        if discard and job.finished():
            job.discard()
        return False

    def run_process(self, job: Job) -> int:
        """Start or resume a run as a process; log what it used. Returns its exit status."""
        job.run.parent.mkdir(parents=True, exist_ok=True)
        if not job.run.exists():
            job.run.with_suffix(".usage.jsonl").unlink(missing_ok=True)
        flags = shlex.split(f"{job.flags} --steps {job.steps()}")
        line = [sys.executable, train.__file__, *flags, "--out", str(job.run)]
        environment = os.environ | {"OMP_NUM_THREADS": "1"}
        began = time.time()
        with job.run.with_suffix(".log").open("a") as file:
            process = subprocess.Popen(line, stdout=file, stderr=file, env=environment)
        ended = 0
        while not ended:
            time.sleep(0.2)
            if time.time() >= self.end:
                # It stops after its step. `terminate` may reap it, and then `wait4` would fail.
                os.kill(process.pid, signal.SIGTERM)
            ended, status, usage = os.wait4(process.pid, os.WNOHANG)
        process.returncode = os.waitstatus_to_exitcode(status)
        row = {
            "flags": job.flags,
            "status": process.returncode,
            "cpu_seconds": usage.ru_utime + usage.ru_stime,
            "wall_seconds": time.time() - began,
        }
        write_lines(job.run.with_suffix(".usage.jsonl"), [row], "a")
        return process.returncode


def note(text: str) -> None:
    """Print a line with the time of day, on stderr: stdout is the report's."""
    print(f"{datetime.now():%H:%M} {text}", file=sys.stderr, flush=True)

"""Run train.py as processes of one thread, and resume runs until they have spent their budget.

A run is one process or, with a launch command such as torchrun, its ranks. Beside a run's directory
are seedN.log, what its processes printed, and seedN.usage.jsonl, a line a start: flags, status,
cpu_seconds, wall_seconds. As long as a process prints to the log, the log is locked.
"""

import fcntl
import math
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from itertools import repeat
from pathlib import Path
from typing import TextIO

import torch

import train
from plumbing.errors import InputError, print_line
from plumbing.files import read_lines, write_lines

# train.py's exit status when it stops early. While it starts, the signal ends it.
STOPPED = (128 + signal.SIGTERM, -signal.SIGTERM)
POLL_S = 0.2
# torchrun kills its ranks this long after SIGTERM, by default 30 s. They finish their step and
# save a checkpoint first, which may take minutes on 8 GPUs.
SHUTDOWN_S = "3600"


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
        if not self.run.exists():
            return []
        return read_lines(self.run.with_suffix(".usage.jsonl"), torn=True)

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
        """Whether the run has ended, with an evaluation, and spent its budget."""
        processes = self.usage()
        if not processes or processes[-1]["status"] != 0:
            return False
        # The last process has no status if it was killed together with the study.
        rows = read_lines(self.run / "metrics.jsonl", torn=True)
        if not rows or "val_accuracy" not in rows[-1]:
            return False
        _, spent = self.done()
        return spent >= self.budget - 0.5

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
        free = {"out": "", "allow_code_change": False}
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


def launcher(line: str) -> list[str]:
    """Split a launch command into words, the first a path. Its program is looked for beside Python,
    where an environment that is not activated has torchrun, then on PATH. Raises InputError."""
    program, *arguments = shlex.split(line)
    folders = [str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)]
    path = shutil.which(program, path=os.pathsep.join(folders))
    if not path:
        raise InputError(f"launch = {line!r}: this machine has no program {program}")
    return [path, *arguments]


@dataclass
class Runner:
    """Runs jobs as processes, so many at a time, until `end`, in seconds since 1970. launch: words
    of a command that starts the ranks of a run (`launcher`), by default a single process.
    on_finish: called with each job that has spent its budget, when its processes have ended."""

    at_a_time: int = 1
    end: float = math.inf
    launch: list[str] = field(default_factory=list)
    on_finish: Callable[[Job], None] = lambda job: None

    def stop(self, *_) -> None:
        """Stop as at the deadline: a signal handler."""
        self.end = 0

    def run(self, jobs: list[Job], discard: bool = False) -> int:
        """Run all jobs that are not finished; return how many failed, when they, or those begun by
        `end`, have ended. discard: delete the weights of finished runs."""
        with ThreadPoolExecutor(self.at_a_time) as pool:
            return sum(pool.map(self.run_job, jobs, repeat(discard)))

    def run_job(self, job: Job, discard: bool) -> bool:
        """Run a job until it has spent its budget, or `end`. Returns whether a process failed."""
        started = False
        while not job.finished() and time.time() < self.end:
            started = True
            note(f"starts: {job.run}")
            log = job.run.with_suffix(".log")
            printed = log.stat().st_size if log.exists() else 0
            status = self.run_process(job)
            if status in STOPPED:
                note(f"stopped: {job.run}")
                return False
            if status:
                note(f"FAILED, see {log}: {failure(log, printed)}")
                return True
        if started and job.finished():
            self.on_finish(job)
        if discard and job.finished():
            job.discard()
        return False

    def command(self, job: Job) -> list[str]:
        """Return the words of the command that starts or resumes a run."""
        flags = shlex.split(f"{job.flags} --steps {job.steps()}")
        program = self.launch or [sys.executable]
        return [*program, train.__file__, *flags, "--out", str(job.run)]

    def run_process(self, job: Job) -> int:
        """Start or resume a run; log what it used. Returns its exit status, or one of STOPPED."""
        job.run.parent.mkdir(parents=True, exist_ok=True)
        with job.run.with_suffix(".log").open("a") as log:
            if not self.lock(log):
                return STOPPED[0]
            if not job.run.exists():
                job.run.with_suffix(".usage.jsonl").unlink(missing_ok=True)
            began = time.time()
            process = start(self.command(job), log)
            status, usage, signalled = self.wait(process)
        row = {
            "flags": job.flags,
            "status": status,
            "cpu_seconds": usage.ru_utime + usage.ru_stime,
            "wall_seconds": time.time() - began,
        }
        write_lines(job.run.with_suffix(".usage.jsonl"), [row], "a")
        if self.launch and signalled and status:
            return STOPPED[0]  # torchrun's own status is 1
        return status

    def lock(self, log: TextIO) -> bool:
        """Lock a log. First wait until the processes that print to it have ended: those of a study
        that was killed save a checkpoint. Returns False if they have not ended by `end`."""
        waiting = False
        while time.time() < self.end:
            try:
                fcntl.flock(log, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return True
            except BlockingIOError:
                if not waiting:
                    note(f"waits for the processes that print to {log.name}")
                waiting = True
                time.sleep(POLL_S)
        return False

    def wait(self, process: subprocess.Popen) -> tuple:
        """Wait for a process, which gets SIGTERM at `end` and stops after its step. Returns its
        exit status, its usage, children included, and whether it got the signal."""
        signalled = False
        ended = 0
        while not ended:
            time.sleep(POLL_S)
            if time.time() >= self.end and not signalled:
                # Once: a second signal would end torchrun before its ranks. `terminate` may reap
                # the process, and then `wait4` would fail.
                os.kill(process.pid, signal.SIGTERM)
                signalled = True
            ended, status, usage = os.wait4(process.pid, os.WNOHANG)
        process.returncode = os.waitstatus_to_exitcode(status)
        return process.returncode, usage, signalled


def start(command: list[str], log: TextIO) -> subprocess.Popen:
    """Start a command that prints to a log, in a session of its own: Ctrl-C reaches this process
    alone, which passes a signal on. On Linux the command gets SIGTERM if this process is killed."""
    end_with_parent = getattr(torch.multiprocessing, "_prctl_pr_set_pdeathsig", None)
    if end_with_parent:
        end_with_parent = partial(end_with_parent, signal.SIGTERM)
    environment = {"TORCH_ELASTIC_SHUTDOWN_TIMEOUT": SHUTDOWN_S} | os.environ
    return subprocess.Popen(
        command,
        stdout=log,
        stderr=log,
        env=environment | {"OMP_NUM_THREADS": "1"},
        start_new_session=True,
        preexec_fn=end_with_parent,
    )


def failure(log: Path, first: int) -> str:
    """Return the line of a log, from a byte on, that says why a run failed: train.py's, after which
    torchrun prints more, or the last."""
    text = log.read_bytes()[first:].decode(errors="replace")
    lines = text.strip().splitlines() or [""]
    errors = [line for line in lines if line.startswith("error:")]
    return (errors or lines)[-1]


def note(text: str) -> None:
    """Print a line with the time of day, on stderr: stdout is the report's."""
    print_line(f"{datetime.now():%H:%M} {text}", sys.stderr)

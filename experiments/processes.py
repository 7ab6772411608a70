"""Start runs as processes of one thread; log what they print and use in files beside the run."""

import os
import subprocess
import time
from pathlib import Path

from plumbing.files import read_lines, write_lines


def beside(run: Path, ending: str) -> Path:
    """Return the path of a file beside a run's directory, such as seed1.log."""
    return run.with_name(f"{run.name}.{ending}")


def usage_file(run: Path) -> Path:
    """Return the path of a run's log of processes: flags, status, cpu_seconds, wall_seconds."""
    return beside(run, "usage.jsonl")


def start(line: list[str], run: Path) -> subprocess.Popen:
    """Start a command with one thread; append its output to the run's log."""
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    with beside(run, "log").open("a") as file:
        return subprocess.Popen(line, stdout=file, stderr=file, env=environment)


def log_usage(run: Path, flags: str, status: int, usage, began: float) -> int:
    """Log a process that has ended, and return its exit status. status, usage: as os.wait4 returns
    them; began: its start, in seconds since 1970."""
    exit_status = os.waitstatus_to_exitcode(status)
    row = {"flags": flags, "status": exit_status}
    row["cpu_seconds"] = usage.ru_utime + usage.ru_stime
    row["wall_seconds"] = time.time() - began
    write_lines(usage_file(run), [row], "a")
    return exit_status


def cpu_seconds(run: Path) -> float:
    """Return the processor time of all processes of a run, which depends less on other load of the
    machine than the time of a clock."""
    return sum(process["cpu_seconds"] for process in read_lines(usage_file(run), torn=True))

"""A pool of worker processes that can be killed, with limits on time and memory.

`WorkerPool` runs in the parent, `serve` in each worker. A job is a line of JSON, its reply a line
of text. A worker holds one job at a time. If it dies, the reply is its cause of death.
"""

import contextlib
import json
import multiprocessing.connection
import os
import resource
import signal
import subprocess
import sys
import sysconfig
import threading
import time
import zlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

MAX_TIMEOUTS = 4  # second attempts in a call that may time out; then the machine is not the cause
START_SECONDS = 600  # a worker that takes longer to start, from a slow disk, is an error
DEATHS = {-signal.SIGPROF: "timeout", -signal.SIGABRT: "memory"}
CAUSES = {*DEATHS.values(), "crash"}
STATM = Path("/proc/self/statm")  # begins with the pages of memory that a process has


def serve(prepare: Callable, cpu_seconds: float, memory_bytes: int) -> None:
    """Run a worker: reply to each job with prepare()(**job) until the parent closes the pipe or
    dies. A ValueError of prepare() is a PrepareError in the parent; its memory and time do not
    count. Where there is no STATM (macOS), memory has no limit, but time has."""
    threading.Thread(target=_end_with, args=[os.getppid()], daemon=True).start()
    # Slurm sends SIGTERM to every process of a step, while ranks still grade before they save.
    signal.signal(signal.SIGTERM, lambda *_: None)
    jobs, replies = os.fdopen(os.dup(0), "rb"), os.dup(1)
    os.dup2(2, 1)  # a custom reward's prints are not replies,
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)  # and it cannot read the next job

    def send(reply: str) -> None:
        os.write(replies, " ".join(reply.split())[:500].encode(errors="replace") + b"\n")

    try:
        function = prepare()
    except ValueError as error:
        send(str(error))
        sys.exit(2)
    if STATM.exists():
        limit = int(STATM.read_text().split()[0]) * resource.getpagesize() + memory_bytes
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    send(f"ready {code_crc32()}")
    for line in jobs:
        # CPU time, so that the load of the machine changes no verdict.
        signal.setitimer(signal.ITIMER_PROF, cpu_seconds)
        try:
            reply = function(**json.loads(line))
        except MemoryError:
            os.abort()  # as libraries do when an allocation fails
        finally:  # also after an exception: Python's exit takes CPU time too
            signal.setitimer(signal.ITIMER_PROF, 0)
        send(reply)


def code_crc32() -> int:
    """Return a checksum of the Python files that this process has imported, but for libraries."""
    libraries = tuple(sysconfig.get_path(kind) for kind in ("stdlib", "purelib", "platlib"))
    files = {getattr(module, "__file__", None) or "" for module in [*sys.modules.values()]}
    own = [file for file in files if file.endswith(".py") and not file.startswith(libraries)]
    crc = 0
    for path in map(Path, sorted(own)):
        if path.is_file():  # torch's "_ops.py" is none
            crc = zlib.crc32(path.read_bytes(), crc)
    return crc


def _end_with(parent: int) -> None:
    """End this process when its parent has died, also in the middle of a job that sleeps. By
    polling: only Linux has a signal for it."""
    while os.getppid() == parent:
        time.sleep(1)
    os._exit(1)


class WorkerError(RuntimeError, OSError):
    """A worker cannot start."""


class PrepareError(ValueError):
    """The `prepare` of `serve` has failed in a worker, or its code is not that of the others."""


class WorkerPool:
    """`size` workers, each a process of `command`, which calls `serve`. wall_seconds: the longest
    that an attempt at a job may take, for jobs that sleep."""

    def __init__(self, command: list[str], size: int, wall_seconds: float):
        self.command = command
        self.size = size
        self.wall_seconds = wall_seconds
        self.idle: list[subprocess.Popen] = []  # newest last
        self.code = ""  # `code_crc32` of the first worker

    def start(self) -> None:
        """Start the workers that are missing, and wait until they are ready. Raises PrepareError if
        prepare() fails in a worker, or its code has changed, WorkerError if it cannot start."""
        missing = range(self.size - len(self.idle))
        with self._closing_on_error(), ThreadPoolExecutor(self.size) as threads:
            starts = [threads.submit(self._start_worker) for _ in missing]
            for start in starts:
                start.result()

    def close(self) -> None:
        """Kill the workers."""
        while self.idle:
            kill(self.idle.pop())
        self.code = ""

    @contextlib.contextmanager
    def _closing_on_error(self):
        try:
            yield
        except BaseException:
            self.close()  # a late reply could be taken for the next one
            raise

    def run(self, jobs: list[dict]) -> list[str]:
        """Return the reply to each job, or its worker's cause of death: timeout, memory or crash.

        A job whose worker died is tried once more after all others, alone and in a new worker. If
        MAX_TIMEOUTS jobs time out twice, the others keep their first `timeout`."""
        if not self.idle:
            raise RuntimeError("the workers are not running: start them, or use `with`")
        with self._closing_on_error():
            with ThreadPoolExecutor(self.size) as threads:  # a worker each
                replies = list(threads.map(self._attempt, jobs))
            timeouts = 0
            for number, job in enumerate(jobs):
                cause = replies[number]
                if cause in CAUSES and (cause != "timeout" or timeouts < MAX_TIMEOUTS):
                    kill(self.idle.pop())
                    self._start_worker()
                    replies[number] = self._attempt(job)
                    timeouts += replies[number] == "timeout"
        return replies

    def _attempt(self, job: dict) -> str:
        """Return the newest idle worker's reply to a job, or its cause of death: then another one
        is started in its place."""
        worker = self.idle.pop()
        with contextlib.suppress(BrokenPipeError):  # it has died, which `read_line` notices
            worker.stdin.write(json.dumps(job, default=str).encode() + b"\n")
            worker.stdin.flush()
        reply = read_line(worker, self.wall_seconds)
        if reply:
            self.idle.append(worker)
            return reply
        status = kill(worker)
        self._start_worker()
        return DEATHS.get(status, "timeout" if reply is None else "crash")

    def _start_worker(self) -> None:
        """Start a worker in a new session, so that Ctrl-C does not reach it. Wait for "ready". It
        reads its code from files: edited ones would grade the rest of a run by other rules."""
        environment = os.environ | {"PYTHONHASHSEED": "0"}
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        worker = subprocess.Popen(self.command, env=environment, start_new_session=True, **pipes)
        line = read_line(worker, START_SECONDS)
        state, _, code = (line or "").partition(" ")
        if state != "ready":
            status = kill(worker)
            if line:
                raise PrepareError(line)
            raise WorkerError(
                f"a worker did not start: exit status {status}; it may have printed why"
            )
        self.code = self.code or code
        if code != self.code:
            kill(worker)
            raise PrepareError(
                "a worker was started again, and its code (verify.py, grading/ or --reward) has "
                "changed since the others started: undo that, and run the same command again"
            )
        self.idle.append(worker)


def read_line(worker: subprocess.Popen, seconds: float) -> str | None:
    """Return a worker's next line, "" if it has died, None if it takes longer."""
    if multiprocessing.connection.wait([worker.stdout], seconds):
        return worker.stdout.readline().decode().strip()
    return None


def kill(worker: subprocess.Popen) -> int:
    """Kill a worker, if it still runs, and its children; return its exit status."""
    with contextlib.suppress(ProcessLookupError, BrokenPipeError), worker:
        os.killpg(worker.pid, signal.SIGKILL)
    return worker.returncode

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
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

MAX_TIMEOUTS = 4  # second attempts in a call that may time out; then the machine is not the cause
START_SECONDS = 600  # a worker that takes longer to start, from a slow disk, is an error
DEATHS = {-signal.SIGPROF: "timeout", -signal.SIGABRT: "memory"}
CAUSES = {*DEATHS.values(), "crash"}
STATM = Path("/proc/self/statm")  # begins with the pages of memory that a process has


class PreparationError(ValueError):
    """prepare() raised a ValueError in a worker; the message is the same."""


def serve(prepare: Callable, cpu_seconds: float, memory_bytes: int) -> None:
    """Run a worker: reply to each job with prepare()(**job) until the parent closes the pipe or
    dies. A ValueError of prepare() is raised in the parent as PreparationError; its memory and time
    do not count. Where there is no STATM (macOS), memory has no limit, but time has."""
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
    send("ready")
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


def _end_with(parent: int) -> None:
    """End this process when its parent has died, also in the middle of a job that sleeps. By
    polling: only Linux has a signal for it."""
    while os.getppid() == parent:
        time.sleep(1)
    os._exit(1)


class WorkerError(RuntimeError, OSError):
    """A worker cannot start."""


@dataclass(eq=False)
class Worker:
    """A process that must send a line before `deadline`: "ready", then the reply to `job`."""

    process: subprocess.Popen
    deadline: float
    ready: bool = False
    job: int | None = None

    @property
    def idle(self) -> bool:
        return self.ready and self.job is None

    def kill(self) -> int:
        """Kill the process, if it still runs, and its children; return its exit status."""
        with contextlib.suppress(ProcessLookupError, BrokenPipeError), self.process:
            os.killpg(self.process.pid, signal.SIGKILL)
        return self.process.returncode


class WorkerPool:
    """`size` workers, each a process of `command`, which calls `serve`. wall_seconds: the longest
    that an attempt at a job may take, for jobs that sleep."""

    def __init__(self, command: list[str], size: int, wall_seconds: float):
        if size < 1:
            raise ValueError(f"workers {size}: must be at least 1")
        self.command, self.size, self.wall_seconds = command, size, wall_seconds
        self.workers: list[Worker] = []

    def start(self) -> None:
        """Wait until all workers are ready, including replacements of dead ones. Raises
        PreparationError if prepare() fails in a worker, WorkerError if a worker cannot start."""
        with self._closing_on_error():
            while len(self.workers) < self.size:
                self._start_worker()
            while not all(worker.ready for worker in self.workers):
                self._wait_for_workers()

    def close(self) -> None:
        """Kill the workers."""
        while self.workers:
            self.workers.pop().kill()

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
        MAX_TIMEOUTS jobs time out twice, the others keep their first `timeout`. So n jobs take at
        most n / size + MAX_TIMEOUTS attempts, each with the start of a worker."""
        if not self.workers:
            raise RuntimeError("the workers are not running: start them, or use `with`")
        with self._closing_on_error():
            replies = self._attempt(dict(enumerate(jobs)))
            timeouts = 0
            for job in sorted(job for job in replies if replies[job] in CAUSES):
                if replies[job] != "timeout" or timeouts < MAX_TIMEOUTS:
                    self.workers.pop().kill()
                    self.start()
                    replies |= self._attempt({job: jobs[job]})
                    timeouts += replies[job] == "timeout"
        return [replies[job] for job in range(len(jobs))]

    def _attempt(self, jobs: dict[int, dict]) -> dict[int, str]:
        """Return the reply to each job, by its number, or its worker's cause of death."""
        waiting, replies = iter(jobs.items()), {}
        while len(replies) < len(jobs):
            idle = [worker for worker in reversed(self.workers) if worker.idle]  # newest first
            for worker, (number, job) in zip(idle, waiting, strict=False):
                worker.job, worker.deadline = number, time.monotonic() + self.wall_seconds
                with contextlib.suppress(BrokenPipeError):  # _wait_for_workers notices the death
                    worker.process.stdin.write(json.dumps(job, default=str).encode() + b"\n")
                    worker.process.stdin.flush()
            replies |= self._wait_for_workers()
        return replies

    def _start_worker(self) -> None:
        """Start a worker in a new session, so that Ctrl-C does not reach it."""
        environment = os.environ | {"PYTHONHASHSEED": "0"}
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        process = subprocess.Popen(self.command, env=environment, start_new_session=True, **pipes)
        self.workers.append(Worker(process, time.monotonic() + START_SECONDS))

    def _wait_for_workers(self) -> dict[int, str]:
        """Wait until a worker replies, dies or misses its deadline. Return, for each job that
        ended, its reply or cause of death."""
        busy = [worker for worker in self.workers if not worker.idle]
        seconds = min(worker.deadline for worker in busy) - time.monotonic()
        pipes = [worker.process.stdout for worker in busy]
        readable = multiprocessing.connection.wait(pipes, max(0.0, seconds))
        ended = {}
        for worker in busy:
            is_late = time.monotonic() >= worker.deadline
            pipe = worker.process.stdout
            if pipe not in readable and not is_late:
                continue
            line = pipe.readline() if pipe in readable else b""
            if not line:
                ended |= self._replace(worker, is_late)
            elif worker.ready:
                ended[worker.job] = line.decode().strip()
                worker.job = None
            elif line == b"ready\n":
                worker.ready = True
            else:
                raise PreparationError(line.decode().strip())
        return ended

    def _replace(self, worker: Worker, is_late: bool) -> dict[int, str]:
        """Start a worker in place of one that died or is late. Return the cause of death for its
        job. Raises WorkerError if it had not started."""
        self.workers.remove(worker)
        status = worker.kill()
        if not worker.ready:
            raise WorkerError(
                f"a worker did not start: exit status {status}; it may have printed why"
            )
        self._start_worker()
        return {worker.job: DEATHS.get(status, "timeout" if is_late else "crash")}

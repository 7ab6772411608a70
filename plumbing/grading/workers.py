"""Processes that can be killed: a line of JSON in, a line out, within limits on time and memory.

`Pool`, in the parent, hands jobs out; `serve`, in the program that it starts, does them. A worker
holds one job at a time: what it dies of is the answer to that job, and a fresh worker follows.
"""

import contextlib
import json
import multiprocessing.connection
import os
import resource
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from plumbing.errors import InputError

START_SECONDS = 120  # a worker that takes longer to start does not work
MAX_KILLED = 5  # workers in a row that somebody may kill while they start
NO_MEMORY = 4  # exit status of a worker
DEATHS = {-signal.SIGPROF: "timeout", -signal.SIGKILL: "timeout"}
DEATHS |= {-signal.SIGABRT: "memory", NO_MEMORY: "memory"}


def serve(prepare, cpu_seconds: float, memory_bytes: int) -> None:
    """A worker: answers lines of JSON, each a dict, with answer(**dict), a line, until the parent
    closes the pipe or dies. `answer` is what prepare() returns; what that has loaded by then does
    not count as memory. An InputError of prepare() is raised by the parent's Pool."""
    # Slurm sends it to every process of a step, and a rank that saves still has answers to grade.
    signal.signal(signal.SIGTERM, lambda *_: None)
    requests, replies = os.fdopen(os.dup(0), "rb"), os.dup(1)
    os.dup2(2, 1)  # what somebody's code prints must not be taken for an answer,
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)  # nor may it read the next question

    def say(line: str) -> None:
        os.write(replies, " ".join(line.split()).encode(errors="replace")[:2000] + b"\n")

    try:
        answer = prepare()
    except InputError as error:
        say(str(error))
        sys.exit(InputError.status)
    held = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (held + memory_bytes, held + memory_bytes))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    say("ready")
    for line in requests:
        # CPU time: a loaded machine changes no answer.
        signal.setitimer(signal.ITIMER_PROF, cpu_seconds)
        try:
            reply = answer(**json.loads(line))
        except MemoryError:
            os._exit(NO_MEMORY)
        finally:  # also where answer() raises: Python's exit takes CPU time of its own
            signal.setitimer(signal.ITIMER_PROF, 0)
        say(reply)


@dataclass(eq=False)
class Worker:
    """A process that owes a line until `deadline`: "ready", or the answer to `job`."""

    process: subprocess.Popen
    deadline: float
    ready: bool = False
    job: int | None = None

    @property
    def idle(self) -> bool:
        return self.ready and self.job is None

    def end(self) -> int:
        """Kills it, dead or alive, with what it has started. Returns its exit status."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.stdout.close()
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.close()
        return self.process.wait()


class Pool:
    """`size` workers, each a `command` that calls `serve`. wall_seconds: what one job may hold of
    workers whatever it does: half of it in each of two tries."""

    def __init__(self, command: list[str], size: int, wall_seconds: float):
        if size < 1:
            raise ValueError(f"workers is {size}: at least 1 is needed")
        self.command, self.size, self.wall_seconds = command, size, wall_seconds
        self.workers: list[Worker] = []
        self.killed = 0  # workers in a row that were killed while they started

    def start(self) -> None:
        """Starts the workers. Raises InputError with what a worker's prepare() found wrong, and
        RuntimeError if a worker cannot start."""
        for _ in range(self.size):
            self._add()
        self.settle()

    def settle(self) -> None:
        """Waits for workers that are starting in place of dead ones."""
        with self._closed_on_error():
            while not all(worker.ready for worker in self.workers):
                self._turn()

    def close(self) -> None:
        """Kills the workers."""
        while self.workers:
            self.workers.pop().end()

    def run(self, jobs: list) -> list[str]:
        """For each job, a dict that JSON can hold, the line it was answered with; or "timeout",
        "memory" or "crash", which is what its worker died of. A job whose worker died of anything
        but CPU time is tried once more: it may not have been its fault."""
        if not self.workers:
            raise RuntimeError("the workers are not running: use `with`")
        waiting, retried, replies = list(range(len(jobs))), set(), {}
        with self._closed_on_error():
            while len(replies) < len(jobs):
                for worker in [worker for worker in self.workers if worker.idle][: len(waiting)]:
                    self._hand(worker, waiting.pop(), jobs)
                for job, reply, guilty in self._turn():
                    if guilty or job in retried:
                        replies[job] = reply
                    else:
                        retried.add(job)
                        waiting.append(job)
        return [replies[job] for job in range(len(jobs))]

    @contextlib.contextmanager
    def _closed_on_error(self):
        """Also on Ctrl-C: a worker still owes a line, which must not meet the next question."""
        try:
            yield
        except BaseException:
            self.close()
            raise

    def _add(self) -> None:
        """One more worker, in a session of its own, which Ctrl-C does not reach."""
        how = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "start_new_session": True}
        process = subprocess.Popen(self.command, env=os.environ | {"PYTHONHASHSEED": "0"}, **how)
        self.workers.append(Worker(process, time.monotonic() + START_SECONDS))

    def _hand(self, worker: Worker, job: int, jobs: list) -> None:
        worker.job, worker.deadline = job, time.monotonic() + self.wall_seconds / 2
        with contextlib.suppress(BrokenPipeError):  # a dead worker shows as the end of its lines
            worker.process.stdin.write(json.dumps(jobs[job]).encode() + b"\n")
            worker.process.stdin.flush()

    def _turn(self) -> list[tuple[int, str, bool]]:
        """Waits until a worker speaks, dies or is late. Returns the jobs that ended, each with its
        answer or death, and whether that is surely its own."""
        owing = [worker for worker in self.workers if not worker.idle]
        patience = min(worker.deadline for worker in owing) - time.monotonic()
        pipes = [worker.process.stdout for worker in owing]
        spoken = multiprocessing.connection.wait(pipes, max(0.0, patience))
        ended = []
        for worker in owing:
            late = time.monotonic() >= worker.deadline
            if worker.process.stdout not in spoken and not late:
                continue
            line = worker.process.stdout.readline() if worker.process.stdout in spoken else b""
            if not line:
                self.workers.remove(worker)
                status = worker.end()
                if worker.ready:
                    guilty = status == -signal.SIGPROF
                    ended.append((worker.job, DEATHS.get(status, "crash"), guilty))
                else:  # one that somebody killed while it started may start the next time
                    self.killed += 1
                    by_others = status in (-signal.SIGKILL, -signal.SIGTERM)
                    if not by_others or late or self.killed > MAX_KILLED:
                        raise RuntimeError(f"a worker did not start: exit status {status}")
                self._add()
            elif worker.ready:
                ended.append((worker.job, line.decode().strip(), True))
                worker.job = None
            elif line == b"ready\n":
                worker.ready, self.killed = True, 0
            else:
                raise InputError(line.decode().strip())
        return ended

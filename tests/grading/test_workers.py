"""grading/workers.py: causes of death, limits, attempts and replacements of workers."""

import os
import signal
import subprocess
import sys
from contextlib import contextmanager

import pytest

from grading.workers import PrepareError, WorkerPool
from tests.helpers.models import ROOT

# A worker that executes the code in a job. A job may use 0.2 s of CPU time and 2^27 bytes.
PROGRAM = f"""
import os, sys, time
sys.path.insert(0, {str(ROOT)!r})
from grading.workers import serve
def prepare():
    PREPARE
    return lambda code: exec(code) or "done"
serve(prepare, 0.2, 1 << 27)
"""


def worker_command(prepare: str) -> list[str]:
    """The command of a worker."""
    return [sys.executable, "-c", PROGRAM.replace("PREPARE", prepare)]


@contextmanager
def running(size=2, wall_seconds=60.0, prepare="pass"):
    pool = WorkerPool(worker_command(prepare), size, wall_seconds)
    pool.start()
    yield pool
    pool.close()


def run(pool: WorkerPool, *codes: str) -> list[str]:
    return pool.run([{"code": code} for code in codes])


CAUSES = {
    "pass": "done",
    "while True: pass": "timeout",
    "bytearray(1 << 28)": "memory",
    "os.abort()": "memory",
    "os.kill(os.getpid(), 11)": "crash",
    "os._exit(9)": "crash",
    "sys.exit()": "crash",
}


def test_replies_keep_the_order_of_jobs_and_name_what_workers_died_of():
    with running() as pool:
        assert run(pool, *CAUSES, "pass") == [*CAUSES.values(), "done"]
        pool.start()  # none is missing
        assert len(pool.idle) == 2


def test_memory_of_prepare_does_not_count_and_prints_are_not_replies():
    with running(1, prepare="sys.held = bytearray(1 << 28)") as pool:
        code = "print('hello'); assert sys.stdin.read() == '' and len(sys.held) == 1 << 28"
        assert run(pool, code, "bytearray(1 << 26)") == ["done", "done"]


@pytest.mark.parametrize("wait", ["time.sleep(9)", "exec('while True: pass')"])
def test_a_job_that_times_out_is_tried_once_more_in_a_new_worker(tmp_path, wait):
    log = tmp_path / "attempts"
    code = f"open({str(log)!r}, 'a').write(f'{{os.getpid()}} '); "
    with running(2, wall_seconds=1.5) as pool:
        assert run(pool, code + wait) == ["timeout"]
        assert len({*log.read_text().split()}) == 2
        once = f"if len(open({str(log)!r}).read().split()) < 4: {wait}"
        assert run(pool, code + f"exec({once!r})") == ["done"]


def test_second_attempts_come_last_alone_and_end_after_four_timeouts(tmp_path):
    log, loop = tmp_path / "attempts", "while True: pass"
    codes = [f"open({str(log)!r}, 'a').write('{i}')\n{loop if i < 6 else ''}" for i in range(8)]
    with running(2) as pool:
        assert run(pool, *codes) == ["timeout"] * 6 + ["done"] * 2
    attempts = log.read_text()
    assert (sorted(attempts[:8]), attempts[8:]) == (list("01234567"), "0123")


def test_killed_workers_are_replaced():
    """They ignore SIGTERM: Slurm sends it to them too, when their rank is to save and to end."""
    with running() as pool:
        before = list(pool.idle)
        for worker in before:
            os.kill(worker.pid, signal.SIGTERM)
        assert run(pool, "pass", "pass") == ["done", "done"]
        assert {*pool.idle} == {*before}
        for worker in before:
            os.kill(worker.pid, signal.SIGKILL)
        assert run(pool, *["pass"] * 4) == ["done"] * 4
        assert len(pool.idle) == 2


def test_a_worker_whose_job_sleeps_ends_when_its_parent_is_killed():
    """The job, which knows its parent, sends the signal. stderr is closed when both have ended."""
    kill_and_sleep = "os.kill(os.getppid(), 9); time.sleep(999)"
    program = f"""
from grading.workers import WorkerPool
pool = WorkerPool({worker_command("pass")}, 1, 60.0)
pool.start()
pool.run([{{"code": {kill_and_sleep!r}}}])
"""
    line = [sys.executable, "-c", program]
    done = subprocess.run(line, cwd=ROOT, stderr=subprocess.PIPE, timeout=60)
    assert done.returncode == -signal.SIGKILL


def test_a_worker_that_would_start_again_with_edited_code_is_an_error(tmp_path):
    """Else some completions of a run would be graded by the old rules, and some by the new ones."""
    file = tmp_path / "rules.py"
    file.write_text("right = 1")
    prepare = f"sys.path.append({str(tmp_path)!r}); import rules"
    with running(1, prepare=prepare) as pool:
        assert run(pool, "os._exit(9)", "pass") == ["crash", "done"]
        file.write_text("right = 23")
        assert run(pool, "pass") == ["done"]
        with pytest.raises(PrepareError, match="has changed since the others started"):
            run(pool, "os._exit(9)")
        pool.start()  # another run begins
        assert run(pool, "os._exit(9)", "pass") == ["crash", "done"]


def test_a_pool_that_cannot_start_is_an_error():
    with pytest.raises(RuntimeError, match="a worker did not start: exit status 7"):
        running(1, prepare="sys.exit(7)").__enter__()
    with pytest.raises(PrepareError, match=r"\A--flag x: must be y\Z"):
        running(1, prepare=r"raise ValueError('--flag x:\nmust be y')").__enter__()

"""Kill a run at random moments, restart it, and compare it with an undisturbed run.

    python -m tests.stress.fault_injection --kills 30 --seed 0

The undisturbed run of the demo has 3 student ranks and a teacher rank, rank 3. The same command
then runs in another directory, where `kill -9` or SIGTERM hits each of TARGETS at each of MOMENTS.
Whenever such a run finishes it is compared, and the next one begins. A run is LOST if a start
fails, or if it differs in metrics (but times), selections, samples, evaluations, or one bit of the
exported weights. Prints a line for each strike and each run. Exit status 0: nothing lost.
"""

import contextlib
import itertools
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

from plumbing.command_line import count, natural
from plumbing.errors import InputError
from scripts import analysis
from tests.helpers.models import ROOT
from tests.helpers.ranks import assert_same_run

RANKS, STEPS = 4, 18
TARGETS = ("rank 0", "rank 1", "rank 2", "rank 3", "all ranks", "torchrun")
MOMENTS = ("start", "step", "checkpoint", "SIGTERM")  # SIGTERM: in a step
TIMEOUT_S = 300  # for any event


def launch(folder: Path) -> subprocess.Popen:
    """Start or resume the run under torchrun; append its output to FOLDER.log."""
    ranks = f"-m torch.distributed.run --nproc_per_node {RANKS}".split()
    flags = f"--preset demo --steps {STEPS} --eval_every 6 --checkpoint_every 2 --out".split()
    command = [sys.executable, *ranks, str(ROOT / "train.py"), *flags, str(folder)]
    settings = {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", "HF_HUB_OFFLINE": "1"}
    with folder.with_suffix(".log").open("a") as log:
        return subprocess.Popen(command, stdout=log, stderr=log, env=os.environ | settings)


def pids_of(folder: Path, target: str) -> list[int]:
    """Find the process ids of one of the run's ranks, or of all, as far as they exist by now."""
    pids = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):  # a process may end meanwhile
            settings = path.with_name("environ").read_text().split("\0")
            ranks = [f"rank {s.removeprefix('RANK=')}" for s in settings if s.startswith("RANK=")]
            chosen = ranks and target in ("all ranks", *ranks)
            if chosen and str(folder) in path.read_text().split("\0"):
                pids.append(int(path.parent.name))
    return pids


def wait_for(condition, job: subprocess.Popen | None = None) -> bool:
    """Wait until condition() is true; return False if the job ends before."""
    end = time.monotonic() + TIMEOUT_S
    while not condition():
        if job and job.poll() is not None:
            return False
        if time.monotonic() > end:
            raise TimeoutError(f"nothing happened for {TIMEOUT_S} s")
        time.sleep(0.001)
    return True


def last_step(folder: Path) -> int:
    path = folder / "metrics.jsonl"
    return path.read_text().count("\n") - 1 if path.exists() else -1


def half_written(folder: Path) -> bool:
    """Return whether a checkpoint is being written, or its writing was cut short."""
    return any(folder.glob("checkpoints/*.tmp"))


def strike(job: subprocess.Popen, folder: Path, target: str, moment: str, rng) -> bool:
    """Wait for the moment and send the signal; return False if the job ends before."""
    if moment == "start":
        time.sleep(rng.uniform(0.5, 12))
    else:  # after some steps of this start: a moment in a step, or while a checkpoint is written
        step, in_checkpoint = last_step(folder) + rng.integers(1, 4), moment == "checkpoint"
        if not wait_for(lambda: last_step(folder) >= step, job):
            return False
        if in_checkpoint and not wait_for(lambda: half_written(folder), job):
            return False
        time.sleep(rng.uniform(0, 0.06 if in_checkpoint else 1.2))
    if job.poll() is not None:
        return False
    for pid in pids_of(folder, target) or [job.pid]:  # torchrun, also where there is no rank yet
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGTERM if moment == "SIGTERM" else signal.SIGKILL)
    return True


def compare(job: subprocess.Popen, reference: Path, folder: Path) -> str:
    """Wait for the job's end; return "identical", or how it differs from the reference."""
    if status := job.wait(TIMEOUT_S):
        return f"LOST: exit status {status}"
    try:
        assert_same_run(reference, folder)
    except (AssertionError, OSError) as error:
        return f"LOST: {error}"
    return "identical"


def campaign(root: Path, kills: int, rng) -> bool:
    """Strike runs until one is lost or `kills` are used up; return whether none was lost."""
    reference, strikes, runs = root / "reference", 0, 0
    if launch(reference).wait(TIMEOUT_S):
        raise InputError(f"the undisturbed run failed: see {reference.with_suffix('.log')}")
    kinds = rng.permutation(list(itertools.product(TARGETS, MOMENTS))).tolist()
    while True:  # each turn is a start of a run
        folder, (target, moment) = root / f"run_{runs}", kinds[strikes % len(kinds)]
        job = launch(folder)
        if strikes < kills and strike(job, folder, target, moment, rng):
            job.wait(TIMEOUT_S)
            # Ranks that outlive torchrun would still write.
            wait_for(lambda folder=folder: not pids_of(folder, "all ranks"))
            strikes += 1
            half = ", a checkpoint is half written" if half_written(folder) else ""
            print(f"{folder.name}, strike {strikes}: {target}, {moment}{half}", flush=True)
            continue
        result, runs = compare(job, reference, folder), runs + 1
        print(f"{folder.name}: {result}", flush=True)
        if strikes == kills or result != "identical":
            return result == "identical"


def main(argv: list[str] | None = None) -> int:
    parser = analysis.parser(__doc__)
    parser.add_argument("--kills", type=count, default=30, help="number of strikes [30]")
    parser.add_argument("--seed", type=natural, default=0, help="of moments [0]")
    out = Path("runs/fault_injection")
    parser.add_argument("--out", type=Path, default=out, help="an empty directory [%(default)s]")
    args = parser.parse_args(argv)
    with analysis.one_line("fault_injection"):
        args.out.mkdir(parents=True, exist_ok=True)
        if any(args.out.iterdir()):
            raise InputError(f"--out {args.out} is not empty; choose another")
        identical = campaign(args.out.resolve(), args.kills, np.random.default_rng(args.seed))
    return int(not identical)


if __name__ == "__main__":
    sys.exit(main())

"""Kill a run at random moments, restart it, and compare it with an undisturbed run.

    python -m tests.stress.fault_injection --kills 30 --seed 0

The undisturbed run of the demo has 3 student ranks and a teacher rank, rank 3. The same command
then runs in another directory, where `kill -9` or SIGTERM hits each of TARGETS at each of MOMENTS.
Whenever such a run finishes it is compared, and the next one begins. A run is LOST if a start
fails, or if it differs in metrics (but times), selections, samples, evaluations, or one bit of the
exported weights. Prints a Markdown table. Exit status 0: nothing lost.
"""

import contextlib
import itertools
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

from plumbing.command_line import count, non_negative_int
from plumbing.errors import InputError
from plumbing.files import read_lines
from scripts.command import exit_on_error, make_parser
from tests.helpers.models import ROOT
from tests.helpers.ranks import assert_same_run

COMMAND = """-m torch.distributed.run --nproc_per_node 4 train.py --preset demo --steps 18
    --eval_every 6 --checkpoint_every 2 --out"""
TARGETS = ("rank 0", "rank 1", "rank 2", "rank 3", "all ranks", "torchrun")
MOMENTS = ("start", "step", "checkpoint", "SIGTERM")  # SIGTERM: in a step
TIMEOUT_S = 300  # for any event


def launch(folder: Path) -> subprocess.Popen:
    """Start or resume the run under torchrun; append its output to FOLDER.log."""
    command = [sys.executable, *COMMAND.split(), str(folder)]
    settings = {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", "HF_HUB_OFFLINE": "1"}
    with folder.with_suffix(".log").open("a") as log:
        return subprocess.Popen(
            command, stdout=log, stderr=log, env=os.environ | settings, cwd=ROOT
        )


def ranks_of(folder: Path) -> dict[str, int]:
    """Find the process ids of the run's ranks that exist by now, by name."""
    pids = {}
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):  # a process may end meanwhile
            if str(folder) in path.read_text().split("\0"):
                environment = path.with_name("environ").read_text()
                for rank in re.findall(r"(?:^|\0)RANK=(\d+)", environment):
                    pids[f"rank {rank}"] = int(path.parent.name)
    return pids


def wait_for(condition, job: subprocess.Popen | None = None) -> None:
    """Wait until condition() is true or the job ends."""
    end = time.monotonic() + TIMEOUT_S
    while not (condition() or (job and job.poll() is not None)):
        if time.monotonic() > end:
            raise TimeoutError(f"nothing happened for {TIMEOUT_S} s")
        time.sleep(0.001)


def last_step(folder: Path) -> int:
    return len(read_lines(folder / "metrics.jsonl", torn=True)) - 1


def half_written(folder: Path) -> bool:
    """Return whether a checkpoint is being written, or its writing was cut short."""
    return any(folder.glob("checkpoints/*.tmp"))


def strike(job: subprocess.Popen, folder: Path, target: str, moment: str, rng) -> bool:
    """Wait for the moment and send the signal; return False if the job ends before."""
    wait = 12
    if moment != "start":  # after some steps of this start
        step = last_step(folder) + rng.integers(1, 4)
        wait_for(lambda: last_step(folder) >= step, job)
        wait = 1.2
    if moment == "checkpoint":
        wait_for(lambda: half_written(folder), job)
        wait = 0.06
    time.sleep(rng.uniform(0, wait))
    if job.poll() is not None:
        return False
    ranks = ranks_of(folder)
    pids = ranks.values() if target == "all ranks" else [ranks.get(target, job.pid)]
    for pid in pids or [job.pid]:  # torchrun, also where there are no ranks yet
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGTERM if moment == "SIGTERM" else signal.SIGKILL)
    job.wait(TIMEOUT_S)
    wait_for(lambda: not ranks_of(folder))  # ranks that outlive torchrun would still write
    return True


def compare(job: subprocess.Popen, reference: Path, folder: Path) -> str:
    """Wait for the job's end; return "identical", or how it differs from the reference."""
    if status := job.wait(TIMEOUT_S):
        return f"LOST: exit status {status}"
    try:
        assert_same_run(reference, folder)
    except AssertionError as error:
        return f"LOST: {error}"
    return "identical"


def campaign(root: Path, kills: int, rng) -> bool:
    """Strike runs until one is lost or `kills` are used up, and print what happens; return whether
    all ended identical."""
    reference = root / "reference"
    if launch(reference).wait(TIMEOUT_S):
        raise InputError(f"the undisturbed run failed: see {reference.with_suffix('.log')}")
    kinds = rng.permutation(list(itertools.product(TARGETS, MOMENTS))).tolist()
    left = list(itertools.islice(itertools.cycle(kinds), kills))
    for run in itertools.count():
        folder = root / f"run_{run}"
        job = launch(folder)
        while left and strike(job, folder, *left[0], rng):
            target, moment = left.pop(0)
            cut = "yes" if half_written(folder) else ""
            print(f"| {run} | {target} | {moment} | {cut} | |", flush=True)
            job = launch(folder)
        result = compare(job, reference, folder)
        print(f"| {run} | | end of the run | | {result} |", flush=True)
        if not left or result != "identical":
            return result == "identical"


def main(argv: list[str] | None = None) -> int:
    parser = make_parser(__doc__, out="runs/fault_injection")  # a new directory
    parser.add_argument("--kills", type=count, default=30, help="number of strikes [30]")
    parser.add_argument("--seed", type=non_negative_int, default=0, help="of moments [0]")
    with exit_on_error("fault_injection"):
        args = parser.parse_args(argv)
        args.out.mkdir(parents=True)
        print("| run | target | moment | checkpoint cut short | result |\n|---|---|---|---|---|")
        rng = np.random.default_rng(args.seed)
        return int(not campaign(args.out.resolve(), args.kills, rng))


if __name__ == "__main__":
    sys.exit(main())

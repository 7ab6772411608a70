"""Kills a run at random moments and starts it again, to see that nothing is lost: a Markdown table.

    python -m scripts.fault_campaign --kills 30 --seed 0

One undisturbed run of the demo (3 student ranks, 1 teacher rank) is the reference. Then the same
command is started in another folder and struck again and again, by `kill -9` or SIGTERM of each of
TARGETS at each of MOMENTS. Whenever such a run gets to its end it is compared with the reference,
and a new one begins. At last one job under `torchrun --max-restarts` loses a student rank, and
later its teacher. Lost: a start that fails, or any difference in metrics (times aside), selections,
samples, evaluations, or one bit of the exported weights. Exit status 0 if nothing was lost. `--out`
keeps the folders.
"""

import contextlib
import itertools
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from plumbing import checkpoint
from plumbing.errors import InputError, say
from plumbing.files import read_lines
from plumbing.flags import Parser, count, natural, number
from scripts.report import table

ROOT = Path(__file__).resolve().parent.parent
RANKS = 4
TARGETS = ("rank 0", "rank 1", "rank 2", "teacher", "all ranks", "torchrun")
DAMAGE = "checkpoint, and damage"  # of a bit of the newest one
MOMENTS = ("start", "step", "checkpoint", DAMAGE, "SIGTERM")  # SIGTERM: in a step
PATIENCE = 300  # seconds for anything to happen
COMPARED = ("selections.jsonl", "samples.jsonl", "evals/*", "student/*.safetensors")
COMPARED += ("teacher/*.safetensors", "teacher/*/*.safetensors")


def launch(folder: Path, steps: int, restarts: int = 0) -> subprocess.Popen:
    """Starts the run, or goes on with it, under torchrun; what it prints is added to a file beside
    its folder."""
    ranks = f"-m torch.distributed.run --nproc_per_node {RANKS} --max-restarts {restarts}".split()
    flags = f"--preset demo --steps {steps} --eval_every 6 --checkpoint_every 2 --out".split()
    command = [sys.executable, *ranks, str(ROOT / "train.py"), *flags, str(folder)]
    settings = {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", "HF_HUB_OFFLINE": "1"}
    with folder.with_suffix(".log").open("a") as log:
        return subprocess.Popen(command, stdout=log, stderr=log, env=os.environ | settings)


def ranks_of(job: subprocess.Popen) -> dict[int, int]:
    """Rank -> process id, of those that torchrun has started by now."""
    ranks = {}
    with contextlib.suppress(OSError):  # a process may end while it is looked at
        for pid in Path(f"/proc/{job.pid}/task/{job.pid}/children").read_text().split():
            environment = Path(f"/proc/{pid}/environ").read_text()
            ranks |= {int(r): int(pid) for r in re.findall(r"(?:^|\0)RANK=(\d+)", environment)}
    return ranks


def alive(folder: Path) -> bool:
    """Whether any process of the run is left."""
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            if str(folder) in path.read_text().split("\0"):
                return True
    return False


def wait_for(what, job: subprocess.Popen | None = None) -> bool:
    """Waits until what() is true; returns False if the job ended before."""
    end = time.monotonic() + PATIENCE
    while not what():
        if job and job.poll() is not None:
            return False
        if time.monotonic() > end:
            raise TimeoutError(f"nothing happened for {PATIENCE} s")
        time.sleep(0.001)
    return True


def last_step(folder: Path) -> int:
    path = folder / "metrics.jsonl"
    return path.read_text().count("\n") - 1 if path.exists() else -1


def writing(folder: Path) -> bool:
    """Whether a checkpoint is being written, or its writing was cut short."""
    return any(folder.glob("checkpoints/*.tmp"))


def strike(job: subprocess.Popen, folder: Path, target: str, moment: str, rng) -> bool:
    """Waits for the moment and sends the signal; False if the job ended before its time came."""
    if moment == "start":
        time.sleep(rng.uniform(0.5, 12))
    else:  # some steps of this life first, then a moment in one or in the writing of a checkpoint
        step, in_checkpoint = last_step(folder) + rng.integers(1, 4), "checkpoint" in moment
        if not wait_for(lambda: last_step(folder) >= step, job):
            return False
        if in_checkpoint and not wait_for(lambda: writing(folder), job):
            return False
        time.sleep(rng.uniform(0, 0.06 if in_checkpoint else 1.2))
    if job.poll() is not None:
        return False
    ranks = ranks_of(job)
    victims = {f"rank {rank}": [pid] for rank, pid in ranks.items()}
    victims |= {"all ranks": [*ranks.values()], "teacher": victims.get(f"rank {RANKS - 1}")}
    for pid in victims.get(target) or [job.pid]:  # torchrun where there are no ranks yet
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGTERM if moment == "SIGTERM" else signal.SIGKILL)
    return True


def flip_a_bit(folder: Path, rng) -> str:
    """Damages a file of the newest checkpoint if there is one before it; returns which."""
    if len(steps := checkpoint.steps(folder)) < 2:
        return ""
    newest = checkpoint.folder_of(folder, steps[-1])
    files = sorted(path for path in newest.rglob("*") if path.is_file())
    path = files[rng.integers(len(files))]
    data = bytearray(path.read_bytes())
    data[rng.integers(len(data))] ^= 1
    path.write_bytes(data)
    return str(path.relative_to(folder / "checkpoints"))


def outcome(job: subprocess.Popen, reference: Path, folder: Path) -> str:
    """Waits for the job's end: "identical", or what two finished runs do not have in common."""
    if status := job.wait(PATIENCE):
        return f"LOST: exit status {status}"

    def timeless(path: Path) -> list[dict]:
        rows = read_lines(path / "metrics.jsonl")
        return [{k: v for k, v in r.items() if k != "seconds" and k[-2:] != "_s"} for r in rows]

    files = [path for names in COMPARED for path in sorted(reference.glob(names))]
    names = [path.relative_to(reference) for path in files]
    differ = [n for n in names if (reference / n).read_bytes() != (folder / n).read_bytes()]
    differ += [] if timeless(reference) == timeless(folder) else ["metrics.jsonl"]
    return f"LOST: {', '.join(map(str, differ))}" if differ else "identical"


def campaign(root: Path, kills: int, steps: int, rng) -> tuple[list[dict], list[str]]:
    """A record of each strike, and how each run ended: no more after one that lost something."""
    reference, records, ends = root / "reference", [], []
    if launch(reference, steps).wait(PATIENCE):
        raise InputError(f"the undisturbed run failed: see {reference.with_suffix('.log')}")
    kinds = rng.permutation(list(itertools.product(TARGETS, MOMENTS))).tolist()
    while True:  # each turn is a life of a run
        folder, n = root / f"run_{len(ends)}", len(records)
        job, (target, moment) = launch(folder, steps), kinds[n % len(kinds)]
        if n == kills or not strike(job, folder, target, moment, rng):
            ends.append(outcome(job, reference, folder))
            print(f"{folder.name}: {ends[-1]}", file=sys.stderr, flush=True)
            if n == kills or ends[-1] != "identical":
                return records, ends
            continue
        began = time.monotonic()
        job.wait(PATIENCE)
        # Ranks that outlive torchrun would still write.
        wait_for(lambda folder=folder: not alive(folder))
        record = {"run": len(ends), "struck": target, "while": moment}
        record |= {"half written": "checkpoint" in moment and writing(folder)}
        record |= {"last step logged": max(last_step(folder), 0)}
        record |= {"seconds to the end": f"{time.monotonic() - began:.1f}"}
        record |= {"damaged": flip_a_bit(folder, rng) if moment == DAMAGE else ""}
        records.append(record)
        print(json.dumps(record), file=sys.stderr, flush=True)


def restarted(root: Path, steps: int, rng) -> str:
    """One job under `torchrun --max-restarts 2` that loses a student rank, and later its teacher:
    what came of it."""
    folder = root / "restarted"
    job = launch(folder, steps, restarts=2)
    struck = strike(job, folder, "rank 1", "step", rng)
    struck = strike(job, folder, "teacher", "checkpoint", rng) and struck
    end = outcome(job, root / "reference", folder)
    return end if struck else f"LOST: it ended before it was struck; {end}"


def main(argv: list[str] | None = None) -> int:
    parser = Parser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=count, default=30, help="strikes in all [30]")
    parser.add_argument("--steps", type=number(int, 6), default=18, help="of a run [18]")
    parser.add_argument("--seed", type=natural, default=0, help="of moments and damage [0]")
    parser.add_argument("--out", type=Path, default=None, help="folder to keep [a temporary one]")
    try:
        args = parser.parse_args(argv)
        if args.out and args.out.exists() and any(args.out.iterdir()):
            raise InputError(f"--out {args.out} is not empty; choose another")
        with tempfile.TemporaryDirectory() as temporary:
            root, rng = (args.out or Path(temporary)).resolve(), np.random.default_rng(args.seed)
            root.mkdir(parents=True, exist_ok=True)
            records, ends = campaign(root, args.kills, args.steps, rng)
            again = restarted(root, args.steps, rng)
    except (ValueError, OSError) as error:
        say(error)
        return 2
    cut = sum(record["half written"] for record in records)
    note = f"{cut} while a checkpoint was being written. The {len(ends)} runs ended: "
    note += f"{', '.join(ends)}. A job under torchrun --max-restarts 2, struck twice: {again}."
    header = list(records[0]) if records else []
    rows = [list(record.values()) for record in records]
    print(table(f"{len(records)} strikes", header, rows, note))
    return int({*ends, again} != {"identical"})


if __name__ == "__main__":
    sys.exit(main())

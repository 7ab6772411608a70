#!/usr/bin/env python
"""Kill a run at random moments, start it again each time, and see that nothing was lost: a Markdown table.

    python scripts/fault_campaign.py --kills 30 --seed 0

One undisturbed run of the demo (3 student ranks, 1 teacher rank) is the reference. Then the same command is started in
another folder and struck again and again: `kill -9` of one rank, of all ranks at once, or of torchrun, while it starts,
in a step, while it writes a checkpoint, or SIGTERM. After some of the kills the newest checkpoint is damaged as well.
Whenever such a run gets to its end it is compared with the reference, and a new one begins. Lost: a start that fails,
or any difference in metrics (times aside), selections, samples, evaluations, or one bit of the exported weights.
Exit status 0 if nothing was lost. `--out` keeps the folders.
"""

import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
RANKS = 4
TARGETS = ["rank 0", "rank 1", "teacher", "all ranks", "torchrun", "rank 2"]
PHASES = ["step", "checkpoint", "start", "checkpoint", "step"]
PATIENCE = 300  # seconds for anything to happen


def launch(folder: Path, steps: int, restarts: int = 0) -> subprocess.Popen:
    """Starts the run, or goes on with it, under torchrun; what it prints is added to a file beside its folder."""
    torchrun = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--max-restarts",
        restarts,
        "--nproc_per_node",
        RANKS,
    ]
    flags = [
        "--preset",
        "demo",
        "--steps",
        steps,
        "--eval_every",
        6,
        "--checkpoint_every",
        2,
        "--out",
        folder,
    ]
    environment = os.environ | {
        "OMP_NUM_THREADS": "1",
        "CUDA_VISIBLE_DEVICES": "",
        "HF_HUB_OFFLINE": "1",
    }
    with folder.with_suffix(".log").open("a") as log:
        command = [str(x) for x in (*torchrun, ROOT / "train.py", *flags)]
        return subprocess.Popen(command, stdout=log, stderr=log, env=environment)


def ranks_of(job: subprocess.Popen) -> dict[int, int]:
    """Rank -> process id, of those that torchrun has started by now."""
    ranks = {}
    with contextlib.suppress(OSError):  # a process may end while it is looked at
        for pid in Path(f"/proc/{job.pid}/task/{job.pid}/children").read_text().split():
            environment = Path(f"/proc/{pid}/environ").read_text().split("\0")
            ranks |= {
                int(x.removeprefix("RANK=")): int(pid) for x in environment if x.startswith("RANK=")
            }
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


def strike(job: subprocess.Popen, folder: Path, target: str, phase: str, rng) -> bool:
    """Waits for the phase and sends the signal; False if the job ended before its time came."""
    if phase == "start":
        time.sleep(rng.uniform(0.5, 12))
    else:  # some steps of this life first, then a random moment in one or in the writing of a checkpoint
        target_step = last_step(folder) + rng.integers(1, 4)
        if not wait_for(lambda: last_step(folder) >= target_step, job):
            return False
        if phase == "checkpoint":
            if not wait_for(lambda: any(folder.glob("checkpoints/*.tmp")), job):
                return False
            time.sleep(rng.uniform(0, 0.06))
        else:
            time.sleep(rng.uniform(0, 1.2))
    if job.poll() is not None:
        return False
    ranks = ranks_of(job)
    victims = {
        "all ranks": list(ranks.values()),
        "torchrun": [job.pid],
        "teacher": [ranks.get(RANKS - 1, job.pid)],
    }
    victims |= {f"rank {r}": [ranks.get(r, job.pid)] for r in range(RANKS - 1)}
    for pid in victims[target] or [job.pid]:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGTERM if phase == "SIGTERM" else signal.SIGKILL)
    return True


def flip_a_bit(folder: Path, rng) -> str:
    """Damages a file of the newest checkpoint if there is one before it; returns which."""
    checkpoints = sorted(
        folder.glob("checkpoints/step_*[0-9]"), key=lambda p: int(p.name.removeprefix("step_"))
    )
    if len(checkpoints) < 2:
        return ""
    files = sorted(p for p in checkpoints[-1].rglob("*") if p.is_file())
    path = files[rng.integers(len(files))]
    data = bytearray(path.read_bytes())
    data[rng.integers(len(data))] ^= 1
    path.write_bytes(data)
    return str(path.relative_to(folder / "checkpoints"))


def differences(a: Path, b: Path) -> list[str]:
    """What two finished runs do not have in common."""

    def timeless(path):
        rows = [json.loads(line) for line in path.read_text().splitlines()]
        return [
            {k: v for k, v in row.items() if k != "seconds" and not k.endswith("_s")}
            for row in rows
        ]

    names = [
        "selections.jsonl",
        "samples.jsonl",
        *(f"evals/{p.name}" for p in sorted((a / "evals").iterdir())),
    ]
    names += [
        "student/model.safetensors",
        "teacher/backbone/model.safetensors",
        "teacher/head.safetensors",
    ]
    differ = [name for name in names if (a / name).read_bytes() != (b / name).read_bytes()]
    same_metrics = timeless(a / "metrics.jsonl") == timeless(b / "metrics.jsonl")
    return differ + ([] if same_metrics else ["metrics.jsonl"])


def campaign(root: Path, kills: int, steps: int, seed: int) -> list[dict]:
    """One record a strike: target, phase, where it was, what the next start did."""
    rng, records, runs = np.random.default_rng(seed), [], 0
    reference = root / "reference"
    if launch(reference, steps).wait(PATIENCE):
        raise RuntimeError(f"the undisturbed run failed: see {reference.with_suffix('.log')}")
    while len(records) < kills:
        folder, first, runs = root / f"run_{runs}", len(records), runs + 1
        while True:
            log = folder.with_suffix(".log")
            said = log.stat().st_size if log.exists() else 0
            job, n = launch(folder, steps), len(records)
            target, phase = TARGETS[n % len(TARGETS)], PHASES[n % len(PHASES)]
            if n % 10 == 9:
                target, phase = "torchrun", "SIGTERM"
            struck = n < kills and strike(job, folder, target, phase, rng)
            began = time.monotonic()
            code = job.wait(PATIENCE)
            wait_for(
                lambda folder=folder: not alive(folder)
            )  # ranks that outlive torchrun would still write
            output = log.read_text()[said:]
            if records[first:] and "resumed" not in records[-1]:  # what became of the strike before
                line = next(
                    (line for line in output.splitlines() if line.startswith("  steps ")), None
                )
                if line:
                    records[-1]["resumed"] = int(line.split()[1])
            if not struck:
                break
            records.append(
                {"run": folder.name, "target": target, "phase": phase, "at": last_step(folder)}
            )
            records[-1]["writing"] = phase == "checkpoint" and any(folder.glob("checkpoints/*.tmp"))
            records[-1]["end_s"] = time.monotonic() - began
            records[-1]["damaged"] = flip_a_bit(folder, rng) if n % 7 == 6 else ""
            print(json.dumps(records[-1]), file=sys.stderr, flush=True)
        failed = [f"exit status {code}"] if code else differences(reference, folder)
        for record in records[first:]:
            record["lost"] = failed
        print(f"{folder.name}: {'; '.join(failed) or 'identical'}", file=sys.stderr, flush=True)
        if failed:
            break
    return records


def restarted(root: Path, steps: int, rng) -> str:
    """One job under `torchrun --max-restarts 2` that loses a student rank, and later its teacher: what came of it."""
    folder = root / "restarted"
    job = launch(folder, steps, restarts=2)
    struck = [
        strike(job, folder, target, phase, rng)
        for target, phase in (("rank 1", "step"), ("teacher", "checkpoint"))
    ]
    code = job.wait(PATIENCE)
    failed = [f"exit status {code}"] if code else differences(root / "reference", folder)
    return f"LOST: {'; '.join(failed)}" if failed or not all(struck) else "identical"


def table(records: list[dict]) -> str:
    lines = [
        "| # | run | struck | while | last step logged | job over after | damaged too | went on from | end |"
    ]
    lines += ["|---|---|---|---|---|---|---|---|---|"]
    for i, r in enumerate(records, 1):
        phase = (
            "writing a checkpoint"
            if r["writing"]
            else r["phase"].replace("checkpoint", "end of a checkpoint")
        )
        end = f"LOST: {'; '.join(r['lost'])}" if r["lost"] else "identical"
        cells = (
            i,
            r["run"],
            r["target"],
            phase,
            max(r["at"], 0),
            f"{r['end_s']:.1f} s",
            r["damaged"],
        )
        lines.append(
            f"| {' | '.join(map(str, (*cells, r.get('resumed', 'it was killed again'), end)))} |"
        )
    lost = sum(bool(r["lost"]) for r in records)
    writing = sum(r["writing"] for r in records)
    lines += [
        "",
        f"{len(records)} strikes, {writing} while a checkpoint was being written: {lost} lost.",
    ]
    return "\n".join(lines)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=30, help="strikes in all [30]")
    parser.add_argument("--steps", type=int, default=18, help="steps of a run [18]")
    parser.add_argument("--seed", type=int, default=0, help="of the moments and the damage [0]")
    parser.add_argument("--out", type=Path, help="folder to keep; without it a temporary one")
    args = parser.parse_args(argv)
    if args.kills < 1 or args.steps < 6:
        print("error: --kills must be at least 1 and --steps at least 6", file=sys.stderr)
        return 2
    if args.out and args.out.exists() and any(args.out.iterdir()):
        print(f"error: --out {args.out} is not empty; choose another", file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory() as temporary:
        root = (args.out or Path(temporary)).resolve()
        root.mkdir(parents=True, exist_ok=True)
        records = campaign(root, args.kills, args.steps, args.seed)
        again = restarted(root, args.steps, np.random.default_rng(args.seed))
    print(table(records))
    print(f"One job under torchrun --max-restarts 2, struck at rank 1 and at its teacher: {again}.")
    return 1 if again != "identical" or any(r["lost"] for r in records) else 0


if __name__ == "__main__":
    sys.exit(main())

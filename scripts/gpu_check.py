#!/usr/bin/env python
r"""Where does the project stand on this card? One command: tests, speed, memory, whole runs.

    python -m scripts.gpu_check                    # all of it, about 20 minutes on an H100
    python -m scripts.gpu_check decode memory      # these parts alone
    python -m scripts.gpu_check --dry              # the same code, tiny, on a CPU, in two minutes

| part     | what it does |
|----------|---|
| tests    | the tests marked `gpu` |
| groups   | a student and a teacher process share the card: NCCL, gloo, checkpoint, resume |
| decode   | 48 rows x 2,048 tokens of the 1.5B shape, with and without graph, and the floor |
| train    | forward and backward: share of the card's matrix rate, SDPA and flash-attn |
| step     | one student rank's share of a paper step, by part (bench.py step) |
| memory   | peak memory of each preset, and the rows that fit 24, 80 and 141 GB |
| curve    | the demo's training curve on the card against the CPU's |
| resume   | a run that was stopped and continued against one that was not |

Each part runs in a process of its own (gpu_parts.py) with a time limit, and leaves PART.log and
PART.json in --out. A part that is done there, by the same code on the same device, is not done
again. One that fails or is stopped does not keep the others from running. The end is a table in
Markdown (summary.md). Exit status 1 if a part failed, 2 for bad input.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import time
import zlib
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PARTS = ("tests", "groups", "decode", "train", "step", "memory", "curve", "resume")


class Worker:
    """Starts parts: the command line of one, and where its output goes.

    This process never imports torch: nothing of it lies on the card while a part measures memory.
    """

    def __init__(self, out: Path, dry: bool, minutes: float, command: list[str] | None = None):
        self.out, self.minutes = out, minutes
        self.command = command or [sys.executable, "-m", "scripts.gpu_parts"]
        self.where = [sys.executable, "-m", "scripts.gpu_check"]
        self.flags = ["--out", str(out.resolve()), *["--dry"] * dry]
        self.environment = os.environ | {"PYTHONUNBUFFERED": "1", "HF_HUB_OFFLINE": "1"}
        if dry:
            self.environment |= {"CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}

    def run(self, part: str) -> str:
        """What went wrong, or "". Everything that the part started ends with it."""
        log = self.out / f"{part}.log"
        with log.open("w") as file:
            process = subprocess.Popen(
                [*(self.where if part == "where" else self.command), part, *self.flags],
                cwd=ROOT,
                env=self.environment,
                stdout=file,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # a group of its own, to be ended as one
            )
            try:
                status = process.wait(60 * self.minutes)
            except subprocess.TimeoutExpired:
                return f"stopped after {self.minutes:g} minutes: {last_line(log)}"
            finally:
                end_group(process)
        return f"status {status}: {last_line(log)}" if status else ""


def where(out: Path, dry: bool) -> int:
    """Writes where.json: what a result belongs to, by a checksum of all code."""
    import torch

    if not (dry or torch.cuda.is_available()):
        print("error: no CUDA device here: --dry runs the same code on a CPU", file=sys.stderr)
        return 2
    code = 0
    for path in sorted([*ROOT.glob("*.py"), *ROOT.glob("*/*.py")]):
        code = zlib.crc32(path.read_bytes(), code)
    here = {"device": "CPU, dry" if dry else torch.cuda.get_device_name()}
    here |= {name: version(name) for name in ("torch", "transformers")}
    mine = out / f"where.{os.getpid()}"  # two commands may be at work in one folder
    mine.write_text(json.dumps(here | {"code": f"{code:08x}"}))
    mine.replace(out / "where.json")
    return 0


def end_group(process: subprocess.Popen) -> None:
    """Ends what is left of a process and its children, and waits for it."""
    with suppress(ProcessLookupError):  # the usual end: nothing is left
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def last_line(log: Path) -> str:
    """What a part said last: its error, as a rule."""
    lines = [line for line in log.read_text(errors="replace").splitlines() if line.strip()]
    return lines[-1].strip() if lines else "it said nothing"


def read(path: Path) -> dict:
    """A part's JSON; {} where there is none, or a torn one."""
    try:
        return dict(json.loads(path.read_text()))
    except (OSError, ValueError, TypeError):
        return {}


def check(parts: list[str], worker: Worker, here: dict) -> list[dict]:
    """Runs each part not yet done `here` (device, versions, code): a row of the table for each."""
    rows = []
    for part in parts:
        path = worker.out / f"{part}.json"
        row = read(path)
        if row.get("done") and row.get("here") == here:
            rows.append(row | {"how": "done before"})
            continue
        path.unlink(missing_ok=True)
        print(f"{part} ...", end=" ", flush=True)
        start = time.monotonic()
        wrong = worker.run(part)
        found = read(path)
        if not (wrong or found):
            wrong = f"no result: {last_line(worker.out / f'{part}.log')}"
        row = {"part": part, "done": not wrong, "said": wrong or found.get("said", "")}
        row |= {"seconds": round(time.monotonic() - start, 1), "here": here, "found": found}
        path.write_text(json.dumps(row, indent=1) + "\n")
        print(f"{'FAILED' if wrong else 'ok'}, {row['seconds']:.0f} s", flush=True)
        rows.append(row | {"how": "FAILED" if wrong else "ok"})
    return rows


def summary(rows: list[dict], here: dict) -> str:
    """The table that ends the log."""
    lines = ["| part | | seconds | |", "|---|---|---|---|"]
    for row in rows:
        said = row["said"].replace("|", "/")
        lines.append(f"| {row['part']} | {row['how']} | {row['seconds']:.0f} | {said} |")
    facts = ", ".join(f"{name} {value}" for name, value in here.items())
    return "\n".join(["", *lines, "", f"`gpu_check`: {facts}"])


def complain(message: str) -> None:
    """argparse's, in one line."""
    raise ValueError(f"{message} (see --help)")


def main(argv: list[str] | None = None) -> int:
    """Returns the exit status: 0 all done, 1 a part failed, 2 bad input (one line on stderr)."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("parts", nargs="*", metavar="part", help="default: all of them")
    parser.add_argument("--out", type=Path, default=Path("runs/gpu_check"), help="%(default)s")
    parser.add_argument("--minutes", type=float, default=8.0, help="limit of a part (%(default)s)")
    parser.add_argument("--dry", action="store_true", help="tiny sizes, on a CPU")
    parser.error = complain
    try:
        args = parser.parse_args(argv)
        if args.parts == ["where"]:
            return where(args.out, args.dry)
        if unknown := [part for part in args.parts if part not in PARTS]:
            raise ValueError(f"unknown part {unknown[0]!r}: choose from {', '.join(PARTS)}")
        if not args.minutes > 0:
            raise ValueError(f"--minutes {args.minutes:g}: must be above 0")
        args.out.mkdir(parents=True, exist_ok=True)
        worker = Worker(args.out, args.dry, args.minutes)
        if wrong := worker.run("where"):
            raise ValueError(wrong.rpartition("error: ")[2])
        here = read(args.out / "where.json")
    except (ValueError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    rows = check(args.parts or list(PARTS), worker, here)
    text = summary(rows, here)
    (args.out / "summary.md").write_text(text.lstrip() + "\n")
    print(text)
    return 0 if all(row["done"] for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())

"""Where does the project stand on this card? One command: tests, speed, memory, whole runs.

    python -m scripts.gpu_check                    # all of it, about 20 minutes on an H100
    python -m scripts.gpu_check decode memory      # these parts alone
    python -m scripts.gpu_check --dry              # the same code, tiny, on a CPU, in two minutes

| part   | what it does |
|--------|---|
| tests  | the tests marked `gpu` |
| groups | a student and a teacher process share the card: NCCL, gloo, checkpoint, resume |
| decode | 48 rows x 2,048 tokens of the 1.5B shape, with and without CUDA graphs, and the floor |
| train  | an update on 20 rows of the 1.5B shape, and the floor |
| step   | one student rank's share of a paper step, by part (bench.py step) |
| memory | peak of an update of each preset that fits the card, beside the formula |
| curve  | the demo on the card against the CPU |
| resume | a run that was stopped and continued against one that was not |

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
from contextlib import suppress
from pathlib import Path

# This process never imports torch: nothing of it lies on the card while a part measures memory.
PARTS = ("tests", "groups", "decode", "train", "step", "memory", "curve", "resume")
COMMAND = [sys.executable, "-m", "scripts.gpu_parts"]


def run(command: list[str], log: Path, minutes: float, hidden: dict[str, str]) -> tuple[int, str]:
    """Exit status and last line of a part; all of its processes end with it."""
    environment = os.environ | {"PYTHONUNBUFFERED": "1", "HF_HUB_OFFLINE": "1"} | hidden
    with log.open("w") as file:
        how = {"stdout": file, "stderr": file, "start_new_session": True}  # to be ended as one
        process = subprocess.Popen(command, env=environment, **how)
        try:
            status, why = process.wait(60 * minutes), ""
        except subprocess.TimeoutExpired:
            status, why = 1, f"stopped after {minutes:g} minutes: "
        finally:
            with suppress(ProcessLookupError):  # the usual end: nothing is left
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    lines = log.read_text(errors="replace").strip().splitlines() or ["it said nothing"]
    return status, why + lines[-1]


def main(argv: list[str] | None = None) -> int:
    """Returns the exit status: 0 all done, 1 a part failed, 2 bad input (one line on stderr)."""
    how = {"formatter_class": argparse.RawDescriptionHelpFormatter}
    parser = argparse.ArgumentParser(description=__doc__, **how)
    add = parser.add_argument
    add("parts", nargs="*", choices=[*PARTS, "all"], default="all", help="default: %(default)s")
    add("--out", type=Path, default=Path("runs/gpu_check"), help="%(default)s")
    add("--minutes", type=float, default=8.0, help="limit of a part (%(default)s)")
    add("--dry", action="store_true", help="tiny sizes, on a CPU")
    args = parser.parse_args(argv)
    args.out.mkdir(parents=True, exist_ok=True)
    flags = ["--out", str(args.out), *["--dry"] * args.dry]
    hidden = {"CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"} if args.dry else {}
    lines, failed, here = ["| part | | seconds | |", "|---|---|---|---|"], False, {}
    for part in PARTS if "all" in args.parts else args.parts:
        print(f"{part} ...", end=" ", flush=True)
        began, log = time.monotonic(), args.out / f"{part}.log"
        status, said = run([*COMMAND, part, *flags], log, args.minutes, hidden)
        seconds = time.monotonic() - began
        if status == 2:  # what is wrong is so for all parts
            print(said, file=sys.stderr)
            return 2
        if status == 0:
            row = json.loads((args.out / f"{part}.json").read_text())
            seconds, said, here = row["seconds"], row["said"], row["here"]
        failed |= status != 0
        line = f"| {part} | {'FAILED' if status else 'ok'} | {seconds:.0f} |"
        lines.append(f"{line} {said.replace('|', '/')} |")
        print(line.split("|")[2].strip(), f"{seconds:.0f} s", flush=True)
    facts = ", ".join(f"{name} {value}" for name, value in here.items())
    text = "\n".join([*lines, "", f"`gpu_check`: {facts}", ""])
    (args.out / "summary.md").write_text(text)
    print(f"\n{text}", end="")
    return int(failed)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that a part ends with it
    sys.exit(main())

"""Check this code on a GPU: tests, speed, memory and whole runs.

    python -m benchmarks.gpu_check                  # all parts: 10 minutes on an H100, estimated
    python -m benchmarks.gpu_check step memory      # these parts
    python -m benchmarks.gpu_check --dry            # the same code at tiny sizes on a CPU

| part   | what it does |
|--------|---|
| tests  | `pytest -m gpu` |
| step   | `benchmarks.step` on a student rank's share of a paper step, also without CUDA graphs |
| memory | `benchmarks.memory --measure`: peak of an update of each preset beside the formula |
| resume | a student and a teacher process on one card: a resumed run ends as an uninterrupted one |

A part that fails does not stop the others. --out keeps the logs. Exit status 0: all passed; 1: a
part failed; 2: bad flags or no GPU.
"""

import os
import subprocess
import sys
import tempfile
import time
from argparse import Namespace
from pathlib import Path

import torch
from safetensors.torch import load_file

import train
from benchmarks.memory import DEMO_MODEL, known_presets
from benchmarks.step import provenance
from plumbing.command_line import file_path
from plumbing.errors import print_error
from scripts import analysis

ROOT = Path(train.__file__).resolve().parent
MINUTES = 8  # limit of each command
# 48 rows, as on a student rank in a paper step. 20 of them are live, a sixth of its 115.
STEP = "--shape qwen2.5-1.5b --sampler uniform --prompts_per_step 12 --group_size 4 --dead 0.6"
STEP += " --repeats 3"
DRY_STEP = "--sampler uniform --warmup 1 --repeats 1"
DRY_DEMO = "--prompts_per_step=12 --group_size=8 --candidates=2"


class CheckError(RuntimeError):
    """A command failed, or a property that must hold on a GPU does not."""


def run(log: Path, *command: str) -> list[str]:
    """Run `python COMMAND` with its output in `log`; return its lines. Raises CheckError if the
    command fails or exceeds MINUTES."""
    with log.open("w") as file:
        output = {"stdout": file, "stderr": file, "cwd": ROOT}
        try:
            done = subprocess.run([sys.executable, *command], **output, timeout=60 * MINUTES)
            status = done.returncode
        except subprocess.TimeoutExpired:
            status = f"stopped after {MINUTES} minutes"
    lines = log.read_text(errors="replace").strip().splitlines() or ["no output"]
    if status:
        error = next((line for line in lines if "error" in line.lower()), lines[-1])
        raise CheckError(f"{' '.join(command)}: status {status}: {error} (see {log})")
    return lines


def tests(args: Namespace) -> str:
    """The tests that need a GPU, one at a time because they share it."""
    command = ("-m", "pytest", "tests/gpu", "-m", "gpu", "-rs", "-n", "0")
    last = run(args.out / "tests.log", *command)[-1].strip("= ")
    if " passed" not in last and not args.dry:
        raise CheckError(f"no test of `pytest -m gpu` passed: {last}")
    return last


def step(args: Namespace) -> str:
    """Seconds of decoding and training, and how many times their floors these are."""
    results = []
    for name, flag in (("graphs", []), ("no_graphs", ["--no_graphs"])):
        flags = [*(DRY_STEP if args.dry else STEP).split(), *flag]
        lines = run(args.out / f"step-{name}.log", "-m", "benchmarks.step", *flags)
        results += [f"{name} {x}" for x in lines if x.startswith(("| rollout_s", "| train_s"))]
    return "; ".join(results)


def memory(args: Namespace) -> str:
    """GiB of an update of each preset, by formula and measured."""
    results = []
    for preset in ("demo",) if args.dry else known_presets():
        log = args.out / f"memory-{preset}.log"
        last = run(log, "-m", "benchmarks.memory", "--preset", preset, "--measure")[-1]
        results.append(f"{preset}: {last}")
    return ", ".join(results)


def resume(args: Namespace) -> str:
    """Distance of the weights after 2 + 2 steps of the demo, with a resume, from those after 4.

    On a CPU it must be 0. On a GPU some sums have no fixed order, so it is compared with the
    distance between two uninterrupted runs. Distances are shares of the weights' movement.
    """

    def weights(folder: Path) -> torch.Tensor:
        tensors = load_file(folder / "model.safetensors")
        return torch.cat([tensors[name].double().flatten() for name in sorted(tensors)])

    launcher = "-m torch.distributed.run --standalone --nproc_per_node=2 train.py --preset=demo"
    launcher += " --device=auto --teacher_ranks=1 --eval_every=2 " + (DRY_DEMO if args.dry else "")
    final = []
    with tempfile.TemporaryDirectory() as runs:
        for name, stops in {"whole": [4], "again": [4], "resumed": [2, 4]}.items():
            for steps in stops:
                flags = f"--steps={steps}", f"--out={runs}/{name}"
                run(args.out / f"resume-{name}-{steps}.log", *launcher.split(), *flags)
            final.append(weights(Path(runs, name, "student")))
    movement = (final[0] - weights(Path(DEMO_MODEL))).norm()
    if not movement:
        raise CheckError("no group had a gradient in 4 steps, so there is nothing to compare")
    again, resumed = (((other - final[0]).norm() / movement).item() for other in final[1:])
    result = f"resumed run {resumed:.3g} from the uninterrupted one, a second one {again:.3g}"
    if resumed > (0.0 if args.dry else max(0.01, 10 * again)):
        raise CheckError(result)
    return result


PARTS = {part.__name__: part for part in (tests, step, memory, resume)}


def main(argv: list[str] | None = None) -> int:
    """Run the parts. Returns the exit status."""
    parser = analysis.parser(__doc__)
    parser.add_argument("parts", nargs="*", choices=[*PARTS, "all"], default="all", help="[all]")
    out = {"type": file_path, "default": Path("runs/gpu_check")}
    parser.add_argument("--out", **out, help="[%(default)s]")
    parser.add_argument("--dry", action="store_true", help="tiny sizes, on a CPU")
    args = parser.parse_args(argv)
    os.environ |= {"HF_HUB_OFFLINE": "1"} | ({"CUDA_VISIBLE_DEVICES": ""} if args.dry else {})
    if not (args.dry or torch.cuda.is_available()):
        print_error("no CUDA device: --dry runs the same code on a CPU")
        return 2
    args.out = args.out.resolve()
    args.out.mkdir(parents=True, exist_ok=True)
    failed = False
    print(provenance(), flush=True)
    for name in PARTS if "all" in args.parts else args.parts:
        began = time.monotonic()
        try:
            result = f"passed: {PARTS[name](args)}"
        except CheckError as error:
            result, failed = f"FAILED: {error}", True
        print(f"{name}, {time.monotonic() - began:.0f} s, {result}", flush=True)
    print(f"logs: {args.out}")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())

"""Check this code on a GPU: tests, speed, memory and whole runs.

    python -m benchmarks.gpu_check                  # all parts: 10 minutes on an H100, estimated
    python -m benchmarks.gpu_check step memory      # these parts
    python -m benchmarks.gpu_check --dry            # the same code at tiny sizes on a CPU

| part   | what it does |
|--------|---|
| tests  | `pytest -m gpu` |
| step   | `benchmarks.step` on a student rank's share of a paper step, also without CUDA graphs |
| memory | peak of a step of the presets for one card, beside the estimate of `benchmarks.memory` |
| resume | a student and a teacher process on one card: a resumed run ends as an uninterrupted one |

A part that fails does not stop the others. Exit status 0: all passed; 1: a part failed; 2: bad
flags or no GPU.
"""

import os
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

import torch
from safetensors.torch import load_file

from benchmarks.memory import DEMO
from benchmarks.step import provenance
from plumbing.errors import print_error
from scripts import analysis

MINUTES = 8  # limit of each command
PARTS = ("tests", "step", "memory", "resume")
# 48 rows, as on a student rank in a paper step. 20 of them are live, a sixth of its 115.
SHARE = "--preset qwen2.5-1.5b --sampler uniform --prompts_per_step 12 --group_size 4"
DRY_DEMO = "--prompts_per_step=12 --group_size=8 --candidates=2"
RUNS = (("whole", 4), ("again", 4), ("resumed", 2), ("resumed", 4))  # name, --steps


class CheckError(RuntimeError):
    """A command failed, or a property that must hold on a GPU does not."""


def commands(part: str, dry: bool, runs: str) -> list[str]:
    """The commands of a part, without `python`. runs: where train.py writes."""
    step = f"-m benchmarks.step --random_weights --warmup 1 --repeats {1 if dry else 3}"
    if part == "tests":  # one at a time, because they share the GPU
        return ["-m pytest tests/gpu -m gpu -rs -n 0"]
    if part == "step":
        share = "--sampler uniform" if dry else SHARE
        return [f"{step} {share}", f"{step} {share} --no_graphs"]
    if part == "memory":
        presets = ["demo"] if dry else ["one-gpu", "smollm2"]
        return [f"{tool} --preset {x}" for x in presets for tool in ("-m benchmarks.memory", step)]
    train = "-m torch.distributed.run --standalone --nproc_per_node=2 train.py --preset=demo"
    train += " --device=auto --teacher_ranks=1 --eval_every=2 " + (DRY_DEMO if dry else "")
    return [f"{train} --steps={steps} --out={runs}/{name}" for name, steps in RUNS]


def run(command: str) -> None:
    """Run `python COMMAND`, and print what it prints. Raises CheckError if it fails or exceeds
    MINUTES."""
    print(f"$ python {command}", flush=True)
    line = [sys.executable, *shlex.split(command)]
    try:
        status = subprocess.run(line, cwd=DEMO.parent, timeout=60 * MINUTES).returncode
    except subprocess.TimeoutExpired as error:
        raise CheckError(f"{command}: stopped after {MINUTES} minutes") from error
    if status:
        raise CheckError(f"{command}: status {status}")


def weights(folder: Path) -> torch.Tensor:
    """All weights of a model, in one vector."""
    tensors = load_file(folder / "model.safetensors")
    return torch.cat([tensors[name].double().flatten() for name in sorted(tensors)])


def compare_resumed(runs: str, dry: bool) -> None:
    """Compare the weights after 2 + 2 steps of the demo, with a resume, with those after 4.

    On a CPU they must be equal. On a GPU some sums have no fixed order, so their distance is
    compared with that of two uninterrupted runs. Distances are shares of the weights' movement.
    Raises CheckError.
    """
    whole, again, resumed = (
        weights(Path(runs, name, "student")) for name in ("whole", "again", "resumed")
    )
    movement = (whole - weights(DEMO / "model")).norm()
    if not movement:
        raise CheckError("no group had a gradient in 4 steps, so there is nothing to compare")
    distance = ((resumed - whole).norm() / movement).item()
    usual = ((again - whole).norm() / movement).item()
    result = f"resumed run {distance:.3g} from the uninterrupted one, a second one {usual:.3g}"
    print(result)
    if distance > (0.0 if dry else max(0.01, 10 * usual)):
        raise CheckError(result)


def main(argv: list[str] | None = None) -> int:
    """Run the parts. Returns the exit status."""
    parser = analysis.parser(__doc__)
    parser.add_argument("parts", nargs="*", choices=PARTS, default=None, help="[all]")
    parser.add_argument("--dry", action="store_true", help="tiny sizes, on a CPU")
    args = parser.parse_args(argv)
    os.environ["HF_HUB_OFFLINE"] = "1"
    if args.dry:
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
    elif not torch.cuda.is_available():
        print_error("no CUDA device: --dry runs the same code on a CPU")
        return 2
    print(provenance(), flush=True)
    results = {}
    for part in args.parts or PARTS:
        with tempfile.TemporaryDirectory() as runs:
            try:
                for command in commands(part, args.dry, runs):
                    run(command)
                if part == "resume":
                    compare_resumed(runs, args.dry)
                results[part] = "passed"
            except CheckError as error:
                results[part] = f"FAILED: {error}"
    for part, result in results.items():
        print(f"{part}: {result}")
    return int({*results.values()} != {"passed"})


if __name__ == "__main__":
    sys.exit(main())

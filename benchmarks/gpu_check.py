"""Check this code on a GPU: run the commands below in order, and print the status of each.

    python -m benchmarks.gpu_check                  # 10 minutes on an H100, estimated

The tests that need a GPU; a student rank's share of a paper step; a step of the presets for one
card, beside the estimate of its memory; a student and a teacher process on one card, and a resume.
Exit status 0: all passed; 1: a command failed; 2: no GPU.
"""

import os
import shlex
import subprocess
import sys
import tempfile

import torch

from plumbing.config import ROOT
from plumbing.errors import print_error
from scripts.command import exit_on_error, make_parser

STEP = "-m benchmarks.step --random_weights --warmup 1 --repeats 3"
TRAIN = "-m torch.distributed.run --standalone --nproc_per_node 2 train.py --preset demo"
TRAIN += " --device auto --teacher_ranks 1 --eval_every 2"
COMMANDS = (  # of python; {runs}: a temporary directory
    "-m pytest tests/gpu -m gpu -rs -n 0",  # one at a time, because they share the GPU
    # 48 rows, as on a student rank in a paper step. 20 of them are live, a sixth of its 115.
    f"{STEP} --preset qwen2.5-1.5b --sampler uniform --prompts_per_step 12 --group_size 4",
    "-m scripts.memory --preset one-gpu",
    f"{STEP} --preset one-gpu",
    "-m scripts.memory --preset smollm2",
    f"{STEP} --preset smollm2",
    f"{TRAIN} --out {{runs}}/demo --steps 2",
    f"{TRAIN} --out {{runs}}/demo --steps 4",
)


def main(argv=None) -> int:
    """Run the commands. Returns the exit status."""
    with exit_on_error("gpu_check"):
        make_parser(__doc__).parse_args(argv)
    if not torch.cuda.is_available():  # the tests would be skipped, and a step take hours
        print_error("no CUDA device")
        return 2
    os.environ["HF_HUB_OFFLINE"] = "1"
    statuses = {}
    with tempfile.TemporaryDirectory() as runs:
        for command in COMMANDS:
            print(f"$ python {command}", flush=True)
            line = [sys.executable, *shlex.split(command.format(runs=runs))]
            statuses[command] = subprocess.run(line, cwd=ROOT).returncode
    for command, status in statuses.items():
        print(f"status {status}: python {command}")
    return int(any(statuses.values()))


if __name__ == "__main__":
    sys.exit(main())

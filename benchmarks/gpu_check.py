"""Check this code on a GPU: tests, speed, memory and whole runs.

    python -m benchmarks.gpu_check                  # all parts: 20 minutes on an H100, estimated
    python -m benchmarks.gpu_check step memory      # these parts
    python -m benchmarks.gpu_check --dry            # the same code at tiny sizes on a CPU

| part   | what it does |
|--------|---|
| tests  | `pytest -m gpu` |
| step   | `benchmarks.step` on a student rank's share of a paper step, also without CUDA graphs |
| counts | launches a decoded token, a student's and a teacher's update; captures, cudaMallocs and |
|        | host synchronisations of a step. Launches are counted as PyTorch ops, without graphs |
| memory | `benchmarks.memory --measure`: peak of an update of each preset beside the formula |
| resume | a student and a teacher process on one card: a resumed run ends as an uninterrupted one |
| curve  | the demo on the card and on the CPU differ by no more than seeds do |

A part that fails does not stop the others. --out keeps the logs and summary.md. Exit status 0: all
passed; 1: a part failed; 2: bad flags or no GPU.
"""

import os
import subprocess
import sys
import tempfile
import time
import warnings
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from statistics import fmean, median

import pandas as pd
import torch
from safetensors.torch import load_file
from scipy import stats
from torch.utils._python_dispatch import TorchDispatchMode

import train
from benchmarks.memory import known_presets
from benchmarks.step import DEMO_MODEL, configure, measured_steps, parser, provenance
from plumbing.command_line import file_path
from plumbing.distributed.layout import Layout
from plumbing.errors import print_error
from rollout import Generator
from scripts import analysis
from teacher import Teacher

ROOT = Path(train.__file__).resolve().parent
MINUTES = 8  # limit of each command
# 48 rows, as on a student rank in a paper step. 20 of them are live, a sixth of its 115.
STEP = "--shape qwen2.5-1.5b --sampler uniform --prompts_per_step 12 --group_size 4 --dead 0.6"
STEP += " --verify_workers 2 --repeats 3"
# Its teacher is in the same process. Random weights draw no end token: all rows have 64 tokens.
COUNTS = "--shape qwen2.5-1.5b --prompts_per_step 12 --group_size 4 --max_completion_tokens 64"
COUNTS += " --per_device_batch_size 1 --verify_workers 1"
DRY_COUNTS = "--prompts_per_step 4 --group_size 4 --candidates 2 --verify_workers 1"
DRY_STEP = "--sampler uniform --warmup 1 --repeats 1"
DRY_DEMO = ("--prompts_per_step=12", "--group_size=8", "--candidates=2")


class CheckError(RuntimeError):
    """A command failed, or a property that must hold on a GPU does not."""


def run(log: Path, *command: str, cpu=False) -> list[str]:
    """Run `python COMMAND` and append its output to `log`; with `cpu` it sees no GPU. Returns the
    log's lines. Raises CheckError if the command fails or exceeds MINUTES."""
    environment = os.environ | ({"CUDA_VISIBLE_DEVICES": ""} if cpu else {})
    with log.open("a") as file:
        output = {"stdout": file, "stderr": file, "env": environment, "cwd": ROOT}
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


def run_demo(log: Path, out: Path, steps: int, every: int, *flags: str, ranks=1, cpu=False) -> None:
    """Run or resume train.py --preset demo in the run directory `out`."""
    launcher = ["-m", "torch.distributed.run", "--standalone", f"--nproc_per_node={ranks}"]
    command = [*(launcher if ranks > 1 else []), "train.py", "--preset=demo", f"--steps={steps}"]
    command += [f"--eval_every={every}", f"--out={out}", "--device=auto", *flags]
    run(log, *command, cpu=cpu)


def tests(out: Path, dry: bool) -> str:
    """The tests that need a GPU, one at a time because they share it."""
    command = ("-m", "pytest", "tests/gpu", "-m", "gpu", "-rs", "-n", "0")
    last = run(out / "tests.log", *command)[-1].strip("= ")
    if " passed" not in last and not dry:
        raise CheckError(f"no test of `pytest -m gpu` passed: {last}")
    return last


def step(out: Path, dry: bool) -> str:
    """Seconds of decoding and training, and how many times their floors these are."""
    results = []
    for name, flags in (("", []), ("no graphs: ", ["--no_graphs"])):
        flags += (DRY_STEP if dry else STEP).split()
        lines = run(out / f"step{name[:2]}.log", "-m", "benchmarks.step", *flags)
        for row in (line.strip("| ").split(" | ") for line in lines):
            if row[0] in ("rollout_s", "train_s"):
                median, _, ratio = (cell.split()[0] for cell in row[1:])
                results.append(f"{name}{row[0]} {median} = {ratio} x floor")
    return ", ".join(results)


class Launches(TorchDispatchMode):
    """Count the operations that launch work on a device: all but views and allocations."""

    count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.count += not (func.is_view or "empty" in func.__name__ or "detach" in func.__name__)
        return func(*args, **(kwargs or {}))


def watch(owner, name: str) -> list[tuple]:
    """Return a list to which each call of a method adds its Launches and what it returned."""
    calls, method = [], getattr(owner, name)

    def watched(*args, **kwargs):
        with Launches() as mode:
            result = method(*args, **kwargs)
        calls.append((mode.count, result))
        return result

    setattr(owner, name, watched)
    return calls


def count(flags: str) -> None:
    """Take two steps of benchmarks.step in this process and print counts of the second one: its
    launches with --no_graphs, else what hinders graphs."""
    args, train_flags = parser(__doc__).parse_known_args(flags.split())
    config = configure(args.shape, train_flags)
    with closing(measured_steps(config, Layout(config), args, [0.5])) as steps:
        next(steps)
        if args.no_graphs:
            generate, updates = watch(Generator, "generate"), watch(train.Student, "update")
            teacher_updates = watch(Teacher, "_step")
            next(steps)
            longest = sum(max(len(o.ids) for o in completions) for _, completions in generate)
            counts = {
                "launches a decoded token": sum(n for n, _ in generate) / longest,
                "a student's update": updates[0][0],
                "a teacher's update": median(n for n, _ in teacher_updates),
            }
        else:
            captures, mallocs = watch(torch.cuda.CUDAGraph, "capture_begin"), device_mallocs()
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                if torch.cuda.is_available():
                    torch.cuda.set_sync_debug_mode("warn")
                next(steps)
            waits = [w for w in caught if "synchronizing CUDA operation" in str(w.message)]
            counts = {"captures": len(captures), "cudaMallocs": device_mallocs() - mallocs}
            counts["host synchronisations"] = len(waits)
    print(", ".join(f"{name} {n:,.0f}" for name, n in counts.items()))


def device_mallocs() -> int:
    return torch.cuda.memory_stats().get("num_device_alloc", 0)


def counts(out: Path, dry: bool) -> str:
    """Counts that decide how long the host takes, of a step of the paper's model."""
    results = []
    for flags in ("", " --no_graphs"):
        flags = (DRY_COUNTS if dry else COUNTS) + flags
        code = f"from benchmarks import gpu_check; gpu_check.count({flags!r})"
        results.append(run(out / "counts.log", "-c", code)[-1])
    return "; ".join(results)


def memory(out: Path, dry: bool) -> str:
    """GiB of an update of each preset, by formula and measured."""
    results = []
    for preset in ("demo",) if dry else known_presets():
        flags = ("--preset", preset, "--measure")
        last = run(out / "memory.log", "-m", "benchmarks.memory", *flags)[-1]
        results.append(f"{preset}: {last}")
    return ", ".join(results)


def resume(out: Path, dry: bool) -> str:
    """Distance of the weights after 2 + 2 steps, with a resume, from those after 4 steps.

    On a CPU it must be 0. On a GPU some sums have no fixed order, so it is compared with the
    distance between two uninterrupted runs. Distances are shares of the weights' movement.
    """
    flags = ["--teacher_ranks=1", *(DRY_DEMO if dry else ())]

    def weights(folder: Path) -> torch.Tensor:
        tensors = load_file(folder / "model.safetensors")
        return torch.cat([tensors[name].double().flatten() for name in sorted(tensors)])

    final = []
    with tempfile.TemporaryDirectory() as folder:
        for name, stops in {"whole": [4], "again": [4], "resumed": [2, 4]}.items():
            for steps in stops:
                run_demo(out / "resume.log", Path(folder, name), steps, 2, *flags, ranks=2)
            final.append(weights(Path(folder, name, "student")))
    movement = (final[0] - weights(Path(DEMO_MODEL))).norm()
    if not movement:
        raise CheckError("no group had a gradient in 4 steps, so there is nothing to compare")
    again, resumed = (((other - final[0]).norm() / movement).item() for other in final[1:])
    result = f"resumed run {resumed:.3g} from the uninterrupted one, a second one {again:.3g}"
    if resumed > (0.0 if dry else max(0.01, 10 * again)):
        raise CheckError(result)
    return result


def curve(out: Path, dry: bool) -> str:
    """Metrics of the demo on the card and on the CPU, and p of Welch's t-test over seeds.

    The runs are not equal: bf16 rounds differently from float32, so some tokens differ.
    """
    steps, seeds, flags = (2, 2, DRY_DEMO) if dry else (40, 3, ())
    jobs = [(side, seed) for side in ("card", "cpu") for seed in range(seeds)]
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor() as pool:

        def metrics(side: str, seed: int) -> pd.DataFrame:
            name = f"{side}{seed}"
            log, run_dir = out / f"curve-{name}.log", Path(folder, name)
            run_demo(log, run_dir, steps, steps, *flags, f"--seed={seed}", cpu=side == "cpu")
            return pd.read_json(run_dir / "metrics.jsonl", lines=True).set_index("step")

        logs = list(pool.map(metrics, *zip(*jobs, strict=True)))
    card, cpu = logs[:seeds], logs[seeds:]
    results = [f"largest logp_gap {max(log.logp_gap.max() for log in card):.3g}"]
    for key in ("reward_mean", "zero_variance", "grad_norm"):
        results.append(compare(key, card, cpu, first_step=1))
    results.append(compare("val_accuracy", card, cpu, first_step=steps))  # the last evaluation
    return ", ".join(results)


def compare(key: str, card: list[pd.DataFrame], cpu: list[pd.DataFrame], first_step: int) -> str:
    """Compare a metric's means from a step on, seeds on the card with seeds on the CPU. Raises
    CheckError where they differ more than seeds do."""
    on_card, on_cpu = ([log.loc[first_step:, key].mean() for log in logs] for logs in (card, cpu))
    p = stats.ttest_ind(on_card, on_cpu, equal_var=False).pvalue  # NaN if all are equal
    result = f"{key} {fmean(on_card):.4g} on card, {fmean(on_cpu):.4g} on CPU, p {p:.2g}"
    if p < 0.002:  # by chance in one of 125 checks, with four keys
        raise CheckError(f"card and CPU differ more than seeds do: {result}")
    return result


PARTS = {part.__name__: part for part in (tests, step, counts, memory, resume, curve)}


def run_part(name: str, out: Path, dry: bool) -> list[str]:
    """Run a part in place of its old logs; return its row of the summary."""
    for log in out.glob(f"{name}*.log"):
        log.unlink()
    began = time.monotonic()
    try:
        verdict, result = "passed", PARTS[name](out, dry)
    except CheckError as error:
        verdict, result = "FAILED", str(error)
    return [name, verdict, f"{time.monotonic() - began:.0f}", result.replace("|", "/")]


def main(argv: list[str] | None = None) -> int:
    """Run the parts. Returns the exit status."""
    parser = analysis.parser(__doc__)
    parser.add_argument("parts", nargs="*", choices=[*PARTS, "all"], default="all", help="[all]")
    out = {"type": file_path, "default": Path("runs/gpu_check")}
    parser.add_argument("--out", **out, help="[%(default)s]")
    parser.add_argument("--dry", action="store_true", help="tiny sizes, on a CPU")
    args = parser.parse_args(argv)
    os.environ |= {"HF_HUB_OFFLINE": "1"} | ({"CUDA_VISIBLE_DEVICES": ""} if args.dry else {})
    os.environ.setdefault("OMP_NUM_THREADS", "1" if args.dry else "2")
    if not (args.dry or torch.cuda.is_available()):
        print_error("no CUDA device: --dry runs the same code on a CPU")
        return 2
    out = args.out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    rows = []
    for name in PARTS if "all" in args.parts else args.parts:
        rows.append(run_part(name, out, args.dry))
        print(": ".join(rows[-1]), flush=True)
    text = analysis.markdown(["part", "", "seconds", "result"], rows)
    (out / "summary.md").write_text(f"{text}\n\n`gpu_check`: {provenance()}\n")
    print(f"logs and summary.md: {out}")
    return int(any(verdict == "FAILED" for _, verdict, _, _ in rows))


if __name__ == "__main__":
    sys.exit(main())

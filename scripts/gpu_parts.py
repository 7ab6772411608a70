r"""The parts of gpu_check.py. Each runs in a process of its own and prints what it found:

    python -m scripts.gpu_parts decode --out runs/gpu_check [--dry]

A part is a function of `Sizes` that returns what it found by name, for PART.json and the summary;
one that finds something wrong raises CheckError: exit status 1.
"""

import argparse
import gc
import json
import os
import subprocess
import sys
import tempfile
import time
import zlib
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path

import datasets
import numpy as np
import pandas as pd
import torch
import torch.distributed as dist
from safetensors.torch import load_file
from scipy import stats
from transformers import AutoTokenizer
from transformers.utils import is_flash_attn_2_available
from transformers.utils import logging as hf_logging

import rollout
import train
from scripts import bench, floors, measure

ROOT = Path(train.__file__).resolve().parent
GIB = 2**30


class CheckError(RuntimeError):
    """Something that should hold on a card does not; one line says what."""


@dataclass
class Sizes:
    """How large the parts are: a paper rank's share of a step, or (DRY) seconds on a CPU."""

    device: str = "cuda"
    shape: str = "qwen2.5-1.5b"
    prompt: int = 270  # tokens of each prompt of `decode` and `train`
    new: int = 2048
    groups: int = 3  # x 16 rows
    steps: int = 40  # of `curve`
    seeds: int = 3
    flags: dict = field(default_factory=dict)  # of the demo's runs


FEW = {"prompts_per_step": 12, "group_size": 8, "candidates": 2}
DRY = Sizes("cpu", measure.TOKENIZER, 6, 24, 1, 2, 2, FEW)


# --------------------------------------------------------------------------------------------------
# Whole runs of train.py


def demo_runs(jobs: dict[Path, list[str]], cpu=(), ranks: int = 1) -> None:
    """Runs train.py --preset demo for each folder with its flags, all at once; `cpu` see no card.

    Raises CheckError with the last line of one that failed.
    """
    runs = {}
    launcher = ["-m", "torch.distributed.run", "--standalone", f"--nproc_per_node={ranks}"]
    for out, flags in jobs.items():
        command = [sys.executable, *(launcher if ranks > 1 else []), str(ROOT / "train.py")]
        command += ["--preset", "demo", *flags, "--out", str(out)]
        environment = {"OMP_NUM_THREADS": "2"} | os.environ
        if out in cpu:
            environment["CUDA_VISIBLE_DEVICES"] = ""
        with out.with_suffix(".log").open("a") as log:
            runs[out] = subprocess.Popen(command, stdout=log, stderr=log, env=environment)
    for run in runs.values():
        run.wait()
    for out, run in runs.items():
        if run.returncode:
            text = out.with_suffix(".log").read_text()
            print(text[-8000:])
            said = [line for line in text.splitlines() if "rror" in line] or ["nothing"]
            what = f"train.py {' '.join(jobs[out])}: status {run.returncode}"
            raise CheckError(f"{what}: {said[-1]}")


def metrics(out: Path) -> pd.DataFrame:
    """A run's metrics, a row a step, from step 0."""
    return pd.read_json(out / "metrics.jsonl", lines=True).set_index("step")


def flags_of(s: Sizes, steps: int, every: int) -> list[str]:
    """A demo run's, which evaluates and saves every so many steps."""
    numbers = {"steps": steps, "eval_every": every, "checkpoint_every": every}
    return [f"--{name}={n}" for name, n in (numbers | s.flags).items()]


def tests(s: Sizes) -> dict:
    """The tests that need a card."""
    command = [sys.executable, "-m", "pytest", "-m", "gpu", "-rs", "-p", "no:cacheprovider"]
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    print(done.stdout[-20_000:])
    last = done.stdout.strip().rpartition("\n")[2]
    if done.returncode or (" passed" not in last and s is not DRY):
        raise CheckError(f"pytest -m gpu, status {done.returncode}: {last}")
    return {"pytest": last.strip("= ")}


def groups(s: Sizes) -> dict:
    """A student and a teacher process on one card: NCCL in a role, gloo between them; resumed."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "run"
        for steps in (2, 4):  # the second life begins at the first one's checkpoint
            demo_runs({out: ["--teacher_ranks=1", *flags_of(s, steps, 2)]}, ranks=2)
        log, device = metrics(out), json.loads((out / "config.json").read_text())["device"]
        saved = {path.name for path in (out / "checkpoints/step_4").iterdir()}
    if [*log.index] != [*range(5)] or not {"student", "teacher"} <= saved:
        raise CheckError(f"steps {[*log.index]}, checkpoint of {sorted(saved)}")
    found = {"device": device, "steps over a checkpoint of both roles": "2 + 2"}
    found["teacher updates"] = int(log.teacher_updates.iloc[-1])
    return found | {"seconds a step": log.seconds[1:].median()}


def curve(s: Sizes) -> dict:
    """The demo on the card and on the CPU, from the same seeds: apart by no more than seeds are.

    Not equal: bf16 rounds otherwise than float32, one token falls differently, and the runs part.
    """
    with tempfile.TemporaryDirectory() as folder:
        card, cpu = (
            [Path(folder) / f"{side}{seed}" for seed in range(s.seeds)] for side in ("card", "cpu")
        )
        flags = flags_of(s, s.steps, s.steps)
        demo_runs({out: [*flags, f"--seed={out.name[-1]}"] for out in card + cpu}, cpu)
        card, cpu = ([metrics(out) for out in side] for side in (card, cpu))
    found = {"largest logp_gap": max(log.logp_gap.max() for log in card)}
    for key in ("reward_mean", "zero_variance", "grad_norm", "val_accuracy"):
        first = s.steps if key == "val_accuracy" else 1  # a mean of all steps, or the end
        sides = [[log.loc[first:, key].mean() for log in side] for side in (card, cpu)]
        print(key, "on the card, on the CPU, by seed:", *sides)
        found |= {f"{key} on card": np.mean(sides[0]), f"{key} on CPU": np.mean(sides[1])}
        p = stats.ttest_ind(*sides, equal_var=False).pvalue  # Welch; nan where all are equal
        found[f"p of {key}"] = p
        if p < 0.002:  # once in 125 times by chance for any of the four
            raise CheckError(f"card and CPU differ by more than seeds do: {key} {sides}, p {p:.1e}")
    return found


def resume(s: Sizes) -> dict:
    """4 steps at once, 4 again, and 2 continued to 4: the same metrics and weights.

    On a CPU bit for bit. On a card some sums have no fixed order: two equal runs tell how much.
    """
    with tempfile.TemporaryDirectory() as folder:
        once, again, halves = (Path(folder) / name for name in ("once", "again", "halves"))
        whole = flags_of(s, 4, 2)
        demo_runs({once: whole, again: whole, halves: flags_of(s, 2, 2)})
        demo_runs({halves: whole})

        def weights(folder: Path) -> torch.Tensor:
            tensors = load_file(folder / "model.safetensors")
            return torch.cat([tensors[name].double().flatten() for name in sorted(tensors)])

        start, first, *others = map(
            weights, [ROOT / "demo/model", *(out / "student" for out in (once, again, halves))]
        )
        logs = [metrics(out) for out in (once, again, halves)]
    gone = (first - start).norm()
    if not gone:
        raise CheckError("no group had a gradient in 4 steps: nothing was compared")
    equal, continued = (((other - first).norm() / gone).item() for other in others)
    keys = ["reward_mean", "grad_norm", "completion_tokens", "teacher_loss", "val_accuracy"]
    other = (logs[0][keys].fillna(-1) != logs[2][keys].fillna(-1)).to_numpy().sum()
    found = {"metrics that differ": int(other), "weights apart, of their way": continued}
    found["of two equal runs"] = equal
    if continued > (0.0 if s is DRY else max(0.01, 10 * equal)):
        raise CheckError(f"the continued run is another: {found}")
    return found


# --------------------------------------------------------------------------------------------------
# A model on the card


@contextmanager
def random_model(shape: str, s: Sizes):
    """The folder of a model with random weights, for as long as it is needed."""
    with tempfile.TemporaryDirectory() as folder:
        measure.save_random_model(shape, None, 0, Path(folder), s.device, torch.bfloat16)
        yield folder


def made_up(lengths: list[tuple[int, int]], vocabulary: int = 80) -> rollout.Rollouts:
    """Rows of so many prompt and completion tokens; every prompt is another."""
    rng = np.random.default_rng(0)
    prompts, completions = (
        [rng.integers(3, vocabulary, n).tolist() for n in column]
        for column in zip(*lengths, strict=True)
    )
    logps = [[-1.0] * len(ids) for ids in completions]
    return rollout.Rollouts(prompts, completions, [False] * len(lengths), logps)


def seconds(s: Sizes, work) -> float:
    """How long `work` takes, to the end of what it started on the card."""
    wait = torch.cuda.synchronize if s.device == "cuda" else int
    wait()
    start = time.perf_counter()
    work()
    wait()
    return time.perf_counter() - start


def decode(s: Sizes) -> dict:
    """48 rows x 2,048 tokens, in ms a token, beside what reading weights and cache takes."""
    with random_model(s.shape, s) as folder:
        tokenizer = AutoTokenizer.from_pretrained(folder)
        generator = rollout.Generator(folder, torch.device(s.device), tokenizer)
    machine, config = floors.Machine.measure(s.device == "cuda"), generator.lm.config
    generator.stop_ids = [config.vocab_size]  # no such token: every row is full
    prompts = [p for p in made_up([(s.prompt, 1)] * s.groups).prompt_ids for _ in range(16)]
    lengths, size = [[n] * len(prompts) for n in (s.prompt, s.new)], generator.lm.dtype.itemsize
    shape = floors.Shape(config)
    least = floors.floors(shape, machine, *lengths, [], 16, 1, size)["rollout_s"]
    found = {"floor, ms a token": 1000 * least / s.new}
    for graph in [True, False] if generator.graph else [False]:
        generator.graph = graph
        generator.generate(prompts, 0.7, min(4, s.new), seed=0)  # kernels are chosen
        held = measure.reset_peak()
        took = seconds(s, lambda: generator.generate(prompts, 0.7, s.new, seed=0))
        found["with CUDA graphs" if graph else "without graphs"] = 1000 * took / s.new
        found["GiB above the weights"] = (measure.peak_bytes() - held) / GIB
    return found


def train_rate(s: Sizes) -> dict:
    """Forward and backward of 20 rows of many lengths, in bf16: share of the card's matrix rate."""
    lengths = [(s.prompt, s.new * (i + 1) // 20 or 1) for i in range(20)]
    rollouts, budget = made_up(lengths), 8 * (s.prompt + s.new)
    device, machine = torch.device(s.device), floors.Machine.measure(s.device == "cuda")
    with random_model(s.shape, s) as folder:
        policy = rollout.Policy(folder, device)
    policy.to(torch.bfloat16 if s.device == "cuda" else torch.float32)
    shape = floors.Shape(policy.lm.config)
    flops = sum(shape.forward_flops(p + n, floors.causal(p + n), n) for p, n in lengths)
    found = {"matrix rate, TFLOP/s": machine.rate / 1e12}
    flash = s.device == "cuda" and is_flash_attn_2_available()
    for attention in ["sdpa"] + ["flash_attention_2"] * flash:
        policy.lm.set_attn_implementation(attention)
        batches, _ = rollout.micro_batches(
            rollouts, list(range(20)), 0, 1, budget, 0, device, policy.packed
        )

        def work(batches=batches):
            for _, *inputs in batches:
                policy(*inputs, 0.7)[0].mean().backward()
            policy.zero_grad()

        took = min(seconds(s, work) for _ in range(4))  # the first one chooses kernels
        found[f"share of it, {attention}"] = 3 * flops / took / machine.rate
    return found


def step(s: Sizes) -> dict:
    """A student rank's share of a paper step by part: 48 rows, about 60% of them dead."""
    with tempfile.TemporaryDirectory() as folder:
        rows = Path(folder) / "rows.json"
        # 12 x 4 has 20 live rows, a sixth of a paper step's 115; 3 x 16 could only have 16 or 32.
        flags = "--sampler uniform --prompts_per_step 12 --group_size 4 --dead 0.6 --warmup 1 "
        flags += "--repeats 1 --question_tokens 4" if s is DRY else "--repeats 3"
        flags += f" --verify_workers 2 --max_completion_tokens {s.new} --json {rows}"
        if bench.main(["step", "--shape", s.shape, *flags.split()]):
            raise CheckError("bench.py step failed")
        found = pd.read_json(rows)
    parts = ["seconds", "rollout_s", "verify_s", "fwd_bwd_s", "step", "refresh", "peak_gib"]
    return found[parts].median().to_dict()


def update_peak(s: Sizes, shape: str, flags: list[str], rows: int) -> float:
    """GiB at the fullest moment of an update of two micro-batches of `rows` full rows, the second.

    AdamW has its moments then, and the first micro-batch's gradients lie there during the second.
    """
    gc.collect()  # the preset before
    torch.cuda.empty_cache()
    with random_model(shape, s) as folder:
        c = train.parse([*flags, "--sampler", "uniform", "--per_device_batch_size", str(rows)])
        c.model, held = folder, measure.reset_peak()
        layout = train.Layout(c)
        layout.connect(c)
        try:
            student = train.Student(c, layout, measure.UNREAD)
            rollouts = made_up([(c.max_prompt_tokens, c.max_completion_tokens)] * 2 * rows)
            for _ in range(2):
                measure.reset_peak()
                student.update(rollouts, torch.tensor([[0.0, 1.0] * rows]), learning_rate=1e-6)
        finally:
            dist.destroy_process_group()
    return (measure.peak_bytes() - held) / GIB


def memory(s: Sizes) -> dict:
    """Peak of one student rank alone at each preset's rows, beside the formula of bench.py fits."""
    room = 1e9 if s is DRY else floors.USABLE * torch.cuda.mem_get_info()[1] / GIB
    jobs = {name: ["--preset", name] for name in set(train.PRESETS) - {"demo"}}
    if s is DRY:
        jobs = {"demo": ["--preset", "demo", "--per_device_batch_size", "2"]}
    found = {}
    for name, flags in sorted(jobs.items()):
        c = train.parse(flags)
        kind, rows = floors.HUB.get(c.model, s.shape), c.per_device_batch_size
        shape = floors.Shape(floors.model_config(kind))
        tokens = rows * (c.max_prompt_tokens + c.max_completion_tokens)
        parts = floors.training_bytes(shape, tokens, c.activation_checkpointing)
        formula = (sum(parts.values()) + 2 * shape.parameters) / GIB  # with the generating copy
        found[f"{name} by formula"] = formula
        if formula < room:
            found[f"{name} measured"] = update_peak(s, kind, flags, rows)
        print(found, flush=True)  # there, should the time or the memory run out
    return found


# --------------------------------------------------------------------------------------------------

PARTS = {
    "tests": tests,
    "groups": groups,
    "decode": decode,
    "train": train_rate,
    "step": step,
    "memory": memory,
    "curve": curve,
    "resume": resume,
}


def where(dry: bool) -> dict:
    """What a result belongs to: the device, the versions, a checksum of all code."""
    code = 0
    for path in sorted([*ROOT.glob("*.py"), *ROOT.glob("*/*.py")]):
        code = zlib.crc32(path.read_bytes(), code)
    here = {"device": "CPU, dry" if dry else torch.cuda.get_device_name(), "code": f"{code:08x}"}
    return here | {name: version(name) for name in ("torch", "transformers")}


def main(argv: list[str] | None = None) -> int:
    """One part. Status 0: PART.json is there; 1: CheckError; 2: no card."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("part", choices=PARTS)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--dry", action="store_true")
    args = parser.parse_args(argv)
    if not (args.dry or torch.cuda.is_available()):
        print("error: no CUDA device here: --dry runs the same code on a CPU", file=sys.stderr)
        return 2
    here, result = where(args.dry), args.out / f"{args.part}.json"
    if result.exists() and json.loads(result.read_text())["here"] == here:
        return 0
    result.unlink(missing_ok=True)
    hf_logging.set_verbosity_error()
    hf_logging.disable_progress_bar()
    datasets.disable_progress_bars()
    start = time.monotonic()
    try:
        found = PARTS[args.part](DRY if args.dry else Sizes())
    except CheckError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    shown = {name: f"{x:.4g}" if isinstance(x, float) else x for name, x in found.items()}
    said = ", ".join(f"{name} {x}" for name, x in shown.items())
    row = {"here": here, "seconds": time.monotonic() - start, "said": said, "found": found}
    train.write_whole(result, json.dumps(row, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())

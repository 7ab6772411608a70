"""The parts of gpu_check.py, each run in a process of its own:

    python -m scripts.gpu_parts decode --out runs/gpu_check [--dry]

A part is a function of `Sizes`. It returns what it found, for PART.json and the summary; where
something that must hold does not, it raises CheckError, one line: exit status 1.
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
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

import numpy as np
import pandas as pd
import torch
import torch.distributed as dist
from safetensors.torch import load_file
from scipy import stats
from transformers import AutoTokenizer

import train
from plumbing.decoding import attention_for, run_as_it_is
from plumbing.errors import say
from plumbing.files import write_whole
from plumbing.ranks import Layout, begin_process
from rollout import Generator, Rollouts
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
    presets: tuple = tuple(sorted(set(train.PRESETS) - {"demo"}))  # of `memory`
    measured: str = "--repeats 3"  # steps of `step`
    steps: int = 40  # of `curve`
    seeds: int = 3
    flags: str = ""  # of the demo's runs


FEW = "--prompts_per_step=12 --group_size=8 --candidates=2"
ONE = "--warmup 1 --repeats 1 --question_tokens 4"
DRY = Sizes("cpu", measure.TOKENIZER, 6, 24, 1, ("demo",), ONE, 2, 2, FEW)


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
    statuses = {out: run.wait() for out, run in runs.items()}
    for out, status in statuses.items():
        if status:
            text = out.with_suffix(".log").read_text()
            print(text[-8000:])
            said = [line for line in text.splitlines() if "rror" in line] or ["nothing"]
            raise CheckError(f"train.py {' '.join(jobs[out])}: status {status}: {said[-1]}")


def metrics(out: Path) -> pd.DataFrame:
    """A run's metrics, a row a step, from step 0."""
    return pd.read_json(out / "metrics.jsonl", lines=True).set_index("step")


def flags_of(s: Sizes, steps: int, every: int) -> list[str]:
    """A demo run's, which evaluates and saves every so many steps."""
    return f"--steps={steps} --eval_every={every} --checkpoint_every={every} {s.flags}".split()


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
        log = metrics(out)
        saved = {path.name for path in (out / "checkpoints/step_4").iterdir()}
    if [*log.index] != [*range(5)] or not {"student", "teacher"} <= saved:
        raise CheckError(f"steps {[*log.index]}, checkpoint of {sorted(saved)}")
    updates = int(log.teacher_updates.iloc[-1])
    return {"teacher updates": updates, "seconds a step": log.seconds[1:].median()}


def curve(s: Sizes) -> dict:
    """The demo on the card and on the CPU, from the same seeds: apart by no more than seeds are.

    Not equal: bf16 rounds otherwise than float32, one token falls differently, and the runs part.
    """
    with tempfile.TemporaryDirectory() as folder:
        seeds = range(s.seeds)
        card, cpu = ([Path(folder) / f"{side}{i}" for i in seeds] for side in ("card", "cpu"))
        flags = flags_of(s, s.steps, s.steps)
        demo_runs({out: [*flags, f"--seed={out.name[-1]}"] for out in card + cpu}, cpu)
        card, cpu = ([metrics(out) for out in side] for side in (card, cpu))
    found = {"largest logp_gap": max(log.logp_gap.max() for log in card)}
    for key in ("reward_mean", "zero_variance", "grad_norm", "val_accuracy"):
        first = s.steps if key == "val_accuracy" else 1  # a mean of all steps, or the end
        sides = [[log.loc[first:, key].mean() for log in side] for side in (card, cpu)]
        p = stats.ttest_ind(*sides, equal_var=False).pvalue  # Welch; nan where all are equal
        found |= {f"{key} on card": np.mean(sides[0]), f"{key} on CPU": np.mean(sides[1])}
        found[f"p of {key}"] = p
        if p < 0.002:  # once in 125 times by chance for any of the four
            raise CheckError(f"card and CPU differ by more than seeds do: {key} {sides}, p {p:.1e}")
    return found


def resume(s: Sizes) -> dict:
    """4 steps at once, 4 again, and 2 continued to 4: the same weights, on a CPU bit for bit.

    On a card some sums have no fixed order: two equal runs tell how much that does.
    """
    with tempfile.TemporaryDirectory() as folder:
        once, again, halves = (Path(folder) / name for name in ("once", "again", "halves"))
        whole = flags_of(s, 4, 2)
        demo_runs({once: whole, again: whole, halves: flags_of(s, 2, 2)})
        demo_runs({halves: whole})

        def weights(folder: Path) -> torch.Tensor:
            tensors = load_file(folder / "model.safetensors")
            return torch.cat([tensors[name].double().flatten() for name in sorted(tensors)])

        first, *others = (weights(out / "student") for out in (once, again, halves))
    gone = (first - weights(ROOT / "demo/model")).norm()
    if not gone:
        raise CheckError("no group had a gradient in 4 steps: nothing was compared")
    equal, continued = (((other - first).norm() / gone).item() for other in others)
    found = {"weights apart, of their way": continued, "of two equal runs": equal}
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


def made_up(lengths: list[tuple[int, int]]) -> Rollouts:
    """Rows of so many prompt and completion tokens; every second one is right."""
    rng, B = np.random.default_rng(0), len(lengths)
    prompts, completions = [], []
    for prompt, completion in lengths:
        prompts.append(rng.integers(3, 80, prompt).tolist())
        completions.append(rng.integers(3, 80, completion).tolist())
    logps, rewards = [[-1.0] * n for _, n in lengths], [float(b % 2) for b in range(B)]
    return Rollouts(prompts, completions, [False] * B, logps, rewards)


def decode(s: Sizes) -> dict:
    """48 rows x 2,048 tokens, in ms a token, beside what reading weights and cache takes."""
    with random_model(s.shape, s) as folder:
        tokenizer = AutoTokenizer.from_pretrained(folder)
        generator = Generator(folder, torch.device(s.device), tokenizer)
    machine, config = floors.Machine.measure(s.device == "cuda"), generator.lm.config
    generator.stop_ids = [config.vocab_size]  # no such token: every row is full
    prompts = [p for p in made_up([(s.prompt, 1)] * s.groups).prompt_ids for _ in range(16)]
    lengths, size = [[n] * len(prompts) for n in (s.prompt, s.new)], generator.lm.dtype.itemsize
    least = floors.floors(floors.Shape(config), machine, *lengths, [], 16, 1, size)["rollout_s"]
    found = {"floor, ms a token": 1000 * least / s.new}
    ways = {"with CUDA graphs": generator.record, "without graphs": run_as_it_is}
    for name, generator.record in ways.items():
        generator.generate(prompts, 0.7, min(4, s.new), seed=0)  # kernels are chosen
        began = time.perf_counter()
        generator.generate(prompts, 0.7, s.new, seed=0)  # ends with the tokens on the host
        found[name] = 1000 * (time.perf_counter() - began) / s.new
    return found


ALONE = ["--sampler", "uniform", "--group_size", "2", "--max_rollout_tokens", "1"]


def update(s: Sizes, shape: str, c: train.Config, lengths) -> tuple[float, float]:
    """An update on such rows by a student rank alone: seconds, and GiB at the fullest moment.

    It is the second one: kernels are chosen, and AdamW has its moments.
    """
    gc.collect()  # the student before
    torch.cuda.empty_cache()
    held, layout = measure.reset_peak(), Layout(c)
    layout.connect(c.timeout_minutes)
    with random_model(shape, s) as c.model:
        student = train.Student(c, layout, verifier=None)
    rollouts = made_up(lengths)
    for step in (1, 2):
        measure.reset_peak()
        began = time.perf_counter()
        student.update(rollouts, step)
        if s.device == "cuda":
            torch.cuda.synchronize()
        took = time.perf_counter() - began
    dist.destroy_process_group()
    return took, (measure.peak_bytes() - held) / GIB


def train_rows(s: Sizes) -> dict:
    """An update on 20 rows of many lengths, beside what its FLOPs and bytes take."""
    config, machine = train.parse(ALONE), floors.Machine.measure(s.device == "cuda")
    lengths = [(s.prompt, s.new * (i + 1) // 20 or 1) for i in range(20)]
    shape, how = floors.Shape(floors.model_config(s.shape)), {"G": 2, "ranks": 1, "size": 2}
    floor = floors.floors(shape, machine, *zip(*lengths, strict=True), range(20), **how)["train_s"]
    took, _ = update(s, s.shape, config, lengths)
    used = attention_for(torch.device(s.device))
    return {"attention": used, "seconds": took, "floor": floor, "x floor": took / floor}


def step(s: Sizes) -> dict:
    """A student rank's share of a paper step: 48 rows, 60% of them dead. Its log has the floors."""
    # 12 x 4 has 20 live rows, a sixth of a paper step's 115; 3 x 16 could only have 16 or 32.
    flags = f"step --shape {s.shape} --sampler uniform --prompts_per_step 12 --group_size 4"
    flags += f" --dead 0.6 --verify_workers 2 --max_completion_tokens {s.new} {s.measured}"
    log = pd.DataFrame(bench.step(*bench.arguments(flags.split())))
    return log[["seconds", "rollout_s", "verify_s", "train_s", "peak_gib"]].median().to_dict()


def memory(s: Sizes) -> dict:
    """Peak of a student rank alone in an update of two micro-batches of full rows, the second of
    which finds the first one's gradients: of each preset, beside bench.py's formula."""
    found, room = {}, np.inf
    if s.device == "cuda":
        room = floors.USABLE * torch.cuda.mem_get_info()[1] / GIB
    for name in s.presets:
        c = train.parse(["--preset", name, *ALONE])
        kind = floors.HUB.get(c.model, c.model)
        shape = floors.Shape(floors.model_config(kind))
        formula = floors.memory_row(shape, None, c, 1, 0)["student"]
        found[f"{name} by formula"] = formula
        if formula < room:
            full = [(c.max_prompt_tokens, c.max_completion_tokens)] * 2 * c.per_device_batch_size
            found[f"{name} measured"] = update(s, kind, c, full)[1]
        print(found, flush=True)  # there, should the time or the memory run out
    return found


# --------------------------------------------------------------------------------------------------

PARTS = {"tests": tests, "groups": groups, "decode": decode, "train": train_rows, "step": step}
PARTS |= {"memory": memory, "curve": curve, "resume": resume}


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
        say("no CUDA device here: --dry runs the same code on a CPU")
        return 2
    here, result = where(args.dry), args.out / f"{args.part}.json"
    if result.exists() and json.loads(result.read_text())["here"] == here:
        return 0
    result.unlink(missing_ok=True)
    begin_process()
    began = time.monotonic()
    try:
        found = PARTS[args.part](DRY if args.dry else Sizes())
    except CheckError as error:
        say(error)
        return 1
    shown = {name: f"{x:.4g}" if isinstance(x, float) else x for name, x in found.items()}
    said = ", ".join(f"{name} {x}" for name, x in shown.items())
    row = {"here": here, "seconds": time.monotonic() - began, "said": said, "found": found}
    write_whole(result, json.dumps(row, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())

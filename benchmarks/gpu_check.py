"""Where does the project stand on this card? One command: tests, speed, memory, whole runs.

    python -m benchmarks.gpu_check                    # all of it, about 20 minutes on an H100
    python -m benchmarks.gpu_check decode memory      # these parts alone
    python -m benchmarks.gpu_check --dry              # the same code, tiny, on a CPU, in two minutes

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

Each part runs in a process of its own (`PART --here`) with a time limit, and leaves PART.log and
PART.json in --out. A part that is done there, by the same code on the same device, is not done
again. One that fails or is stopped does not keep the others from running. The end is a table in
Markdown (summary.md). Exit status 1 if a part failed, 2 for bad input.

A part is a function of `Sizes`. It returns what it found, for PART.json and the summary; where
something that must hold does not, it raises CheckError, one line.
"""

import gc
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import zlib
from contextlib import contextmanager, suppress
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
from benchmarks import bench, measure, roofline
from benchmarks.memory import USABLE, Shape, memory_row
from plumbing.decoding import attention_for, run_as_it_is
from plumbing.distributed.layout import Layout, begin_process
from plumbing.errors import print_error
from plumbing.files import write_atomic
from rollout import Generator, Rollouts
from scripts import analysis

ROOT = Path(train.__file__).resolve().parent
COMMAND = [sys.executable, "-m", "benchmarks.gpu_check"]
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
    alone = ["-o", "addopts="]  # one test at a time: they share the card
    command = [sys.executable, "-m", "pytest", "-m", "gpu", "-rs", "-p", "no:cacheprovider", *alone]
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
    machine, config = roofline.Machine.measure(s.device == "cuda"), generator.lm.config
    generator.stop_ids = [config.vocab_size]  # no such token: every row is full
    prompts = [p for p in made_up([(s.prompt, 1)] * s.groups).prompt_ids for _ in range(16)]
    lengths, size = [[n] * len(prompts) for n in (s.prompt, s.new)], generator.lm.dtype.itemsize
    least = roofline.floors(Shape(config), machine, *lengths, [], 16, 1, size)["rollout_s"]
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
    config, machine = train.parse(ALONE), roofline.Machine.measure(s.device == "cuda")
    lengths = [(s.prompt, s.new * (i + 1) // 20 or 1) for i in range(20)]
    shape, how = Shape(roofline.model_config(s.shape)), {"G": 2, "ranks": 1, "size": 2}
    floor = roofline.floors(shape, machine, *zip(*lengths, strict=True), range(20), **how)[
        "train_s"
    ]
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
        room = USABLE * torch.cuda.mem_get_info()[1] / GIB
    for name in s.presets:
        c = train.parse(["--preset", name, *ALONE])
        kind = roofline.HUB.get(c.model, c.model)
        shape = Shape(roofline.model_config(kind))
        formula = memory_row(shape, None, c, 1, 0)["student"]
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


def run(command: list[str], log: Path, minutes: float, hidden: dict[str, str]) -> tuple[int, str]:
    """Exit status and last line of a part; all of its processes end with it."""
    environment = os.environ | {"PYTHONUNBUFFERED": "1", "HF_HUB_OFFLINE": "1"} | hidden
    with log.open("w") as file:
        how = {"stdout": file, "stderr": file, "start_new_session": True}  # to be ended as one
        process = subprocess.Popen(command, env=environment, **how)
        try:
            status = process.wait(60 * minutes)
            why = f"signal {-status}: " if status < 0 else ""
        except subprocess.TimeoutExpired:
            status, why = 1, f"stopped after {minutes:g} minutes: "
        finally:
            with suppress(ProcessLookupError):  # the usual end: nothing is left
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    lines = log.read_text(errors="replace").strip().splitlines() or ["it said nothing"]
    return status, why + lines[-1]


def do(part: str, out: Path, dry: bool) -> int:
    """One part, in this process. Status 0: PART.json is there; 1: CheckError; 2: no card."""
    if not (dry or torch.cuda.is_available()):
        print_error("no CUDA device here: --dry runs the same code on a CPU")
        return 2
    here, result = where(dry), out / f"{part}.json"
    if result.exists() and json.loads(result.read_text())["here"] == here:
        return 0
    result.unlink(missing_ok=True)
    begin_process()
    began = time.monotonic()
    try:
        found = PARTS[part](DRY if dry else Sizes())
    except CheckError as error:
        print_error(error)
        return 1
    shown = {name: f"{x:.4g}" if isinstance(x, float) else x for name, x in found.items()}
    said = ", ".join(f"{name} {x}" for name, x in shown.items())
    row = {"here": here, "seconds": time.monotonic() - began, "said": said, "found": found}
    write_atomic(result, json.dumps(row, indent=1) + "\n")
    return 0


def main(argv: list[str] | None = None) -> int:
    """Returns the exit status: 0 all done, 1 a part failed, 2 bad input (one line on stderr)."""
    parser = analysis.parser(__doc__)
    add = parser.add_argument
    add("parts", nargs="*", choices=[*PARTS, "all"], default="all", help="default: %(default)s")
    add("--out", type=Path, default=Path("runs/gpu_check"), help="%(default)s")
    add("--minutes", type=float, default=8.0, help="limit of a part (%(default)s)")
    add("--dry", action="store_true", help="tiny sizes, on a CPU")
    add("--here", action="store_true", help="one part, in this process")
    args = parser.parse_args(argv)
    args.out.mkdir(parents=True, exist_ok=True)
    if args.here:
        return do(args.parts[0], args.out, args.dry)
    flags = ["--here", "--out", str(args.out), *["--dry"] * args.dry]
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

"""Measure where the seconds of a training step go, beside the least that this machine needs.

    python -m benchmarks.step                             # the demo in one process
    torchrun --nproc_per_node 8 -m benchmarks.step --shape qwen2.5-1.5b

Models of another --shape than the demo have random weights, the demo's tokenizer, made-up problems
and scripted rewards. Without --shape train.py's flags, such as --preset and --model, choose the
model. CPU seconds and peak memory are those of the student rank that uses most (on a GPU in a step,
on a CPU so far). `roofline.floors` computes the floors.
"""

import itertools
import os
import random
import re
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import torch
import torch.distributed as dist
import transformers
from transformers import AutoModelForCausalLM, AutoTokenizer

import train
from benchmarks.roofline import HUB, SHAPES, Machine, Shape, floors, model_config
from plumbing.command_line import Parser, count, first_line, fraction, natural
from plumbing.config import PRESETS
from plumbing.data.problems import Problems
from plumbing.distributed.channel import Channel, RemoteSampler, serve
from plumbing.distributed.layout import Layout
from plumbing.distributed.shutdown import begin_process, reject
from plumbing.files import write_lines
from scripts.analysis import table
from verify import Verdict, Verifier

DEMO_MODEL = str(Path(train.__file__).resolve().parent / "demo/model")
QUANTITIES = ("teacher_wait_s", "rollout_s", "verify_s", "gather_s", "train_s", "seconds")
QUANTITIES += ("tokens_a_second", "completion_tokens", "zero_variance", "forwarded_rows")
QUANTITIES += ("cpu_s", "peak_gib")


def save_random_model(shape: str, folder: Path, seed=0, device="cpu", dtype=torch.float32) -> None:
    """Write a causal LM of `shape` with random weights and the demo's tokenizer."""
    tokenizer = AutoTokenizer.from_pretrained(DEMO_MODEL)
    tokens = {name: getattr(tokenizer, name) for name in ("eos_token_id", "pad_token_id")}
    torch.manual_seed(seed)
    with torch.device(device):
        config = model_config(shape, bos_token_id=None, **tokens)
        lm = AutoModelForCausalLM.from_config(config, dtype=dtype)
    lm.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def model_of(args, config: train.Config) -> str:
    """Return the model whose shape is measured: --shape, or without it --model or the demo's."""
    return config.model if args.shape == "demo" else args.shape


def configure(shape: str, flags: list[str]) -> train.Config:
    """Config of the demo, here on any device, or for a larger shape of its preset with a made-up
    prompt. Raises InputError for an unknown shape."""
    preset = ["--preset", "demo", "--device", "auto"]
    if shape not in ("demo", "10m"):
        model_config(shape)  # raises InputError for an unknown shape
        # As long as App. M's prompt, about 170 tokens: each word is a token of the demo's.
        preset = ["--prompt_header", " balo" * 100, "--prompt_footer", " bami" * 70]
        preset += ["--preset", shape if shape in PRESETS else "qwen2.5-1.5b"]
    return train.parse([*preset, *flags])


def use_made_up_inputs(config: train.Config, args, folder: Path, write: bool) -> None:
    """Point config at random models and made-up problems in `folder`, and write them where `write`.
    The problems have args.question_tokens/2 to 3/2 times as many words of one token each. The demo
    keeps its model and problems."""
    if args.shape == "demo":
        return
    teacher = HUB.get(config.teacher_model) if args.shape in PRESETS else None
    for role, shape in {"model": args.shape, "teacher_model": teacher or args.shape}.items():
        path = folder / Path(shape).name
        setattr(config, role, str(path))
        if write and not path.exists():
            save_random_model(shape, path, config.seed)
    config.train_data = config.val_data = str(folder / "train.jsonl")
    if write:
        rng, n = random.Random(config.seed), args.question_tokens
        texts = [f"{i}{' balo' * rng.randint(n // 2, n * 3 // 2)}" for i in range(4_000)]
        rows = [{"problem": text, "expected_answer": "1"} for text in texts]
        write_lines(folder / "train.jsonl", rows)


def scripted_rewards(P: int, G: int, dead: float) -> list[float]:
    """P·G rewards: 0 in the first round(dead·P) groups, else 1 in every second row."""
    return [float(i >= round(dead * P) and g % 2) for i in range(P) for g in range(G)]


class ScriptedVerifier:
    """A verifier that returns scripted_rewards, or where `dead` is None the real verdicts.

    verifier: grades in either case, so that its time counts; None where grading shall cost nothing.
    """

    dead: float | None = None

    def __init__(self, config: train.Config, layout: Layout, verifier: Verifier | None):
        self.config, self.layout, self.verifier = config, layout, verifier

    def grade(self, texts: list[str], *golds) -> list[Verdict]:
        verdicts = self.verifier.grade(texts, *golds) if self.verifier else []
        if self.dead is None:
            return verdicts
        P, G = self.config.prompts_per_step, self.config.group_size
        _, rewards = self.layout.share(scripted_rewards(P, G, self.dead))
        rewards = rewards[: len(texts)]  # --resample_rounds may end with a round without rows
        return [Verdict(reward, "correct" if reward else "wrong") for reward in rewards]

    def check_golds(self, golds: list[str], *_) -> list[bool]:
        return [True] * len(golds)


def peak_gib() -> float:
    """Peak memory: on a GPU allocated since torch's peak was reset, on a CPU resident so far."""
    if torch.cuda.is_available():
        return torch.cuda.max_memory_allocated() / 2**30
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


def measured_steps(config, layout: Layout, args, dead_shares: list, grade=True) -> Iterator[dict]:
    """Take a train_step for each row that is asked for, on student ranks, until the iterator is
    closed. Teacher ranks serve until then.

    dead_shares: share of scripted dead groups (ScriptedVerifier.dead), step by step in turn. grade:
    also run the real verifier.

    Yields: a row of metrics.jsonl with tokens_a_second, cpu_s, peak_gib and "rows", the arguments
        prompt_B, new_B and live of roofline.floors.
    """
    with ExitStack() as stack:
        # The verifier's processes start before CUDA and the process group exist.
        grading = Verifier(workers=config.verify_workers, reward=config.reward) if grade else None
        if grading and not layout.is_teacher:
            stack.enter_context(grading)
        layout.connect(config.timeout_minutes)
        folder = layout.gather_world(stack.enter_context(tempfile.TemporaryDirectory()))[0]
        use_made_up_inputs(config, args, Path(folder), write=layout.rank == 0)
        layout.gather_world(None)
        problems = Problems(config.train_data)
        sampler = train.build_sampler(config, layout, problems)
        if layout.is_teacher:
            serve(sampler, Channel(layout), save=None)
        else:
            verifier = ScriptedVerifier(config, layout, grading)
            student = train.Student(config, layout, verifier)
            if args.no_graphs:
                student.generator.record = lambda step: step
            try:
                for step, verifier.dead in enumerate(itertools.cycle(dead_shares), 1):
                    yield measured_step(step, student, sampler, problems)
            except GeneratorExit:
                if isinstance(sampler, RemoteSampler):
                    sampler.stop(finished=False)
        layout.gather_world(None)  # before rank 0 deletes the folder
    dist.destroy_process_group()


def measured_step(number: int, student: train.Student, sampler, problems: Problems) -> dict:
    """Take one train_step and return its row, as measured_steps yields it."""
    layout, logged = student.layout, []
    if torch.cuda.is_available():
        torch.cuda.reset_peak_memory_stats()
    cpu_s = time.process_time()
    row = train.train_step(number, student, sampler, problems, lambda *x: logged.extend(x))
    used = layout.gather_role((time.process_time() - cpu_s, peak_gib()))
    row["cpu_s"], row["peak_gib"] = map(max, zip(*used, strict=True))
    row["tokens_a_second"] = row["total_tokens"] / row["seconds"]
    completions = [(group, o) for group in logged[1] for o in group.completions]
    prompt_B = [len(group.prompt_ids) for group, _ in completions]
    new_B = [len(completion.ids) for _, completion in completions]
    live = [b for b, (group, _) in enumerate(completions) if group.live]
    return row | {"rows": (prompt_B, new_B, live)}


def median_range(values: list[float]) -> str:
    """median (minimum to maximum), or a dash without values."""
    if not values:
        return "-"
    return f"{statistics.median(values):.4g} ({min(values):.4g} to {max(values):.4g})"


def steps_table(title: str, columns: dict[str, list[dict]]) -> str:
    """Table of QUANTITIES, with a column of medians and ranges for each list of rows."""
    lines = []
    for name in QUANTITIES:
        known = [[row[name] for row in rows if name in row] for rows in columns.values()]
        if any(known):
            lines.append([name, *map(median_range, known)])
    return table(title, ["of a step", *columns], lines, f"Medians (range); {provenance()}.")


def provenance() -> str:
    """The machine, library versions and commit that a measurement belongs to, in one line."""
    cpu = re.findall(r"model name\s*: (.+)", Path("/proc/cpuinfo").read_text()) or ["CPU"]
    gpu = f", {torch.cuda.get_device_name()}" if torch.cuda.is_available() else ""
    git = f"git -C {Path(__file__).parent} describe --always --dirty"
    failed, commit = subprocess.getstatusoutput(git)
    machine = f"{os.cpu_count()} cores {cpu[0]}{gpu}, {torch.get_num_threads()} threads a process"
    versions = f"torch {torch.__version__}, transformers {transformers.__version__}"
    return f"{machine}; {versions}; commit {'unknown' if failed else commit}"


def command(function: Callable) -> Callable:
    """Decorate the function of a command: it returns the exit status, 2 for bad flags or files."""

    def main(argv: list[str] | None = None) -> int:
        begin_process()
        try:
            function(argv)
        except (ValueError, OSError) as error:
            return reject(error)
        return 0

    return main


def parser(doc: str) -> Parser:
    """A command line with the flags of both timing commands."""
    flags = Parser(description=first_line(doc), epilog="Other flags are train.py's.")
    add = flags.add_argument
    add("--shape", default="demo", help=f"{', '.join(SHAPES)}, or a model [--model, the demo's]")
    add("--question_tokens", type=count, default=100, help="mean of made-up problems [100]")
    add("--repeats", type=count, default=10, help="steps measured [10]")
    add("--warmup", type=natural, default=2, help="steps before these [2]")
    add("--no_graphs", action="store_true", default=False, help="decode without CUDA graphs")
    return flags


def measure(argv: list[str] | None = None) -> list[dict]:
    """Measure steps and print their table on rank 0. Returns the rows of measured_steps."""
    flags = parser(__doc__)
    dead_help = "share of scripted dead groups [demo: graded; else 0.6]"
    flags.add_argument("--dead", type=fraction, default=None, help=dead_help)
    args, train_flags = flags.parse_known_args(argv)
    dead = 0.6 if args.dead is None and args.shape != "demo" else args.dead
    config = configure(args.shape, train_flags)
    layout = Layout(config)
    with closing(measured_steps(config, layout, args, [dead])) as steps:
        rows = list(itertools.islice(steps, args.warmup, args.warmup + args.repeats))
    if layout.rank == 0:
        shape = Shape(model_config(model_of(args, config)))
        print(table_beside_floors(rows, shape, config, layout), flush=True)
    return rows


def table_beside_floors(rows: list[dict], shape: Shape, config, layout: Layout) -> str:
    """Table of measured_steps' rows, of their floors on this machine, and of the ratios."""
    is_gpu = layout.device.type == "cuda"
    machine = Machine.measure(is_gpu)
    sizes = {"G": config.group_size, "ranks": layout.n_students, "size": 2 if is_gpu else 4}
    least = [floors(shape, machine, *row["rows"], **sizes) for row in rows]
    for floor in least:
        floor["seconds"] = sum(floor.values())
    ratios = [
        {name: row[name] / value for name, value in floor.items() if value}
        for row, floor in zip(rows, least, strict=True)
    ]
    title = (
        f"{shape.parameters / 1e6:,.2f} M parameters, "
        f"{config.prompts_per_step} x {config.group_size} completions, "
        f"ranks: {layout.n_students} student + {layout.n_teachers} teacher; "
        f"{machine.bandwidth / 1e9:.1f} GB/s, {machine.rate / 1e9:,.0f} GFLOP/s"
    )
    return steps_table(title, {"measured": rows, "floor": least, "x floor": ratios})


main = command(measure)

if __name__ == "__main__":
    sys.exit(main())

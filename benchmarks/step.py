"""Measure where the seconds of a training step go, beside the least that this machine needs.

    python -m benchmarks.step                             # the demo in one process
    torchrun --nproc_per_node 8 -m benchmarks.step --shape qwen2.5-1.5b
    python -m benchmarks.step --trl 96                    # beside TRL's GRPOTrainer, in turns

Models of another --shape than the demo have random weights, the demo's tokenizer, made-up problems
and scripted rewards. Without --shape train.py's flags, such as --preset and --model, choose the
model. CPU seconds and peak memory are those of the student rank that uses most (on a GPU in a step,
on a CPU so far).

--trl BATCH: TRL, with this per_device_train_batch_size, runs in a process of its own (trl_agreement
says how to install it). The two sides alternate, one step each, and the ratio is taken pair by
pair, so that a slow moment of the machine affects both. Equal on both sides: model, prompts, group
size, temperature, limits, learning rate, threads, float32, beta 0, and scripted rewards at no cost.
TRL generates a batch in one call, without gradient checkpointing, logging, saving, shuffling or a
second forward for old log-probs. Different by design: TRL forwards and backpropagates dead groups,
pads every micro-batch to the longest prompt and completion of the batch, computes entropies that it
does not use, and gathers metrics for its log; this project copies the weights into its generator.
"""

import importlib.util
import itertools
import multiprocessing
import os
import random
import re
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from argparse import Namespace
from collections.abc import Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
import torch.distributed as dist
import transformers
from torch.utils.benchmark import Timer
from transformers import AutoTokenizer

import train
from benchmarks.memory import HUB, SHAPES, Shape, model_config, peak_gib, save_random_model
from grpo import Group
from plumbing.command_line import Parser, count, first_line, fraction, natural
from plumbing.config import PRESETS
from plumbing.data.problems import Problems
from plumbing.distributed.channel import Channel
from plumbing.distributed.layout import Layout
from plumbing.distributed.shutdown import begin_process
from plumbing.errors import InputError
from plumbing.files import write_lines
from rollout import PromptEncoder
from scripts import analysis
from teacher import TeacherServer
from verify import Verdict, Verifier

QUANTITIES = ("teacher_wait_s", "rollout_s", "verify_s", "gather_s", "train_s", "seconds")
QUANTITIES += ("tokens_a_second", "completion_tokens", "zero_variance", "forwarded_rows")
QUANTITIES += ("cpu_s", "peak_gib")


# The least that a machine needs


def machine_speeds(cuda: bool) -> tuple[float, float]:
    """Bytes/s of a large copy (read + written) and FLOP/s of a square matrix product, best of 5
    each, in the dtype that generates: bfloat16 on a GPU, float32 on a CPU."""
    n, dtype = (8192, torch.bfloat16) if cuda else (2048, torch.float32)
    with torch.device("cuda" if cuda else "cpu"):
        a, m = torch.ones(2**28 if cuda else 2**26), torch.randn(n, n, dtype=dtype)
    variables = {"a": a, "b": torch.empty_like(a), "m": m}
    copy, product = (
        Timer(statement, globals=variables, num_threads=torch.get_num_threads())
        for statement in ("b.copy_(a)", "m @ m")
    )
    seconds = [min(timer.timeit(1).mean for _ in range(5)) for timer in (copy, product)]
    return 2 * a.nbytes / seconds[0], 2 * n**3 / seconds[1]


def floors(shape: Shape, speeds, groups: list[Group], ranks: int, size: int) -> dict[str, float]:
    """Least seconds that one of `ranks` student ranks needs for its share of a step: 2 FLOPs for
    each weight and token forward, 6 with backward, prompts once; and bytes. Attention's FLOPs are
    left out; nothing is padded or recomputed. size: bytes per number in the generator."""
    bandwidth, rate = speeds

    def tokens(groups: list[Group]) -> int:
        return sum(len(g.prompt_ids) + sum(len(o.ids) for o in g.completions) for g in groups)

    weights = shape.matrices + shape.head
    longest = max(len(o.ids) for group in groups for o in group.completions)
    # Every decoded token reads all weights. AdamW reads weight, gradient and two moments in float32
    # and writes all but the gradient; then the weights are copied for the generator.
    read = size * weights * longest
    moved = (28 / ranks + 4 + size) * shape.parameters
    rollout = max(2 * weights * tokens(groups) / ranks / rate, read / bandwidth)
    live = tokens([group for group in groups if group.live])
    train_s = 6 * weights * live / ranks / rate + moved / bandwidth
    return {"rollout_s": rollout, "train_s": train_s, "seconds": rollout + train_s}


# Steps with models and rewards of any size


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


def use_made_up_inputs(config: train.Config, args: Namespace, folder: Path, write: bool) -> None:
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
            save_random_model(shape, path)
    config.train_data = config.val_data = str(folder / "train.jsonl")
    if write:
        rng, n = random.Random(config.seed), args.question_tokens
        texts = [f"{i}{' balo' * rng.randint(n // 2, n * 3 // 2)}" for i in range(4_000)]
        rows = [{"problem": text, "expected_answer": "1"} for text in texts]
        write_lines(folder / "train.jsonl", rows)


def scripted_rewards(config: train.Config, dead: float) -> list[float]:
    """P·G rewards: 0 in the first round(dead·P) groups, else 1 in every second row."""
    P, G = config.prompts_per_step, config.group_size
    return [float(i >= round(dead * P) and g % 2) for i in range(P) for g in range(G)]


@dataclass
class ScriptedVerifier:
    """A verifier that returns scripted_rewards, at no cost."""

    config: train.Config
    layout: Layout
    dead: float

    def grade(self, texts: list[str], *golds) -> list[Verdict]:
        _, rewards = self.layout.share(scripted_rewards(self.config, self.dead))
        return [Verdict(reward, "correct" if reward else "wrong") for reward in rewards]

    def check_golds(self, golds: list[str], *_) -> list[bool]:
        return [True] * len(golds)


def measured_steps(config, layout: Layout, args: Namespace) -> Iterator[dict]:
    """Take a train_step for each row that is asked for, on student ranks, until the iterator is
    closed. Teacher ranks serve until then. Yields rows of metrics.jsonl with tokens_a_second,
    cpu_s, peak_gib, and the groups."""
    with ExitStack() as stack:
        verifier = ScriptedVerifier(config, layout, args.dead)
        if args.dead is None and not layout.is_teacher:  # before CUDA and the process group exist
            grading = Verifier(workers=config.verify_workers, reward=config.reward)
            verifier = stack.enter_context(grading)
        layout.connect(config.timeout_minutes)
        folder = layout.gather_world(stack.enter_context(tempfile.TemporaryDirectory()))[0]
        use_made_up_inputs(config, args, Path(folder), write=layout.rank == 0)
        layout.gather_world(None)
        problems = Problems(config.train_data)
        channel = Channel(layout) if layout.n_teachers else None
        if layout.has_sampler:
            sampler = train.build_sampler(config, layout, problems)
            if sampler.teacher:
                server = TeacherServer(sampler, config.teacher_lag)
                sampler = train.TeacherClient(config, server.latest, server.answer)
        else:
            send = partial(channel.send, "groups")
            sampler = train.TeacherClient(config, channel.receive, send)
        if layout.is_teacher:
            server.run(channel, save=lambda step: None)
        else:
            student = train.Student(config, layout, verifier)
            if args.no_graphs:
                student.generator.record = lambda step: step
            try:
                for step in itertools.count(1):
                    yield measured_step(step, student, sampler, problems)
            except GeneratorExit:
                if channel:
                    channel.send("stop", False)
                    channel.wait()
        layout.gather_world(None)  # before rank 0 deletes the folder
    dist.destroy_process_group()


def measured_step(number: int, student: train.Student, sampler, problems: Problems) -> dict:
    """Take one train_step and return its row, as measured_steps yields it."""
    logged = []
    if torch.cuda.is_available():
        torch.cuda.reset_peak_memory_stats()
    cpu_s = time.process_time()
    row = train.train_step(number, student, sampler, problems, lambda *x: logged.extend(x))
    used = student.layout.gather_role((time.process_time() - cpu_s, peak_gib()))
    row["cpu_s"], row["peak_gib"] = map(max, zip(*used, strict=True))
    row["tokens_a_second"] = row["total_tokens"] / row["seconds"]
    return row | {"step_groups": logged[1]}


# TRL


class SendSteps(transformers.TrainerCallback):
    """Sends the row of each of TRL's steps, then waits for a reply."""

    def __init__(self, pipe, row: dict):
        self.pipe, self.row = pipe, row
        self.began = None

    def on_step_begin(self, *_, **__):
        """Between two calls lie one whole step and the next step's batch of prompts."""
        if self.began:
            self.row["seconds"] = time.perf_counter() - self.began
            self.pipe.send(self.row)
            self.pipe.recv()
        self.began = time.perf_counter()


def trl_settings(config: train.Config, micro_batch: int) -> dict:
    """GRPOConfig's settings for a run that does the same work as train.py with `config`."""
    completions = config.prompts_per_step * config.group_size
    return {
        "seed": config.seed,
        "temperature": config.temperature,
        "num_generations": config.group_size,
        "max_completion_length": config.max_completion_tokens,
        "per_device_train_batch_size": micro_batch,
        "gradient_accumulation_steps": completions // micro_batch,
        "num_train_epochs": 1000,  # until it is killed
        "loss_type": "grpo",
        "beta": 0.0,
        "learning_rate": config.learning_rate,
        "lr_scheduler_type": "constant",
        "bf16": False,
        "model_init_kwargs": {"dtype": "float32"},
        "gradient_checkpointing": False,
        "use_cpu": not torch.cuda.is_available(),
        "logging_strategy": "no",
        "save_strategy": "no",
        "report_to": "none",
        "shuffle_dataset": False,
        "disable_tqdm": True,
    }


def run_trl(pipe, args: Namespace, train_flags: list[str]) -> None:
    """Run GRPOTrainer.train() in this process on the prompts that our sampler draws, in its order,
    with SendSteps."""
    from datasets import Dataset
    from trl import GRPOConfig, GRPOTrainer

    begin_process()
    warnings.filterwarnings("ignore")  # about settings that transformers has renamed
    config = configure(args.shape, train_flags)
    row = {}

    def reward(completion_ids, **_) -> list[float]:
        row["completion_tokens"] = sum(map(len, completion_ids))
        return scripted_rewards(config, args.dead)

    with tempfile.TemporaryDirectory() as folder:
        use_made_up_inputs(config, args, Path(folder), write=True)
        problems, P = Problems(config.train_data), config.prompts_per_step
        tokenizer = AutoTokenizer.from_pretrained(config.model)
        encode = PromptEncoder(config, tokenizer)
        sampler = train.build_sampler(config, train.build_layout(config), problems)
        steps = min(1000, len(problems) // P)
        groups = [group for _ in range(steps) for group in sampler.propose(P)]
        prompts = [{"prompt": encode.text(problems.question(g.problem))} for g in groups]
        GRPOTrainer(
            config.model,
            reward,
            GRPOConfig(folder, **trl_settings(config, args.trl)),
            Dataset.from_list(prompts),
            processing_class=tokenizer,
            callbacks=[SendSteps(pipe, row)],
        ).train()


def trl_steps(args: Namespace, train_flags: list[str]) -> Iterator[dict]:
    """Let TRL take one step for each row that is asked for. Raises InputError without TRL."""
    if not importlib.util.find_spec("trl"):
        raise InputError("TRL is not installed: benchmarks/trl_agreement.py says how")
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=run_trl, args=(theirs, args, train_flags))
    process.start()
    theirs.close()
    try:
        while True:
            yield ours.recv()
            ours.send("continue")
    except EOFError as error:
        raise InputError("the TRL process ended: its error is printed above") from error
    finally:
        process.kill()
        process.join()


def measured_pairs(ours: Iterator[dict], theirs: Iterator[dict], warmup: int, repeats: int) -> dict:
    """Measure one step of each side in turn, and print a line for each pair. Returns the rows of
    both sides, and the ratios of each pair."""
    next(theirs)  # not measured: TRL begins its first step before it is asked for one
    columns = {"ours": [], "TRL": [], "ours / TRL, pairs": []}
    for i in range(-warmup, repeats):
        if i % 2:  # the first side changes from pair to pair
            trl, own = next(theirs), next(ours)
        else:
            own, trl = next(ours), next(theirs)
        pair = own, trl, {name: own[name] / trl[name] for name in trl}
        print("ours {:.2f} s, TRL {:.2f} s, ratio {:.3f}".format(*(row["seconds"] for row in pair)))
        if i >= 0:
            for rows, row in zip(columns.values(), pair, strict=True):
                rows.append(row)
    return columns


# The command


def steps_table(title: str, columns: dict[str, list[dict]]) -> str:
    """Table of QUANTITIES, with a column of medians and ranges for each list of rows."""
    lines = []
    for name in QUANTITIES:
        cells = []
        for rows in columns.values():
            known = [row[name] for row in rows if name in row]
            middle = statistics.median(known) if known else 0.0
            cells.append(f"{middle:.4g} ({min(known):.4g} to {max(known):.4g})" if known else "-")
        lines.append([name, *cells])
    note = f"Medians (range); {provenance()}."
    return analysis.table(title, ["of a step", *columns], lines, note)


def provenance() -> str:
    """The machine, library versions and commit that a measurement belongs to, in one line."""
    cpu = re.search(r"model name\s*: (.+)|$", Path("/proc/cpuinfo").read_text())[1]
    gpu = f", {torch.cuda.get_device_name()}" if torch.cuda.is_available() else ""
    commit = subprocess.getoutput(f"git -C {Path(__file__).parent} describe --always --dirty")
    machine = f"{os.cpu_count()} cores {cpu}{gpu}, {torch.get_num_threads()} threads a process"
    versions = f"torch {torch.__version__}, transformers {transformers.__version__}"
    return f"{machine}; {versions}; commit {commit}"


def measure(args: Namespace, train_flags: list[str]) -> None:
    """Measure steps and print their table beside their floors on rank 0."""
    if args.dead is None and args.shape != "demo":
        args.dead = 0.6
    config = configure(args.shape, train_flags)
    layout = train.build_layout(config)
    model = config.model if args.shape == "demo" else args.shape
    with closing(measured_steps(config, layout, args)) as steps:
        rows = list(itertools.islice(steps, args.warmup, args.warmup + args.repeats))
    if layout.rank == 0:
        is_gpu = layout.device.type == "cuda"
        shape, speeds = Shape(model_config(model)), machine_speeds(is_gpu)
        sizes = layout.n_students, 2 if is_gpu else 4
        least = [floors(shape, speeds, row["step_groups"], *sizes) for row in rows]
        pairs = zip(rows, least, strict=True)
        ratios = [{name: row[name] / floor[name] for name in floor} for row, floor in pairs]
        title = (
            f"{shape.parameters / 1e6:,.2f} M parameters, "
            f"{config.prompts_per_step} x {config.group_size} completions, "
            f"ranks: {layout.n_students} student + {layout.n_teachers} teacher; "
            f"{speeds[0] / 1e9:.1f} GB/s, {speeds[1] / 1e9:,.0f} GFLOP/s"
        )
        columns = {"measured": rows, "floor": least, "x floor": ratios}
        print(steps_table(title, columns), flush=True)


def compare_with_trl(args: Namespace, train_flags: list[str]) -> None:
    """Measure steps of both sides and print their table."""
    args.dead = 0.6 if args.dead is None else args.dead
    # Scripted rewards teach nothing, so a small rate keeps the model as it is.
    flags = ["--learning_rate", "1e-6", *train_flags, "--sampler", "uniform"]
    config = configure(args.shape, flags)
    if config.bf16:
        raise InputError("--bf16: TRL's side computes in float32")
    our_steps = measured_steps(config, train.build_layout(config), args)
    with closing(trl_steps(args, flags)) as theirs, closing(our_steps) as ours:
        columns = measured_pairs(ours, theirs, args.warmup, args.repeats)
    completions = config.prompts_per_step * config.group_size
    title = f"{args.shape}, {completions} completions, {args.dead:.0%} dead groups, "
    print(steps_table(f"{title}TRL's micro-batch {args.trl}", columns))


def parser() -> Parser:
    """The command line."""
    flags = Parser(description=first_line(__doc__), epilog="Other flags are train.py's.")
    add = flags.add_argument
    add("--shape", default="demo", help=f"{', '.join(SHAPES)}, or a model [--model, the demo's]")
    add("--question_tokens", type=count, default=100, help="mean of made-up problems [100]")
    add("--repeats", type=count, default=10, help="steps measured [10]")
    add("--warmup", type=natural, default=2, help="steps before these [2]")
    add("--no_graphs", action="store_true", default=False, help="decode without CUDA graphs")
    dead = "share of scripted dead groups [demo: graded; else, and beside TRL, 0.6]"
    add("--dead", type=fraction, default=None, help=dead)
    trl = "also measure TRL, with this per_device_train_batch_size"
    add("--trl", type=count, default=None, metavar="BATCH", help=trl)
    return flags


def main(argv: list[str] | None = None) -> None:
    begin_process()
    with analysis.one_line("step", ValueError):
        args, train_flags = parser().parse_known_args(argv)
        (compare_with_trl if args.trl else measure)(args, train_flags)


if __name__ == "__main__":
    sys.exit(main())

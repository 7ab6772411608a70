"""Measure where the seconds of a training step go, beside the least that this machine needs.

    python -m benchmarks.step                             # the demo in one process
    torchrun --nproc_per_node 8 -m benchmarks.step --preset qwen2.5-1.5b --random_weights
    python -m benchmarks.step --trl 96                    # beside TRL's GRPOTrainer, in turns

With --random_weights the models have the shapes of --model and --teacher_model, random weights and
the demo's tokenizer and problems, and rewards are scripted. peak_gib is that of the student rank
that uses most, on a GPU.

--trl BATCH: TRL, with this per_device_train_batch_size, runs in a process of its own. The two sides
alternate, one step each, and the ratio is taken pair by pair, so that a slow moment of the machine
affects both. Equal on both sides: model, prompts, group size, temperature, limits, learning rate,
threads, float32, beta 0, and scripted rewards at no cost. TRL generates a batch in one call,
without gradient checkpointing, logging, saving, or a second forward for old log-probs. Different by
design: TRL forwards and backpropagates dead groups, pads every micro-batch to the longest prompt
and completion of the batch, computes entropies that it does not use, and gathers metrics for its
log; this project copies the weights into its generator.
"""

import multiprocessing
import os
import re
import subprocess
import sys
import tempfile
import time
import warnings
from argparse import Namespace
from collections.abc import Iterator
from contextlib import ExitStack, closing
from dataclasses import replace
from importlib.metadata import version
from itertools import count as numbers_from
from itertools import islice
from pathlib import Path

import pandas as pd
import torch
import torch.distributed as dist
import transformers
from torch.utils.benchmark import Timer

import train
from benchmarks.memory import DEMO, GIB, Shape, save_random_model, shape_of
from grpo import Group
from plumbing.command_line import Parser, count, first_line, fraction, natural
from plumbing.data.problems import Problems
from plumbing.distributed.channel import Channel
from plumbing.distributed.layout import Layout
from plumbing.distributed.shutdown import begin_process
from plumbing.errors import InputError
from scripts import analysis
from teacher import TeacherServer
from verify import Verdict, Verifier

QUANTITIES = ("teacher_wait_s", "rollout_s", "verify_s", "gather_s", "train_s", "seconds")
QUANTITIES += ("tokens_a_second", "completion_tokens", "zero_variance", "forwarded_rows")
QUANTITIES += ("peak_gib",)


# The least that a machine needs


def machine_speeds(device: torch.device) -> tuple[float, float]:
    """Bytes/s of a large copy (read + written) and FLOP/s of a square matrix product, best of 5
    each, in the dtype that generates: bfloat16 on a GPU, float32 on a CPU."""
    is_gpu = device.type == "cuda"
    n = 8192 if is_gpu else 2048
    with device:
        source = torch.ones(2**28 if is_gpu else 2**26)
        target = torch.empty_like(source)
        square = torch.randn(n, n, dtype=torch.bfloat16 if is_gpu else torch.float32)

    def seconds(statement: str, **variables: torch.Tensor) -> float:
        timer = Timer(statement, globals=variables, num_threads=torch.get_num_threads())
        return min(timer.timeit(1).mean for _ in range(5))

    copy_s = seconds("target.copy_(source)", source=source, target=target)
    product_s = seconds("square @ square", square=square)
    return 2 * source.nbytes / copy_s, 2 * n**3 / product_s


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


def with_random_models(config: train.Config, folder: Path) -> train.Config:
    """Write models with random weights in `folder`. Returns the config with these, the demo's
    problems, and a header that makes prompts as long as App. M's with a question of 100 tokens, or
    as long as may be: each of its words is a token of the demo."""
    c = replace(config, train_data=str(DEMO / "train.jsonl"), prompt_footer="", chat_template=False)
    c.prompt_header = " balo" * min(260, c.max_prompt_tokens - 32)
    for role in ("model", "teacher_model"):
        if name := getattr(c, role):
            path = folder / Path(name).name
            if not path.exists():
                save_random_model(name, path)
            setattr(c, role, str(path))
    return c


def scripted_rewards(config: train.Config, dead: float) -> list[float]:
    """P·G rewards: 0 in the first round(dead·P) groups, else 1 in every second row."""
    P, G = config.prompts_per_step, config.group_size
    return [float(i >= round(dead * P) and g % 2) for i in range(P) for g in range(G)]


class ScriptedVerifier:
    """A verifier that gives completions these rewards, at no cost."""

    def __init__(self, rewards: list[float]):
        self.verdicts = [Verdict(reward, "correct" if reward else "wrong") for reward in rewards]

    def grade(self, *_) -> list[Verdict]:
        return self.verdicts

    def check_golds(self, golds: list[str], *_) -> list[bool]:
        return [True] * len(golds)


def measured_steps(config: train.Config, layout: Layout, args: Namespace) -> Iterator[dict]:
    """Take a train_step for each row that is asked for, on student ranks, until the iterator is
    closed. Teacher ranks serve until then. Yields what `measured_step` returns."""
    with ExitStack() as stack:
        if args.dead is not None:
            _, rewards = layout.share(scripted_rewards(config, args.dead))
            verifier = ScriptedVerifier(rewards)
        elif not layout.is_teacher:  # before CUDA and the process group exist
            grading = Verifier(workers=config.verify_workers, reward=config.reward)
            verifier = stack.enter_context(grading)
        layout.connect(config.timeout_minutes)
        stack.callback(dist.destroy_process_group)
        if layout.rank == 0:
            folder = stack.enter_context(tempfile.TemporaryDirectory())
            if args.random_weights:
                config = with_random_models(config, Path(folder))
        config = layout.gather_world(config)[0]
        problems = Problems(config.train_data, config.column)
        if layout.is_teacher:
            sampler = train.build_sampler(config, layout, problems)
            server = TeacherServer(sampler, config.teacher_lag)
            server.run(Channel(layout), save=lambda step: None)
        else:
            student = train.Student(config, layout, verifier)
            sampler, _, channel = train.sampler_of_students(config, layout, problems)
            if args.no_graphs:
                student.generator.record = lambda step: step
            try:
                for step in numbers_from(1):
                    yield measured_step(step, student, sampler, problems)
            except GeneratorExit:
                if channel:
                    channel.send("stop", False)
                    channel.wait()
        layout.gather_world(None)  # no rank leaves while another still needs it


def measured_step(number: int, student: train.Student, sampler, problems: Problems) -> dict:
    """Take one train_step. Returns its row of metrics.jsonl with tokens_a_second, on a GPU also
    peak_gib, and the groups."""
    logged = []
    if torch.cuda.is_available():
        torch.cuda.reset_peak_memory_stats()
    row = train.train_step(number, student, sampler, problems, lambda *x: logged.extend(x))
    if torch.cuda.is_available():
        row["peak_gib"] = max(student.layout.gather_role(torch.cuda.max_memory_allocated() / GIB))
    row["tokens_a_second"] = row["total_tokens"] / row["seconds"]
    row["groups"] = logged[1]
    return row


# TRL


class TakeTurns(transformers.TrainerCallback):
    """Lets TRL take a step for each message from the pipe, and sends the step's row."""

    def __init__(self, pipe, trainer):
        self.pipe = pipe
        self.trainer = trainer

    def wait(self) -> None:
        self.pipe.recv()
        self.began = time.perf_counter()

    def on_train_begin(self, *_, **__):
        self.wait()

    def on_step_end(self, *_, **__):
        """Between two calls lie the next batch of prompts and a whole step."""
        seconds = time.perf_counter() - self.began
        length = self.trainer._metrics["train"]["completions/mean_length"][-1]
        tokens = length * self.trainer.args.generation_batch_size
        self.pipe.send({"seconds": seconds, "completion_tokens": tokens})
        self.wait()


def run_trl(pipe, config: train.Config, args: Namespace) -> None:
    """Train with TRL on the problems that our sampler draws, in its order, until killed."""
    from examples.trl_demo import build_trainer

    begin_process()
    warnings.filterwarnings("ignore")  # about settings that transformers has renamed
    with tempfile.TemporaryDirectory() as folder:
        if args.random_weights:
            config = with_random_models(config, Path(folder))
        trainer = build_trainer(
            replace(config, out=folder),
            ScriptedVerifier(scripted_rewards(config, args.dead)),
            per_device_train_batch_size=args.trl,
            gradient_accumulation_steps=config.prompts_per_step * config.group_size // args.trl,
            max_steps=10**6,
            logging_strategy="no",
            save_strategy="no",
            disable_tqdm=True,
        )
        trainer.add_callback(TakeTurns(pipe, trainer))
        trainer.train()


def trl_steps(config: train.Config, args: Namespace) -> Iterator[dict]:
    """Let TRL take one step for each row that is asked for. Raises EOFError if its process ends,
    which prints why."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=run_trl, args=(theirs, config, args))
    process.start()
    theirs.close()
    try:
        while True:
            ours.send("take a step")
            yield ours.recv()
    finally:
        process.kill()


def measured_pairs(ours: Iterator[dict], theirs: Iterator[dict], n: int) -> list[tuple[dict, dict]]:
    """Measure n steps of each side in turn, and print a line for each pair."""
    pairs = []
    for own, trl in islice(zip(ours, theirs, strict=False), n):
        print(f"ours {own['seconds']:.2f} s, TRL {trl['seconds']:.2f} s", flush=True)
        pairs.append((own, trl))
    return pairs


# The command


def steps_table(
    title: str, name: str, rows: list[dict], other_name: str, others: list[dict]
) -> str:
    """Table of QUANTITIES: medians and ranges of the rows, of other rows, and of the ratio of each
    row to the other."""

    def cell(values: pd.Series) -> str:
        return f"{values.median():.4g} ({values.min():.4g} to {values.max():.4g})"

    measured = pd.DataFrame(rows).filter(items=QUANTITIES)
    other = pd.DataFrame(others)
    ratio = measured[other.columns] / other
    columns = {name: measured, other_name: other, f"{name} / {other_name}": ratio}
    table = pd.DataFrame({key: frame.agg(cell) for key, frame in columns.items()})
    table = table.reindex(QUANTITIES).dropna(how="all").fillna("-").reset_index()
    note = f"Medians (range); {provenance()}."
    return analysis.table(title, ["of a step", *columns], table.to_numpy().tolist(), note)


def provenance() -> str:
    """The machine, library versions and commit that a measurement belongs to, in one line."""
    cpu = re.search(r"model name\s*: (.+)|$", Path("/proc/cpuinfo").read_text())[1]
    gpu = f", {torch.cuda.get_device_name()}" if torch.cuda.is_available() else ""
    commit = subprocess.getoutput(f"git -C {Path(__file__).parent} describe --always --dirty")
    machine = f"{os.cpu_count()} cores {cpu}{gpu}, {torch.get_num_threads()} threads a process"
    versions = f"torch {torch.__version__}, transformers {transformers.__version__}"
    return f"{machine}; {versions}; commit {commit}"


def measure(config: train.Config, args: Namespace) -> None:
    """Measure steps and print their table beside their floors on rank 0."""
    layout = train.build_layout(config)
    shape = shape_of(config.model)
    with closing(measured_steps(config, layout, args)) as steps:
        rows = [*islice(steps, args.warmup, args.warmup + args.repeats)]
    if layout.rank == 0:
        speeds = machine_speeds(layout.device)
        sizes = layout.n_students, layout.dtype.itemsize
        least = [floors(shape, speeds, row["groups"], *sizes) for row in rows]
        title = (
            f"{shape.parameters / 1e6:,.2f} M parameters, "
            f"{config.prompts_per_step} x {config.group_size} completions, "
            f"ranks: {layout.n_students} student + {layout.n_teachers} teacher; "
            f"{speeds[0] / 1e9:.1f} GB/s, {speeds[1] / 1e9:,.0f} GFLOP/s"
        )
        print(steps_table(title, "measured", rows, "floor", least), flush=True)


def compare_with_trl(config: train.Config, args: Namespace) -> None:
    """Measure steps of both sides and print their table. Raises ImportError without TRL."""
    completions = config.prompts_per_step * config.group_size
    title = f"{completions} completions, {args.dead:.0%} dead groups, "
    title += f"TRL {version('trl')} in micro-batches of {args.trl}"
    if config.bf16:
        raise InputError("--bf16: TRL's side computes in float32")
    our_steps = measured_steps(config, train.build_layout(config), args)
    with closing(trl_steps(config, args)) as theirs, closing(our_steps) as ours:
        pairs = measured_pairs(ours, theirs, args.warmup + args.repeats)[args.warmup :]
    rows, trl_rows = map(list, zip(*pairs, strict=True))
    print(steps_table(title, "ours", rows, "TRL", trl_rows))


def parser() -> Parser:
    """The command line."""
    flags = Parser(description=first_line(__doc__), epilog="Other flags are train.py's.")
    add = flags.add_argument
    add("--random_weights", action="store_true", default=False, help="download nothing")
    add("--repeats", type=count, default=10, help="steps measured [10]")
    add("--warmup", type=natural, default=2, help="steps before these [2]")
    add("--no_graphs", action="store_true", default=False, help="decode without CUDA graphs")
    dead = "share of scripted dead groups [graded; with --random_weights or --trl 0.6]"
    add("--dead", type=fraction, default=None, help=dead)
    trl = "also measure TRL, with this per_device_train_batch_size"
    add("--trl", type=count, default=None, metavar="BATCH", help=trl)
    return flags


def main(argv: list[str] | None = None) -> None:
    begin_process()
    with analysis.one_line("step", ValueError, ImportError, EOFError):
        args, flags = parser().parse_known_args(argv)
        if args.dead is None and (args.random_weights or args.trl):
            args.dead = 0.6
        flags = ["--preset", "demo", "--device", "auto", *flags]
        if args.trl:
            # Scripted rewards teach nothing, so a small rate keeps the model as it is.
            flags = ["--learning_rate", "1e-6", *flags, "--sampler", "uniform"]
        (compare_with_trl if args.trl else measure)(train.parse(flags), args)


if __name__ == "__main__":
    sys.exit(main())

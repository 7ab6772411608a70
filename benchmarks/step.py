"""Measure where the seconds of a training step go.

    python -m benchmarks.step                             # the demo in one process
    torchrun --nproc_per_node 8 -m benchmarks.step --preset qwen2.5-1.5b --random_weights
    python -m benchmarks.step --trl 96                    # beside TRL's GRPOTrainer, in turns

With --random_weights the models have the shapes of --model and --teacher_model, random weights and
the demo's tokenizer and problems, and rewards are scripted. peak_gib is that of the student rank
that uses most, on a GPU.

--trl BATCH: TRL, with this per_device_train_batch_size, runs in a process of its own. Both sides
take one step in each pair, the first and the second side change places from pair to pair, and the
ratio is taken pair by pair, so that a slow moment or a drift of the machine affects both. Equal on
both sides: model, prompts, group size, temperature, limits, learning rate, threads, float32,
beta 0, and scripted rewards at no cost. TRL generates a batch in one call, without gradient
checkpointing, logging, saving, or a second forward for old log-probs. Different by design: TRL
forwards and backpropagates dead groups, pads every micro-batch to the longest prompt and completion
of the batch, computes entropies that it does not use, and gathers metrics for its log; this project
copies the weights into its generator.
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
from pathlib import Path

import pandas as pd
import torch
import torch.distributed as dist
import transformers
from transformers import AutoModelForCausalLM, AutoTokenizer

import train
from benchmarks.memory import GIB, model_config
from plumbing.command_line import Parser, count, first_line, fraction, natural
from plumbing.config import ROOT
from plumbing.data.problems import Problems
from plumbing.distributed.channel import Channel
from plumbing.distributed.layout import Layout
from plumbing.distributed.shutdown import begin_process
from plumbing.errors import InputError
from scripts import analysis
from teacher import TeacherServer
from verify import Verdict, Verifier

DEMO = ROOT / "demo"
QUANTITIES = [
    "teacher_wait_s",
    "rollout_s",
    "verify_s",
    "gather_s",
    "train_s",
    "seconds",
    "tokens_a_second",
    "completion_tokens",
    "zero_variance",
    "forwarded_rows",
    "peak_gib",
]


# Steps with models and rewards of any size


def save_random_model(name: str, folder: Path) -> None:
    """Write a causal LM of this model's shape with random weights, and the demo's tokenizer."""
    tokenizer = AutoTokenizer.from_pretrained(DEMO / "model")
    special = {key: getattr(tokenizer, key) for key in ("eos_token_id", "pad_token_id")}
    config = model_config(name, bos_token_id=None, **special)
    torch.manual_seed(0)
    AutoModelForCausalLM.from_config(config, dtype=torch.float32).save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def with_random_models(config: train.Config, folder: Path) -> train.Config:
    """Write models with random weights in `folder`. Returns the config with these, the demo's
    problems, and a header that makes prompts as long as App. M's with a question of 100 tokens, or
    as long as may be: each of its words is a token of the demo."""
    c = replace(config, train_data=str(DEMO / "train.jsonl"), prompt_footer="", chat_template=False)
    c.prompt_header = " balo" * min(260, c.max_prompt_tokens - 32)
    for role in ("model", "teacher_model"):
        if name := getattr(c, role):
            save_random_model(name, folder / role)
            setattr(c, role, str(folder / role))
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
    """Take --warmup + --repeats steps on student ranks, each when its row is requested. Yields what
    `measured_step` returns. Teacher ranks serve until the last step and yield nothing."""
    with ExitStack() as stack:
        if args.dead is not None:
            _, rewards = layout.share(scripted_rewards(config, args.dead))
            verifier = ScriptedVerifier(rewards)
        elif not layout.is_teacher:  # before CUDA and the process group exist
            grading = Verifier(workers=config.verify_workers, reward=config.reward)
            verifier = stack.enter_context(grading)
        layout.connect(config.timeout_minutes)
        stack.callback(dist.destroy_process_group)
        if layout.rank == 0 and args.random_weights:
            folder = stack.enter_context(tempfile.TemporaryDirectory())
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
            for step in range(1, args.warmup + args.repeats + 1):
                yield measured_step(step, student, sampler, problems)
            if channel:
                channel.send("stop", False)
                channel.wait()
        layout.gather_world(None)  # no rank leaves while another still needs it


def measured_step(number: int, student: train.Student, sampler, problems: Problems) -> dict:
    """Take one train_step. Returns its row of metrics.jsonl with tokens_a_second and, on a GPU,
    peak_gib."""
    on_gpu = student.layout.device.type == "cuda"
    if on_gpu:
        torch.cuda.reset_peak_memory_stats()
    row = train.train_step(number, student, sampler, problems)
    if on_gpu:
        row["peak_gib"] = max(student.layout.gather_role(torch.cuda.max_memory_allocated() / GIB))
    row["tokens_a_second"] = row["total_tokens"] / row["seconds"]
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
    """Train with TRL on the problems that our sampler draws, in its order, until terminated."""
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
    """Let TRL take one step for each row that is requested. Raises EOFError if its process ends,
    which prints why. The process is terminated when this one ends."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    context.Process(target=run_trl, args=(theirs, config, args), daemon=True).start()
    theirs.close()
    while True:
        ours.send("take a step")
        yield ours.recv()


def measured_pairs(ours: Iterator[dict], theirs: Iterator[dict], n: int) -> list[dict]:
    """Measure n steps of each side. Our side begins the first pair, TRL the second, and so on.
    Returns for each pair the row of "ours" and of "TRL", and the ratios "ours / TRL"."""
    sides = {"ours": ours, "TRL": theirs}
    order = ["ours", "TRL"]
    pairs = []
    for _ in range(n):
        pair = {name: next(sides[name]) for name in order}
        own = pair["ours"]
        trl = pair["TRL"]
        pair["ours / TRL"] = {key: own[key] / trl[key] for key in trl}
        print(f"ours {own['seconds']:.2f} s, TRL {trl['seconds']:.2f} s; {order[0]} first")
        pairs.append(pair)
        order.reverse()
    return pairs


# The command


def steps_table(title: str, columns: dict[str, list[dict]]) -> str:
    """Table of QUANTITIES with a column for each list of rows: median and range over the rows."""

    def cell(values: pd.Series) -> str:
        return f"{values.median():.4g} ({values.min():.4g} to {values.max():.4g})"

    measured = {name: pd.DataFrame(rows).filter(items=QUANTITIES) for name, rows in columns.items()}
    table = pd.DataFrame({name: rows.agg(cell) for name, rows in measured.items()})
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
    """Measure steps, of TRL too with --trl, and print their table on rank 0. Raises ImportError
    without TRL, and InputError if its side would compute in another precision."""
    layout = train.build_layout(config)
    title = (
        f"{Path(config.model).name}, {config.prompts_per_step} x {config.group_size} completions, "
    )
    title += f"ranks: {layout.n_students} student + {layout.n_teachers} teacher"
    if args.trl:
        title += f", TRL {version('trl')} in micro-batches of {args.trl}"
        if config.bf16:
            raise InputError("--bf16: TRL's side computes in float32")
    with closing(measured_steps(config, layout, args)) as steps:
        if args.trl:
            n = args.warmup + args.repeats
            pairs = measured_pairs(steps, trl_steps(config, args), n)[args.warmup :]
            columns = {name: [pair[name] for pair in pairs] for name in pairs[0]}
        else:
            columns = {"measured": [*steps][args.warmup :]}
    if layout.rank == 0:
        print(steps_table(title, columns), flush=True)


def parser() -> Parser:
    """The command line."""
    flags = Parser(description=first_line(__doc__), epilog="Other flags are train.py's.")
    add = flags.add_argument
    add("--random_weights", action="store_true", default=False, help="download nothing")
    add("--repeats", type=count, default=10, help="steps measured [10]")
    add("--warmup", type=natural, default=2, help="steps before these [2]")
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
        measure(train.parse(flags), args)


if __name__ == "__main__":
    sys.exit(main())

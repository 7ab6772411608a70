"""Measure where the seconds of a training step go, in one process.

    python -m benchmarks.step                                      # the demo
    python -m benchmarks.step --preset one-gpu --random_weights
    python -m benchmarks.step --trl 96                  # beside TRL's GRPOTrainer, in turns

On several ranks, metrics.jsonl of a short run has the same parts.

With --random_weights the models have the shapes of --model and --teacher_model, random weights and
the demo's tokenizer and problems. Rewards are scripted with --dead, and with --random_weights or
--trl, where it is 0.6 by default.

--trl BATCH: TRL has this per_device_train_batch_size. Both sides take one step in each pair, the
first and the second side change places from pair to pair, and the ratio is taken pair by pair, so
that a slow moment or a drift of the machine affects both. Equal on both sides: model, prompts,
group size, temperature, limits, learning rate, threads, float32, beta 0, and scripted rewards at no
cost. TRL generates a batch in one call, without gradient checkpointing, logging, saving, or a
second forward for old log-probs. Different by design: TRL forwards and backpropagates dead groups,
pads every micro-batch to the longest prompt and completion of the batch, computes entropies that it
does not use, and gathers metrics for its log; this project copies the weights into its generator.
"""

import itertools
import os
import re
import subprocess
import tempfile
import time
import warnings
from argparse import Namespace
from collections.abc import Iterator
from contextlib import closing, nullcontext
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path

import pandas as pd
import torch
import transformers
from transformers import AutoModelForCausalLM, AutoTokenizer

import train
from plumbing.command_line import Parser, count, fraction, non_negative_int
from plumbing.config import ROOT
from plumbing.data.problems import Problems
from plumbing.distributed.launch import launch
from plumbing.distributed.layout import device_type
from plumbing.distributed.shutdown import borrowed_process
from plumbing.errors import InputError
from scripts.command import exit_on_error
from scripts.memory import GIB, model_config
from teacher import TeacherServer
from verify import Verdict, Verifier

DEMO = ROOT / "demo"
QUANTITIES = [
    "teacher_wait_s",
    "rollout_s",
    "verify_s",
    "train_s",
    "seconds",
    "tokens_a_second",
    "completion_tokens",
    "zero_variance",
    "forwarded_rows",
    "peak_gib",  # on a GPU, of the process so far
]


# Steps with models and rewards of any size


def with_random_models(config: train.Config) -> train.Config:
    """Write models of the config's shapes with random weights, and the demo's tokenizer, under
    --out. Returns the config with these, the demo's problems, and a header that makes prompts as
    long as App. M's with a question of 100 tokens, or as long as may be: each of its words is a
    token of the demo."""
    tokenizer = AutoTokenizer.from_pretrained(DEMO / "model")
    special = {
        "bos_token_id": None,
        "eos_token_id": tokenizer.eos_token_id,
        "pad_token_id": tokenizer.pad_token_id,
    }
    models = {}
    for role in ("model", "teacher_model"):
        if name := getattr(config, role):
            models[role] = f"{config.out}/{role}"
            shape = model_config(name, **special)
            torch.manual_seed(0)
            model = AutoModelForCausalLM.from_config(shape, dtype=torch.float32)
            model.save_pretrained(models[role])
            tokenizer.save_pretrained(models[role])
    data = str(DEMO / "train.jsonl")
    header = " balo" * min(260, config.max_prompt_tokens - 32)
    texts = {"prompt_header": header, "prompt_footer": "", "chat_template": False}
    return replace(config, train_data=data, **texts, **models)


class ScriptedVerifier:
    """A verifier that gives, at no cost, 0 to all completions of the first round(dead·P) groups of
    a step, and 1 to every second completion of the others; so again from P groups on."""

    def __init__(self, config: train.Config, dead: float):
        P, G = config.prompts_per_step, config.group_size
        wrong = Verdict(0.0, "wrong")
        live_group = ([wrong, Verdict(1.0, "correct")] * G)[:G]
        dead_groups = round(dead * P)
        self.verdicts = [wrong] * G * dead_groups + live_group * (P - dead_groups)

    def grade(self, completions, *_) -> list[Verdict]:
        endless = itertools.cycle(self.verdicts)
        return list(itertools.islice(endless, len(completions)))

    def check_golds(self, golds: list[str], *_) -> list[bool]:
        return [True] * len(golds)


def measured_steps(config: train.Config, dead: float | None) -> Iterator[dict]:
    """Take a training step for each row that is requested: its row of metrics.jsonl, with
    tokens_a_second and, on a GPU, peak_gib."""
    layout = train.build_layout(config)
    if dead is None:
        grading = Verifier(workers=config.verify_workers, reward=config.reward)
    else:
        grading = nullcontext(ScriptedVerifier(config, dead))
    # Workers start before CUDA and the process group exist.
    with grading as verifier:
        layout.connect(config.timeout_minutes)
        problems = Problems(config.train_data, config.column)
        student = train.Student.load(config, layout, verifier)
        sampler = train.build_sampler(config, layout, problems)
        if sampler.teacher:  # as in train.py, in one process
            server = TeacherServer(sampler, config.teacher_lag)
            sampler = train.TeacherClient.in_process(server)
        for step in itertools.count(1):
            row = train.train_step(step, student, sampler, problems)
            row["tokens_a_second"] = row["total_tokens"] / row["seconds"]
            if layout.device.type == "cuda":
                row["peak_gib"] = torch.cuda.max_memory_allocated() / GIB
            yield row


# TRL


class TakeTurns(transformers.TrainerCallback):
    """Takes our steps between TRL's: our side begins the first pair, TRL the second, and so on."""

    def __init__(self, ours: Iterator[dict], trainer):
        self.ours = ours
        self.trainer = trainer
        self.rows = {"ours": [], "TRL": []}

    def take(self, steps: int) -> None:
        """Take steps of ours, then time TRL."""
        self.rows["ours"] += itertools.islice(self.ours, steps)
        self.began = time.perf_counter()

    def on_train_begin(self, *_, **__):
        self.take(1)

    def on_step_end(self, *_, **__):
        """Between two calls lie the next batch of prompts and a whole step."""
        seconds = time.perf_counter() - self.began
        length = self.trainer._metrics["train"]["completions/mean_length"][-1]
        tokens = length * self.trainer.args.generation_batch_size
        self.rows["TRL"].append({"seconds": seconds, "completion_tokens": tokens})
        # After every second step of TRL's, ours end this pair and begin the next.
        self.take(0 if len(self.rows["TRL"]) % 2 else 2)


def take_turns(ours: Iterator[dict], config: train.Config, args: Namespace, n: int) -> dict:
    """Take n pairs of steps, TRL's on the problems that our sampler draws, in its order. Returns
    the rows of each side."""
    from examples.trl_demo import build_trainer

    warnings.filterwarnings("ignore")  # about settings that transformers has renamed
    trainer = build_trainer(
        config,
        ScriptedVerifier(config, args.dead),
        per_device_train_batch_size=args.trl,
        gradient_accumulation_steps=config.prompts_per_step * config.group_size // args.trl,
        max_steps=n,
        logging_strategy="no",
        save_strategy="no",
    )
    turns = TakeTurns(ours, trainer)
    trainer.add_callback(turns)
    trainer.train()
    return {name: rows[:n] for name, rows in turns.rows.items()}


# The command


def steps_table(rows: dict[str, list[dict]]) -> str:
    """Table of QUANTITIES over the steps of each side, and of the ratio of two sides, step by
    step."""
    columns = {name: pd.DataFrame(steps).filter(items=QUANTITIES) for name, steps in rows.items()}
    if "TRL" in columns:
        columns["ours / TRL"] = columns["ours"] / columns["TRL"]
    statistics = {name: steps.agg(["median", "min", "max"]).T for name, steps in columns.items()}
    table = pd.concat(statistics, axis=1).reindex(QUANTITIES).dropna(how="all")
    return table.to_string(float_format="{:.4g}".format, na_rep="-")


def provenance() -> str:
    """The machine, library versions and commit that a measurement belongs to, in one line."""
    cpu = re.search(r"model name\s*: (.+)|$", Path("/proc/cpuinfo").read_text())[1]
    gpu = f", {torch.cuda.get_device_name()}" if torch.cuda.is_available() else ""
    commit = subprocess.getoutput(f"git -C {ROOT} describe --always --dirty")
    machine = f"{os.cpu_count()} cores {cpu}{gpu}, {torch.get_num_threads()} threads a process"
    versions = f"torch {torch.__version__}, transformers {transformers.__version__}"
    return f"{machine}; {versions}; commit {commit}"


def measure(config: train.Config, args: Namespace) -> None:
    """Measure steps, of TRL too with --trl, and print their table. Raises ImportError without TRL,
    and InputError if its side would compute in another precision."""
    title = f"{config.prompts_per_step} x {config.group_size} completions"
    n = args.warmup + args.repeats
    with closing(measured_steps(config, args.dead)) as steps:
        if args.trl:
            title += f", TRL {version('trl')} in micro-batches of {args.trl}"
            if config.bf16 or device_type(config.device) == "cuda":
                raise InputError("TRL's side computes in float32: give --device cpu, not --bf16")
            rows = take_turns(steps, config, args, n)
        else:
            rows = {"measured": list(itertools.islice(steps, n))}
    measured = {name: side[args.warmup :] for name, side in rows.items()}
    print(f"{title}; {provenance()}\n{steps_table(measured)}", flush=True)


def main(argv=None) -> None:
    parser = Parser(__doc__, epilog="Other flags are train.py's.")
    add = parser.add_argument
    add("--random_weights", action="store_true", help="download nothing")
    add("--repeats", type=count, default=10, help="steps measured [10]")
    add("--warmup", type=non_negative_int, default=2, help="steps before these [2]")
    add("--dead", type=fraction, help="share of dead groups, scripted [see above]")
    add("--trl", type=count, metavar="BATCH", help="also measure TRL")
    with (
        borrowed_process(),
        exit_on_error("step"),
        tempfile.TemporaryDirectory() as out,
    ):
        if launch().world > 1:
            raise InputError("runs in one process: start it without torchrun")
        args, flags = parser.parse_known_args(argv)
        flags = ["--preset", "demo", "--device", "auto", *flags, "--out", out]
        if args.trl:
            # Scripted rewards teach nothing, so a small rate keeps the model as it is.
            flags = ["--learning_rate", "1e-6", *flags, "--sampler", "uniform"]
        if args.dead is None and (args.random_weights or args.trl):
            args.dead = 0.6
        config = train.parse(flags)
        measure(with_random_models(config) if args.random_weights else config, args)


if __name__ == "__main__":
    main()

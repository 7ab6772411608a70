"""Compare the time of a training step with that of TRL's GRPOTrainer, step by step in turns.

    python -m benchmarks.trl_speed --repeats 10      # trl_agreement.py says how to install TRL
    python -m benchmarks.trl_speed --preset reasoning --model models/cold --trl_batch 16

TRL runs in a process of its own. The two sides alternate, one step each, and the ratio is taken
pair by pair, so that a slow moment of the machine affects both. Equal on both sides: model,
prompts, group size, temperature, limits, learning rate, threads, float32, beta 0, and scripted
rewards at no cost. TRL generates a batch in one call, without gradient checkpointing, logging,
saving, shuffling or a second forward for old log-probs. Different by design:

- TRL forwards and backpropagates dead groups, pads every micro-batch to the longest prompt and
  completion of the batch, computes entropies that it does not use, and gathers metrics for its log.
- This project copies the weights into its generator after each update.
"""

import importlib.util
import itertools
import multiprocessing
import sys
import tempfile
import time
import warnings
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import torch
import transformers
from transformers import AutoTokenizer

import train
from benchmarks import step
from plumbing.command_line import count
from plumbing.data.problems import Problems
from plumbing.distributed.layout import Layout
from plumbing.distributed.shutdown import begin_process
from plumbing.errors import InputError
from rollout import PromptEncoder

DEAD = (0.6, 0.0)  # shares of dead groups to compare at, in turn


class SendSteps(transformers.TrainerCallback):
    """Sends the row of each of TRL's steps, then waits for a reply."""

    def __init__(self, pipe, row: dict):
        self.pipe = pipe
        self.row = row
        self.began = None

    def on_step_begin(self, *_, **__):
        """Between two calls lie one whole step and the next step's batch of prompts."""
        if self.began:
            self.row["seconds"] = time.perf_counter() - self.began[0]
            self.row["cpu_s"] = time.process_time() - self.began[1]
            self.pipe.send(self.row)
            self.pipe.recv()
        self.began = time.perf_counter(), time.process_time()


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


def prompts_in_order(config: train.Config, tokenizer) -> list[str]:
    """The prompts that this project's sampler draws, in its order, for up to 1,000 steps."""
    problems = Problems(config.train_data)
    encode = PromptEncoder(config, tokenizer)
    sampler = train.build_sampler(config, Layout(config), problems)
    steps = min(1000, len(problems) // config.prompts_per_step)
    groups = [group for _ in range(steps) for group in sampler.propose(config.prompts_per_step)]
    return [encode.text(problems.question(group.problem)) for group in groups]


def run_trl(pipe, args, train_flags: list[str]) -> None:
    """Run GRPOTrainer.train() in this process, with SendSteps."""
    from datasets import Dataset
    from trl import GRPOConfig, GRPOTrainer

    begin_process()
    warnings.filterwarnings("ignore")  # about settings that transformers has renamed
    config = step.configure(args.shape, train_flags)
    dead = itertools.cycle(DEAD)
    row = {}

    def reward(completion_ids, **_) -> list[float]:
        row["completion_tokens"] = sum(map(len, completion_ids))
        return step.scripted_rewards(config.prompts_per_step, config.group_size, next(dead))

    with tempfile.TemporaryDirectory() as folder:
        step.use_made_up_inputs(config, args, Path(folder), write=True)
        tokenizer = AutoTokenizer.from_pretrained(config.model)
        prompts = [{"prompt": text} for text in prompts_in_order(config, tokenizer)]
        trainer = GRPOTrainer(
            config.model,
            reward,
            GRPOConfig(folder, **trl_settings(config, args.trl_batch)),
            Dataset.from_list(prompts),
            processing_class=tokenizer,
            callbacks=[SendSteps(pipe, row)],
        )
        trainer.train()


def trl_steps(args, train_flags: list[str]) -> Iterator[dict]:
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


@step.command
def main(argv: list[str] | None = None) -> None:
    """Measure steps of both sides and print their table."""
    parser = step.parser(__doc__)
    batch = "TRL's per_device_train_batch_size [96]"
    parser.add_argument("--trl_batch", type=count, default=96, help=batch)
    args, flags = parser.parse_known_args(argv)
    # Scripted rewards teach nothing, so a small rate keeps the model as it is.
    flags = ["--learning_rate", "1e-6", *flags, "--sampler", "uniform"]
    config = step.configure(args.shape, flags)
    if config.bf16:
        raise InputError("--bf16: TRL's side computes in float32")
    our_steps = step.measured_steps(config, Layout(config), args, DEAD, grade=False)
    with closing(trl_steps(args, flags)) as theirs, closing(our_steps) as ours:
        pairs = measured_pairs(ours, theirs, args.warmup, args.repeats)
    columns = {}
    for dead, rows in pairs.items():
        sides = zip(*rows, strict=True)
        for side, side_rows in zip(("ours", "TRL", "ours / TRL, pairs"), sides, strict=True):
            columns[f"{side}, {dead:.0%} dead"] = side_rows
    completions = config.prompts_per_step * config.group_size
    model = "/".join(Path(step.model_of(args, config)).parts[-2:])
    title = f"{model}, {completions} completions, TRL's micro-batch {args.trl_batch}"
    print(step.steps_table(title, columns))


def measured_pairs(
    ours: Iterator[dict], theirs: Iterator[dict], warmup: int, repeats: int
) -> dict[float, list[tuple[dict, dict, dict]]]:
    """Measure one step of each side in turn, and print a line for each pair. Returns our row, TRL's
    and their ratios for each pair, by share of dead groups."""
    for _ in DEAD:  # not measured: TRL begins its first step before it is asked for one
        next(theirs)
    pairs = {dead: [] for dead in DEAD}
    for i, dead in itertools.product(range(warmup + repeats), DEAD):
        if i % 2:  # the first side changes from round to round
            trl = next(theirs)
            own = next(ours)
        else:
            own = next(ours)
            trl = next(theirs)
        ratios = {name: own[name] / trl[name] for name in trl}
        seconds = f"ours {own['seconds']:.2f} s, TRL {trl['seconds']:.2f} s"
        kind = "warm-up" if i < warmup else f"pair {i - warmup + 1} of {repeats}"
        print(f"{kind}, {dead:.0%} dead: {seconds}, ratio {ratios['seconds']:.3f}", flush=True)
        if i >= warmup:
            pairs[dead].append((own, trl, ratios))
    return pairs


if __name__ == "__main__":
    sys.exit(main())

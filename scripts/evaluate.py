r"""Measure any Hugging Face model on any problem file: greedy pass@1, or pass@k from n samples.

    python -m scripts.evaluate runs/demo-goldilocks-seed0        # a run: its student and settings
    python -m scripts.evaluate MODEL --data mine.jsonl --samples 16 --temperature 0.7 --k 1 4 16
    python -m scripts.evaluate runs/demo-uniform-seed0/evals/step_10.jsonl --by topic,length

The last reads verdicts, which a run or --out wrote. --by prints means by the values of one or two
columns of the data.

For a run it takes the weights of the newest checkpoint and shows their step. It reproduces that
step's accuracy in metrics.jsonl (on GPUs up to rounding in bf16). A run without checkpoints: give
RUN/student, which is evaluated with the run's settings, too. A prompt longer than
--max_prompt_tokens counts as wrong. Standard errors are over problems.
"""

import math
import sys
from argparse import Namespace, RawDescriptionHelpFormatter
from dataclasses import replace
from pathlib import Path

import pandas as pd
import torch
from transformers import AutoTokenizer

import rollout
import train
from grpo import Group
from plumbing import command_line, plugins
from plumbing.data.problems import Problems
from plumbing.distributed.layout import compute_dtype, device_type
from plumbing.distributed.shutdown import begin_process
from plumbing.errors import InputError
from plumbing.files import check_writable, write_lines
from plumbing.metrics import graded_row
from plumbing.run import checkpoint
from scripts import analysis
from verify import Verifier

SETTINGS = ["preset", "seed", "verify_workers", "prompt_header", "prompt_footer", "chat_template"]
SETTINGS += ["reward", "max_prompt_tokens", "max_completion_tokens", "max_rollout_tokens"]
SETTINGS += ["device", "bf16"]


class Examinee(train.Student):
    """A Student that only answers: no optimizer, no other ranks.

    weights: a checkpoint's directory, whose student replaces config.model's weights."""

    def __init__(self, config: train.Config, verifier: Verifier, weights: Path | None):
        self.config = config
        self.verifier = verifier
        self.tokenizer = AutoTokenizer.from_pretrained(config.model)
        self.encode = rollout.PromptEncoder(config, self.tokenizer)
        device = torch.device(device_type(config.device))
        dtype = compute_dtype(config, device)
        self.generator = rollout.Generator.load(config.model, device, self.tokenizer, dtype)
        if weights:
            checkpoint.load_weights(weights, self.generator.lm)

    def answer(self, problems: Problems, samples: int, temperature: float) -> list[dict]:
        """Answer each problem so many times. Returns a row for each completion, in order: what a
        run's evals/ has, whether the token limit cut it, and how it was drawn."""
        c = self.config
        groups = []
        for i in range(len(problems)):
            prompt = self.encode(problems.question(i))
            groups += [Group(i, size=1, prompt_ids=prompt) for _ in range(samples)]
        fitting = [group for group in groups if len(group.prompt_ids) <= c.max_prompt_tokens]
        print(f"{len(fitting)} completions: this may take minutes", file=sys.stderr, flush=True)
        completions = self.generator.generate(
            [group.prompt_ids for group in fitting],
            temperature,
            max_new_tokens=c.max_completion_tokens,
            seed=c.seed,
            max_batch_tokens=c.max_rollout_tokens,
        )
        self.grade(completions, [group.problem for group in fitting], problems)
        for group, completion in zip(fitting, completions, strict=True):
            group.completions.append(completion)
        drawn = {"temperature": temperature, "samples": samples, "seed": c.seed}
        drawn["data_crc32"] = problems.crc32
        rows = []
        for group in groups:
            truncated = any(not o.finished for o in group.completions)
            row = graded_row(group, self.tokenizer.decode)
            rows.append(row | {"truncated": truncated} | drawn)
        return rows


def read_verdicts(path: Path, problems: Problems) -> pd.DataFrame:
    """Read verdicts that a run or --out wrote. Raises InputError if they are none, or of other
    problems."""
    rows = analysis.read_table(path, "problem", "reward", "status", "temperature")
    is_other = "data_crc32" in rows and (rows.data_crc32 != problems.crc32).any()
    if is_other or rows.problem.max() >= len(problems):
        raise InputError(f"{path}: not of the problems in {problems.path}; give their --data")
    return rows


def pass_at_k(rewards: pd.Series, k: int) -> float:
    """Estimate, unbiased, that one of k samples is right if c of n are: 1 - C(n-c, k) / C(n, k)."""
    n, c = len(rewards), int(rewards.sum())
    return 1 - math.comb(n - c, k) / math.comb(n, k)


def summary(title: str, rows: pd.DataFrame, ks: list[int]) -> str:
    """Format how the verdicts were drawn, pass@k with its standard error over problems, and the
    number of each status."""
    rewards = rows.groupby("problem").reward
    n = rewards.size().min()
    if max(ks) > n:
        raise InputError(f"--k {max(ks)}: a problem has {n} samples")
    lines = []
    for k in ks:
        values = rewards.agg(pass_at_k, k=k)
        lines.append([f"pass@{k}", f"{values.mean():.2%} ± {values.sem():.2%}"])
    statuses = rows.status.value_counts().to_dict()
    if "truncated" in rows:
        statuses["cut at the token limit"] = rows.truncated.sum()
    lines += [[status, f"{count} of {len(rows)}"] for status, count in statuses.items()]
    drawn = f"{len(rows)} completions (temperature {rows.temperature.iloc[0]:g})"
    header = ["", "value ± standard error"]
    return analysis.table(f"{title}: {len(rewards)} problems, {drawn}", header, lines)


def means_by(columns: str, rows: pd.DataFrame, problems: Problems) -> str:
    """Format the mean reward by the values of one or two columns of the data, "task,level"."""
    names, index = problems.categories()
    lines = []
    for label, members in rows.groupby(index[rows.problem]):
        lines.append([names[label], members.problem.nunique(), f"{members.reward.mean():.1%}"])
    return analysis.table(f"By {columns}", [columns, "problems", "pass@1"], lines)


def find_run(path: Path) -> analysis.Run | None:
    """Read the run that a path is or lies in, if any: RUN, RUN/student, RUN/evals/step_1.jsonl."""
    for folder in (path, path.parent, path.parent.parent):
        if (folder / "metrics.jsonl").exists():
            return analysis.Run.load(folder)
    return None


def settings(args: Namespace, run: analysis.Run | None) -> train.Config:
    """Return the settings of the run or else of the preset, overridden by flags."""
    given = {name: value for name, value in vars(args).items() if name in [*SETTINGS, "val_data"]}
    if not run:
        config = train.parse(["--preset", given.get("preset", train.Config.preset)])
        return replace(config, **given, model=args.model)
    if "preset" in given:
        raise InputError(f"--preset: {run.folder} is a run and has settings already")
    config = analysis.recorded(train.Config, run.config)
    model = config.model if run.folder == Path(args.model) else args.model
    return replace(config, **given, model=model)


def arguments(argv: list[str] | None) -> Namespace:
    """Parse the command line. Raises ValueError, in one line."""
    parser = command_line.Parser(description=__doc__, formatter_class=RawDescriptionHelpFormatter)
    add, count = parser.add_argument, command_line.count
    help = "hub id, Hugging Face directory, run directory, or file of verdicts"
    add("model", help=help)
    help = "JSONL or Parquet [the run's or the preset's validation file]"
    add("--data", dest="val_data", help=help)
    add("--temperature", type=command_line.non_negative, default=0.0, help="0 is greedy [0]")
    add("--samples", type=count, default=1, help="completions of each problem [1]")
    add("--k", type=count, nargs="+", default=[1], help="pass@k for each of these [1]")
    add("--by", default="", help="print means by one or two columns of the data: task,level")
    add("--out", type=Path, default=None, help="write the verdicts there")
    command_line.add_fields(parser, train.Config, SETTINGS)
    return parser.parse_args(argv)


def load_data(args: Namespace, config: train.Config, run: analysis.Run | None) -> Problems:
    """Read --data; else the run's or the preset's validation file, which must be unchanged."""
    if run and "val_data" not in args:
        remedy = "; to use it, give --data"
        analysis.check_unchanged(config.val_data, run.config["val_data_crc32"], remedy)
    elif args.model.endswith(".jsonl") and "val_data" not in args:
        raise InputError(f"{args.model} is in no run directory: give --data, its problems")
    return Problems(config.val_data, args.by)


def measure(args: Namespace, config: train.Config, run: analysis.Run | None) -> tuple:
    """Generate and grade completions, and write --out. Returns the model's name, data, verdicts."""
    if max(args.k) > args.samples:
        raise InputError(f"--k {max(args.k)}: must be at most --samples {args.samples}")
    if args.samples > 1 and not args.temperature:
        raise InputError("--samples: greedy samples are all the same; give --temperature")
    name, weights = args.model, None
    if run and config.reward and "reward" not in args:
        path, remedy = plugins.path_of(config.reward), "; to use it, give --reward"
        analysis.check_unchanged(path, run.config["reward_crc32"], remedy)
    if run and config.model != args.model:
        step = checkpoint.latest_valid_checkpoint(run.folder)
        if not step:
            raise InputError(f"{run.folder}: has no checkpoint; give {run.folder}/student")
        name, weights = f"{name}, step {step}", checkpoint.directory(run.folder, step)
    rollout.check_model(config.model, config.max_prompt_tokens + config.max_completion_tokens)
    if args.out:
        check_writable(args.out)
    data = load_data(args, config, run)
    # The verifier's processes start before CUDA is used.
    with Verifier(workers=config.verify_workers, reward=config.reward) as verifier:
        student = Examinee(config, verifier, weights)
        rows = student.answer(data, args.samples, args.temperature)
    if args.out:
        write_lines(args.out, rows)
    return name, data, pd.DataFrame(rows)


def main(argv: list[str] | None = None) -> None:
    with analysis.one_line("evaluate", ValueError):
        args = arguments(argv)
        begin_process()
        run = find_run(Path(args.model))
        config = settings(args, run)
        if args.model.endswith(".jsonl"):
            name, data = args.model, load_data(args, config, run)
            rows = read_verdicts(Path(args.model), data)
        else:
            name, data, rows = measure(args, config, run)
        print(summary(f"{name} on {data.path}", rows, args.k), end="", flush=True)
        if args.by:
            print("\n" + means_by(args.by, rows, data), end="", flush=True)


if __name__ == "__main__":
    main()

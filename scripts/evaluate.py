r"""Measure any Hugging Face model on any problem file: greedy pass@1, or pass@k from n samples.

    python -m scripts.evaluate runs/demo-goldilocks-seed0        # a run: its student and settings
    python -m scripts.evaluate MODEL --data mine.jsonl --temperature 0.7 --k 1 4 16
    python -m scripts.evaluate MODEL --data mine.jsonl --by task,level

For a run it takes the weights of the newest checkpoint, and reproduces its accuracy in
metrics.jsonl (on GPUs up to rounding in bf16). Without checkpoints it takes RUN/student, with the
run's settings. A prompt longer than --max_prompt_tokens counts as wrong. Standard errors are over
problems. --by prints means by the values of one or two columns of the data.
"""

import math
from argparse import SUPPRESS, Namespace
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd

import rollout
import train
from grpo import Group
from plumbing import plugins
from plumbing.command_line import Parser, add_fields, count, non_negative
from plumbing.data.problems import Problems
from plumbing.distributed.shutdown import borrowed_process
from plumbing.errors import InputError, print_line
from plumbing.files import check_writable, file_crc32, write_lines
from plumbing.run import checkpoint
from plumbing.stopwatch import Stopwatch
from records.rows import graded_row
from scripts.command import exit_on_error
from scripts.study.categories import natural_sort_key
from scripts.study.runs import config_of, read_config
from train import EVALUATION, Actor
from verify import Verifier

SETTINGS = [  # of train.py that are flags here, too
    "preset",
    "seed",
    "verify_workers",
    "prompt_header",
    "prompt_footer",
    "chat_template",
    "reward",
    "max_prompt_tokens",
    "max_completion_tokens",
    "max_rollout_tokens",
    "device",
    "bf16",
]


def answer(actor: Actor, problems: Problems, samples: int, temperature: float) -> pd.DataFrame:
    """Let a model answer each problem so many times. Returns a row for each completion, in order:
    what a run's evals/ has, and whether the token limit cut it."""
    groups = []
    for i in range(len(problems)):
        prompt = actor.encode(problems.question(i))
        groups += [Group(i, size=1, prompt_ids=prompt) for _ in range(samples)]
    limit = actor.config.max_prompt_tokens
    fitting = [group for group in groups if len(group.prompt_ids) <= limit]
    print_line(f"{len(fitting)} completions: this may take minutes; {actor.generator.ends}")
    actor.rollout(fitting, problems, temperature, (EVALUATION, 0, 0), Stopwatch())
    rows = pd.DataFrame([graded_row(group, actor.generator.tokenizer.decode) for group in groups])
    rows["temperature"] = temperature
    rows["truncated"] = [any(not o.finished for o in group.completions) for group in groups]
    return rows


def pass_at_k(rewards: pd.Series, k: int) -> float:
    """Estimate, unbiased, that one of k samples is right if c of n are: 1 - C(n-c, k) / C(n, k).
    Right is a reward of 1."""
    n = len(rewards)
    c = int((rewards == 1).sum())
    return 1 - math.comb(n - c, k) / math.comb(n, k)


def print_results(rows: pd.DataFrame, ks: list[int], column: str) -> None:
    """Print pass@k with its standard error over problems, the mean reward if a reward lies between
    0 and 1, the number of each status, and mean rewards by the values of a column, if any, which
    are sorted by the numbers in them."""
    rewards = rows.groupby("problem").reward
    for k in ks:
        pass_P = rewards.agg(pass_at_k, k=k)
        print(f"pass@{k}: {pass_P.mean():.2%} ± {pass_P.sem():.2%}")
    if not rows.reward.isin([0, 1]).all():
        print(f"mean reward: {rows.reward.mean():.4f}")
    print(rows.status.value_counts().to_string())
    print(f"cut at the token limit: {rows.truncated.sum()}")
    if column:
        means = rows.groupby(column).reward.agg(["count", "mean"])
        print(means.loc[sorted(means.index, key=natural_sort_key)].to_string())


def arguments(argv) -> Namespace:
    """Parse the command line. Settings have no default."""
    parser = Parser(__doc__)
    add = parser.add_argument
    add("model", help="hub id, Hugging Face directory, or run directory")
    add(
        "--data",
        dest="val_data",
        default=SUPPRESS,
        help="JSONL or Parquet [validation file of run or preset]",
    )
    add("--temperature", type=non_negative, default=0.0, help="0 is greedy [0]")
    add(
        "--k",
        type=count,
        nargs="+",
        default=[1],
        help="pass@k for each of these, from as many samples as the largest [1]",
    )
    add("--by", default="", help="print means by one or two columns of the data: task,level")
    add("--out", type=Path, help="write the verdicts there")
    add_fields(parser, train.Config, SETTINGS)
    return parser.parse_args(argv)


def of_run(run_dir: Path, given: dict) -> train.Config:
    """Return the settings of a run, overridden by flags. Raises InputError if its validation file
    or reward has changed, and no flag replaces it."""
    recorded = read_config(run_dir)
    config = config_of(recorded)
    if "preset" in given:
        raise InputError(f"--preset: {run_dir} is a run and has settings already")
    for name, flag in (("val_data", "--data"), ("reward", "--reward")):
        path = plugins.path_of(getattr(config, name))
        if path and name not in given and file_crc32(path) != recorded[f"{name}_crc32"]:
            raise InputError(f"{path} has changed since the run; to use it, give {flag}")
    return replace(config, **given)


def find_model(args: Namespace) -> tuple[train.Config, Path | None]:
    """Return the settings, of the run or else of the preset, with the model's name, and the
    checkpoint whose weights replace the model's, if any."""
    names = [*SETTINGS, "val_data"]
    given = {name: getattr(args, name) for name in names if name in args}
    path = Path(args.model)
    run_dir = path.parent if path.name == "student" else path
    if not (run_dir / "metrics.jsonl").exists():
        preset = given.get("preset", train.Config.preset)
        config = replace(train.parse(["--preset", preset]), **given)
        return replace(config, model=args.model), None
    config = of_run(run_dir, given)
    step = checkpoint.latest_valid_checkpoint(path)  # 0 for RUN/student
    if step:
        return config, checkpoint.directory(path, step)
    return replace(config, model=f"{run_dir}/student"), None


def evaluate(args: Namespace) -> None:
    """Generate and grade completions, write --out, and print the results."""
    samples = max(args.k)
    if samples > 1 and not args.temperature:
        raise InputError(f"--k {samples}: greedy samples are all the same; give --temperature")
    config, weights = find_model(args)
    rollout.check_model(config.model, config.max_prompt_tokens + config.max_completion_tokens)
    if args.out:
        check_writable(args.out)
    problems = Problems(config.val_data, args.by)
    layout = train.build_layout(replace(config, teacher_ranks=0))
    # The verifier's processes start before CUDA is used.
    with Verifier(workers=config.verify_workers, reward=config.reward) as verifier:
        layout.connect(config.timeout_minutes)
        actor = Actor.load(config, layout, verifier)
        if weights:
            checkpoint.load_weights(weights, actor.generator.lm)
        rows = answer(actor, problems, samples, args.temperature)
    if args.by:
        names, index = problems.categories()
        rows[args.by] = np.array(names)[index[rows.problem]]
    if args.out:
        write_lines(args.out, rows.to_dict("records"))
    print(f"{weights or config.model} on {problems.path}, {len(problems)} problems")
    print_results(rows, args.k, args.by)


def main(argv=None) -> None:
    with borrowed_process(), exit_on_error("evaluate"):
        evaluate(arguments(argv))


if __name__ == "__main__":
    main()

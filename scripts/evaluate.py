r"""Measure any Hugging Face model on any problem file: greedy pass@1, or pass@k from n samples.

    python -m scripts.evaluate runs/demo-goldilocks-seed0        # a run: its student and settings
    python -m scripts.evaluate MODEL --data mine.jsonl --samples 16 --temperature 0.7 --k 1 4 16
    python -m scripts.evaluate runs/demo-uniform-seed0/evals/step_10.jsonl --by topic,length

The last reads verdicts, which a run or --out wrote; each line says how it was drawn. --by prints
means by the values of one or two columns of the data.

For a run it takes the weights of the newest checkpoint, without any those of student/, and shows
their step. It reproduces that step's accuracy in metrics.jsonl (on GPUs up to rounding in bf16). A
prompt longer than --max_prompt_tokens counts as wrong. Intervals (95%) are over problems: Wilson's
where each problem counts 0 or 1, else bootstrap.
"""

import math
import sys
from argparse import Namespace, RawDescriptionHelpFormatter
from collections import defaultdict
from dataclasses import replace
from pathlib import Path

import pandas as pd
import torch
from scipy import stats
from transformers import AutoTokenizer

import rollout
import train
from plumbing import command_line, plugins
from plumbing.data.problems import Problems, prepare_missing
from plumbing.distributed.layout import compute_dtype, device_type
from plumbing.distributed.shutdown import begin_process
from plumbing.errors import InputError
from plumbing.files import check_writable, read_lines, write_lines
from plumbing.metrics import TAIL
from plumbing.run import checkpoint
from scripts import analysis
from verify import Verifier

SETTINGS = ["preset", "seed", "verify_workers", "prompt_header", "prompt_footer", "chat_template"]
SETTINGS += ["reward", "max_prompt_tokens", "max_completion_tokens", "max_rollout_tokens"]
SETTINGS += ["device", "bf16", "date"]


def evaluate(config, problems: Problems, indices, samples, temperature, weights=None) -> list[dict]:
    """Return a verdict for each sample of each of these problems, in order, with what a run's
    evals/ has, whether the token limit cut the completion, and how it was drawn. weights: a
    checkpoint's directory, whose student replaces config.model's weights."""
    encode = rollout.PromptEncoder(config, AutoTokenizer.from_pretrained(config.model))
    prompts = {i: encode(problems.question(i)) for i in indices}
    fitting = {i: ids for i, ids in prompts.items() if len(ids) <= config.max_prompt_tokens}
    rows = sample(config, problems, fitting, samples, temperature, weights)
    overlong = {"reward": 0.0, "status": "overlong_prompt", "tokens": 0, "completion": ""}
    overlong |= {"truncated": False}
    drawn = {"temperature": temperature, "samples": samples, "seed": config.seed}
    drawn["data_crc32"] = problems.crc32
    for i in indices:
        rows[i] = rows.get(i, [overlong] * samples)
    return [{"problem": i} | row | drawn for i in indices for row in rows[i]]


def sample(
    config, problems: Problems, prompts: dict[int, list[int]], samples, temperature, weights
) -> dict[int, list[dict]]:
    """Generate and grade completions of each problem's prompt; return their rows by problem."""
    device = torch.device(device_type(config.device))
    tokenizer = AutoTokenizer.from_pretrained(config.model)
    asked = [i for i in prompts for _ in range(samples)]
    # The verifier's processes start before CUDA is used.
    with Verifier(workers=config.verify_workers, reward=config.reward) as verifier:
        valid = verifier.check_golds(*problems.golds([*prompts]))
        is_valid = dict(zip(prompts, valid, strict=True))
        dtype = compute_dtype(config, device)
        generator = rollout.Generator.load(config.model, device, tokenizer, dtype)
        if weights:
            checkpoint.load_weights(weights, generator.lm)
        print(f"{len(asked)} completions: this may take minutes", file=sys.stderr, flush=True)
        completions = generator.generate(
            [prompts[i] for i in asked],
            temperature,
            max_new_tokens=config.max_completion_tokens,
            seed=config.seed,
            max_batch_tokens=config.max_rollout_tokens,
        )
        texts = [tokenizer.decode(o.text_ids) for o in completions]
        verdicts = verifier.grade(texts, *problems.golds(asked))
    rows = defaultdict(list)
    for i, o, text, verdict in zip(asked, completions, texts, verdicts, strict=True):
        # A reference answer that cannot be verified earns no reward, as in training.
        row = vars(verdict) if is_valid[i] else {"reward": 0.0, "status": "bad_gold"}
        row = row | {"tokens": len(o.ids), "completion": text[-TAIL:]}
        rows[i].append(row | {"truncated": not o.finished})
    return rows


def read_verdicts(path: Path, problems: Problems) -> pd.DataFrame:
    """Read verdicts that a run or --out wrote. Raises InputError if they are none, or of other
    problems."""
    rows = analysis.read_table(path, "problem", "reward", "status")
    is_other = "data_crc32" in rows and (rows.data_crc32 != problems.crc32).any()
    if is_other or rows.problem.max() >= len(problems):
        raise InputError(f"{path}: not of the problems in {problems.path}; give their --data")
    return rows


def pass_at_k(n: int, c: int, k: int) -> float:
    """Estimate, unbiased, that one of k samples is right if c of n are: 1 - C(n-c, k) / C(n, k)."""
    return 1 - math.comb(n - c, k) / math.comb(n, k)


def interval(values: pd.Series) -> tuple[float, float]:
    """95% interval of the mean over problems of values in [0, 1]."""
    if values.isin([0, 1]).all():
        test = stats.binomtest(int(values.sum()), len(values))
        return tuple(test.proportion_ci(method="wilson"))
    return analysis.bootstrap(values)


def summary(title: str, rows: pd.DataFrame, ks: list[int]) -> str:
    """Format how the verdicts were drawn, pass@k with intervals, and the number of each status."""
    counts = rows.groupby("problem").reward.agg(["size", "sum"]).astype(int)
    if max(ks) > counts["size"].min():
        raise InputError(f"--k {max(ks)}: a problem has {counts['size'].min()} samples")
    facts = [f"{name} {rows[name].iloc[0]:g}" for name in ("temperature", "seed") if name in rows]
    drawn = ", ".join(facts) or "not recorded how they were drawn"
    lines = []
    for k in ks:
        values = counts.apply(lambda row, k=k: pass_at_k(*row, k), axis=1)
        low, high = interval(values)
        lines.append([f"pass@{k}", f"{values.mean():.2%}", f"{low:.2%} to {high:.2%}"])
    statuses = rows.status.value_counts().to_dict()
    if "truncated" in rows:
        statuses["cut at the token limit"] = rows.truncated.sum()
    lines += [[name, f"{n} of {len(rows)}", ""] for name, n in statuses.items()]
    title = f"{title}: {len(counts)} problems, {len(rows)} completions ({drawn})"
    return analysis.table(title, ["", "value", "95% interval"], lines)


def means_by(columns: str, rows: pd.DataFrame, problems: Problems) -> str:
    """Format the mean reward by the values of one or two columns of the data, "task,level"."""
    names, index = problems.column(columns)
    lines = []
    for label, members in rows.groupby(index[rows.problem]):
        lines.append([names[label], members.problem.nunique(), f"{members.reward.mean():.1%}"])
    return analysis.table(f"By {columns}", [columns, "problems", "pass@1"], lines)


def settings(args: Namespace) -> tuple[train.Config, Path | None, dict]:
    """Return the settings, overridden by flags, of the run that the model is, or in which the file
    of verdicts is, or else of the preset; and the run's directory and config.json. The model of a
    run is its student/ or, before it has one, that which it began with."""
    given = {name: value for name, value in vars(args).items() if name in SETTINGS}
    path = Path(args.model)
    for folder in path.parents[:2] if path.suffix == ".jsonl" else [path]:
        file = folder / "config.json"
        if not file.is_file() or "student_ranks" not in file.read_text(encoding="utf-8"):
            continue  # no run, perhaps a Hugging Face model
        if "preset" in given:
            raise InputError(f"--preset: {folder} is a run and has settings already")
        facts = analysis.read_config(folder)
        config = replace(analysis.recorded(train.Config, facts), **given)
        if (folder / "student").exists():
            config.model = str(folder / "student")
        return config, folder, facts
    config = train.parse(["--preset", given.get("preset", train.Config.preset)])
    return replace(config, **given, model=args.model), None, {}


def newest_weights(run_dir: Path, steps: int) -> tuple[int, Path | None]:
    """Find the newest weights of a run of so many steps: their step, and the checkpoint that has
    them, None for student/. Raises InputError if student/ alone is left and of an earlier end."""
    rows = read_lines(run_dir / "metrics.jsonl", torn=True)
    trained = rows[-1]["step"] if rows else 0
    if step := checkpoint.latest_valid_checkpoint(run_dir):
        if step < trained:
            print(f"note: {run_dir} is at step {trained}, without a checkpoint", file=sys.stderr)
        return step, checkpoint.directory(run_dir, step)
    if trained < steps or not (run_dir / "student").exists():
        raise InputError(f"{run_dir} is at step {trained} of {steps}, without a checkpoint")
    return trained, None


def arguments(argv: list[str] | None) -> Namespace:
    """Parse the command line. Raises ValueError, in one line."""
    parser = command_line.Parser(description=__doc__, formatter_class=RawDescriptionHelpFormatter)
    add, count = parser.add_argument, command_line.count
    help = "hub id, Hugging Face directory, run directory, or file of verdicts"
    add("model", type=command_line.user_path, help=help)
    help = "JSONL or Parquet [the run's or the preset's validation file]"
    add("--data", type=command_line.user_path, default="", help=help)
    add("--limit", type=count, default=None, help="only the first problems")
    add("--temperature", type=command_line.non_negative, default=0.0, help="0 is greedy [0]")
    add("--samples", type=count, default=1, help="completions of each problem [1]")
    add("--k", type=count, nargs="+", default=[1], help="pass@k for each of these [1]")
    add("--by", default="", help="print means by one or two columns of the data: task,level")
    add("--out", type=command_line.file_path, default=None, help="write the verdicts there")
    command_line.add_fields(parser, train.Config, SETTINGS)
    args = parser.parse_args(argv)
    if args.model.endswith(".jsonl"):
        for name in command_line.unused(args, parser, {"model", "data", "by", "preset", "k"}):
            raise InputError(f"--{name}: not used with verdicts, {args.model}; leave it out")
    elif args.temperature == 0 and args.samples > 1:
        reason = "greedy samples are all the same; give --temperature"
        raise InputError(f"--samples {args.samples}: {reason}")
    elif max(args.k) > args.samples:
        raise InputError(f"--k {max(args.k)}: must be at most --samples {args.samples}")
    return args


def load_data(args: Namespace, config, facts: dict) -> Problems:
    """Read --data; else the run's or the preset's validation file, which must be unchanged."""
    if not args.data:
        if args.model.endswith(".jsonl") and not (facts or "preset" in args):
            raise InputError(f"{args.model} is in no run directory: give --data, its problems")
        prepare_missing([config.val_data])
        if facts:
            remedy = "; to use it, give --data"
            analysis.check_unchanged(config.val_data, facts["val_data_crc32"], remedy)
    return Problems(args.data or config.val_data)


def verdicts_of_model(args: Namespace, config, run_dir, facts: dict) -> tuple[str, Problems, list]:
    """Generate and grade completions, and write --out. Returns the model's name, data, verdicts."""
    name, weights = args.model, None
    if run_dir:
        step, weights = newest_weights(run_dir, facts["steps"])
        name += f", step {step}"
        if config.reward and "reward" not in args:
            path, remedy = plugins.path_of(config.reward), "; to use it, give --reward"
            analysis.check_unchanged(path, facts["reward_crc32"], remedy)
    # Before missing data are downloaded, and before the work.
    rollout.check_model(config.model, config.max_prompt_tokens + config.max_completion_tokens)
    if args.out:
        check_writable(args.out)
    data = load_data(args, config, facts)
    if args.by:
        data.column(args.by)
    indices = range(len(data))[: args.limit]
    rows = evaluate(config, data, indices, args.samples, args.temperature, weights)
    if args.out:
        write_lines(args.out, rows)
    return name, data, rows


def main(argv: list[str] | None = None) -> None:
    with analysis.one_line("evaluate", ValueError):
        args = arguments(argv)
        begin_process()
        config, run_dir, facts = settings(args)
        if args.model.endswith(".jsonl"):
            data = load_data(args, config, facts)
            name, rows = args.model, read_verdicts(Path(args.model), data)
        else:
            name, data, rows = verdicts_of_model(args, config, run_dir, facts)
            rows = pd.DataFrame(rows)
        print(summary(f"{name} on {data.path}", rows, args.k), end="", flush=True)
        if args.by:
            print("\n" + means_by(args.by, rows, data), end="", flush=True)


if __name__ == "__main__":
    main()

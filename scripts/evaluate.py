r"""Measure any Hugging Face model on any problem file: greedy pass@1, or pass@k from n samples.

    python -m scripts.evaluate runs/demo-goldilocks-seed0        # a run: its student and settings
    python -m scripts.evaluate MODEL --data mine.jsonl --samples 16 --temperature 0.7 --k 1 4 16
    python -m scripts.evaluate runs/demo-uniform-seed0/evals/step_10.jsonl --by topic,length

Verdicts, a file of a run's evals/ or of --out, are read and nothing is generated. --by prints means
by the values of one or two columns of the data, also of a run's selections.jsonl, its rollouts.

For a run it takes the weights of the newest checkpoint, without any those of student/, and shows
their step. It reproduces that step's accuracy in metrics.jsonl (on GPUs up to rounding in bf16). A
prompt longer than --max_prompt_tokens counts as wrong. Intervals (95%) are over problems: Wilson's
for greedy verdicts, else bootstrap. The lenient score grades a completion without a box on the
formula, number or word that it most likely means. Training never uses it: guesses can be gamed.
"""

import itertools
import json
import math
import sys
from argparse import Namespace, RawDescriptionHelpFormatter
from dataclasses import replace
from pathlib import Path

import pandas as pd
import torch
from scipy import stats
from transformers import AutoTokenizer

import rollout
import train
from grading.guesses import last_answer_like
from plumbing import command_line, plugins
from plumbing.data.problems import Problems, prepare_missing
from plumbing.distributed.layout import compute_dtype, device_type
from plumbing.distributed.shutdown import begin_process
from plumbing.errors import InputError
from plumbing.files import check_writable, read_lines, write_lines
from plumbing.metrics import TAIL, VERDICT
from plumbing.run import checkpoint
from scripts import analysis
from verify import Verifier, extract_boxed

SETTINGS = ["preset", "seed", "verify_workers", "prompt_header", "prompt_footer", "chat_template"]
SETTINGS += ["reward", "max_prompt_tokens", "max_completion_tokens", "max_rollout_tokens"]
SETTINGS += ["device", "bf16"]


def evaluate(
    config,
    problems: Problems,
    indices,
    samples: int,
    temperature: float,
    weights: Path | None = None,
) -> pd.DataFrame:
    """Return a row for each sample of each of these problems, in order: VERDICT, as in a run's
    evals/; lenient, the reward if a missing box is forgiven; truncated, whether the token limit cut
    the completion. weights: a checkpoint's directory, whose student replaces config.model's
    weights. Raises ValueError, in one line, if no prompt fits or a reward cannot be used."""
    device = torch.device(device_type(config.device))
    tokenizer = AutoTokenizer.from_pretrained(config.model)
    rows = prompt_rows(rollout.PromptEncoder(config, tokenizer), problems, indices, samples)
    lengths = rows.prompt.map(len)
    asked = rows[lengths <= config.max_prompt_tokens].copy()
    if asked.empty:
        limit = f"--max_prompt_tokens {config.max_prompt_tokens}"
        raise InputError(f"{limit}: no prompt is as short; the shortest has {lengths.min()} tokens")
    note = f"{len(asked)} completions of {config.model}: this may take minutes"
    print(note, file=sys.stderr, flush=True)
    # The verifier's processes start before CUDA is used.
    with Verifier(workers=config.verify_workers, reward=config.reward) as verifier:
        shown = asked.problem.unique()
        verifiable = shown[verifier.check_golds(*problems.golds(shown))]
        dtype = compute_dtype(config, device)
        generator = rollout.Generator.load(config.model, device, tokenizer, dtype)
        if weights:
            checkpoint.load_weights(weights, generator.lm)
        add_completions(asked, generator, config, temperature)
        grade(asked, problems, verifier)
    # A reference answer that cannot be verified earns no reward, as in training.
    asked.loc[~asked.problem.isin(verifiable), ["reward", "lenient", "status"]] = 0, 0, "bad_gold"
    asked["completion"] = asked.completion.str[-TAIL:]
    rows.loc[asked.index] = asked
    return rows[[*VERDICT, "lenient", "truncated"]]


def prompt_rows(
    encode: rollout.PromptEncoder, problems: Problems, indices, samples: int
) -> pd.DataFrame:
    """Make a row for each sample of each of these problems, in order: its prompt's token ids, and
    the verdict of an overlong prompt, which holds until the row is graded."""
    rows = pd.DataFrame({"problem": indices})
    rows["prompt"] = [encode(problems.question(i)) for i in indices]
    rows = rows.loc[rows.index.repeat(samples)].reset_index(drop=True)
    rows = rows.assign(reward=0.0, lenient=0.0, status="overlong_prompt", tokens=0, truncated=False)
    return rows.assign(completion="")


def add_completions(
    rows: pd.DataFrame, generator: rollout.Generator, config, temperature: float
) -> None:
    """Generate a completion of each prompt; fill in its text, its number of tokens, and whether the
    token limit cut it."""
    completions = generator.generate(
        rows.prompt.tolist(),
        temperature,
        max_new_tokens=config.max_completion_tokens,
        seed=config.seed,
        max_batch_tokens=config.max_rollout_tokens,
    )
    decode = generator.tokenizer.decode
    rows["completion"] = [decode(each.text_ids) for each in completions]
    rows["tokens"] = [len(each.ids) for each in completions]
    rows["truncated"] = [not each.finished for each in completions]


def grade(rows: pd.DataFrame, problems: Problems, verifier: Verifier) -> None:
    """Fill in the rewards, strict and lenient, and the statuses of completions."""
    verdicts = verifier.grade(rows.completion.tolist(), *problems.golds(rows.problem))
    rows["status"] = [verdict.status for verdict in verdicts]
    rows["reward"] = [verdict.reward for verdict in verdicts]
    forgive(rows, problems, verifier)


def forgive(rows: pd.DataFrame, problems: Problems, verifier: Verifier) -> None:
    """Fill in the lenient score of verdicts: the reward, or if there is no box that of a box around
    the answer that the completion most likely means."""
    rows["lenient"] = rows.reward
    unboxed = rows.status == "no_box"
    if verifier.reward:  # which has no such status
        whole = rows.completion.str.len() < TAIL  # a box may stand before the part that is kept
        unboxed = (rows.status == "wrong") & whole & rows.completion.map(extract_boxed).isna()
    golds, extras = problems.golds(rows.problem[unboxed])
    texts = zip(golds, rows.completion[unboxed], strict=True)
    boxes = [rf"\boxed{{{last_answer_like(gold, text)}}}" for gold, text in texts]
    rows.loc[unboxed, "lenient"] = [x.reward for x in verifier.grade(boxes, golds, extras)]


def read_verdicts(path: Path, problems: Problems, config) -> pd.DataFrame:
    """Read verdicts that a run or --out wrote on these problems, and add the lenient score. Raises
    InputError if they are no verdicts, or of other problems."""
    rows = analysis.read_table(path, *VERDICT)
    check_problems(path, rows.problem, problems)
    with Verifier(workers=config.verify_workers, reward=config.reward) as verifier:
        forgive(rows, problems, verifier)
    return rows


def check_problems(path: Path, indices: pd.Series, problems: Problems) -> None:
    """Raise InputError unless the data have all of the problems that a file of a run names."""
    if (last := indices.max()) >= len(problems):
        shown = f"has problem {last}, and {problems.path} has {len(problems)}"
        raise InputError(f"{path}: {shown}; give its --data")


def pass_at_k(n: int, c: int, k: int) -> float:
    """Estimate, unbiased, that one of k samples is right if c of n are: 1 - C(n-c, k) / C(n, k)."""
    return 1 - math.comb(n - c, k) / math.comb(n, k)


def summary(title: str, rows: pd.DataFrame, samples: int, ks: list[int], greedy: bool) -> str:
    """Format pass@k, strict and lenient, with intervals, and the number of each status."""
    cells = []
    for k, score in itertools.product(ks, ("reward", "lenient")):
        right_P = rows.groupby("problem")[score].sum().astype(int)
        values = right_P.map(lambda right, k=k: pass_at_k(samples, right, k))
        interval = analysis.bootstrap(values)
        if greedy:
            test = stats.binomtest(int(right_P.sum()), len(right_P))
            interval = test.proportion_ci(method="wilson")
        name = f"pass@{k}{', greedy' * greedy}{', lenient' * (score == 'lenient')}"
        cells.append([name, f"{values.mean():.2%}", "{:.2%} to {:.2%}".format(*interval)])
    for status, count in rows.status.value_counts().items():
        cells.append([status, f"{count} of {len(rows)}", ""])
    if "truncated" in rows:
        cells.append(["cut at the token limit", f"{rows.truncated.sum()} of {len(rows)}", ""])
    return analysis.table(title, ["", "value", "95% interval"], cells)


def means_by(columns: str, rows: pd.DataFrame, problems: Problems) -> str:
    """Format the means of `analysis.by_label` by the values of one or two columns, "task,level"."""
    means = analysis.by_label(rows, analysis.labels_of(problems, columns))
    cells = []
    for label, row in means.iterrows():
        problems_groups, shares = row.iloc[:2], row.iloc[2:]
        cells.append([label, *(f"{n:.0f}" for n in problems_groups), *(f"{x:.1%}" for x in shares)])
    return analysis.table(f"By {columns}", [columns, *means], cells)


def settings(given: dict) -> tuple[train.Config, dict]:
    """The settings of the run given as the model, else of the preset, overridden by `given`; and
    the run's config.json, {} if the model is no run. The model of a run is its student/ or, before
    it has one, that which it began with. Raises ValueError, in one line."""
    run_dir = Path(given["model"])
    if run_dir.suffix == ".jsonl":  # a run's selections.jsonl, or one of its evals/
        run_dir = run_dir.parents[run_dir.parent.name == "evals"]
    file = run_dir / "config.json"
    facts = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
    if "student_ranks" not in facts:  # a Hugging Face model
        config = train.parse(["--preset", given.get("preset", train.Config.preset)])
        return replace(config, **given), {}
    if "preset" in given:
        raise InputError(f"--preset {given['preset']}: {run_dir} is a run and has settings already")
    config = analysis.recorded(train.Config, facts)
    student = run_dir / "student"
    model = str(student) if student.exists() else config.model
    return replace(config, **given | {"model": model}), facts


def newest_weights(run_dir: Path, steps: int) -> tuple[int, Path | None]:
    """Find the newest weights of a run of so many steps: their step, and the checkpoint that has
    them, None for student/. Prints a note if the run has trained further. Raises InputError if it
    has no weights, or student/ alone and that of an earlier end."""
    student, saved = run_dir / "student", checkpoint.steps(run_dir)
    rows = read_lines(run_dir / "metrics.jsonl", torn=True)
    trained = rows[-1]["step"] if rows else 0
    if not saved and not student.exists():
        raise InputError(f"{run_dir}: no checkpoint and no student/ yet")
    if not saved and trained < steps:
        state = f"at step {trained} of {steps}, without a checkpoint; student/ is of an earlier end"
        raise InputError(f"{run_dir} is {state}: to measure that, give {student}")
    if not saved:
        return trained, None
    try:
        step = checkpoint.latest_valid_checkpoint(run_dir)
    except InputError as error:
        remedy = f": to measure the student of an earlier end, give {student}"
        reason = f"no checkpoint is intact{remedy if student.exists() else ''}"
        raise InputError(f"{run_dir}: {reason}") from error
    if step < trained:
        note = f"note: {run_dir} is at step {trained}, of which it has no intact checkpoint"
        print(note, file=sys.stderr, flush=True)
    return step, checkpoint.directory(run_dir, step)


def arguments(argv: list[str] | None) -> Namespace:
    """Parse the command line. Raises ValueError, in one line."""
    parser = command_line.Parser(description=__doc__, formatter_class=RawDescriptionHelpFormatter)
    add = parser.add_argument
    help = "hub id, Hugging Face directory, run directory, or file of verdicts"
    add("model", type=command_line.user_path, help=help)
    help = "JSONL or Parquet [the run's or the preset's validation file]"
    add("--data", type=command_line.user_path, default="", help=help)
    add("--limit", type=command_line.count, default=None, help="only the first problems")
    add("--temperature", type=command_line.non_negative, default=0.0, help="0 is greedy [0]")
    add("--samples", type=command_line.count, default=1, help="completions of each problem [1]")
    add("--k", type=command_line.count, nargs="+", default=[1], help="pass@k for each of these [1]")
    add("--by", default="", help="print means by one or two columns of the data: task,level")
    help = "write a JSON line for each verdict there"
    add("--out", type=command_line.file_path, default=None, help=help)
    command_line.add_fields(parser, train.Config, SETTINGS)
    args = parser.parse_args(argv)
    if args.model.endswith(".jsonl"):
        check_unused(args, parser)
        return args
    if args.temperature == 0 and args.samples > 1:
        reason = "greedy samples are all the same; give --temperature"
        raise InputError(f"--samples {args.samples}: {reason}")
    if max(args.k) > args.samples:
        raise InputError(f"--k {max(args.k)}: must be at most --samples {args.samples}")
    return args


def check_unused(args: Namespace, parser: command_line.Parser) -> None:
    """Raise InputError at a flag that a file of verdicts, or selections.jsonl, does not use."""
    used = {"model", "data", "by", "preset"}
    if Path(args.model).name != "selections.jsonl":
        used |= {"k", "reward", "verify_workers"}
    for name in command_line.unused(args, parser, used):
        raise InputError(f"--{name}: not used with {args.model}; leave it out")


def main(argv: list[str] | None = None) -> None:
    with analysis.one_line("evaluate", ValueError):
        args = arguments(argv)
        begin_process()
        given = {name: x for name, x in vars(args).items() if name in ["model", *SETTINGS]}
        config, facts = settings(given)
        if args.model.endswith(".jsonl"):
            report_verdicts(args, config, facts)
            return
        name, weights = config.model, None
        if args.out:
            check_writable(args.out)
        if facts:
            check_reward(given, config, facts)
            step, weights = newest_weights(Path(args.model), facts["steps"])
            name = f"{args.model}, step {step}"
        tokens = config.max_prompt_tokens + config.max_completion_tokens
        rollout.check_model(config.model, tokens)  # before missing data are downloaded
        data = load_data(args.data, config, facts, "val_data")
        if args.by:
            analysis.labels_of(data, args.by)  # before the work
        chosen = range(len(data))[: args.limit]
        rows = evaluate(config, data, chosen, args.samples, args.temperature, weights)
        title = f"{name}: {len(chosen)} problems of {data.path}, {args.samples} of each sampled"
        if args.out:
            write_lines(args.out, rows[[*VERDICT]].to_dict("records"))
        report(args, title, rows, data, args.samples, greedy=args.temperature == 0)


def check_reward(given: dict, config, facts: dict) -> None:
    """Raise InputError, or OSError, if the run's own reward file is another one now."""
    path = plugins.path_of(config.reward)
    if facts and path and "reward" not in given:
        analysis.check_unchanged(path, facts["reward_crc32"], "; to use it, give --reward")


def load_data(path: str, config, facts: dict, name: str) -> Problems:
    """Read --data; else the run's or the preset's file of this name, which must be unchanged."""
    if not path:
        prepare_missing([getattr(config, name)])
        if facts:
            remedy = "; to use it, give --data"
            analysis.check_unchanged(getattr(config, name), facts[f"{name}_crc32"], remedy)
    return Problems(path or getattr(config, name))


def report_verdicts(args: Namespace, config, facts: dict) -> None:
    """Print the summary of a file of verdicts, and means by --by, also of selections.jsonl."""
    path = Path(args.model)
    if not (facts or args.data or "preset" in args):
        raise InputError(f"{path} is not in a run's folder: give --data, its problems")
    if path.name == "selections.jsonl":
        if not args.by:
            raise InputError(f"{path}: give --by, columns of the training data")
        data = load_data(args.data, config, facts, "train_data")
        rows = analysis.read_selections(path, facts.get("resample_rounds", 0))
        check_problems(path, rows.chosen, data)
        print(means_by(args.by, rows, data), end="", flush=True)
        return
    data = load_data(args.data, config, facts, "val_data")
    check_reward(vars(args), config, facts)
    rows = read_verdicts(path, data, config)
    sizes = rows.groupby("problem").size()
    samples = int(sizes.iloc[0])
    if sizes.nunique() > 1:
        raise InputError(
            f"{path}: problems have {sizes.min()} to {sizes.max()} samples, not as many"
        )
    if max(args.k) > samples:
        raise InputError(f"--k {max(args.k)}: {path} has {samples} samples of each problem")
    title = f"{path}: {rows.problem.nunique()} problems of {data.path}, {samples} of each sampled"
    report(args, title, rows, data, samples, greedy=path.parent.name == "evals")


def report(args: Namespace, title: str, rows, data: Problems, samples: int, greedy: bool) -> None:
    """Print the summary of verdicts, and with --by their means."""
    print(summary(title, rows, samples, args.k, greedy), end="", flush=True)
    if args.by:
        print("\n" + means_by(args.by, rows, data), end="", flush=True)


if __name__ == "__main__":
    main()

"""Accuracy of any Hugging Face model on any problem file: greedy pass@1, or pass@k from n samples.

    python -m scripts.evaluate runs/demo-goldilocks-seed0/student --preset demo
    python -m scripts.evaluate MODEL --data mine.jsonl --samples 16 --temperature 0.7 --k 1 4 16

One process, with the prompt, generator and verifier of training: on a run's exported student and
validation file this is the accuracy in the last line of its metrics.jsonl (on GPUs but for rounding
in bf16). A prompt that is longer than --max_prompt_tokens counts as wrong, and is shown. Intervals
(95%) are over problems: Wilson's where each has one greedy verdict, else bootstrap.

Beside this strict score stands a lenient one: a completion without a box is graded on the last
number or formula in it (lenient.py). What the strict score gains on it in training is the box, and
when to stop: much of a first gain.
"""

import argparse
import itertools
import math
from pathlib import Path

import datasets
import numpy as np
import pandas as pd
import torch
from scipy import stats
from transformers import AutoTokenizer
from transformers.utils import logging as hf_logging

import rollout
import train
from plumbing.errors import InputError
from plumbing.files import write_lines
from sampler import Problems
from scripts import report
from scripts.lenient import last_answer
from scripts.prepare_data import prepare_missing
from verify import Verifier

FIELDS = ["problem", "reward", "status", "tokens"]
SETTINGS = ["preset", "seed", "verify_workers", "prompt_header", "prompt_footer"]
SETTINGS += ["max_prompt_tokens", "max_completion_tokens", "max_rollout_tokens"]
LENIENT = (
    "Lenient: where a completion has no box, the last number or formula in it is graded; much of a "
    "first gain of RL is learning the box and when to stop."
)


def evaluate(
    config: train.Config, problems: list[tuple[str, str]], samples: int, temperature: float
) -> pd.DataFrame:
    """A row for each sample of each (question, gold), in order: FIELDS, as in a run's evals/;
    lenient, the reward where a missing box is forgiven; truncated, whether the limit cut it.

    Raises ValueError, in one line, for a model that cannot be used.
    """
    rollout.check_model(config.model, config.max_prompt_tokens + config.max_completion_tokens)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    tokenizer = AutoTokenizer.from_pretrained(config.model)
    encode = rollout.PromptEncoder.of(config, tokenizer)
    every = pd.DataFrame(problems, columns=["question", "gold"])
    every = every.assign(problem=every.index, prompt=[encode(text) for text in every.question])
    every = every.loc[every.index.repeat(samples)].reset_index(drop=True)
    fits = every.prompt.map(len) <= config.max_prompt_tokens
    nothing = {"reward": 0.0, "status": "overlong_prompt", "tokens": 0}
    overlong, rows = every[~fits].assign(**nothing, lenient=0.0, truncated=False), every[fits]

    # The verifier's processes start before CUDA is used.
    with Verifier(workers=config.verify_workers) as verifier:
        generator = rollout.Generator(config.model, device, tokenizer)
        limits = (config.max_completion_tokens, config.seed, config.max_rollout_tokens)
        rollouts = generator.generate(rows.prompt.tolist(), temperature, *limits)
        texts = [tokenizer.decode(ids, skip_special_tokens=True) for ids in rollouts.completion_ids]
        verdicts = verifier.grade(texts, rows.gold.tolist())
        rows = rows.assign(
            reward=[verdict.reward for verdict in verdicts],
            status=[verdict.status for verdict in verdicts],
            tokens=[len(ids) for ids in rollouts.completion_ids],
            lenient=[verdict.reward for verdict in verdicts],
            truncated=[not finished for finished in rollouts.finished],
        )
        unboxed = rows.status == "no_box"
        guesses = pd.Series(texts, rows.index)[unboxed].map(last_answer).fillna("")
        guesses = [rf"\boxed{{{guess}}}" for guess in guesses]
        forgiven = verifier.grade(guesses, rows.gold[unboxed].tolist())
        rows.loc[unboxed, "lenient"] = [verdict.reward for verdict in forgiven]
        golds = rows.gold.unique()
        sound = golds[verifier.check_golds(golds.tolist())]
    # A gold answer that cannot be verified is never rewarded, as in training.
    rows.loc[~rows.gold.isin(sound), ["reward", "status", "lenient"]] = [0.0, "bad_gold", 0.0]
    return pd.concat([rows, overlong]).sort_index()[[*FIELDS, "lenient", "truncated"]]


def pass_at_k(n: int, c: int, k: int) -> float:
    """Unbiased chance that one of k samples is right, c of n being so: 1 - C(n-c, k) / C(n, k)."""
    return 1 - math.comb(n - c, k) / math.comb(n, k)


def summary(title: str, rows: pd.DataFrame, samples: int, ks: list[int], greedy: bool) -> str:
    """pass@k, strict and lenient, with its interval, and how the completions ended, in Markdown."""
    cells = []
    for k, score in itertools.product(ks, ("reward", "lenient")):
        right_P = rows.groupby("problem")[score].sum().astype(int)
        values = [pass_at_k(samples, right, k) for right in right_P]
        interval = report.bootstrap(values)
        if greedy:
            test = stats.binomtest(int(right_P.sum()), len(right_P))
            interval = test.proportion_ci(method="wilson")
        name = f"pass@{k}{', greedy' * greedy}{', lenient' * (score == 'lenient')}"
        cells.append([name, f"{np.mean(values):.2%}", "{:.2%} to {:.2%}".format(*interval)])
    for status, count in rows.status.value_counts().items():
        cells.append([status, f"{count} of {len(rows)}", ""])
    cells.append(["cut at the token limit", f"{rows.truncated.sum()} of {len(rows)}", ""])
    generated = rows.tokens[rows.status != "overlong_prompt"]
    cells.append(["mean tokens of a completion", f"{generated.mean():.1f}", ""])
    return report.table(title, ["", "value", "95% interval"], cells, LENIENT)


def check(samples: int, limit: int | None, temperature: float, ks: list[int]) -> None:
    """Raises InputError for flags that cannot be meant."""
    if samples < 1 or not 0 <= temperature < math.inf or (limit is not None and limit < 1):
        raise InputError("--samples and --limit must be at least 1, --temperature at least 0")
    if temperature == 0 and samples > 1:
        raise InputError(f"--samples {samples}: greedy samples are all alike; give --temperature")
    if not all(1 <= k <= samples for k in ks):
        raise InputError(f"--k {' '.join(map(str, ks))}: must be from 1 to --samples {samples}")


def main(argv: list[str] | None = None) -> None:
    """The command line of `evaluate`."""
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    add = parser.add_argument
    add("model", help="hub id or Hugging Face folder")
    add("--data", help="JSONL or Parquet: problem, expected_answer (the preset's validation file)")
    add("--limit", type=int, help="the first problems only")
    add("--temperature", type=float, default=0.0, help="0 is greedy (%(default)s)")
    add("--samples", type=int, default=1, help="completions of each problem (%(default)s)")
    add("--k", type=int, nargs="+", default=[1], help="pass@k for each of these (1)")
    add("--out", type=Path, help="write a JSON line for each verdict there")
    add("--chat_template", action="store_true", help="as for train.py")
    for name in SETTINGS:
        add(f"--{name}", help="as for train.py")
    args = parser.parse_args(argv)
    hf_logging.set_verbosity_error()
    hf_logging.disable_progress_bar()
    datasets.disable_progress_bars()
    given = {name: getattr(args, name) for name in SETTINGS}
    flags = [f"--{name}={value}" for name, value in given.items() if value is not None]
    flags += ["--chat_template"] * args.chat_template
    with report.one_line("evaluate", ValueError):
        check(args.samples, args.limit, args.temperature, args.k)
        config = train.parse([*flags, "--model", args.model])
        if not args.data:
            prepare_missing([config.val_data])
        data = Problems(args.data or config.val_data)
        chosen = [(data.question(i), data.answer(i)) for i in range(len(data))[: args.limit]]
        rows = evaluate(config, chosen, args.samples, args.temperature)
        if args.out:
            write_lines(args.out, rows[FIELDS].to_dict("records"))
    title = f"{config.model}: {len(chosen)} problems of {data.path}, {args.samples} of each sampled"
    print(summary(title, rows, args.samples, args.k, args.temperature == 0), end="")


if __name__ == "__main__":
    main()

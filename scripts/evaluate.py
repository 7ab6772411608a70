#!/usr/bin/env python
"""Accuracy of any Hugging Face model on any problem file: greedy pass@1, or pass@k from n samples.

    python scripts/evaluate.py runs/demo-goldilocks-seed0/student --preset demo
    python scripts/evaluate.py Qwen/Qwen2.5-1.5B --data problems.jsonl --samples 16 --temperature 0.7 --k 1 4 16

One process, with the prompt, generator and verifier of training: on a run's exported student and validation file this
is the accuracy in the last line of its metrics.jsonl (on GPUs but for rounding in bf16). A prompt that is longer than
--max_prompt_tokens counts as wrong, and is shown. Intervals (95%) are over problems: Wilson's where each has one greedy
verdict, else bootstrap.

Beside this strict score stands a lenient one: a completion without a box is graded on the last number
or formula in it (lenient.py). What the strict score gains on it in training is the box, and when to
stop: much of a first gain.
"""

import argparse
import itertools
import sys
from dataclasses import fields
from pathlib import Path

sys.path.insert(
    0, str(Path(__file__).resolve().parent.parent)
)  # the core files lie beside this folder
import datasets
import numpy as np
import torch
from intervals import bootstrap, pass_at_k, wilson
from lenient import last_answer
from prepare_data import prepare_missing
from transformers import AutoTokenizer
from transformers.utils import logging as hf_logging

import rollout
import train
from sampler import InputError, Problems
from verify import Verdict, Verifier

SETTINGS = (
    "preset",
    "prompt_header",
    "prompt_footer",
    "chat_template",
    "max_prompt_tokens",
    "max_completion_tokens",
)
SETTINGS += (
    "max_rollout_tokens",
    "verify_workers",
    "seed",
)  # those of train.Config that matter here
FIELDS = ("problem", "reward", "status", "tokens")
LENIENT = (
    "Lenient: where a completion has no box, the last number or formula in it is graded; much of a "
    "first gain of RL is learning the box and when to stop."
)


def evaluate(
    config: train.Config, problems: list[tuple[str, str]], samples: int, temperature: float
) -> list[dict]:
    """One row for each sample of each (question, gold) in order: FIELDS, as in a run's evals/, and
    `lenient`, the reward where a missing box is forgiven, and `truncated`, whether the limit cut it.

    config: the model and SETTINGS. Raises ValueError, in one line, for a model that cannot be used.
    """
    rollout.check_model(config.model, config.max_prompt_tokens + config.max_completion_tokens)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    tokenizer = AutoTokenizer.from_pretrained(config.model)
    encode = rollout.PromptEncoder.of(config, tokenizer)
    with Verifier(
        workers=config.verify_workers
    ) as verifier:  # its processes start before CUDA is used
        generator = rollout.Generator(config.model, device, tokenizer)
        prompts = [encode(question) for question, _ in problems]
        fits = [i for i, prompt in enumerate(prompts) if len(prompt) <= config.max_prompt_tokens]
        asked, golds = (
            [i for i in fits for _ in range(samples)],
            list(dict.fromkeys(gold for _, gold in problems)),
        )
        limits = (config.max_completion_tokens, config.seed, config.max_rollout_tokens)
        rollouts = generator.generate([prompts[i] for i in asked], temperature, *limits)
        texts = [tokenizer.decode(ids, skip_special_tokens=True) for ids in rollouts.completion_ids]
        verdicts = verifier.grade(texts, [problems[i][1] for i in asked])
        unboxed = [b for b, verdict in enumerate(verdicts) if verdict.status == "no_box"]
        guesses = [rf"\boxed{{{last_answer(texts[b]) or ''}}}" for b in unboxed]
        forgiven = verifier.grade(guesses, [problems[asked[b]][1] for b in unboxed])
        lenient = [verdict.reward for verdict in verdicts]
        for b, verdict in zip(unboxed, forgiven, strict=True):
            lenient[b] = verdict.reward
        good = dict(
            zip(golds, verifier.check_golds(golds), strict=True)
        )  # others are never rewarded, as in training
    rows = []
    names = (*FIELDS, "lenient", "truncated")
    for b, (i, verdict) in enumerate(zip(asked, verdicts, strict=True)):
        if not good[problems[i][1]]:
            verdict, lenient[b] = Verdict(0.0, "bad_gold"), 0.0
        tokens, truncated = len(rollouts.completion_ids[b]), not rollouts.finished[b]
        row = (i, verdict.reward, verdict.status, tokens, lenient[b], truncated)
        rows.append(dict(zip(names, row, strict=True)))
    for i in sorted(set(range(len(problems))) - set(fits)):
        row = (i, 0.0, "overlong_prompt", 0, 0.0, False)
        rows += [dict(zip(names, row, strict=True))] * samples
    return sorted(rows, key=lambda row: row["problem"])


def summary(rows: list[dict], samples: int, ks: list[int], greedy: bool) -> str:
    """pass@k, strict and lenient, with its interval, and how the completions ended, in Markdown."""
    lines = ["| | value | 95% interval |", "|---|---|---|"]
    for k, score in itertools.product(ks, ("reward", "lenient")):
        right_P = np.reshape([row[score] for row in rows], (-1, samples)).sum(axis=1).astype(int)
        values = [pass_at_k(samples, c, k) for c in right_P.tolist()]
        low, high = wilson(int(right_P.sum()), len(right_P)) if greedy else bootstrap(values)
        name = f"pass@{k}{', greedy' * greedy}{', lenient' * (score == 'lenient')}"
        lines.append(f"| {name} | {np.mean(values):.2%} | {low:.2%} to {high:.2%} |")
    statuses = [row["status"] for row in rows]
    for status in sorted(set(statuses), key=lambda status: (-statuses.count(status), status)):
        lines.append(f"| {status} | {statuses.count(status)} of {len(rows)} | |")
    generated = [row["tokens"] for row in rows if row["status"] != "overlong_prompt"]
    truncated = sum(row["truncated"] for row in rows)
    lines.append(f"| cut at the token limit | {truncated} of {len(rows)} | |")
    lines.append(f"| mean tokens of a completion | {np.mean(generated or [0]):.1f} | |")
    return "\n".join([*lines, "", LENIENT])


def main(argv: list[str] | None = None) -> int:
    """Prints the table; returns the exit status, 2 with one line on stderr for bad input."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", help="hub id or Hugging Face folder")
    parser.add_argument(
        "--data", help="JSONL or Parquet: problem, expected_answer (the preset's validation file)"
    )
    parser.add_argument("--limit", type=int, help="the first problems only")
    parser.add_argument("--temperature", type=float, default=0.0, help="0 is greedy (%(default)s)")
    parser.add_argument(
        "--samples", type=int, default=1, help="completions of each problem (%(default)s)"
    )
    parser.add_argument(
        "--k", type=int, nargs="+", default=[1], help="pass@k for each of these (1)"
    )
    parser.add_argument("--out", type=Path, help="write a JSON line for each verdict there")
    for f in fields(train.Config):
        if f.name in SETTINGS:
            kind = {"action": "store_true"} if f.type is bool else {}
            parser.add_argument(
                f"--{f.name}",
                help=f"{f.metadata['help']}, as for train.py".replace("%", "%%"),
                **kind,
            )
    args = vars(parser.parse_args(argv))
    hf_logging.set_verbosity_error()
    hf_logging.disable_progress_bar()
    datasets.disable_progress_bars()
    try:
        flags = [
            f"--{name}={args[name]}" for name in SETTINGS if args[name] not in (None, True, False)
        ]
        config = train.parse(
            [*flags, *["--chat_template"] * args["chat_template"], "--model", args["model"]]
        )
        n, ks, greedy = args["samples"], args["k"], args["temperature"] == 0
        if (
            n < 1
            or not 0 <= args["temperature"] < np.inf
            or (args["limit"] is not None and args["limit"] < 1)
        ):
            raise InputError("--samples and --limit must be at least 1, --temperature at least 0")
        if greedy and n > 1:
            raise InputError(
                f"--samples {n}: greedy samples are all alike; give --temperature as well"
            )
        if not all(1 <= k <= n for k in ks):
            raise InputError(f"--k {' '.join(map(str, ks))}: must be from 1 to --samples {n}")
        if not args["data"]:
            prepare_missing([config.val_data])
        data = Problems(args["data"] or config.val_data)
        chosen = range(len(data))[: args["limit"]]
        rows = evaluate(
            config, [(data.question(i), data.answer(i)) for i in chosen], n, args["temperature"]
        )
        if args["out"]:
            train.write_lines(args["out"], [{name: row[name] for name in FIELDS} for row in rows])
    except (ValueError, OSError) as error:
        print(f"evaluate: {error}", file=sys.stderr)
        return 2
    print(
        f"{config.model}: {len(chosen)} problems of {data.path}, {n} sample{'s' * (n > 1)} of each\n"
    )
    print(summary(rows, n, ks, greedy))
    return 0


if __name__ == "__main__":
    sys.exit(main())

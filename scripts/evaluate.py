r"""Measure any Hugging Face model on any problem file: greedy pass@1, or pass@k from n samples.

    python -m scripts.evaluate runs/demo-goldilocks-seed0        # a run: its student and settings
    python -m scripts.evaluate MODEL --data mine.jsonl --samples 16 --temperature 0.7 --k 1 4 16

For a run it reproduces the last accuracy of metrics.jsonl (on GPUs up to rounding in bf16). A
prompt longer than --max_prompt_tokens counts as wrong. Intervals (95%) are over problems: Wilson's
for greedy verdicts, else bootstrap. The lenient score grades a completion without a box on the
formula or number that it most likely means. Training never uses it: guesses can be gamed.
"""

import itertools
import json
import math
from argparse import RawDescriptionHelpFormatter
from dataclasses import replace
from pathlib import Path

import pandas as pd
import torch
from scipy import stats
from transformers import AutoTokenizer

import rollout
import train
from plumbing import command_line
from plumbing.distributed.layout import device_type
from plumbing.distributed.shutdown import begin_process
from plumbing.errors import InputError
from plumbing.files import write_lines
from plumbing.grading.guesses import last_answer
from plumbing.problems import Problems, prepare_missing
from scripts import analysis
from verify import Verifier

FIELDS = ["problem", "reward", "status", "tokens"]
SETTINGS = ["preset", "seed", "verify_workers", "prompt_header", "prompt_footer", "chat_template"]
SETTINGS += ["reward", "max_prompt_tokens", "max_completion_tokens", "max_rollout_tokens"]
SETTINGS += ["device"]


def evaluate(config, problems: Problems, indices, samples: int, temperature: float) -> pd.DataFrame:
    """Return a row for each sample of each of these problems, in order: FIELDS, as in a run's
    evals/; lenient, the reward if a missing box is forgiven; truncated, whether the token limit cut
    the completion. Raises ValueError, in one line, for a reward that cannot be used."""
    device = torch.device(device_type(config.device))
    tokenizer = AutoTokenizer.from_pretrained(config.model)
    encode = rollout.PromptEncoder(config, tokenizer)
    rows = pd.DataFrame({"problem": indices})
    rows["prompt"] = [encode(problems.question(i)) for i in indices]
    rows = rows.loc[rows.index.repeat(samples)].reset_index(drop=True)
    rows = rows.assign(reward=0.0, lenient=0.0, status="overlong_prompt", tokens=0, truncated=False)
    asked = rows[rows.prompt.map(len) <= config.max_prompt_tokens].copy()
    # The verifier's processes start before CUDA is used.
    with Verifier(workers=config.verify_workers, reward=config.reward) as verifier:
        generator = rollout.Generator.load(config.model, device, tokenizer)
        options = {"max_new_tokens": config.max_completion_tokens, "seed": config.seed}
        options |= {"max_batch_tokens": config.max_rollout_tokens}
        rollouts = generator.generate(asked.prompt.tolist(), temperature, **options)
        texts = tokenizer.batch_decode(rollouts.completion_ids, skip_special_tokens=True)
        asked["tokens"] = rollouts.lengths().tolist()
        asked["truncated"] = [not finished for finished in rollouts.finished]
        verdicts = verifier.grade(texts, *problems.golds(asked.problem))
        asked["status"] = [verdict.status for verdict in verdicts]
        asked["reward"] = asked["lenient"] = [verdict.reward for verdict in verdicts]
        unboxed = asked.status == "no_box"
        guesses = [last_answer(text) for text in itertools.compress(texts, unboxed)]
        boxed = [rf"\boxed{{{guess}}}" for guess in guesses]
        forgiven = verifier.grade(boxed, *problems.golds(asked.problem[unboxed]))
        asked.loc[unboxed, "lenient"] = [verdict.reward for verdict in forgiven]
        shown = asked.problem.unique()
        verifiable = shown[verifier.check_golds(*problems.golds(shown))]
    # A reference answer that cannot be verified earns no reward, as in training.
    bad = ~asked.problem.isin(verifiable)
    asked.loc[bad, ["reward", "status", "lenient"]] = [0.0, "bad_gold", 0.0]
    rows.loc[asked.index] = asked
    return rows[[*FIELDS, "lenient", "truncated"]]


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
    cells.append(["cut at the token limit", f"{rows.truncated.sum()} of {len(rows)}", ""])
    return analysis.table(title, ["", "value", "95% interval"], cells)


def settings(given: dict) -> tuple[train.Config, dict]:
    """The settings of the run given as the model, else of the preset, overridden by `given`; and
    the run's config.json, {} if the model is no run. Raises ValueError, in one line."""
    run_dir = Path(given["model"])
    file = run_dir / "config.json"
    facts = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
    if "student_ranks" not in facts:  # a Hugging Face model
        config = train.parse(["--preset", given.get("preset", train.Config.preset)])
        return replace(config, **given), {}
    if "preset" in given:
        raise InputError(f"--preset {given['preset']}: {run_dir} is a run and has settings already")
    if not (run_dir / "student").exists():
        raise InputError(f"{run_dir}: no student/ yet; train.py exports it when it finishes")
    config = analysis.recorded(train.Config, facts)
    return replace(config, **given | {"model": str(run_dir / "student")}), facts


def main(argv: list[str] | None = None) -> None:
    parser = command_line.Parser(description=__doc__, formatter_class=RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("model", help="hub id, Hugging Face directory, or run directory")
    add("--data", default="", help="JSONL or Parquet [the run's or the preset's validation file]")
    add("--limit", type=command_line.count, default=None, help="only the first problems")
    add("--temperature", type=command_line.non_negative, default=0.0, help="0 is greedy [0]")
    add("--samples", type=command_line.count, default=1, help="completions of each problem [1]")
    add("--k", type=command_line.count, nargs="+", default=[1], help="pass@k for each of these [1]")
    add("--out", type=Path, default=None, help="write a JSON line for each verdict there")
    command_line.add_fields(parser, train.Config, SETTINGS)
    begin_process()
    with analysis.one_line("evaluate", ValueError):
        args = parser.parse_args(argv)
        n, greedy = args.samples, args.temperature == 0
        if greedy and n > 1:
            raise InputError(f"--samples {n}: greedy samples are all the same; give --temperature")
        if max(args.k) > n:
            raise InputError(f"--k {max(args.k)}: must be at most --samples {n}")
        given = {name: x for name, x in vars(args).items() if name in ["model", *SETTINGS]}
        config, facts = settings(given)
        tokens = config.max_prompt_tokens + config.max_completion_tokens
        rollout.check_model(config.model, tokens)  # before missing data are downloaded
        if not args.data:
            prepare_missing([config.val_data])
            if facts:
                analysis.check_unchanged(config.val_data, facts["val_data_crc32"])
        data = Problems(args.data or config.val_data)
        chosen = range(len(data))[: args.limit]
        rows = evaluate(config, data, chosen, n, args.temperature)
        title = f"{config.model}: {len(chosen)} problems of {data.path}, {n} of each sampled"
        print(summary(title, rows, n, args.k, greedy), end="", flush=True)
        if args.out:
            write_lines(args.out, rows[FIELDS].to_dict("records"))


if __name__ == "__main__":
    main()

"""Run directories for the tests of the scripts that report on runs."""

import json
import math
from dataclasses import asdict

import train
from plumbing.files import write_lines

CONFIG = asdict(train.parse(["--preset", "demo", "--sampler", "uniform"])) | {"out": ""}
CONFIG |= {"group_size": 4, "prompts_per_step": 2, "world_size": 8, "student_ranks": 8}
CONFIG |= {"model": "", "teacher_model": "", "train_data": "", "val_data": ""}
GOLDILOCKS = {"sampler": "goldilocks", "student_ranks": 6}
STEP = {"groups": 2, "completions": 8, "completion_tokens": 100_000, "seconds": 3600.0}
STEP |= {"zero_variance": 0.5, "trained_live": 0.5, "grad_norm": 0.1}


def selection(step, explored, utilities, successes, chosen=0, G=16):
    """A selection from as many problems as there are utilities, from number 10 on; `chosen` is its
    position."""
    pool = list(range(10, 10 + len(utilities)))
    p = successes / G
    row = {"step": step, "pool": pool, "utilities": utilities, "chosen": pool[chosen]}
    row |= {"explored": explored, "completions": G, "successes": successes}
    return row | {"y": math.sqrt(p * (1 - p))}


def make_run(folder, rows=(), selections=(), verdicts=(), **config):
    """Write a run directory. rows: of metrics.jsonl; those after step 0 get what STEP has.
    verdicts: instead of rows, those of the validation problems at steps 0, 1, 2, ..."""
    if verdicts:
        right = [sum(each) / len(each) for each in verdicts]
        rows = [*rows, *({"step": step, "val_accuracy": x} for step, x in enumerate(right))]
    for step, rewards in enumerate(verdicts):
        lines = [
            {"problem": i, "reward": float(r), "status": "correct" if r else "wrong"}
            for i, r in enumerate(rewards)
        ]
        write_lines(folder / "evals" / f"step_{step}.jsonl", lines)
    rows = [(STEP if row["step"] else {}) | row for row in rows]
    write_lines(folder / "metrics.jsonl", rows)
    write_lines(folder / "selections.jsonl", selections)
    last = {"steps": rows[-1]["step"] if rows else 0}
    (folder / "config.json").write_text(json.dumps(CONFIG | last | config))
    return folder

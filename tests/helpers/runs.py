"""Run directories for the tests of the scripts that report on runs."""

import json
from dataclasses import asdict

import train
from plumbing.files import write_lines

CONFIG = asdict(train.parse(["--preset", "demo", "--sampler", "uniform"])) | {
    "out": "",
    "model": "",
    "teacher_model": "",
    "train_data": "",
    "val_data": "",
    "group_size": 4,
    "prompts_per_step": 2,
    "world_size": 8,
    "student_ranks": 8,
}
GOLDILOCKS = {"sampler": "goldilocks", "student_ranks": 6}
STEP = {
    "groups": 2,
    "completions": 8,
    "completion_tokens": 100_000,
    "seconds": 3600.0,
    "zero_variance": 0.5,
    "trained_live": 0.5,
    "tried_before": 0.0,
    "grad_norm": 0.1,
}


def make_run(folder, rows=(), verdicts=(), **config):
    """Write a run directory. rows: of metrics.jsonl; those after step 0 get what STEP has.
    verdicts: instead of rows, the rewards of the validation problems at steps 0, 1, 2, ..."""
    rows = [*rows]
    for step, rewards in enumerate(verdicts):
        rows.append({"step": step, "val_accuracy": sum(rewards) / len(rewards)})
        lines = [
            {"problem": i, "reward": float(r), "status": "correct" if r else "wrong"}
            for i, r in enumerate(rewards)
        ]
        write_lines(folder / "evals" / f"step_{step}.jsonl", lines)
    write_lines(folder / "metrics.jsonl", [(STEP if row["step"] else {}) | row for row in rows])
    last = {"steps": rows[-1]["step"] if rows else 0}
    (folder / "config.json").write_text(json.dumps(CONFIG | last | config))
    return folder

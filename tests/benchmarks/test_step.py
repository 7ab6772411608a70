"""Measured steps on two student ranks and a teacher rank."""

import pytest

from benchmarks import step
from benchmarks.roofline import Machine
from tests.helpers.ranks import on_ranks


@pytest.mark.slow
@pytest.mark.parametrize("dead", [0.5, 1.0])
def test_parts_add_up_to_the_step_and_rows_match_the_counts(dead, tiny_model, tmp_path):
    flags = f"--shape {tiny_model} --question_tokens 4 --repeats 2 --warmup 1 --dead {dead}"
    flags += " --prompts_per_step 2 --group_size 4 --max_completion_tokens 5 --candidates 2"
    flags += " --verify_workers 1 --teacher_ranks 1"

    def body():
        Machine.measure = lambda cuda: Machine(1e10, 1e11)
        return step.measure(flags.split())

    rows = on_ranks(3, tmp_path, body)
    assert len(rows) == 2
    for row in rows:
        prompt_B, new_B, live = row["rows"]
        assert live == [4, 5, 6, 7][: row["forwarded_rows"]] and row["zero_variance"] == dead
        assert sum(new_B) == row["completion_tokens"] <= 8 * 5
        assert sum(prompt_B) + sum(new_B) == row["total_tokens"]
        parts = [row[f"{x}_s"] for x in ("teacher_wait", "rollout", "verify", "gather", "train")]
        assert min(parts) > 0 and sum(parts) <= row["seconds"]
        assert row["cpu_s"] > 0 and row["peak_gib"] > 0.1

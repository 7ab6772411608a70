"""plumbing/metrics.py: evaluation by hand."""

import json
from types import SimpleNamespace

from plumbing.metrics import evaluate
from plumbing.run_dir import RunDir
from rollout import Rollouts
from tests.helpers.ranks import one_rank, parse
from tests.helpers.samplers import Numbers


def test_evaluation_counts_an_overlong_prompt_as_wrong(tmp_path):
    """Two ranks, three rows of 9 + 40 tokens a rank: 4 problems in one part, dealt to the ranks."""
    config, layout = parse("--preset", "demo", "--max_rollout_tokens", 147), one_rank()
    layout.n_students, orders = 2, []

    def rollout(problems, order, temperature, stream, watch):
        assert (temperature, stream) == (0.0, (0, 10))
        orders.append(order)
        rewards = [float(i in (0, 3)) for i in order]
        rows = [[[i] * i for i in order], [True] * 4, [[]] * 4, order, rewards, ["graded"] * 4]
        return Rollouts([[1]] * 4, *rows)

    layout.store = SimpleNamespace(check=lambda keys: False)
    run = RunDir(config, layout, None)
    run.path = tmp_path
    tokens = [5, 40, 5, 9, 5]  # of a limit of 32
    metrics = evaluate(rollout, lambda i: range(tokens[int(i)]), Numbers(5), run, step=10)
    assert orders == [[0, 3, 2, 4]] and metrics["val_accuracy"] == 2 / 5 and metrics["eval_s"] > 0
    lines = (tmp_path / "evals/step_10.jsonl").read_text().splitlines()
    rows = [tuple(json.loads(line).values()) for line in lines]
    assert rows[:2] == [(0, 1, "graded", 0), (1, 0, "overlong_prompt", 0)]
    assert rows[3] == (3, 1, "graded", 3) and len(rows) == 5

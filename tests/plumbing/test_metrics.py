"""plumbing/metrics.py: evaluation by hand."""

from types import SimpleNamespace
from unittest.mock import Mock

from plumbing.metrics import evaluate
from rollout import Rollouts
from tests.helpers.ranks import one_rank, parse
from tests.helpers.samplers import Numbers


def test_evaluation_counts_an_overlong_prompt_as_wrong():
    """Two ranks, three rows of 9 + 40 tokens a rank: 4 problems in one part, dealt to the ranks."""
    config, layout = parse("--preset", "demo", "--max_rollout_tokens", 147), one_rank()
    layout.n_students, orders = 2, []

    def rollout(problems, order, temperature, stream, watch):
        assert (temperature, stream) == (0.0, (0, 10))
        orders.append(order)
        rewards = [float(i in (0, 3)) for i in order]
        rows = [[[i] * i for i in order], [True] * 4, [[]] * 4, order, rewards, ["graded"] * 4]
        return Rollouts([[1]] * 4, *rows)

    run = SimpleNamespace(config=config, layout=layout, log=Mock())
    tokens = [5, 40, 5, 9, 5]  # of a limit of 32
    metrics = evaluate(rollout, lambda i: range(tokens[int(i)]), Numbers(5), run, step=10)
    assert orders == [[0, 3, 2, 4]] and metrics["val_accuracy"] == 2 / 5 and metrics["eval_s"] > 0
    name, verdicts, mode = run.log.call_args.args
    assert (name, mode) == ("evals/step_10", "w")
    rows = [tuple(verdict.values()) for verdict in verdicts]
    assert rows[:2] == [(0, 1, "graded", 0), (1, 0, "overlong_prompt", 0)]
    assert rows[3] == (3, 1, "graded", 3) and len(rows) == 5

"""plumbing/metrics.py: evaluation by hand."""

from types import SimpleNamespace

import pytest

from plumbing.metrics import evaluate
from tests.helpers.groups import completion, problems_of
from tests.helpers.ranks import one_rank, parse
from tests.helpers.samplers import Numbers

TOKENS = [5, 40, 5, 9, 5]  # of the prompts, of which at most 32 are allowed


@pytest.fixture
def evaluation() -> SimpleNamespace:
    """An evaluation at step 10 on two ranks. Problems 0 and 3 are solved, by i tokens."""
    rollouts = []
    logged = []

    def rollout(groups, problems, temperature, stream, watch):
        rollouts.append((problems_of(groups), temperature, stream))
        for group in groups:
            i = group.problem
            answer = completion(reward=i in (0, 3), ids=[2] * i, status="graded")
            group.completions = [answer] * group.size

    # Three rows of 9 + 40 tokens a rank, so that four problems fit in one part.
    config = parse("--preset", "demo", "--max_rollout_tokens", 3 * 49)
    layout = one_rank()
    layout.n_students = 2
    run = SimpleNamespace(config=config, layout=layout, log=lambda *call: logged.append(call))
    metrics = evaluate(rollout, lambda i: range(TOKENS[int(i)]), Numbers(5), run, step=10)
    return SimpleNamespace(metrics=metrics, rollouts=rollouts, logged=logged)


def test_evaluation_is_greedy_and_deals_neighbours_to_different_ranks(evaluation):
    assert evaluation.rollouts == [([0, 3, 2, 4], 0.0, (0, 10))]


def test_evaluation_counts_an_overlong_prompt_as_wrong(evaluation):
    assert evaluation.metrics["val_accuracy"] == 2 / 5


def test_evaluation_measures_its_seconds(evaluation):
    assert evaluation.metrics["eval_s"] > 0


def test_evaluation_logs_a_verdict_for_each_problem_in_order(evaluation):
    [(name, verdicts, mode)] = evaluation.logged
    assert name == "evals/step_10"
    assert mode == "w"
    assert [tuple(verdict.values()) for verdict in verdicts] == [
        (0, 1, "graded", 0),
        (1, 0, "overlong_prompt", 0),
        (2, 0, "graded", 2),
        (3, 1, "graded", 3),
        (4, 0, "graded", 4),
    ]
    assert list(verdicts[0]) == ["problem", "reward", "status", "tokens"]

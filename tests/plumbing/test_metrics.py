"""plumbing/metrics.py, plumbing/progress.py: evaluation by hand, lines of progress."""

import re
import time
from types import SimpleNamespace
from unittest.mock import MagicMock, Mock

import pytest

from plumbing import progress
from plumbing.metrics import TAIL, evaluate
from plumbing.run.directory import RunDir
from tests.helpers.groups import completion, problems_of
from tests.helpers.ranks import one_rank, parse
from tests.helpers.samplers import Numbers

TOKENS = [5, 40, 5, 9, 5]  # of the prompts, of which at most 32 are allowed


def encoder(tokens):
    """Encode question i as tokens[i] tokens; decode id n as the digit n."""
    tokenizer = SimpleNamespace(decode=lambda ids: "".join(map(str, ids)))
    return Mock(side_effect=lambda i: range(tokens[int(i)]), tokenizer=tokenizer)


def test_without_a_terminal_progress_is_a_line_now_and_then(monkeypatch, capsys, tmp_path):
    """Also in a step or evaluation that takes long."""
    monkeypatch.setattr(progress, "LINE_S", 0.01)
    flags = ("--preset", "demo", "--steps", 9, "--out", tmp_path)
    run = RunDir(parse(*flags), one_rank(*flags), None)
    student = MagicMock()
    student.policy.parameters.return_value = []
    data = MagicMock()
    data.__len__.return_value = 20
    data.unmatched_note.return_value = ""
    console = progress.Console(run, 0, student, data, data)
    console.report("evaluation, 5 of 20 problems")
    time.sleep(0.1)
    console.report("")
    console.update(
        {"step": 1, "total_tokens": 8, "seconds": 2, "reward_mean": 0, "zero_variance": 1}
    )
    time.sleep(0.1)
    console.end(finished=False)
    lines = capsys.readouterr().err.splitlines()
    assert re.fullmatch(r"step 0 of 9 \[00:00<\?, evaluation, 5 of 20 problems\]", lines[0])
    assert re.fullmatch(r"step 1 of 9 \[00:00<00:\d\d, reward .*, 4 tok/s\]", lines[-1])


@pytest.fixture
def evaluation() -> SimpleNamespace:
    """An evaluation at step 10 on two ranks. Problems 0 and 3 are solved, by i tokens."""
    rollouts = []
    logged = []

    def rollout(groups, problems, temperature, stream, watch):
        rollouts.append((problems_of(groups), temperature, stream))
        for group in groups:
            i = group.problem
            answer = completion(reward=i in (0, 3), ids=[i] * i, status="graded", finished=False)
            group.completions = [answer] * group.size

    # Three rows of 9 + 40 tokens a rank, so that four problems fit in one part.
    config = parse("--preset", "demo", "--max_rollout_tokens", 3 * 49)
    layout = one_rank()
    layout.n_students = 2
    run = SimpleNamespace(config=config, layout=layout, log=lambda *call: logged.append(call))
    metrics = evaluate(rollout, encoder(TOKENS), Numbers(5), run, step=10)
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
        (0, 1, "graded", 0, ""),
        (1, 0, "overlong_prompt", 0, ""),
        (2, 0, "graded", 2, "22"),
        (3, 1, "graded", 3, "333"),
        (4, 0, "graded", 4, "4444"),
    ]
    assert list(verdicts[0]) == ["problem", "reward", "status", "tokens", "completion"]


@pytest.mark.parametrize(("rank", "kept"), [(0, "2" * (TAIL - 1) + "3"), (1, "")])
def test_evaluation_keeps_the_end_of_a_completion_on_rank_0_alone(rank, kept):
    def rollout(groups, *_):
        [only] = groups
        only.completions = [completion(ids=[1, *[2] * (TAIL - 1), 3, 0], status="wrong")]

    layout = one_rank()
    layout.rank = rank
    run = SimpleNamespace(config=parse("--preset", "demo"), layout=layout, log=Mock())
    evaluate(rollout, encoder([5]), Numbers(1), run, step=1)
    _, [verdict], _ = run.log.call_args.args
    assert verdict["completion"] == kept

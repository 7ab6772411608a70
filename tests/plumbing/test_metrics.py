"""plumbing/metrics.py, plumbing/progress.py: evaluation by hand, lines of progress."""

import re
import time
from types import SimpleNamespace
from unittest.mock import MagicMock, Mock

from plumbing import progress
from plumbing.metrics import TAIL, evaluate
from plumbing.run_dir import RunDir
from rollout import Rollouts
from tests.helpers.ranks import one_rank, parse
from tests.helpers.samplers import Numbers


def encoder(tokens):
    """Encode question i as tokens[i] tokens; decode id n as the digit n."""
    tokenizer = SimpleNamespace(decode=lambda ids, **_: "".join(map(str, ids)))
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
    metrics = evaluate(rollout, encoder(tokens), Numbers(5), run, step=10)
    assert orders == [[0, 3, 2, 4]] and metrics["val_accuracy"] == 2 / 5 and metrics["eval_s"] > 0
    name, verdicts, mode = run.log.call_args.args
    assert (name, mode) == ("evals/step_10", "w")
    rows = [tuple(verdict.values()) for verdict in verdicts]
    assert rows[:2] == [(0, 1, "graded", 0, ""), (1, 0, "overlong_prompt", 0, "")]
    assert rows[3] == (3, 1, "graded", 3, "333") and len(rows) == 5


def test_evaluation_keeps_the_end_of_a_completion_on_rank_0_alone():
    ids = [1, *[2] * (TAIL - 1), 3]
    rollouts = Rollouts([[1]], [ids], [True], [[]], [0], [0.0], ["wrong"])
    kept = []
    for rank in (0, 1):
        layout = one_rank()
        layout.rank = rank
        run = SimpleNamespace(config=parse("--preset", "demo"), layout=layout, log=Mock())
        evaluate(lambda *_: rollouts, encoder([5]), Numbers(1), run, step=1)
        kept.append(run.log.call_args.args[1][0]["completion"])
    assert kept == ["2" * (TAIL - 1) + "3", ""]

"""plumbing/progress.py: diagnostics, their numbers and limits, each printed once; the console."""

from types import SimpleNamespace

import pytest
import torch

from plumbing import progress
from tests.helpers.ranks import one_rank, parse


def row(step=1, **numbers):
    """Make a row of metrics.jsonl: 10 of 20 groups dead, 2 of 4 seconds spent on generation."""
    zeros = ("bad_gold", "verify_failures", "truncated", "no_box", "reward_mean", *progress.PARTS)
    row = dict.fromkeys(zeros, 0.0) | {"step": step, "seconds": 4.0, "rollout_s": 2.0}
    return row | {"groups": 20, "zero_variance": 0.5} | numbers


def diagnostics(rows=()):
    """Make the diagnostics of a run with 100 validation problems and these rows, over 3 steps."""
    return progress.Diagnostics(parse("--eval_every", 10), 100, rows, steps=3)


def notes(diagnostics, rows, about):
    return [note for row in rows for note in diagnostics.update(row) if about in note]


DEAD = {  # the main cause: shares of the completions, and their list
    "cut": ({"truncated": 0.9, "no_box": 0.95}, "90% cut at --max_completion_tokens, 5% "),
    "no_box": ({"truncated": 0.1, "no_box": 0.7}, "60% without a box, 30% wrong, 10% cut at"),
    "right": ({"reward_mean": 0.9}, "90% right, 10% wrong: "),
    "wrong": ({"reward_mean": 0.004}, "100% wrong: "),
    "bad_gold": ({"bad_gold": 1.0, "no_box": 0.0}, "100% of an unverifiable reference answer: "),
    "failed": ({"verify_failures": 0.5, "no_box": 0.25}, "50% given up by the verifier, 25% "),
}


@pytest.mark.parametrize("cause", DEAD)
def test_dead_groups_are_reported_once_with_their_main_cause(cause):
    (shares, listed), first = DEAD[cause], diagnostics()
    rows = [row(zero_variance=dead, **shares) for dead in (1.0, 0.95, 0.85, 1.0, 1.0, 1.0)]
    assert notes(first, rows[:4], "dead") == []  # 56 of 60, twice: one short of 57
    (note,) = notes(first, rows[4:] * 2, "dead")  # 57, and never again
    assert note.startswith("95% of the groups of the last 3 steps are dead")
    assert listed in note and note.endswith(progress.CAUSES[cause][1])
    assert notes(diagnostics(rows), rows, "dead") == []  # printed before the run was resumed
    assert notes(diagnostics(rows[:4]), rows[4:], "dead") == [note]


def test_step_time_by_part_is_reported_once():
    """2 + 1 + 1 seconds, and a tenth of an evaluation's 10."""
    rows = [row(train_s=1.0, verify_s=1.0, eval_s=10.0, val_accuracy=0.1)] * 3
    first = diagnostics()
    assert notes(first, rows[:2], "takes") == []
    (note,) = notes(first, rows[2:] * 3, "takes")
    assert "5 s: 40% generation, 20% grading, 20% training, 20% evaluation. To shorten it" in note
    assert first.step_time() == diagnostics(rows).step_time() == diagnostics().step_time() == []
    assert "a step takes 5 s: 40% gen" in diagnostics(rows[:1]).step_time()[0]  # a short run


COLLAPSES = {  # right answers of 100, evaluation by evaluation -> the steps of a collapse
    (36, 60, 41): [],  # a third of 60 is 20
    (36, 60, 40): [30],
    (60, 40, 30, 41, 40): [20, 50],  # not at 30, which is no new one
    (20, 10): [],  # half, but two standard errors are 2 √(20·0.8 + 10·0.9) = 10
    (20, 9): [20],
}


@pytest.mark.parametrize("rights", COLLAPSES)
def test_accuracy_collapses_by_a_third_and_by_more_than_two_standard_errors(rights):
    rows = [{"val_accuracy": right / 100, "eval_s": 1.0} for right in rights]
    rows = [row | {"step": 10 * i} for i, row in enumerate(rows, 1)]
    resumed = [notes(diagnostics(rows[:i]), [rows[i]], "accuracy fell") for i in range(len(rows))]
    assert [10 * i for i, printed in enumerate(resumed, 1) if printed] == COLLAPSES[rights]
    assert notes(diagnostics(), rows, "accuracy fell") == [
        n for printed in resumed for n in printed
    ]


def test_a_stop_before_the_first_step_is_not_reported_as_saved(tmp_path, capsys):
    run = SimpleNamespace(config=parse(), layout=one_rank(), path=tmp_path)
    console = progress.Console(run, 0, torch.nn.Linear(1, 1), 5, 100)
    console.start_bar(0)
    console.end(finished=False)
    assert "stopped before the first step: run the same command" in capsys.readouterr().out

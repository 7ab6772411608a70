"""plumbing/progress.py: diagnostics, their numbers and limits, each printed once; the console."""

from types import SimpleNamespace

import pytest
import torch

from plumbing import progress
from tests.helpers.ranks import one_rank, parse


def row(step=1, **numbers):
    """Make a row of metrics.jsonl: 10 of 20 groups dead."""
    row = dict.fromkeys(progress.CAUSES, 0.0) | {"step": step, "seconds": 4.0}
    return row | {"groups": 20, "zero_variance": 0.5} | numbers


def diagnostics(rows=()):
    """Make the diagnostics of a run with 100 validation problems and these rows, over 3 steps."""
    return progress.Diagnostics(100, rows, steps=3)


def notes(diagnostics, rows, about):
    return [note for row in rows for note in diagnostics.update(row) if about in note]


def test_dead_groups_are_reported_once_with_the_shares_of_their_causes():
    """Steps of 20, 20 and 60 groups: means over groups, not steps."""
    first, shares = diagnostics(), {"truncated": 0.9, "no_box": 0.95}
    rows = [row(zero_variance=dead, **shares) for dead in (1.0, 0.95, 0.85, 1.0, 1.0)]
    assert notes(first, rows[:4], "dead") == []  # 56 of 60, twice: one short of 57
    (note,) = notes(first, [row(groups=60, zero_variance=1.0, no_box=0.5)] * 3, "dead")
    assert note.startswith("97% of the groups of the last 3 steps are dead")  # 17 + 20 + 60
    assert ": truncated 36%, no_box 68%, bad_gold 0%, verify_failures 0%, reward_mean 0%." in note
    assert notes(first, rows, "dead") == []
    assert notes(diagnostics([row(zero_variance=1.0)] * 3), rows, "dead") == []  # before a resume


COLLAPSES = {  # right answers of 100, evaluation by evaluation -> the steps of a collapse
    (36, 60, 41): [],  # a third of 60 is 20
    (36, 60, 40): [30],
    (60, 40, 30, 41, 40): [20, 50],  # not at 30, which is no new one
    (20, 10): [],  # half, but two standard errors are 2 √(20·0.8 + 10·0.9) = 10
    (20, 9): [20],
}


@pytest.mark.parametrize("rights", COLLAPSES)
def test_accuracy_collapses_by_a_third_and_by_more_than_two_standard_errors(rights):
    rows = [{"val_accuracy": right / 100} for right in rights]
    rows = [row | {"step": 10 * i} for i, row in enumerate(rows, 1)]
    resumed = [notes(diagnostics(rows[:i]), [rows[i]], "accuracy fell") for i in range(len(rows))]
    assert [10 * i for i, printed in enumerate(resumed, 1) if printed] == COLLAPSES[rights]
    assert notes(diagnostics(), rows, "accuracy fell") == [
        n for printed in resumed for n in printed
    ]


def test_a_stop_before_the_first_step_is_not_reported_as_saved(tmp_path, capsys):
    run = SimpleNamespace(config=parse(), layout=one_rank(), path=tmp_path)
    console = progress.Console(run, 0, torch.nn.Linear(1, 1), 5, 100)
    console.end(finished=False)
    assert "stopped before the first step: run the same command" in capsys.readouterr().out

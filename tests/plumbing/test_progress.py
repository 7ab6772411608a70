"""The notes of plumbing/progress.py: their numbers, their borders, and each but once."""

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

import train
from plumbing import progress
from plumbing.files import write_lines
from tests.helpers.ranks import parse


def row(step=1, **numbers):
    """Of metrics.jsonl: 20 groups, of which 10 are dead; of 4 seconds 2 are generation."""
    named = ("bad_gold", "verify_failures", "truncated", "no_box", "reward_mean", *progress.PARTS)
    found = dict.fromkeys(named, 0.0) | {"step": step, "seconds": 4.0, "rollout_s": 2.0}
    return found | {"groups": 20, "zero_variance": 0.5} | numbers


def hears(rows=(), folder=Path("none")):
    """What hears a run of 100 validation problems, and judges by 3 steps; it has heard `rows`."""
    return progress.Diagnostics(parse("--eval_every", 10), 100, folder, rows, steps=3)


def said(mind, rows, about):
    return [note for each in rows for note in mind.hear(each) if about in note]


DEAD = {  # the cause that is answered: shares of the completions, how they are listed
    "cut": ({"truncated": 0.9, "no_box": 0.95}, "90% cut at --max_completion_tokens, 5% "),
    "no_box": ({"truncated": 0.1, "no_box": 0.7}, "60% without a box, 30% wrong, 10% cut at"),
    "right": ({"reward_mean": 0.9}, "90% right, 10% wrong: "),
    "wrong": ({"reward_mean": 0.004}, "100% wrong: "),
    "bad_gold": ({"bad_gold": 1.0, "no_box": 0.0}, "100% of a gold that cannot be verified: "),
    "failed": ({"verify_failures": 0.5, "no_box": 0.25}, "50% given up by the verifier, 25% "),
}


@pytest.mark.parametrize("cause", DEAD)
def test_dead_groups_and_their_cause(cause):
    (shares, listed), mind = DEAD[cause], hears()
    rows = [row(zero_variance=dead, **shares) for dead in (1.0, 0.95, 0.85, 1.0, 1.0, 1.0)]
    assert said(mind, rows[:4], "dead") == []  # 56 of 60, twice: one short of 57
    (note,) = said(mind, rows[4:] * 2, "dead")  # 57, and never again
    assert note.startswith("95% of the groups of the last 3 steps are dead")
    assert listed in note and note.endswith(progress.CAUSES[cause][1])
    assert said(hears(rows), rows, "dead") == []  # said before the run was resumed
    assert said(hears(rows[:4]), rows[4:], "dead") == [note]


def test_what_a_step_takes():
    """2 + 1 + 1 seconds and a tenth of an evaluation's 10; once more where it is another part."""
    rows, mind = [row(train_s=1.0, verify_s=1.0, eval_s=10.0, val_accuracy=0.1)] * 3, hears()
    assert said(mind, rows[:2], "takes") == []
    (note,) = said(mind, rows[2:] * 3, "takes")
    assert "5 s: 40% generation, 20% grading, 20% training, 20% evaluation. To shorten it" in note
    assert mind.at_end() == hears(rows).at_end() == hears().at_end() == []
    assert said(mind, [row(train_s=3.9)] * 3, "takes") == mind.at_end() == []  # under twice 2
    assert said(mind, [row(train_s=4.0, seconds=7.0)] * 3, "takes") == []
    assert "8 s: 50% training, 25% generation" in mind.at_end()[0] and mind.at_end() == []
    assert "a step takes 5 s: 40% gen" in hears(rows[:1]).at_end()[0]  # a run shorter than 3 steps


FALLS = {  # right answers of 100, evaluation by evaluation -> the steps of a fall
    (36, 60, 41): [],  # a third of 60 is 20
    (36, 60, 40): [30],
    (60, 40, 46, 30, 47, 40): [20, 60],  # 14 below 60 is far by 0.02 of an answer, 13 is near
    (20, 10): [],  # half, but two standard errors are 2 √(20·0.8 + 10·0.9) = 10
    (20, 9): [20],
}


@pytest.mark.parametrize("rights", FALLS)
def test_a_fall_by_a_third_and_by_more_than_chance(rights, tmp_path):
    rows = [{"val_accuracy": right / 100, "eval_s": 1.0} for right in rights]
    fell, mind = [], hears()
    for i, new in enumerate(rows):
        new["step"] = step = 10 * i + 10
        for saved in (step - 5, step):  # the one between two evaluations may have fallen already
            (tmp_path / f"checkpoints/step_{saved}").mkdir(parents=True)
        for note in said(hears(rows[:i], tmp_path), [new], "accuracy fell"):  # as if resumed there
            assert f"{tmp_path}/checkpoints/step_{step - 10} is from before it" in note
            fell.append(step)
    assert fell == FALLS[rights]
    assert len(said(mind, rows, "; no checkpoint is from before it")) == len(fell)
    assert bool(said(mind, [row(zero_variance=1.0)] * 3, "student has fallen")) == bool(fell)


def test_the_first_rank_says_it_once(tmp_path, capsys):
    write_lines(tmp_path / "metrics.jsonl", [row(step) for step in range(1, 20)])
    layout = train.Layout(parse())
    for layout.rank in (0, 1):
        run = SimpleNamespace(config=parse(), layout=layout, path=tmp_path)
        screen = progress.Screen(run, 19, torch.nn.Linear(1, 1), 5, 100)
        screen.begin()
        screen.step(row(20, total_tokens=1))
        screen.hear({"step": 20, "val_accuracy": 0.5, "eval_s": 1.0})
        assert capsys.readouterr().out.count("note: a step takes 4 s: 50% ") == 1 - layout.rank

"""replay: a step trained again, and a step that failed."""

import sys
from contextlib import nullcontext
from types import SimpleNamespace

import pytest
import torch

import train
from plumbing.files import read_lines, write_lines
from scripts import replay
from tests.helpers.checks import rejected
from tests.helpers.ranks import Grades, contents, launch, run, torchrun

TOKEN = 12  # the demo's digit 1: in a test, completions with it get a log-prob of NaN


def again(folder, step, before=lambda rank: None):
    """(highest exit status, output) of a step's replay on two ranks."""

    def main():
        replay.Verifier = lambda **settings: nullcontext(Grades())
        return replay.main(["--step", str(step), str(folder)])

    ended = torchrun(2, folder.parent, main, before)
    return max(ended.statuses), ended.out + ended.err


@pytest.mark.slow
def test_steps_are_reproduced_bit_for_bit(halfway, tmp_path):
    """Steps of two rounds on two student ranks and a teacher, from step 2, without the teacher."""
    folder = tmp_path / "run"
    flags = ("--teacher_ranks", 1, "--resample_rounds", 1, "--checkpoint_every", 2)
    run(folder, *flags, ranks=3, data=halfway)
    before = contents(folder)
    code, output = again(folder, 4)
    assert code == 0 and "step 3: " in output and "step 4: " in output and "step 2: " not in output
    chosen = [row for row in read_lines(folder / "selections.jsonl") if row["step"] == 4]
    lines = read_lines(folder / "replay/step_4.jsonl")
    assert {row["round"] for row in chosen} == {0, 1}
    assert [line["problem"] for line in lines] == [r["chosen"] for r in chosen for _ in range(4)]
    assert sum(line["reward"] for line in lines) == sum(row["successes"] for row in chosen)
    for line in lines[::5]:
        assert line["advantage"] * (line["reward"] - 0.5) >= 0 and line["completion_ids"]
    assert before.items() <= contents(folder).items()

    rows = read_lines(folder / "metrics.jsonl")
    rows[4]["grad_norm"] += 1e-9
    write_lines(folder / "metrics.jsonl", rows)
    code, output = again(folder, 4)
    assert code == 1 and "  grad_norm: " in output and output.count(" then, ") == 1


@pytest.mark.slow
def test_a_step_that_was_not_finite_fails_again_and_names_its_rows(halfway, tmp_path):
    def poison(rank):
        forward = train.Policy.forward

        def wrong(self, batch, temperature):
            logp_N, entropy_N = forward(self, batch, temperature)
            predicted_N = batch.ids_B_T[:, 1:][batch.response_B_T[:, 1:]]
            bad_N = (predicted_N == TOKEN) & (temperature < 1)  # check_model uses 1
            return logp_N.masked_fill(bad_N, torch.nan), entropy_N

        train.Policy.forward = wrong

    folder = tmp_path / "run"
    ended = launch(folder, "--teacher_ranks", 0, ranks=2, data=halfway, before=poison)
    assert 3 in ended.statuses and "--step 1" in ended.err and "scripts.replay" in ended.err
    code, output = again(folder, 1, before=poison)
    assert code == 0 and "as then: step 1: " in output and "loss nan: no update was made" in output
    lines = read_lines(folder / "replay/step_1.jsonl")
    finite = [TOKEN not in line["completion_ids"] for line in lines]
    assert [line["finite_logp"] for line in lines] == finite and 0 < sum(finite) < len(lines)
    code, output = again(folder, 1)  # without what was wrong
    assert code == 1 and "failed then, and does not now" in output


def test_python_without_docstrings_is_one_line(tmp_path, monkeypatch):
    """transformers loads no model under `python -OO`."""
    monkeypatch.setattr(sys, "flags", SimpleNamespace(optimize=2))
    with rejected("python -OO removes docstrings"):
        replay.load(tmp_path, 1, None)

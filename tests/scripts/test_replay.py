"""replay: a step trained again, and a step that failed."""

from contextlib import nullcontext
from types import SimpleNamespace

import pytest
import torch

import train
from plumbing.config import Config
from plumbing.files import file_crc32, read_lines, write_lines
from scripts import replay
from tests.helpers.checks import rejected
from tests.helpers.ranks import Grades, contents, launch, run, torchrun
from tests.helpers.runs import make_run


@pytest.fixture
def made_up(tmp_path):
    """A run of three steps on data.jsonl, without a checkpoint, and its student."""
    data = tmp_path / "data.jsonl"
    write_lines(data, [{"problem": "1 + 1", "expected_answer": "2"}])
    files = {"train_data": str(data), "train_data_crc32": file_crc32(data)}
    rows = [{"step": step, "loss": 0.5, "rollout_s": 4.0} for step in range(4)]
    student = SimpleNamespace(config=Config(train_data=str(data)), layout=SimpleNamespace(rank=0))
    return make_run(tmp_path / "run", rows, **files), student


def test_numbers_of_any_step_that_differ_are_printed_and_counted_but_not_times(
    made_up, monkeypatch, capsys
):
    """Of steps 1 to 3 the second has another loss."""
    run, student = made_up
    losses = {1: 0.5, 2: 0.75, 3: 0.5}
    monkeypatch.setattr(replay, "restore", lambda *_: None)
    monkeypatch.setattr(
        train, "train_step", lambda step, *_: {"step": step, "loss": losses[step], "rollout_s": 5.0}
    )
    assert not replay.replay(run, 3, student)
    differences = [line for line in capsys.readouterr().out.splitlines() if "differences" in line]
    assert differences == [
        "step 1: differences (then, now): {}",
        "step 2: differences (then, now): {'loss': (0.5, 0.75)}",
        "step 3: differences (then, now): {}",
    ]


def test_a_step_is_not_repeated_on_data_that_have_changed(made_up, tmp_path):
    """Its problems would be others'."""
    run, student = made_up
    write_lines(tmp_path / "data.jsonl", [{"problem": "1 + 2", "expected_answer": "3"}])
    with rejected("data.jsonl has changed since the run"):
        replay.replay(run, 1, student)


# Whole runs

TOKEN = 12  # the demo's digit 1: in a test, completions with it get a log-prob of NaN


def again(folder, step, before=lambda rank: None):
    """(highest exit status, output) of a step's replay on two ranks."""

    def main():
        replay.Verifier = lambda **settings: nullcontext(Grades())
        return replay.main(["--step", str(step), str(folder)])

    ended = torchrun(2, folder.parent, main, before)
    return max(ended.statuses), ended.out + ended.err


RUNS = [  # ranks, two of them students, and flags: with a Teacher and rounds; a sampler that learns
    (3, "--teacher_ranks 1 --resample_rounds 1"),
    (2, "--sampler mopps"),
]


@pytest.mark.slow
@pytest.mark.parametrize(("ranks", "flags"), RUNS)
def test_steps_are_reproduced_bit_for_bit_from_the_checkpoint_before(
    ranks, flags, halfway, tmp_path
):
    """Checkpoints are at steps 2 and 4. Of the run nothing is changed; a new file has every
    completion with its advantage."""
    folder = tmp_path / "run"
    run(folder, *flags.split(), "--checkpoint_every", 2, ranks=ranks, data=halfway)
    before = contents(folder)
    code, output = again(folder, 4)
    assert code == 0, output
    assert before.items() <= contents(folder).items()
    steps = [line for line in output.splitlines() if "differences" in line]
    assert steps == [f"step {step}: differences (then, now): {{}}" for step in (3, 4)]
    rows = [row for row in read_lines(folder / "selections.jsonl") if row["step"] == 4]
    lines = read_lines(folder / "replay/step_4.jsonl")
    assert [line["problem"] for line in lines] == [row["chosen"] for row in rows for _ in range(4)]
    assert any(line["advantage"] for line in lines)


def poison(rank):
    """Give log-probs of NaN to completions with TOKEN, on this rank."""
    forward = train.Policy.forward

    def wrong(self, batch, temperature):
        logp_N, entropy_N = forward(self, batch, temperature)
        bad_N = (batch.target_N == TOKEN) & (temperature < 1)  # check_model uses 1
        return logp_N.masked_fill(bad_N, torch.nan), entropy_N

    train.Policy.forward = wrong


@pytest.mark.slow
def test_a_step_that_was_not_finite_fails_again_and_names_its_rows(halfway, tmp_path):
    """The run printed the command. That the step does not fail now is a difference, too."""
    folder = tmp_path / "run"
    ended = launch(folder, "--teacher_ranks", 0, ranks=2, data=halfway, before=poison)
    assert f"`python -m scripts.replay {folder} --step 1`" in ended.err
    code, output = again(folder, 1, before=poison)
    assert code == 0, output
    assert "loss nan: the update was not made" in output
    lines = read_lines(folder / "replay/step_1.jsonl")
    for line in lines:
        assert line["finite_logp"] == (TOKEN not in line["ids"])
    assert {line["finite_logp"] for line in lines} == {False, True}
    code, output = again(folder, 1)  # without the poison
    assert code == 1
    assert "step 1 is finite" in output

"""replay: a step trained again, and a step that failed."""

import functools
import shutil
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


def test_numbers_that_differ_are_printed_but_not_times(capsys):
    logged = {"step": 3, "loss": 0.5, "reward_mean": 0.25, "seconds": 9.0, "rollout_s": 4.0}
    again = logged | {"loss": 0.75, "seconds": 8.0, "rollout_s": 5.0}
    assert not replay.is_same(logged, again)
    assert capsys.readouterr().out == "step 3: differences (then, now): {'loss': (0.5, 0.75)}\n"
    assert replay.is_same(logged, again | {"loss": 0.5})


def test_a_step_is_not_repeated_on_data_that_have_changed(tmp_path):
    """Its problems would be others'."""
    data = tmp_path / "data.jsonl"
    write_lines(data, [{"problem": "1 + 1", "expected_answer": "2"}])
    files = {"train_data": str(data), "train_data_crc32": file_crc32(data)}
    folder = make_run(tmp_path / "run", [{"step": 0}, {"step": 1}], **files)
    write_lines(data, [{"problem": "1 + 2", "expected_answer": "3"}])
    student = SimpleNamespace(config=Config(train_data=str(data)))
    with rejected("data.jsonl has changed since the run"):
        replay.replay(folder, 1, student)


# Whole runs

TOKEN = 12  # the demo's digit 1: in a test, completions with it get a log-prob of NaN


def again(folder, step, before=lambda rank: None):
    """(highest exit status, output) of a step's replay on two ranks."""

    def main():
        replay.Verifier = lambda **settings: nullcontext(Grades())
        return replay.main(["--step", str(step), str(folder)])

    ended = torchrun(2, folder.parent, main, before)
    return max(ended.statuses), ended.out + ended.err


RUNS = {  # with a Teacher, whose steps may have two rounds; and with a sampler that learns
    "goldilocks": ("--teacher_ranks", 1, "--resample_rounds", 1),
    "mopps": ("--sampler", "mopps"),
}


@pytest.fixture(scope="module")
def recorded(halfway, tmp_path_factory):
    """A function from a key of RUNS to a run on two student ranks with checkpoints at steps 2 and
    4."""
    root = tmp_path_factory.mktemp("recorded")

    @functools.cache
    def make(name):
        flags = (*RUNS[name], "--checkpoint_every", 2)
        run(root / name, *flags, ranks=3 if "--teacher_ranks" in flags else 2, data=halfway)
        return root / name

    return make


@pytest.mark.slow
@pytest.mark.parametrize("name", RUNS)
def test_steps_are_reproduced_bit_for_bit_from_the_checkpoint_before(name, recorded, tmp_path):
    """Of the run nothing is changed; a new file has every completion with its advantage."""
    folder = shutil.copytree(recorded(name), tmp_path / "run")
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


@pytest.mark.slow
def test_the_exit_status_is_1_if_a_number_differs(recorded, tmp_path):
    folder = shutil.copytree(recorded("mopps"), tmp_path / "run")
    rows = read_lines(folder / "metrics.jsonl")
    rows[4]["grad_norm"] += 1e-9
    write_lines(folder / "metrics.jsonl", rows)
    code, output = again(folder, 4)
    assert code == 1, output


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

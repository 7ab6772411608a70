"""--preset one-gpu: its arithmetic and its data."""

import os
import shutil
from pathlib import Path

import pytest
from test_bad_input import refused
from test_train import layout, parse

import train
from scripts.prepare_data import PROFILES

PRESET = ("--preset", "one-gpu")


def test_the_arithmetic_of_the_preset(monkeypatch):
    """128 completions a step, in one process or up to 8; no problem of MATH's 12,000 twice."""
    c = parse(*PRESET)
    assert (c.train_data, c.kl_coef, c.teacher_mode) == ("data/math/train.jsonl", 0.0, "full")
    assert c.prompts_per_step * c.group_size == 128
    assert c.learning_rate == pytest.approx(1e-5 * (128 / 288) ** 0.5, rel=0.12)  # 6.7e-6
    baseline = parse(*PRESET, "--sampler", "uniform")
    assert (c.steps, baseline.steps) == (400, 550)  # 4/3 x 400 = 533, to the next evaluation
    assert baseline.steps * c.prompts_per_step + c.prompts_per_step * c.candidates < 12_000
    updates = c.prompts_per_step / c.teacher_update_every * c.teacher_epochs
    updates *= c.replay_capacity / c.teacher_batch_size
    assert updates == 64  # the paper's: 18 / 4 x 4 x 64 / (2 ranks x 8) = 72
    for ranks in (1, 2, 4, 8):
        built = layout(ranks, *PRESET, monkeypatch=monkeypatch)
        assert (built.n_students, built.n_teachers) == (ranks, 0)


def test_what_the_default_and_the_preset_train_on_has_a_profile():
    """A file that is missing is prepared only if its path names a line of PROFILES."""
    for path in (train.DATA, train.MATH):
        assert Path(path).parent == Path("data") and Path(path).name in PROFILES


def test_data_that_cannot_be_prepared(tmp_path, tiny_model, tiny_data):
    """The hub is out of reach (HF_HUB_OFFLINE): a line names the data set, and what to do."""
    source = "DigitalLearningGmbH/MATH-lighteval"
    why = f"{source}: no such file or folder here, and the Hugging Face hub cannot be read"
    advice = "give a local copy as python -m scripts.prepare_data --help says"
    where = {"before": lambda: os.chdir(tmp_path), "model": tiny_model, "data": tiny_data}
    refused(tmp_path, "--train_data", "data/math/train.jsonl", says=(why, advice), **where)


def test_a_copy_that_is_there_is_used(tmp_path, tiny_model, tiny_data):
    """data/math/train.jsonl exists and val.jsonl does not: made by hand, not to be overwritten."""
    (tmp_path / "data/math").mkdir(parents=True)
    shutil.copy(tiny_data / "train.jsonl", tmp_path / "data/math/train.jsonl")
    flags = ("--train_data", "data/math/train.jsonl", "--val_data", "data/math/val.jsonl")
    says = "data/math: holds files made otherwise, or by hand"
    where = {"before": lambda: os.chdir(tmp_path), "model": tiny_model, "data": tiny_data}
    refused(tmp_path, *flags, says=says, **where)

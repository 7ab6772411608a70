"""--preset one-gpu: its arithmetic, its data, and a step of it."""

import json
import os
import shutil
from pathlib import Path

import pytest
from test_bad_input import refused
from test_train import layout, parse, run

import train
from scripts.prepare_data import PROFILES

PRESET = ("--preset", "one-gpu")


def test_the_arithmetic_of_the_preset(monkeypatch):
    """128 completions a step, in one process or up to 8; no problem of MATH's 12,000 twice."""
    c = parse(*PRESET)
    assert c.model == c.teacher_model == "Qwen/Qwen3-0.6B-Base"
    assert (c.train_data, c.val_data) == ("data/math/train.jsonl", "data/math/val.jsonl")
    assert (c.max_completion_tokens, c.kl_coef, c.teacher_mode) == (512, 0.0, "full")
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


@pytest.mark.slow
def test_a_step(tmp_path, tiny_model, tiny_data):
    """With the preset's own memory saving; a random model never stops, so its rows are kept short."""
    c, own = parse(*PRESET), []
    for name in ("prompts_per_step", "group_size", "candidates", "eval_every"):
        own += [f"--{name}", getattr(c, name)]
    own += ["--steps", 1, "--max_completion_tokens", 8, "--prompt_header", ""]
    run(tmp_path / "run", *PRESET, *own, model=tiny_model, data=tiny_data)
    row = train.read_lines(tmp_path / "run/metrics.jsonl")[-1]
    assert row["step"] == 1 and row["groups"] == 8
    assert json.loads((tmp_path / "run/config.json").read_text())["activation_checkpointing"]
    assert (tmp_path / "run/teacher/head.safetensors").exists()


def test_data_that_cannot_be_prepared(tmp_path, tiny_model, tiny_data):
    """The hub is out of reach (HF_HUB_OFFLINE): a line names the data set and what to do instead."""
    for profile, source in {
        "math": "DigitalLearningGmbH/MATH-lighteval",
        "openmathreasoning": "nvidia/OpenMathReasoning",
    }.items():
        why = f"{source}: no such file or folder here, and the Hugging Face hub cannot be read"
        advice = f"a local copy by prepare_data.py --profile {profile} --source COPY"
        where = {"before": lambda: os.chdir(tmp_path), "model": tiny_model, "data": tiny_data}
        flags = ("--train_data", f"data/{profile}/train.jsonl")
        refused(tmp_path, *flags, says=(why, advice), **where)


def test_a_copy_that_is_there_is_used(tmp_path, tiny_model, tiny_data):
    """data/math/train.jsonl exists and val.jsonl does not: made by hand, not to be overwritten."""
    (tmp_path / "data/math").mkdir(parents=True)
    shutil.copy(tiny_data / "train.jsonl", tmp_path / "data/math/train.jsonl")
    flags = ("--train_data", "data/math/train.jsonl", "--val_data", "data/math/val.jsonl")
    says = "data/math: holds files made otherwise (no readable manifest says how)"
    where = {"before": lambda: os.chdir(tmp_path), "model": tiny_model, "data": tiny_data}
    refused(tmp_path, *flags, says=says, **where)

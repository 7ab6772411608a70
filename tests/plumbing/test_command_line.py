"""plumbing/command_line.py: flags out of range, flags without effect, --sampler_args."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import train
from plumbing.command_line import PATHS
from scripts import analysis, replay
from tests.helpers.checks import rejected
from tests.helpers.models import ROOT
from tests.helpers.ranks import one_rank, parse
from tests.helpers.samplers import Numbers
from train import build_sampler

FLAGS = {  # what is wrong -> the error
    "--step 5": "unrecognized arguments: --step 5 (see --help)",  # abbreviated
    "--preset gpt": "--preset gpt: choose from qwen2.5-1.5b, olmo2-1b",
    "--steps 0": "argument --steps: 0: must be in [1, 1000000000]",
    "--out ~no.one/x": "~no.one/x: no such home directory; for a name that begins with ~ write ./~",
    "--epsilon nan": "argument --epsilon: nan: must be in [0, 1]",
    "--sampler softmax --epsilon 0.1": "--epsilon: the sampler softmax does not use it",
    "--sampler sec": "--sampler sec needs --column, a column of the training data",
    "--sampler uniform --teacher_lag 0": "--teacher_lag: the sampler uniform has no teacher",
    "--sampler_args a=1": "--sampler_args a=1: the settings of goldilocks are: none",
    "--sampler mopps --sampler_args d=1": "d=1: the settings of mopps are: decay (float) [0.5]",
    "--sampler speed --sampler_args s=1": "are: screen (int) [4], factor (int) [4]",
    "--sampler speed --sampler_args screen=1.5": "screen=1.5: the settings of speed are",
    "--sampler softmax --sampler_args temperature": "temperature: the settings of softmax are",
    "--sampler softmax --sampler_args temperature=nan": "temperature=nan: the settings of",
}


@pytest.mark.parametrize("flags", FLAGS)
def test_a_wrong_flag_is_rejected_with_one_line(flags):
    with rejected(FLAGS[flags]):
        parse(*flags.split())


@pytest.mark.parametrize("name", sorted(PATHS - {"sampler"}))
def test_a_path_may_begin_with_the_home_directory(name, monkeypatch):
    monkeypatch.setenv("HOME", "/home/me")
    assert getattr(parse(f"--{name}=~/x"), name) == "/home/me/x"


@pytest.mark.parametrize(("module", "main"), [(train, train.parse), (replay, replay.main)])
def test_commands_work_without_docstrings(module, main, monkeypatch, capsys):
    """`python -OO` removes them."""
    monkeypatch.setattr(module, "__doc__", None)
    with pytest.raises(SystemExit) as ended:
        main(["--help"])
    assert ended.value.code == 0


def test_sampler_args_override_the_samplers_settings_in_their_type():
    flags = ("--sampler", "knapsack", "--sampler_args", "most=32,rate=1")
    sampler = build_sampler(parse("--preset", "demo", *flags), one_rank(), Numbers(4))
    assert repr(sampler.settings) == "{'rate': 1.0, 'decay': 1.0, 'least': 2, 'most': 32}"


def test_unread_output_is_dropped_and_a_full_disk_is_an_error():
    """The first as under `| head`: the command ends with its own status, without a word."""
    code = "from plumbing.errors import survive_lost_output as drop; drop(BrokenPipeError);"
    code += "print('x' * 10**6); raise SystemExit(3)"
    reader, writer = os.pipe()
    os.close(reader)
    with Path("/dev/full").open("w") as full:
        unread, lost = (
            subprocess.run([sys.executable, "-c", code], cwd=ROOT, stdout=file, stderr=-1)
            for file in (writer, full)
        )
    os.close(writer)
    assert (unread.returncode, unread.stderr) == (3, b"")
    assert b"No space left" in lost.stderr


def test_the_home_directory_is_found_in_a_runs_path(monkeypatch):
    monkeypatch.setenv("HOME", "/home/me")
    assert analysis.parser("", runs=True).parse_args(["~/run"]).runs == [Path("/home/me/run")]


def test_resampling_is_rejected_for_a_sampler_with_rounds_of_its_own():
    with rejected("--resample_rounds: this sampler has `more` or `train_on` of its own"):
        parse("--preset", "demo", "--sampler", "speed", "--resample_rounds", 1)


def test_resampling_is_rejected_for_a_sampler_that_chooses_what_is_trained_on(tmp_path):
    text = "from sampler import Uniform\n\n\nclass Mine(Uniform):\n"
    text += "    train_on = staticmethod(lambda groups, n: groups[:n])\n"
    (tmp_path / "mine.py").write_text(text)
    mine = f"{tmp_path}/mine.py:Mine"
    with rejected("--resample_rounds: this sampler has"):
        parse("--preset", "demo", "--sampler", mine, "--resample_rounds", 1)

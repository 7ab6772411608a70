"""train.build_layout, plumbing/distributed/layout.py: roles, GPUs, shares, impossible layouts."""

from contextlib import nullcontext

import pytest
import torch

import train
from plumbing.distributed import layout as module
from plumbing.distributed.launch import launch
from tests.helpers.checks import rejected
from tests.helpers.ranks import parse


@pytest.fixture
def layout(monkeypatch):
    """A function from a number of ranks, flags and other environment variables to a layout."""

    def layout(world, *flags, **environment):
        alone = {"RANK": 0, "LOCAL_RANK": 0, "MASTER_ADDR": "node0", "MASTER_PORT": 29500}
        for name, value in (alone | {"WORLD_SIZE": world} | environment).items():
            monkeypatch.setenv(name, str(value))
        return train.build_layout(parse(*flags))

    return layout


@pytest.mark.parametrize(("world", "teachers"), [(8, 2), (4, 1), (1, 0), (16, 4)])
def test_a_quarter_of_the_ranks_are_teachers_by_default_the_last_ones(world, teachers, layout):
    """With a sampler without a teacher, or the preset of one GPU, there are none."""
    last = {"RANK": world - 1, "LOCAL_RANK": world - 1}
    made = layout(world, "--device", "cpu", **last)
    assert (made.n_students, made.n_teachers) == (world - teachers, teachers)
    assert made.is_teacher == (teachers > 0)
    for flags in (("--sampler", "uniform"), ("--preset", "one-gpu")):
        assert layout(world, *flags).n_students == world


def test_student_ranks_share_rows_that_they_do_not_divide(layout):
    layouts = [layout(3, "--sampler", "uniform", RANK=rank) for rank in range(3)]
    parts = [each.share([*"abcde"]) for each in layouts]
    assert parts == [(0, ["a"]), (1, ["b", "c"]), (3, ["d", "e"])]


def test_a_teacher_may_share_the_gpu_of_a_student(layout, monkeypatch):
    """Of 8 ranks on 6 GPUs the last two are teachers."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 6)
    assert layout(8, RANK=7, LOCAL_RANK=7).device == torch.device("cuda", 1)


INCOMPLETE = {  # an environment variable of rank 1 of 2, its value -> the error
    ("WORLD_SIZE", None): "RANK=1, WORLD_SIZE=1: start with torchrun",
    ("RANK", "-1"): "RANK=-1, WORLD_SIZE=2: start with torchrun",
    ("MASTER_ADDR", None): "WORLD_SIZE=2 without MASTER_ADDR: start with torchrun",
    ("MASTER_PORT", None): "MASTER_PORT='': must be a number: start with torchrun",
    ("MASTER_PORT", "auto"): "MASTER_PORT='auto': must be a number",
    ("RANK", "first"): "RANK='first': must be a number",
}


@pytest.mark.parametrize("case", INCOMPLETE)
def test_an_incomplete_environment_of_a_launcher_is_rejected(case, monkeypatch):
    name, value = case
    several = {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "node0", "MASTER_PORT": "29500"}
    for variable, text in several.items():
        monkeypatch.setenv(variable, text)
    assert launch().rank == 1
    monkeypatch.setenv(name, value) if value else monkeypatch.delenv(name)
    with rejected(INCOMPLETE[case]):
        launch()


NONE = "can use no GPU here; or add --device cpu"
DEVICES = {  # --device, whether the machine has a GPU, CUDA_VISIBLE_DEVICES -> None (CPU), or error
    ("auto", False, "0"): None,
    ("cuda", False, "0"): NONE,
    ("auto", True, "0,1"): NONE,
    ("cuda", True, ""): NONE,
    ("auto", True, ""): None,
    ("cpu", True, "0"): None,
}


@pytest.mark.parametrize("case", DEVICES)
def test_an_unusable_gpu_is_an_error_unless_hidden_or_unwanted(case, layout, monkeypatch, tmp_path):
    device, present, visible = case
    monkeypatch.setattr(module, "GPU_NODE", tmp_path / ("" if present else "none"))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with rejected(DEVICES[case]) if DEVICES[case] else nullcontext():
        made = layout(1, "--device", device, CUDA_VISIBLE_DEVICES=visible)
        assert made.device == torch.device("cpu")

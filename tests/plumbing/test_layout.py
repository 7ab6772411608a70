"""plumbing/distributed/layout.py: roles, GPUs, shares, and layouts that are impossible."""

from contextlib import nullcontext

import pytest
import torch

import train
from plumbing.distributed import layout as module
from tests.helpers.checks import rejected
from tests.helpers.ranks import parse


@pytest.fixture
def layout(monkeypatch):
    """A function from a number of ranks and flags to rank 0's layout."""

    def layout(world, *flags):
        monkeypatch.setenv("WORLD_SIZE", str(world))
        return train.Layout(parse(*flags))

    return layout


@pytest.mark.parametrize(("world", "teachers"), [(8, 2), (4, 1), (1, 0), (16, 4)])
def test_a_quarter_of_the_ranks_are_teachers_by_default(world, teachers, layout):
    goldilocks, uniform = layout(world), layout(world, "--sampler", "uniform")
    assert (goldilocks.n_students, goldilocks.n_teachers) == (world - teachers, teachers)
    assert (uniform.n_students, uniform.n_teachers) == (world, 0)
    assert layout(world, "--preset", "one-gpu").n_students == world


def test_an_impossible_layout_names_the_nearest_possible_numbers_of_prompts(layout):
    """7 does not divide 16 completions, so the number of prompts must be a multiple of it."""
    with rejected("7 student ranks: use --prompts_per_step 14 or 21, or another"):
        layout(8, "--teacher_ranks", 1)
    with rejected("7 student ranks: use --prompts_per_step 7, or another"):
        layout(7, "--sampler", "uniform", "--prompts_per_step", 3)


GPUS = {  # ranks, ranks of this machine, this rank, GPUs -> its GPU, or the error
    (8, 8, 1, 8): 1,
    (8, 8, 7, 6): 1,  # a teacher may share a student's
    (8, 8, 1, 5): "6 student ranks on a machine with 5 GPUs",
    (2, 2, 1, 1): 0,
    (3, 3, 1, 1): "2 student ranks on a machine with 1 GPU:",
    (8, 4, 5, 2): 1,  # the second machine: students 4 and 5, teachers 6 and 7
}


@pytest.mark.parametrize("case", GPUS)
def test_each_rank_of_a_role_has_its_own_gpu(case, layout, monkeypatch):
    world, local, rank, devices = case
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: devices)
    names = {"LOCAL_WORLD_SIZE": local, "RANK": rank, "LOCAL_RANK": rank % local}
    for name, value in names.items():
        monkeypatch.setenv(name, str(value))
    with rejected(GPUS[case]) if isinstance(GPUS[case], str) else nullcontext():
        device = layout(world, "--teacher_ranks", max(1, world // 4)).device
        assert device == torch.device("cuda", GPUS[case])


DRIVER = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.161.08  Sat Feb 24 2024\nGCC 12.3.0\n"
DEVICES = {  # --device, the driver's file (None: no GPU), CUDA_VISIBLE_DEVICES -> device, or error
    ("auto", None, "0"): "cpu",
    ("cuda", None, "0"): ") can use no GPU here (NVIDIA driver not found, install",
    ("auto", DRIVER, "0"): ") can use no GPU here (NVIDIA driver 535.161.08, install",
    ("auto", "", "0,1"): "driver not found, install versions that fit); or add --device cpu",
    ("cuda", DRIVER, ""): "can use no GPU here (CUDA_VISIBLE_DEVICES hides them",
    ("auto", DRIVER, ""): "cpu",
    ("cpu", DRIVER, "0"): "cpu",
}


@pytest.mark.parametrize("case", DEVICES)
def test_a_gpu_that_torch_cannot_use_is_an_error_unless_hidden_or_not_wanted(
    case, layout, monkeypatch, tmp_path
):
    device, driver, visible = case
    file = tmp_path / "version"
    if driver is not None:
        file.write_text(driver)
    monkeypatch.setattr(module, "GPU_NODES", [file])
    monkeypatch.setattr(module, "DRIVER", file)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with nullcontext() if DEVICES[case] == "cpu" else rejected(DEVICES[case]):
        assert layout(1, "--device", device).device == torch.device("cpu")

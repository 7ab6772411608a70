"""plumbing/distributed/layout.py: roles, GPUs, shares, and layouts that are impossible."""

from contextlib import nullcontext
from unittest.mock import Mock

import pytest
import torch

import train
from plumbing.distributed import layout as module
from tests.helpers.errors import rejected
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


NONE = "can use no GPU here (no driver); or add --device cpu"
DEVICES = {  # --device, whether the machine has a GPU, CUDA_VISIBLE_DEVICES -> device, or error
    ("auto", False, "0"): "cpu",
    ("cuda", False, "0"): NONE,
    ("auto", True, "0,1"): NONE,
    ("cuda", True, ""): NONE,
    ("auto", True, ""): "cpu",
    ("cpu", True, "0"): "cpu",
}


@pytest.mark.parametrize("case", DEVICES)
def test_a_gpu_that_torch_cannot_use_is_an_error_unless_hidden_or_not_wanted(
    case, layout, monkeypatch, tmp_path
):
    device, present, visible = case
    monkeypatch.setattr(module, "GPU_NODE", tmp_path / ("" if present else "none"))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.cuda, "init", Mock(side_effect=RuntimeError("no driver")))
    with nullcontext() if DEVICES[case] == "cpu" else rejected(DEVICES[case]):
        assert layout(1, "--device", device).device == torch.device("cpu")


def test_the_first_rank_works_while_the_others_wait(layout):
    second = layout(4)
    second.rank = 1
    second.gather = lambda mine: [(7, None), mine, mine, mine]
    assert second.on_first(lambda: pytest.fail("called on rank 1")) == 7
    second.gather = lambda mine: [(None, "no network"), mine, mine, mine]
    with rejected("no network"):
        second.on_first(lambda: 7)


def test_the_demo_takes_the_cpu_of_a_machine_with_one_gpu(layout, monkeypatch):
    """4 ranks, README's first command: on GPUs its 3 student ranks would need one each."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    assert layout(4, "--preset", "demo").device == torch.device("cpu")
    with pytest.raises(ValueError, match=r"3 student ranks .* 1 GPU: .* --device cpu"):
        layout(4, "--preset", "demo", "--device", "cuda")

"""plumbing/distributed/layout.py: roles, GPUs, shares, and layouts that are impossible."""

import os
from contextlib import nullcontext

import pytest
import torch

import train
from plumbing.distributed import layout as module
from plumbing.errors import Fault, InputError
from tests.helpers.ranks import on_ranks, one_rank, parse


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


IMPOSSIBLE = {  # ranks, flags -> prompts that 7 student ranks can share
    (8, "--teacher_ranks 1"): "--prompts_per_step 14 or 21",
    (7, "--sampler uniform --prompts_per_step 3"): "--prompts_per_step 7, or another",
}


@pytest.mark.parametrize("case", IMPOSSIBLE)
def test_an_impossible_layout_names_the_nearest_possible_ones(case, layout):
    """7 does not divide 16 completions, so the number of prompts must be a multiple of it."""
    world, flags = case
    with pytest.raises(ValueError, match="7 student ranks: use " + IMPOSSIBLE[case]) as error:
        layout(world, *flags.split())
    assert "\n" not in str(error.value)


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
    impossible = isinstance(GPUS[case], str)
    with pytest.raises(ValueError, match=GPUS[case]) if impossible else nullcontext():
        device = layout(world, "--teacher_ranks", max(1, world // 4)).device
        assert device == torch.device("cuda", GPUS[case])


BUILD = rf"torch {torch.__version__.replace('+', '.')} \(CUDA: .+\) can use no GPU here; "
DEVICES = {  # --device, whether there is a GPU, CUDA_VISIBLE_DEVICES -> device, or the error
    ("auto", False, None): "cpu",
    ("cuda", False, None): f"--device cuda: {BUILD}install a driver and a build that fit, or",
    ("auto", True, None): f"--device auto: {BUILD}install a driver and .* or --device cpu$",
    ("auto", True, "0,1"): "install a driver",
    ("cuda", True, ""): "can use no GPU here; CUDA_VISIBLE_DEVICES hides them, or --device cpu$",
    ("auto", True, ""): "cpu",
    ("auto", True, "-1"): "cpu",
    ("cpu", True, None): "cpu",
}


@pytest.mark.parametrize("case", DEVICES)
def test_a_gpu_that_torch_cannot_use_is_an_error_unless_hidden_or_not_wanted(
    case, layout, monkeypatch, tmp_path
):
    device, present, visible = case
    monkeypatch.setattr(module, "GPU_NODE", tmp_path if present else tmp_path / "none")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    if DEVICES[case] == "cpu":
        assert layout(1, "--device", device).device == torch.device("cpu")
    else:
        with pytest.raises(ValueError, match=DEVICES[case]) as error:
            layout(1, "--device", device)
        assert "\n" not in str(error.value)


def test_the_demo_takes_the_cpu_of_a_machine_with_one_gpu(layout, monkeypatch):
    """4 ranks, README's first command: on GPUs its 3 student ranks would need one each."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    assert layout(4, "--preset", "demo").device == torch.device("cpu")
    with pytest.raises(ValueError, match=r"3 student ranks .* 1 GPU: .* --device cpu"):
        layout(4, "--preset", "demo", "--device", "cuda")


def test_a_run_on_the_cpu_leaves_the_gpus_alone(tmp_path):
    """Where AdamW sees a GPU, it asks for its current stream, which takes memory of it."""

    def visible():
        os.environ["CUDA_VISIBLE_DEVICES"] = "0"
        train.Layout(parse("--preset", "demo")).connect(1)
        return os.environ["CUDA_VISIBLE_DEVICES"]

    assert on_ranks(1, tmp_path, visible) == ""


def test_the_first_rank_of_a_machine_works_while_the_others_wait(layout):
    second = layout(4)
    second.rank, second.local_rank = 2, 0  # of 4 ranks on 2 machines
    second.gather = lambda mine: [(7, None), (None, None), mine, (None, None)]
    assert second.on_first(lambda: 5, of_machine=True) == 5
    assert second.on_first(lambda: pytest.fail("called on rank 2")) == 7
    second.gather = lambda mine: [mine, mine, (None, "no network"), mine]
    with pytest.raises(InputError, match="no network"):
        second.on_first(lambda: 7, of_machine=True)


def test_ranks_take_contiguous_shares_of_nearly_equal_size(layout):
    student = layout(3, "--preset", "demo", "--sampler", "uniform")
    parts = []
    for student.rank in range(3):
        parts.append(student.share([*"abcdefgh"]))
    assert parts == [(0, ["a", "b"]), (2, ["c", "d", "e"]), (5, ["f", "g", "h"])]


def test_replicas_that_differ_are_named_with_their_ranks_and_values():
    layout = one_rank()
    replicas = [{"a": 1, "b": 2}, {"b": 2}, {"a": 1, "b": 3}]
    layout.gather = lambda mine, group: replicas[:2]
    layout.assert_replicas_equal()
    layout.gather = lambda mine, group: replicas
    with pytest.raises(Fault, match="b: ranks 0 and 2 differ: 2 and 3"):
        layout.assert_replicas_equal()

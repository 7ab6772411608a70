"""plumbing/distributed/layout.py: roles, GPUs, shares, and layouts that are impossible."""

from contextlib import nullcontext

import pytest
import torch

import train
from plumbing.errors import Fault
from tests.helpers.ranks import one_rank, parse


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
    (7, "--sampler uniform"): "--prompts_per_step 14 or 21",
    (
        8,
        "--teacher_ranks 1 --prompts_per_step 3",
    ): "--prompts_per_step 7, or another",
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

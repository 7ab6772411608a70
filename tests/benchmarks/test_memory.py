"""benchmarks/memory.py: the line where a card is too small. test_gpu_check.py has the formula."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

import train
from benchmarks import memory
from benchmarks.memory import USABLE, Shape, memory_row, training_bytes
from benchmarks.roofline import HUB, model_config
from teacher import LORA_RANK
from tests.helpers.models import kept_by_forward
from tests.helpers.ranks import parse


@pytest.mark.parametrize("family", ["llama", "qwen2"])
def test_adapters_and_what_they_keep(family):
    found = [kept_by_forward(family, layers, 100, lora=True) for layers in (1, 2)]
    (one, _, adapters), (two, config, twice) = found
    shape = Shape(config, LORA_RANK)
    assert two - one == 100 * shape.kept and twice == 2 * adapters == shape.adapters
    T, W, A = 5, shape.matrices + shape.head, shape.adapters
    parts = training_bytes(shape, T, accumulated=True, scored=False)
    assert parts["sharded"] == 4 * W + 12 * A and parts["gathered"] == 2 * W + 6 * A


def of_hub(config):
    return [model_config(HUB[name]) for name in (config.model, config.teacher_model)]


def need(config, students, teachers, column="student"):
    """bytes, by the number that `bench fits` prints"""
    return memory_row(*map(Shape, of_hub(config)), config, students, teachers)[column] * 2**30


def short(config, room, *ranks, **how):
    return memory.shortage(config, *of_hub(config), *ranks, room / USABLE, LORA_RANK, **how)


@pytest.mark.parametrize("ranks", [(6, 2), (1, 0)])
@pytest.mark.parametrize("preset", sorted({*train.PRESETS} - {"demo"}))
def test_it_is_said_below_the_number_of_bench(preset, ranks):
    config = parse("--preset", preset)
    whole = need(config, *ranks)
    assert short(config, whole + 1, *ranks) is None
    for share, fits in ((0.9999, True), (0.8, None), (0.1, False)):
        note = short(config, share * whole, *ranks)
        assert f"needs about {whole / 2**30:.1f} GiB of a card" in note
        _, found, flags = note.partition("; it should fit with ")
        assert fits in (None, bool(found))
        if found:  # with these there is nothing more to say
            lower = parse("--preset", preset, *flags.split())
            assert short(lower, share * whole, *ranks) is None


def test_flags_go_no_lower_than_they_must():
    """Two rows of the four: as many as `bench fits` has for 80 GiB, and nothing else."""
    note = short(parse(), USABLE * 80 * 2**30, 1, 0)
    assert note.endswith(
        "(largest: activations, 35.1); it should fit with --per_device_batch_size 2"
    )


def test_what_has_no_place_in_bench():
    """SGD has no moments, KL a second policy; a frozen teacher is whole; two ranks share a card."""
    config = parse("--teacher_ranks", 2)
    whole, W = need(config, 6, 2), Shape(model_config("qwen2.5-1.5b")).parameters
    assert whole - need(replace(config, optimizer="sgd"), 6, 2) == pytest.approx(8 * W / 6)
    assert need(replace(config, kl_coef=0.1), 6, 2) - whole == pytest.approx((4 / 6 + 2) * W)
    frozen = replace(config, teacher_mode="frozen")
    assert need(frozen, 1, 0, "teacher here") == pytest.approx(4 * W)
    both = whole + need(config, 6, 2, "teacher rank")
    assert short(config, both + 1, 6, 2, shared=True) is None
    assert f"about {both / 2**30:.1f} GiB" in short(config, both - 1, 6, 2, shared=True)


def test_only_cards_are_looked_at(tiny_model, monkeypatch, capsys):
    config = parse("--model", tiny_model, "--sampler", "uniform")
    layout = SimpleNamespace(device=torch.device("cpu"), n_students=1, n_teachers=0)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (2**20, 2**35))
    memory.look(config, layout, LORA_RANK)
    assert capsys.readouterr().out == ""
    layout.device = torch.device("cuda", 0)
    memory.look(config, layout, LORA_RANK)
    assert "92% of the 0.0 free here" in capsys.readouterr().out
    monkeypatch.setattr(memory, "KNOWN", ())
    memory.look(config, layout, LORA_RANK)
    assert "not known: no formula for 'qwen3' models" in capsys.readouterr().out

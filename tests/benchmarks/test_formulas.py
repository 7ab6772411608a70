"""Formulas for bytes and FLOPs against torch's own counts; a rank's bytes by its settings."""

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode
from transformers import AutoConfig, AutoModelForCausalLM

from benchmarks import memory
from benchmarks.memory import GIB, Run, activation_bytes, adapter_parameters
from benchmarks.roofline import SHAPES, Shape, model_config
from plumbing.batches import collate
from plumbing.lora import LORA_RANK, add_lora
from tests.helpers.groups import completion
from tests.helpers.models import FAMILIES


@pytest.fixture(autouse=True)
def world_size(monkeypatch):
    """Run.parse sets it, as torchrun does: put it back."""
    monkeypatch.setenv("WORLD_SIZE", "1")


def kept_by_forward(family: str, layers: int, tokens: int, lora: bool) -> tuple:
    """Bytes that a bf16 forward pass keeps for backward, each storage once; its config; and the
    number of parameters that are trained."""
    sizes = {"hidden_size": 64, "intermediate_size": 224, "num_attention_heads": 4}
    sizes |= {"num_key_value_heads": 2, "head_dim": 16, "vocab_size": 40, "pad_token_id": 0}
    sizes |= {"num_hidden_layers": layers, "bos_token_id": 1, "eos_token_id": 2}
    config = AutoConfig.for_model(family, **sizes)
    lm = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16, attn_implementation="sdpa")
    if lora:
        add_lora(lm.base_model.train())
    trained = sum(p.numel() for p in lm.base_model.parameters() if p.requires_grad)
    weights = {p.untyped_storage().data_ptr() for p in lm.parameters()}
    saved = []  # holds all tensors, so that no address is used twice
    hooks = (lambda tensor: saved.append(tensor) or tensor), (lambda tensor: tensor)
    with torch.autograd.graph.saved_tensors_hooks(*hooks):
        output = lm.base_model(torch.zeros(2, tokens // 2, dtype=torch.long), use_cache=False)
    assert output.last_hidden_state.requires_grad
    storages = {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in saved}
    kept = sum(size for address, size in storages.items() if address not in weights)
    return kept, config, trained


@pytest.mark.parametrize(
    ("family", "rank"),
    [(family, 0) for family in (*FAMILIES, "llama")] + [("llama", LORA_RANK), ("qwen2", LORA_RANK)],
)
def test_a_layer_keeps_as_many_bytes_as_the_formula_says(family, rank):
    (one, *_), (two, config, trained) = (
        kept_by_forward(family, layers, 100, lora=rank > 0) for layers in (1, 2)
    )
    shape = Shape(config)
    assert two - one == 100 * activation_bytes(shape, rank)
    assert rank == 0 or trained == adapter_parameters(shape, rank)
    # After the last layer: less than the 10 bytes a hidden number of `training_bytes`.
    assert rank > 0 or 0 < one - (two - one) < 10 * 64 * 100


def kept_with_shared_prompts(layers: int, prompts: int, G: int) -> tuple[int, Shape]:
    """As kept_by_forward, of groups with 6 prompt tokens and completions of 4."""
    sizes = {"hidden_size": 64, "intermediate_size": 224, "num_attention_heads": 4}
    sizes |= {"num_key_value_heads": 2, "head_dim": 16, "vocab_size": 40, "pad_token_id": 0}
    sizes |= {"num_hidden_layers": layers, "bos_token_id": 1, "eos_token_id": 2}
    config = AutoConfig.for_model("llama", **sizes)
    options = {"dtype": torch.bfloat16, "attn_implementation": "shared_prompts"}
    lm = AutoModelForCausalLM.from_config(config, **options)
    rows = [([3 + p] * 6, completion(ids=[5] * 4)) for p in range(prompts) for _ in range(G)]
    batch = collate(rows, "cpu")
    weights = {p.untyped_storage().data_ptr() for p in lm.parameters()}
    saved = []
    hooks = (lambda tensor: saved.append(tensor) or tensor), (lambda tensor: tensor)
    with torch.autograd.graph.saved_tensors_hooks(*hooks):
        position_ids = batch.position_1_T
        lm.base_model(batch.ids_1_T, position_ids=position_ids, use_cache=False, **batch.attention)
    storages = {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in saved}
    kept = sum(size for address, size in storages.items() if address not in weights)
    return kept, Shape(config)


@pytest.mark.parametrize(("prompts", "G"), [(1, 1), (2, 8)])
def test_a_layer_with_shared_prompts_keeps_the_copies_in_addition(prompts, G):
    one, shape = kept_with_shared_prompts(1, prompts, G)
    two, _ = kept_with_shared_prompts(2, prompts, G)
    tokens = 6 * prompts + 4 * prompts * G
    copied = memory.copied_bytes(shape, 6 * prompts, attended=10 * prompts * G)
    assert two - one == tokens * activation_bytes(shape) + copied


def test_settings_change_a_student_rank_by_what_they_need():
    """In bytes for each weight of Qwen2.5-1.5B, whose teacher is of its size."""

    def student(*flags: str, ranks: int = 1) -> float:
        run = Run.parse([*flags], ranks)
        return run.gib()["student"] * GIB / run.student.parameters

    uniform = student("--sampler", "uniform")
    assert student() - uniform == pytest.approx(14)  # weights and moments of a teacher in it
    assert student("--teacher_mode", "frozen") - uniform == pytest.approx(4)
    six = student(ranks=8)
    assert student("--kl_coef", "0.1", ranks=8) - six == pytest.approx(2)  # in bf16


def test_command_prints_presets_and_one_run(capsys):
    assert memory.main([]) == 0
    assert "| **peak of a student rank** |" in capsys.readouterr().out
    assert memory.main(["--preset=one-gpu", "--per_device_batch_size=8", "--card=24"]) == 0
    assert "| fits 24 GiB | yes |" in capsys.readouterr().out


@pytest.mark.parametrize("name", SHAPES)
def test_parameters_and_flops_of_a_shape_are_those_of_its_model(name):
    """Norms and biases, which are left out, are below 0.1%."""
    config = model_config(name, num_hidden_layers=2)
    shape = Shape(config)
    T = 5
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config, attn_implementation="eager")
        with FlopCounterMode(display=False) as counter:
            model(torch.zeros(1, T, dtype=torch.long))
    assert shape.parameters == pytest.approx(sum(p.numel() for p in model.parameters()), rel=1e-3)
    flops = shape.forward_flops(T, T * T, T)  # eager attention also computes masked scores
    assert flops == pytest.approx(counter.get_total_flops(), rel=1e-3)

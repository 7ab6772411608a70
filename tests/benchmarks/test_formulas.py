"""Formulas for bytes against torch's own counts; a rank's bytes by its settings."""

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

import train
from benchmarks import memory
from benchmarks.memory import GIB, SHAPES, activation_bytes, model_config, weight_count
from plumbing.batches import collate
from tests.helpers.groups import completion
from tests.helpers.models import FAMILIES

SIZES = {
    "hidden_size": 64,
    "intermediate_size": 224,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "vocab_size": 40,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}


def small_config(family: str, layers: int = 1):
    return AutoConfig.for_model(family, num_hidden_layers=layers, **SIZES)


def kept_bytes(layers: int, family: str, attention: str, inputs: dict) -> int:
    """Bytes that a forward pass in bf16 keeps for backward, each storage once."""
    lm = AutoModelForCausalLM.from_config(
        small_config(family, layers), dtype=torch.bfloat16, attn_implementation=attention
    )
    saved = []  # holds all tensors, so that no address is used twice
    with torch.autograd.graph.saved_tensors_hooks(saved.append, lambda _: None):
        lm.base_model(use_cache=False, **inputs)
    storages = {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in saved}
    weights = {p.untyped_storage().data_ptr() for p in lm.parameters()}
    return sum(size for address, size in storages.items() if address not in weights)


def kept_in_a_layer(family: str, attention: str, **inputs) -> int:
    """Bytes that one more layer keeps."""
    one, two = (kept_bytes(layers, family, attention, inputs) for layers in (1, 2))
    # After the last layer: less than the 10 bytes a hidden number of `backbone_bytes`.
    assert 0 < one - (two - one) < 10 * 64 * 100
    return two - one


@pytest.mark.parametrize("family", [*FAMILIES, "llama"])
def test_a_layer_keeps_as_many_bytes_as_the_formula_says(family):
    kept = kept_in_a_layer(family, "sdpa", input_ids=torch.zeros(2, 50, dtype=torch.long))
    assert kept == 100 * activation_bytes(small_config(family))


def test_a_layer_with_shared_prompts_keeps_the_copies_in_addition():
    """Two groups of 8 with 6 prompt tokens and completions of 4."""
    rows = [([3 + p] * 6, completion(ids=[5] * 4)) for p in range(2) for _ in range(8)]
    batch = collate(rows, "cpu")
    inputs = {"input_ids": batch.ids_1_T, "position_ids": batch.position_1_T} | batch.attention
    kept = kept_in_a_layer("llama", "shared_prompts", **inputs)
    model = small_config("llama")
    copied = memory.copied_bytes(model, prompt_tokens=2 * 6, attended=16 * 10, longest=4)
    assert kept == (2 * 6 + 16 * 4) * activation_bytes(model) + copied


def test_settings_change_a_student_rank_by_what_they_need():
    """In bytes for each weight of Qwen2.5-1.5B, whose teacher is of its size."""

    weights = weight_count(model_config("Qwen/Qwen2.5-1.5B"))

    def student(*flags: str) -> float:
        sizes = memory.rank_gib(train.parse(["--device", "auto", *flags]), world=1)
        return sizes[memory.STUDENT] * GIB / weights

    uniform = student("--sampler", "uniform")
    assert student() - uniform == pytest.approx(14)  # weights and moments of a teacher in it
    assert student("--teacher_mode", "frozen") - uniform == pytest.approx(4)
    assert student("--sampler", "uniform", "--kl_coef", "0.1") - uniform == pytest.approx(2)


def test_command_prints_presets_and_one_run(capsys):
    """The peaks of qwen2.5-1.5b on 8 ranks and of one-gpu on 1 are those of docs/hardware.md."""
    memory.main([])
    assert "| **peak of a student rank** | 49.5 |" in capsys.readouterr().out
    memory.main(["--preset=one-gpu", "--card=24"])
    out = capsys.readouterr().out
    assert "| **peak of a student rank** | 20.0 |" in out
    assert "| most rows on 24 GiB, with --activation_checkpointing | 13 |" in out


@pytest.mark.parametrize("name", SHAPES)
def test_weights_of_a_shape_are_those_of_its_model(name):
    """Norms and biases, which are left out, are below 0.1%."""
    config = model_config(name, num_hidden_layers=2)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    parameters = sum(p.numel() for p in model.parameters())
    assert weight_count(config) == pytest.approx(parameters, rel=1e-3)

"""Formulas for bytes against torch's own counts; a rank's bytes by its settings."""

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

import train
from scripts import memory
from scripts.memory import GIB, activation_bytes, weight_count
from tests.helpers.checks import rejected
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


def kept_bytes(layers: int, family: str) -> int:
    """Bytes that a forward pass of 100 tokens in bf16 keeps for backward, each storage once."""
    config = small_config(family, layers)
    lm = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16, attn_implementation="sdpa")
    saved = []  # holds all tensors, so that no address is used twice
    with torch.autograd.graph.saved_tensors_hooks(saved.append, lambda _: None):
        lm.base_model(torch.zeros(2, 50, dtype=torch.long), use_cache=False)
    storages = {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in saved}
    weights = {p.untyped_storage().data_ptr() for p in lm.parameters()}
    return sum(size for address, size in storages.items() if address not in weights)


def test_a_model_type_without_a_formula_is_rejected():
    with rejected("no memory formula for model type 'gpt2'"):
        activation_bytes(AutoConfig.for_model("gpt2"))


@pytest.mark.parametrize("family", [*FAMILIES, "llama"])
def test_a_layer_keeps_as_many_bytes_as_the_formula_says(family):
    one, two = kept_bytes(1, family), kept_bytes(2, family)
    assert two - one == 100 * activation_bytes(small_config(family))
    # After the last layer: less than the 10 bytes a hidden number of `backbone_bytes`.
    assert 0 < one - (two - one) < 10 * 64 * 100


def test_settings_change_a_student_rank_by_what_they_need():
    """In bytes for each weight of Qwen2.5-1.5B, whose teacher is of its size."""
    weights = weight_count("Qwen/Qwen2.5-1.5B")

    def student(*flags: str) -> float:
        sizes = memory.rank_gib(train.parse(["--device", "auto", *flags]), world=1)
        return sizes[memory.STUDENT] * GIB / weights

    uniform = student("--sampler", "uniform")
    assert student() - uniform == pytest.approx(14)  # weights and moments of a teacher in it
    assert student("--sampler", "uniform", "--kl_coef", "0.1") - uniform == pytest.approx(2)


def test_command_prints_presets_and_one_run(capsys):
    """The peaks of qwen2.5-1.5b on 8 ranks and of one-gpu on 1 are those of docs/hardware.md."""
    memory.main([])
    memory.main(["--preset=one-gpu", "--card=24"])
    words = " ".join(capsys.readouterr().out.split())
    assert "peak of a student rank 49.5 44.9 92.6 78.5 " in words
    assert "peak of a student rank 20.0 peak" in words
    assert words.endswith("most rows on 24 GiB 13")

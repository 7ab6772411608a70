"""The exported directory: the files that other programs read, and what they make of them."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from rollout import Generator, Policy
from tests.helpers.files import change
from tests.helpers.models import FAMILIES, save_tiny_model

CPU = torch.device("cpu")


def export(folder: Path, target: Path) -> Path:
    """Load a model directory as a run does, and export it."""
    tokenizer = AutoTokenizer.from_pretrained(folder)
    Generator.load(str(folder), CPU, tokenizer).export(target)
    return target


def settings(folder: Path, name: str) -> dict:
    return json.loads((folder / name).read_text(encoding="utf-8"))


def logits_of(folder: Path) -> torch.Tensor:
    """Compute the logits of a prompt from the files of a model directory alone."""
    inputs = AutoTokenizer.from_pretrained(folder)("1 + 2", return_tensors="pt")
    return AutoModelForCausalLM.from_pretrained(folder)(inputs.input_ids).logits


@pytest.mark.parametrize("family", FAMILIES)
def test_the_exported_model_computes_what_the_trained_one_does(family, tiny_family, tmp_path):
    folder = tiny_family(family)
    assert torch.equal(logits_of(export(folder, tmp_path / "out")), logits_of(folder))


def test_the_export_has_the_files_of_its_base_as_they_are(tiny_model, tmp_path):
    """Whatever reads the base reads the export: saved anew, rotary angles have other names."""
    folder = shutil.copytree(tiny_model, tmp_path / "base")
    change(folder / "config.json", rope_theta=1e6, auto_map={"AutoConfig": "own.Config"})
    (folder / "chat_template.jinja").write_text("{{ messages }}")
    out = export(folder, tmp_path / "out")
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        assert (out / name).read_bytes() == (folder / name).read_bytes()
    config = settings(out, "config.json")
    assert config["rope_theta"] == 1e6
    assert config["torch_dtype"] == config["dtype"] == "float32"
    assert "auto_map" not in config  # its code is not there


@pytest.mark.parametrize(("named", "expected"), [(7, [1, 7]), (1, [1]), (5000, [1])])
def test_the_export_stops_where_training_stops(named, expected, tiny_model, tmp_path):
    """Where the checkpoint names another end token than its tokenizer, and where it names none that
    exists. Its other settings stay, also contradictory ones. Version 4 takes the settings from
    config.json where this file is made from it."""
    folder = shutil.copytree(tiny_model, tmp_path / "base")
    own = {"do_sample": False, "temperature": 0.6}
    change(folder / "generation_config.json", eos_token_id=named, **own)
    written = settings(export(folder, tmp_path / "out"), "generation_config.json")
    assert written["eos_token_id"] == expected
    assert own.items() <= written.items()
    assert "_from_model_config" not in written


def test_a_head_of_its_own_is_trained_and_exported_though_the_base_says_tied(tmp_path):
    folder = save_tiny_model(tmp_path / "base", "qwen3")
    assert settings(folder, "config.json")["tie_word_embeddings"]
    weights = load_file(folder / "model.safetensors")
    head = torch.randn_like(weights["model.embed_tokens.weight"])
    save_file(weights | {"lm_head.weight": head}, folder / "model.safetensors", {"format": "pt"})
    policy = Policy.load(str(folder), CPU)
    assert any(p is policy.lm.lm_head.weight for p in policy.parameters())
    assert torch.equal(policy.lm.get_output_embeddings().weight, head)
    out = export(folder, tmp_path / "out")
    assert settings(out, "config.json")["tie_word_embeddings"] is False
    assert torch.equal(load_file(out / "model.safetensors")["lm_head.weight"], head)

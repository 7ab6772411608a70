"""plumbing/model_checks.py: which models are accepted, and which are rejected in one line."""

import os
import re
import shutil
from contextlib import nullcontext

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, AutoTokenizer

import rollout
from plumbing.batches import collate
from plumbing.distributed.shutdown import begin_process
from plumbing.models import dither, recompute_activations
from rollout import Generator, Policy, check_model
from teacher import check_teacher
from tests.helpers.checks import rejected
from tests.helpers.files import change
from tests.helpers.groups import completion
from tests.helpers.models import FAMILIES, save_tiny_model

CPU = torch.device("cpu")
SDPA = "does not support an attention implementation through torch.nn.functional.scaled_dot"
# Family: its settings, the error as a student, as a teacher (None: accepted).
OTHERS = {
    "gpt2": ({"num_key_value_heads": None}, None, None),  # as in its own checkpoints
    # Its class of language models calls a part of its backbone.
    "opt": ({"word_embed_proj_dim": 32, "ffn_dim": 64}, None, None),
    "gemma2": ({"head_dim": 8}, SDPA, SDPA),  # other versions of transformers leave out its cap
    "lfm2": ({"layer_types": ["conv", "full_attention"]}, "cannot generate here", None),
    "granite": ({"logits_scaling": 8.0}, "Generator's log-probs are off by", None),
    "bert": ({}, "log-probs are off by", None),  # not causal; a teacher needs no pooler
}


def outcome(message: str | None):
    """Expect an error of one line with this message, None: none."""
    return rejected(message) if message else nullcontext()


@pytest.mark.parametrize("family", OTHERS)
def test_other_families_are_correct_or_rejected_with_one_line(family, tmp_path):
    settings, student, teacher = OTHERS[family]
    folder = str(save_tiny_model(tmp_path, family, **settings))
    with outcome(student):
        check_model(folder, 40)
    with outcome(teacher):
        check_teacher(folder, 40)


@pytest.mark.parametrize("family", FAMILIES)
def test_the_families_of_the_presets_are_accepted_up_to_their_last_position(tiny_family, family):
    folder = str(tiny_family(family))
    check_model(folder, 4096)
    with rejected("may take 4097: "):
        check_model(folder, 4097)


@pytest.mark.parametrize("check", [check_model, check_teacher])
def test_rows_across_the_border_of_longropes_rotary_angles_are_rejected(check, tmp_path):
    longrope = {
        "rope_type": "longrope",
        "short_factor": [1.0] * 4,
        "long_factor": [4.0] * 4,
        "original_max_position_embeddings": 64,
        "rope_theta": 10_000.0,
    }
    settings = {"original_max_position_embeddings": 64, "rope_parameters": longrope}
    folder = str(save_tiny_model(tmp_path, "phi3", **settings))
    check(folder, 64)
    with rejected("room for 64 tokens, and a row may take 65"):
        check(folder, 65)


WEIGHTS, CONFIG, TOKENIZER = "model.safetensors", "config.json", "tokenizer.json"
TOKENS, GENERATION = "tokenizer_config.json", "generation_config.json"


def weigh(name, new):
    """Make a damage: replace a weight by new(weight), or remove it if that is None."""

    def damage(folder):
        weights = load_file(folder / WEIGHTS)
        weights[name] = new(weights[name])
        left = {key: weight for key, weight in weights.items() if weight is not None}
        save_file(left, folder / WEIGHTS, metadata={"format": "pt"})

    return damage


def settings(file, **changes):
    return lambda folder: change(folder / file, **changes)


def custom_code(folder):
    """Give the model a class in a file beside it, which leaves a file RUN when it is run."""
    mark = f"open({str(folder / 'RUN')!r}, 'w')\nclass Config: pass\nclass Model: pass\n"
    (folder / "own.py").write_text(mark)
    names = {"AutoConfig": "own.Config", "AutoModelForCausalLM": "own.Model"}
    change(folder / CONFIG, model_type="own", auto_map=names)


def no_end(folder):
    for file in (TOKENS, CONFIG, GENERATION):
        change(folder / file, eos_token=None, eos_token_id=None)


def no_tokenizer(folder):
    for name in (TOKENIZER, TOKENS):
        (folder / name).unlink()


def pad_id(folder):
    """Give the pad token the id 300: the ids of a tokenizer may have gaps."""
    text = (folder / TOKENIZER).read_text()
    (folder / TOKENIZER).write_text(re.sub(r'("<pad>": |"id": )0\b', r"\g<1>300", text))


FP8 = {"quantization_config": {"quant_method": "fp8", "weight_block_size": [32, 32]}}
GATE = "model.layers.0.mlp.gate_proj.weight"
EXTRA = "config.json has no place for the weight "
WINDOW = {"use_sliding_window": True, "sliding_window": 8}
# What a run would not notice: the damage, the error as a student, as a teacher (None: accepted).
SILENT = {
    "an adapter": (lambda f: (f / "adapter_config.json").touch(), "LoRA adapter", "LoRA adapter"),
    "a weight lost": (weigh(GATE, lambda w: None), "its weights lack ", "its weights lack "),
    "a weight that is NaN": (weigh(GATE, lambda w: w * torch.nan), "not finite", "not finite"),
    "fewer layers": (settings(CONFIG, num_hidden_layers=1, layer_types=None), EXTRA, EXTRA),
    "little room": (settings(CONFIG, max_position_embeddings=20), "room for 20", "room for 20"),
    "no tokenizer": (no_tokenizer, "9' into ''", "9' into ''"),
    "another's": (settings(CONFIG, eos_token_id=151643), "another model's?", "another model's?"),
    "no pad token": (settings(TOKENS, pad_token=None), "has no pad token", "has no pad token"),
    "a new pad token": (settings(TOKENS, pad_token="<n>"), "99 embeddings", "99 embeddings"),
    "a pad token beyond": (pad_id, "300, is beyond its 99 embed", "300, is beyond its 99 embed"),
    "FP8": (settings(CONFIG, **FP8), "quantization_config fp8", "quantization_config fp8"),
    "one of parts in FP8": (settings(CONFIG, part=FP8), "it is quantised", "it is quantised"),
    "several samples": (settings(GENERATION, num_return_sequences=4), "Greedy methods", None),
    "no end token": (no_end, "it has no end token: set tokenizer.eos_token", None),
    "damaged end tokens": (lambda f: os.truncate(f / GENERATION, 9), "JSONDecodeError", None),
    "a window": (settings(CONFIG, **WINDOW), "attends to the last 8 tokens only", None),
    "logits that overflow": (
        weigh("model.norm.weight", lambda w: w * 3e38),
        "the model's logits are not finite",
        "its embeddings are not finite",
    ),
}


@pytest.mark.parametrize("case", SILENT)
def test_what_a_run_would_not_notice_is_rejected(case, tmp_path, tiny_model, capsys):
    begin_process()  # it silences the libraries
    damage, student, teacher = SILENT[case]
    folder = shutil.copytree(tiny_model, tmp_path / "damaged")
    damage(folder)
    with outcome(student):
        check_model(str(folder), 36)
    with outcome(teacher):
        check_teacher(str(folder), 36)
    assert capsys.readouterr() == ("", "")


CAPS = {"nanochat": {}, "gemma3_text": {"head_dim": 8, "final_logit_softcapping": 300.0}}


@pytest.mark.parametrize("family", CAPS)
def test_a_cap_that_hardly_changes_small_logits_is_rejected(family, tmp_path):
    """At the usual std of 0.02 the logits of a few tokens are near 0."""
    folder = save_tiny_model(tmp_path, family, initializer_range=0.02, **CAPS[family])
    with rejected("caps, scales or biases its logits"):
        check_model(str(folder), 40)


def test_a_bias_of_one_token_is_rejected_and_one_of_0_is_none(tmp_path):
    """The log-probs of a few other tokens hardly show it."""
    folder = save_tiny_model(tmp_path, "phi", initializer_range=0.02)
    weigh("lm_head.bias", lambda bias: bias * 0)(folder)
    check_model(str(folder), 40)
    weigh("lm_head.bias", lambda bias: bias + 0.5 * (torch.arange(len(bias)) == 40))(folder)
    with rejected("it caps, scales or biases its logits: one of 0.3218 is off by 0.5"):
        check_model(str(folder), 40)


def test_a_model_that_can_have_a_cap_but_has_none_is_accepted(tmp_path):
    check_model(str(save_tiny_model(tmp_path, "gemma3_text", head_dim=8)), 40)


MIXTURES = {
    "mixtral": {"router_jitter_noise": 0.1},
    "phimoe": {"router_jitter_noise": 0.5, "input_jitter_noise": 0.5},
}


@pytest.mark.parametrize("family", MIXTURES)
def test_activation_checkpointing_adds_no_noise_to_a_router(family, tmp_path, monkeypatch):
    """Experts that are chosen at random would make two forwards differ."""
    settings = {"num_local_experts": 4, "sliding_window": None} | MIXTURES[family]
    folder = str(save_tiny_model(tmp_path, family, **settings))
    batch = collate([([5], completion(ids=[6, 7]))], CPU)
    policy = Policy.load(folder, CPU)
    expected, _ = policy(batch, 1.0)
    recompute_activations(policy.lm)
    assert any(module.training for module in policy.modules())  # else nothing is recomputed
    assert torch.equal(policy(batch, 1.0)[0], expected)
    check_model(folder, 40, activation_checkpointing=True)
    monkeypatch.setattr(rollout, "recompute_activations", lambda lm: lm.train())
    with rejected("Policy with --activation_checkpointing's log-probs are off by"):
        check_model(folder, 40, activation_checkpointing=True)


@pytest.mark.parametrize("check", [check_model, check_teacher])
def test_a_model_that_needs_its_own_code_gets_one_line_and_is_not_run(check, tmp_path, tiny_model):
    folder = shutil.copytree(tiny_model, tmp_path / "model")
    custom_code(folder)
    with rejected(f"model '{folder}' cannot be used: "):
        check(str(folder), 36)
    assert not (folder / "RUN").exists()


def test_unneeded_code_in_a_model_directory_is_not_run(tmp_path, tiny_model):
    folder = shutil.copytree(tiny_model, tmp_path / "model")
    custom_code(folder)
    change(folder / CONFIG, model_type="qwen3")
    (folder / "custom_generate").mkdir()
    shutil.copy(folder / "own.py", folder / "custom_generate/generate.py")
    check_model(str(folder), 36)
    Generator.load(str(folder), CPU, AutoTokenizer.from_pretrained(folder))
    assert not (folder / "RUN").exists()


def test_train_mode_has_no_dropout(tmp_path):
    """Activation checkpointing needs train mode, and two forwards must give one ratio of 1. Phi-3
    calls dropout as a function and as modules."""
    folder = save_tiny_model(tmp_path, "phi3", attention_dropout=0.5, resid_pdrop=0.5)
    ids = torch.tensor([[5, 6, 7]])
    noisy = AutoModelForCausalLM.from_pretrained(folder).train()
    assert not torch.equal(noisy(ids).logits, noisy(ids).logits)  # the comparison can fail
    policy = Policy.load(str(folder), CPU)
    batch = collate([([5], completion(ids=[6, 7]))], CPU)
    assert torch.equal(policy.train()(batch, 1.0)[0], policy.eval()(batch, 1.0)[0])


def test_weights_stored_in_bf16_are_trained_in_float32(tiny_model, tmp_path):
    """At a learning rate of 1e-6 nearly no bf16 weight would ever move."""
    AutoModelForCausalLM.from_pretrained(tiny_model, dtype=torch.bfloat16).save_pretrained(tmp_path)
    loaded = Policy.load(str(tmp_path), CPU).lm
    assert {p.dtype for p in loaded.parameters()} == {torch.float32}
    assert loaded.config.dtype == torch.float32  # which export writes


def test_dithered_weights_round_to_the_stored_ones_and_follow_small_steps():
    """Around 0.2 bf16's spacing is 2^-10. A tenth of it moves one weight in ten. Zeros, frozen
    weights and those that bf16 cannot hold stay."""
    stored = torch.full((10_000,), 0.2).bfloat16()
    step = 0.1 * 2**-10
    frozen = torch.nn.Parameter(torch.ones(9), requires_grad=False)
    unchanged = {"zero": torch.zeros(9), "frozen": frozen, "finer": torch.tensor([0.2, 0.25])}
    model = torch.nn.ParameterDict({"w": stored.float()} | unchanged)
    assert torch.equal((model["w"] + step).bfloat16(), stored)  # without dither none moves
    before = {name: model[name].clone() for name in unchanged}
    dither(model)
    assert torch.equal(model["w"].bfloat16(), stored)
    for name, weights in before.items():
        assert torch.equal(model[name], weights)
    moved = (model["w"] + step).bfloat16() != stored
    assert moved.float().mean() == pytest.approx(0.1, abs=0.01)

"""plumbing/models.py: which model directories are accepted, and which are rejected in one line."""

import json
import os
import shutil

import pytest
import torch
from huggingface_hub import constants
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

from plumbing.batches import collate
from plumbing.distributed.shutdown import begin_process
from rollout import Generator, Policy, check_model
from teacher import check_teacher
from tests.helpers.checks import rejected
from tests.helpers.files import change
from tests.helpers.groups import completion
from tests.helpers.models import FAMILIES, save_tiny_model

CPU = torch.device("cpu")
HEAD, EXPERTS = {"head_dim": 8}, {"num_experts_per_tok": 2, "moe_intermediate_size": 16}
SDPA, CANNOT = "scaled_dot_product_attention", "cannot generate here"
# Family: its settings, the error as a student (one of these; None: accepted), as a teacher.
OTHERS = {
    "gpt2": ({"num_key_value_heads": None}, None, None),  # as in its own checkpoints
    "opt": ({"ffn_dim": 64, "word_embed_proj_dim": 32}, None, None),
    "qwen3_moe": (HEAD | EXPERTS | {"num_experts": 4}, None, None),
    "gpt_oss": (HEAD | {"num_local_experts": 4}, [SDPA], [SDPA]),
    # Versions of transformers have no SDPA for it, or one that leaves out its cap.
    "gemma2": (HEAD | {"final_logit_softcapping": 2.0}, [SDPA, "are off by"], [SDPA, None]),
    "lfm2": ({"layer_types": ["conv", "full_attention"]}, [CANNOT], None),  # no key-value cache
    "bloom": ({}, [CANNOT], [SDPA]),  # attention classes of its own
    "granite": ({"logits_scaling": 8.0}, ["Generator's log-probs are off by"], None),
    "bert": ({}, ["log-probs are off by"], None),  # not causal; a teacher needs no pooler
    "phi": ({}, ["Generator's log-probs are off by"], None),  # its head has a bias
}


def rejection(check, folder, tokens=40) -> str | None:
    """Return the line with which a check rejects a directory; None if it accepts it."""
    try:
        check(str(folder), tokens)
    except ValueError as error:
        assert str(folder) in str(error)
        assert "\n" not in str(error)
        return str(error)


@pytest.mark.parametrize("family", OTHERS)
def test_other_families_are_correct_or_rejected_with_one_line(family, tmp_path):
    settings, student, teacher = OTHERS[family]
    folder = save_tiny_model(tmp_path, family, **settings)
    for check, errors in ((check_model, student), (check_teacher, teacher)):
        line, errors = rejection(check, folder), errors or [None]
        assert line in errors if line is None else any(e and e in line for e in errors), line


@pytest.mark.parametrize("family", FAMILIES)
def test_the_families_of_the_presets_are_accepted_up_to_their_last_position(tiny_family, family):
    assert rejection(check_model, tiny_family(family), 4096) is None
    assert "may take 4097: " in rejection(check_model, tiny_family(family), 4097)


@pytest.mark.parametrize("check", [check_model, check_teacher])
def test_rows_across_the_border_of_longropes_rotary_angles_are_rejected(check, tmp_path):
    longrope = {"rope_type": "longrope", "short_factor": [1.0] * 4, "long_factor": [4.0] * 4}
    longrope |= {"original_max_position_embeddings": 64, "rope_theta": 10_000.0}
    settings = {"original_max_position_embeddings": 64, "rope_parameters": longrope}
    folder = save_tiny_model(tmp_path, "phi3", **settings)
    assert rejection(check, folder, 64) is None
    line = rejection(check, folder, 65)
    assert "has room for 64 tokens, and a row may take 65: " in line


def gate(folder, new):
    """Replace one of the weights by new(weight); None removes it."""
    weights = load_file(folder / WEIGHTS)
    name = "model.layers.0.mlp.gate_proj.weight"  # a teacher's has no "model."
    weights[name] = new(weights[name])
    left = {name: weight for name, weight in weights.items() if weight is not None}
    save_file(left, folder / WEIGHTS, metadata={"format": "pt"})


def custom_code(folder):
    """Give the model a class in a file beside it, which leaves a file RUN when it is run."""
    mark = f"open({str(folder / 'RUN')!r}, 'w')\nclass Config: pass\nclass Model: pass\n"
    (folder / "own.py").write_text(mark)
    names = {"AutoConfig": "own.Config", "AutoModelForCausalLM": "own.Model"}
    change(folder / CONFIG, model_type="own", auto_map=names)


def quantize(folder, method):
    change(folder / CONFIG, quantization_config={"quant_method": method, "bits": 4})


def shard(folder):
    """Split the weights into files, and delete one."""
    lm = AutoModelForCausalLM.from_pretrained(folder)
    (folder / WEIGHTS).unlink()
    lm.save_pretrained(folder, max_shard_size="20KB")
    sorted(folder.glob("*.safetensors"))[1].unlink()


def no_digits(folder):
    tokenizer = json.loads((folder / TOKENIZER).read_text())
    vocab = tokenizer["model"]["vocab"]
    tokenizer["model"]["vocab"] = {k * (1 + k.isdigit()): i for k, i in vocab.items()}
    (folder / TOKENIZER).write_text(json.dumps(tokenizer))


def overflow(folder):
    weights = load_file(folder / WEIGHTS)
    weights["model.norm.weight"] *= 3e38
    save_file(weights, folder / WEIGHTS, metadata={"format": "pt"})


def no_end(folder):
    for file in (TOKENS, CONFIG, GENERATION):
        change(folder / file, eos_token=None, eos_token_id=None)


PICKLE = "has no safetensors; pickles (pytorch_model.bin) can run code and are refused: convert it"
POINTER = "version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 12345\n"
HEAD_ = "is a ForReward: a student needs a head that predicts tokens"
MORE = "layers.1.input_layernorm.weight', the model has not: is its config.json another model's?"
STRANGE = "has end token 151643, and a tokenizer of 99 tokens: is it another model's?"
WEIGHTS, CONFIG, TOKENIZER = "model.safetensors", "config.json", "tokenizer.json"
TOKENS, GENERATION = "tokenizer_config.json", "generation_config.json"
NO_MODEL, NOT_LOADED = "is no Hugging Face model directory or hub id: ", "cannot be loaded: "
LOST_GATE = "layers.0.mlp.gate_proj.weight', or its shape differs"
WINDOW = {"use_sliding_window": True, "sliding_window": 8}
DAMAGED = {  # the damage, and the error
    "a config cut short": (lambda f: os.truncate(f / CONFIG, 50), NO_MODEL),
    "an architecture": (lambda f: change(f / CONFIG, model_type="x"), "model type `x`"),
    "custom code": (custom_code, "contains custom code"),
    "only a pickle": (lambda f: (f / WEIGHTS).rename(f / "pytorch_model.bin"), PICKLE),
    "no weights": (lambda f: (f / WEIGHTS).unlink(), "no file named model.safetensors"),
    "a GGUF file": (lambda f: (f / WEIGHTS).rename(f / "model.gguf"), "holds a GGUF file, which"),
    "a Git LFS pointer": (lambda f: (f / WEIGHTS).write_text(POINTER), "run git lfs pull"),
    "a pointer for a tokenizer": (lambda f: (f / TOKENIZER).write_text(POINTER), "git lfs pull"),
    "an adapter": (lambda f: (f / "adapter_config.json").touch(), "has a LoRA adapter: merge it"),
    "no config": (lambda f: (f / CONFIG).unlink(), "has no config.json: it is no Hugging Face"),
    "an empty config": (lambda f: os.truncate(f / CONFIG, 0), NO_MODEL),
    "a config that is a list": (lambda f: (f / CONFIG).write_text("[1]"), NO_MODEL),
    "GPTQ": (lambda f: quantize(f, "gptq"), "is quantized (gptq): only float weights can be tr"),
    "FP8": (lambda f: quantize(f, "fp8"), "is quantized (fp8): only float weights can be trained"),
    "an unknown format": (lambda f: quantize(f, "new"), "is quantized (new): only float weights"),
    "a classifier": (
        lambda f: change(f / CONFIG, architectures=["ForReward"]),
        HEAD_,
    ),
    "fewer layers": (lambda f: change(f / CONFIG, num_hidden_layers=1, layer_types=None), MORE),
    "a missing shard": (lambda f: shard(f), "No such file or directory: "),
    "little room": (lambda f: change(f / CONFIG, max_position_embeddings=20), "room for 20 tokens"),
    "weights cut short": (lambda f: os.truncate(f / WEIGHTS, 40_000), NOT_LOADED),
    "a weight lost": (lambda f: gate(f, lambda w: None), LOST_GATE),
    "a weight that is NaN": (lambda f: gate(f, lambda w: w * torch.nan), "are not finite: "),
    "no tokenizer": (lambda f: [(f / x).unlink() for x in (TOKENIZER, TOKENS)], "9' into ''"),
    "an empty tokenizer": (lambda f: os.truncate(f / TOKENIZER, 0), "no tokenizer that can be lo"),
    "a tokenizer without digits": (no_digits, "turns '0 1 2 3 4 5 6 7 8 9' into '         '"),
    "another model's tokenizer": (lambda f: change(f / CONFIG, eos_token_id=151643), STRANGE),
    "no pad token": (lambda f: change(f / TOKENS, pad_token=None), "has no pad token: set tok"),
    "a new pad token": (lambda f: change(f / TOKENS, pad_token="<n>"), "for 100 tokens of"),
    "no end token": (no_end, "has no end token: set tokenizer.eos_token and save it again"),
    "no such end": (lambda f: change(f / GENERATION, eos_token_id="x"), CANNOT + ": TypeError"),
    "a damaged list of end tokens": (lambda f: os.truncate(f / GENERATION, 9), "damaged gener"),
    "logits that overflow": (overflow, "the model's logits are not finite (completion token 0"),
    "a window": (lambda f: change(f / CONFIG, **WINDOW), "attends to the last 8 tokens only"),
}
ONLY_OF_STUDENTS = ("no end token", "no such end", "a window", "a classifier")
ONLY_OF_STUDENTS += ("a damaged list of end tokens",)
OF_TEACHERS = {"logits that overflow": "its embeddings are not finite"}


@pytest.mark.parametrize("case", DAMAGED)
def test_a_damaged_model_gets_one_line_and_is_not_run(case, tmp_path, tiny_model, capsys):
    begin_process()  # it silences the libraries
    damage, message = DAMAGED[case]
    folder = shutil.copytree(tiny_model, tmp_path / "damaged")
    damage(folder)
    assert message in rejection(check_model, folder, 36)
    line = rejection(check_teacher, folder, 36)
    assert line is None if case in ONLY_OF_STUDENTS else OF_TEACHERS.get(case, message) in line
    assert not (folder / "RUN").exists()
    assert capsys.readouterr() == ("", "")


KINDS = {  # model types, and the error
    "gemma3": "is multimodal (gemma3: text_config, vision_config); a text-only model is needed",
    "qwen2_5_vl": "is multimodal (qwen2_5_vl: vision_config, text_config)",
    "llava": "is multimodal (llava: vision_config, text_config)",
    "t5": "is an encoder-decoder (t5); a decoder-only model is needed",
    "whisper": "is an encoder-decoder (whisper)",
    "vit": "has no vocabulary (vit): a language model is needed",
}


@pytest.mark.parametrize("kind", KINDS)
def test_models_of_other_kinds_get_one_line(kind, tmp_path, tiny_model):
    folder = shutil.copytree(tiny_model, tmp_path / "model")
    AutoConfig.for_model(kind).save_pretrained(folder)
    for check in (check_model, check_teacher):
        assert KINDS[kind] in rejection(check, folder)


def test_families_without_tokenizer_files_are_rejected(tmp_path):
    """transformers makes a tokenizer of its own for each, which knows no digit."""
    for family in ("qwen2", "gemma", "gpt2"):
        folder = save_tiny_model(tmp_path / family, family, head_dim=8)
        for name in (TOKENIZER, TOKENS):
            (folder / name).unlink()
        for check in (check_model, check_teacher):
            assert "turns '0 1 2 3 4 5 6 7 8 9' into ''" in rejection(check, folder)


def test_a_cache_that_cannot_be_written_is_named_with_its_variable(tmp_path, monkeypatch):
    """A file takes the place of a directory: root may write everywhere else."""
    (tmp_path / "file").touch()
    for cache, remedy in (
        (tmp_path / "file/hub", "cannot be written: set HF_HOME to a directory that can"),
        ("~/.cache/huggingface/hub", "HOME is not set: set it, or HF_HOME"),
    ):
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(cache))
        with rejected(remedy):
            check_model("nowhere/no", 40)


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


@pytest.mark.parametrize("family", ["qwen2", "gemma3_text"])
def test_weights_stored_in_bf16_are_the_same_as_if_float32_had_been_loaded(family, tmp_path):
    """Gemma 3 scales embeddings by a buffer, sqrt(32), that is 5.6562 where bf16 was loaded."""
    folder = save_tiny_model(tmp_path, family, **HEAD)
    lm = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16)
    lm.save_pretrained(folder)
    expected = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    loaded = Policy.load(str(folder), CPU).lm
    pairs = [dict([*m.named_parameters(), *m.named_buffers()]) for m in (loaded, expected)]
    torch.testing.assert_close(*pairs, rtol=0, atol=0)  # compares dtypes, too
    assert loaded.config.dtype == torch.float32  # which export writes

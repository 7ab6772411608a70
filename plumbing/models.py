"""Model directories: checks before the first step, loading, checksums, export."""

import json
import os
import re
import shlex
import subprocess
import sys
import unicodedata
import zlib
from contextlib import contextmanager
from pathlib import Path

import torch
from huggingface_hub import constants
from torch import nn
from torch.distributed.tensor import DTensor
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoTokenizer,
    PreTrainedConfig,
    PreTrainedModel,
)
from transformers.utils import cached_file

from plumbing.errors import first_lines
from plumbing.files import read_lines

ROOT = Path(__file__).resolve().parent.parent
DIGITS = "0 1 2 3 4 5 6 7 8 9"
# Families whose rope_scaling has, in version 4, the key "type" and no others than its factors.
STRICT_ROPE = ("olmo", "olmo2", "phi3")
CONVERT = (
    'convert it: python -c "from transformers import AutoModelForCausalLM as M;'
    " M.from_pretrained('MODEL').save_pretrained('NEW')\", and copy its tokenizer files"
)
PICKLE = f"has no safetensors; pickles (pytorch_model.bin) can run code and are refused: {CONVERT}"

# Checks


def check_directory(name: str, tokens: int, kind, attention="eager", unused=()) -> tuple:
    """Load `name` (directory or hub id) on the CPU in float32, by default with its own attention.

    kind: AutoModel or AutoModelForCausalLM. unused: prefixes of weights that may be missing.
    Returns (model, tokenizer). Raises ValueError, in one line, unless the model has its weights, a
    tokenizer with a pad token, and room for rows of `tokens` tokens. Runs no code of the model."""
    trust = {"trust_remote_code": False}  # by default transformers asks
    check_files(name)
    with trial(name, "is no Hugging Face model directory or hub id"):
        config = AutoConfig.from_pretrained(name, **trust)
    check_config(name, config, tokens, kind)
    source = "copy tokenizer.json and tokenizer_config.json from the model that it was made from"
    with trial(name, f"has no tokenizer that can be loaded: {source}"):
        tokenizer = AutoTokenizer.from_pretrained(name, **trust)
    check_tokenizer(name, tokenizer, config)
    if kind is AutoModelForCausalLM:
        check_generation_config(name)
    options = {"dtype": "float32", "attn_implementation": attention, **trust}
    options |= {"ignore_mismatched_sizes": True, "output_loading_info": True}
    options |= {"use_safetensors": True}  # no pickles
    with trial(name, "cannot be loaded"):
        model, info = kind.from_pretrained(name, **options)
    check_weights(name, model, info, unused)
    return model.eval(), tokenizer


def check_weights(name: str, model: PreTrainedModel, info: dict, unused: tuple) -> None:
    """Raise ValueError unless the model got finite weights, all that it has and the file has.
    info: from_pretrained's report. unused: prefixes of weights that may be missing."""
    lost = [*info["missing_keys"], *(key for key, *_ in info["mismatched_keys"])]  # now random
    if missing := sorted(key for key in lost if not key.startswith(unused)):
        raise ValueError(f"the weights of {name!r} lack {missing[0]!r}, or its shape differs")
    # A backbone has no place for a head, but one for each of the checkpoint's layers.
    parts = {model.base_model_prefix, *(child for child, _ in model.named_children())}
    if extra := sorted(key for key in info["unexpected_keys"] if key.split(".")[0] in parts):
        remedy = "is its config.json another model's?"
        raise ValueError(f"the weights of {name!r} have {extra[0]!r}, the model has not: {remedy}")
    for key, p in model.named_parameters():
        if not all(extreme.isfinite() for extreme in p.aminmax()):  # isfinite(p) would copy p
            raise ValueError(f"the weights of model {name!r} are not finite: {key!r}")


def check_files(name: str) -> None:
    """Raise ValueError, with a remedy, if `name` is a local directory whose files cannot be used.
    transformers would name other causes, or ignore an adapter."""
    folder = Path(name)
    if folder.is_file():
        raise ValueError(f"model {name!r} is a file: give the directory that it is in")
    if not folder.is_dir():
        return
    files = {path.name: path for path in folder.iterdir()}
    endings = {path.suffix for path in files.values()}
    formats = {".safetensors", ".bin", ".pt", ".pth"} & endings
    defect = None
    if "adapter_config.json" in files:
        defect = "has a LoRA adapter: merge it (merge_and_unload() of peft), save the whole model"
    elif ".gguf" in endings and ".safetensors" not in endings:
        defect = "holds a GGUF file, which cannot be trained: get the model that it was made from"
    elif "config.json" not in files:
        defect = "has no config.json: it is no Hugging Face model directory"
    elif formats and ".safetensors" not in formats:
        defect = PICKLE.replace("MODEL", name)
    elif pointers := [path for path in files.values() if is_lfs_pointer(path)]:
        defect = f"has only a Git LFS pointer in place of {pointers[0].name}: run git lfs pull"
    if defect:
        raise ValueError(f"model {name!r} {defect}")


def is_lfs_pointer(path: Path) -> bool:
    """Return whether a file is the text that Git LFS puts in place of a large file."""
    if not path.is_file() or path.stat().st_size > 1024:
        return False
    return path.read_bytes().startswith(b"version https://git-lfs")


def check_config(name: str, config: PreTrainedConfig, tokens: int, kind) -> None:
    """Raise ValueError unless the configuration is that of a text model with float weights, which
    has room for rows of `tokens` tokens and, for AutoModelForCausalLM, a head."""
    text = config.get_text_config()
    quantized = getattr(config, "quantization_config", None)
    quantized = quantized or getattr(text, "quantization_config", None)
    parts = ", ".join(config.sub_configs)
    classes = config.architectures or ["ForCausalLM"]
    longest = getattr(config, "max_position_embeddings", None) or tokens
    rope = getattr(config, "rope_parameters", None) or {}
    if rope.get("rope_type") == "longrope":  # beyond, a row is trained with other angles than drawn
        longest = rope["original_max_position_embeddings"]
    row = f"tokens, and a row may take {tokens}: lower --max_prompt_tokens, --max_completion_tokens"
    defect = None
    if quantized:
        method = dict(quantized).get("quant_method", "unnamed method")
        cause = "only float weights can be trained: give the model that it was made from"
        defect = f"is quantized ({method}): {cause}"
    elif config.is_encoder_decoder:
        defect = f"is an encoder-decoder ({config.model_type}); a decoder-only model is needed"
    elif text is not config:
        defect = f"is multimodal ({config.model_type}: {parts}); a text-only model is needed"
    elif not isinstance(getattr(config, "vocab_size", None), int):
        defect = f"has no vocabulary ({config.model_type}): a language model is needed"
    elif kind is AutoModelForCausalLM and not any("LM" in name for name in classes):
        defect = f"is a {classes[0]}: a student needs a head that predicts tokens (...ForCausalLM)"
    elif tokens > longest:
        defect = f"has room for {longest} {row}"
    if defect:
        raise ValueError(f"model {name!r} {defect}")


def check_generation_config(name: str) -> None:
    """Raise ValueError if generation_config.json, which names end tokens, is damaged: transformers
    would ignore it."""
    file = cached_file(name, "generation_config.json", _raise_exceptions_for_missing_entries=False)
    with trial(name, "has a damaged generation_config.json"):
        if file:
            dict(json.loads(Path(file).read_text(encoding="utf-8")))


def check_tokenizer(name: str, tokenizer, config: PreTrainedConfig) -> None:
    """Raise ValueError unless the tokenizer has a pad token, keeps digits, and fits the model."""
    with trial(name, "has a tokenizer that fails"):
        text = tokenizer.decode(tokenizer(DIGITS).input_ids, skip_special_tokens=True)
        suffix_length(tokenizer)
    ends = config.eos_token_id
    ends = ends if isinstance(ends, list) else [] if ends is None else [ends]
    size = len(tokenizer)
    defect = None
    if "".join(text.split()) != DIGITS.replace(" ", ""):
        cause = "are its files missing, or another model's?"
        defect = f"has a tokenizer that turns {DIGITS!r} into {text!r}: {cause}"
    elif tokenizer.pad_token_id is None:
        defect = "has no pad token: set tokenizer.pad_token, save it"
    elif config.vocab_size < size:
        defect = f"has {config.vocab_size} embeddings for {size} tokens of its tokenizer"
    elif ends and min(ends) >= size:
        cause = "is it another model's?"
        defect = f"has end token {min(ends)}, and a tokenizer of {size} tokens: {cause}"
    if defect:
        raise ValueError(f"model {name!r} {defect}")


def check_words(name: str, tokenizer, text: str) -> None:
    """Raise ValueError if a tokenizer loses letters or digits of `text`, or joins or splits words
    or numbers. ASCII alone: other signs may be unknown to it."""

    def words(text: str) -> list[str]:
        return re.findall(r"[A-Za-z]+|[0-9]+", unicodedata.normalize("NFKC", text))

    ids = tokenizer(text, add_special_tokens=False).input_ids
    back = tokenizer.decode(ids, clean_up_tokenization_spaces=False)
    if words(back) != words(text):
        cause = "are its files missing, or another model's?"
        change = f"turns {text!r:.80} into {back!r:.80}"
        raise ValueError(f"the tokenizer of model {name!r} {change}: {cause}")


def suffix_length(tokenizer) -> int:
    """Count the special tokens that the tokenizer puts after a text, such as its end token."""
    plain = tokenizer("1", add_special_tokens=False).input_ids
    ids = tokenizer("1").input_ids
    for after in range(len(ids) - len(plain) + 1):
        if ids[len(ids) - after - len(plain) : len(ids) - after] == plain:
            return after
    raise ValueError(f"it makes {ids} of '1', and without special tokens {plain}")


@contextmanager
def trial(name: str, problem: str):
    """Raise ValueError, "model NAME PROBLEM: ...", at any error within."""
    try:
        yield
    except Exception as error:  # transformers raises all kinds at a damaged file
        reason = f"{type(error).__name__}: {first_lines(error)}"
        reason = reason if len(reason) <= 400 else f"{reason[:400]} ..."  # lists of all models
        if isinstance(error, OSError) and not Path(name).is_dir():
            reason += cache_defect()
            if "safetensors" in reason:
                problem, reason = "cannot be loaded", PICKLE.replace("MODEL", name)
        raise ValueError(f"model {name!r} {problem}: {reason}") from error


def cache_defect() -> str:
    """Return a remedy, to be added to an error, if the cache of the hub cannot be written."""
    cache = Path(constants.HF_HUB_CACHE)
    if cache.parts[0] == "~":  # no HOME, and no such user
        return "; HOME is not set: set it, or HF_HOME"
    try:
        cache.mkdir(parents=True, exist_ok=True)  # as a download does
        writable = os.access(cache, os.W_OK)
    except OSError:
        writable = False
    return "" if writable else f"; {cache} cannot be written: set HF_HOME to a directory that can"


# Loading


def load(kind, name: str, dtype: torch.dtype, attention: str, device) -> PreTrainedModel:
    """Load a model without dropout: activation checkpointing and LoRA need train mode, in which
    dropout would make two forwards differ. Switches cuDNN's attention off for the process."""
    # cuDNN, SDPA's first choice on Hopper, plans each new shape and is not deterministic.
    torch.backends.cuda.enable_cudnn_sdp(False)
    config = AutoConfig.from_pretrained(name)
    for setting, value in config.to_dict().items():
        if "drop" in setting and isinstance(value, float):
            setattr(config, setting, 0.0)
    options = {"config": config, "attn_implementation": attention, "use_safetensors": True}
    model = kind.from_pretrained(name, dtype=dtype, **options).to(device)
    if head := model.get_output_embeddings():  # a checkpoint that says "tied" may have its own head
        model.config.tie_word_embeddings = head.weight is model.get_input_embeddings().weight
    return model


def unsharded(tensor: torch.Tensor) -> torch.Tensor:
    """Return all of a tensor that FSDP may have sharded. A collective of its ranks."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


@torch.no_grad()
def checksum(model: nn.Module) -> int:
    """Compute a checksum of all weights."""
    bits = {2: torch.int16, 4: torch.int32}
    sums = [p.view(bits[p.element_size()]).sum(dtype=torch.int64) for p in model.parameters()]
    return zlib.crc32(torch.stack(sums).cpu().numpy())


def recompute_activations(lm: PreTrainedModel) -> None:
    """Make each layer compute its activations again in backward: less memory, more time. Sets train
    mode, without which it has no effect."""
    # Older transformers have the second name only, newer ones warn at it.
    enable = getattr(lm, "activation_checkpointing_enable", None)
    (enable or lm.gradient_checkpointing_enable)({"use_reentrant": False})
    lm.train()


# Export. Programs pin older transformers, so the files say everything as version 4 does too.


def write(folder: Path, config, tokenizer, settings=None, stop_ids=()) -> None:
    """Write all files of a model directory but the weights. settings: the checkpoint's generation
    settings, for a model that generates; stop_ids: the tokens at which training stops."""
    folder.mkdir(parents=True, exist_ok=True)
    save_config(config, folder)
    save_tokenizer(tokenizer, folder)
    if settings:
        save_generation_config(settings, sorted(stop_ids), tokenizer, folder)


def save_config(config: PreTrainedConfig, folder: Path) -> None:
    """Write config.json. transformers 4 does not know `rope_parameters` and would silently take
    rope_theta 10,000; the directory holds no code that `auto_map` could name."""
    config.save_pretrained(folder)
    file = folder / "config.json"
    settings = json.loads(file.read_text(encoding="utf-8"))
    settings.pop("auto_map", None)
    settings |= version_4_rope(settings)
    if dtype := settings.get("dtype"):
        settings["torch_dtype"] = dtype
    file.write_text(json.dumps(settings, indent=2, sort_keys=True) + "\n", encoding="utf-8")


def version_4_rope(settings: dict) -> dict:
    """Return rotary settings as version 4 names them, from the `rope_parameters` of version 5."""
    rope = settings.get("rope_parameters") or {}
    renamed = {}
    if local := rope.get("sliding_attention"):  # Gemma 3: one dict for each type of layer
        renamed["rope_local_base_freq"] = local["rope_theta"]
    rope = dict(rope.get("full_attention") or rope)
    for name in ("rope_theta", "partial_rotary_factor"):
        if name in rope:
            renamed[name] = rope.pop(name)
    kind = rope.pop("rope_type", "default")
    if kind != "default":
        if "original_max_position_embeddings" in settings:
            rope.pop("original_max_position_embeddings", None)
        key = "type" if settings["model_type"] in STRICT_ROPE else "rope_type"
        renamed["rope_scaling"] = {key: kind, **rope}
    return renamed


def save_tokenizer(tokenizer, folder: Path) -> None:
    """Write the tokenizer's files. Both versions read tokenizer.json as it is with the class
    PreTrainedTokenizerFast; version 4 lacks some classes, and others of it change the tokens."""
    tokenizer.save_pretrained(folder)
    file = folder / "tokenizer_config.json"
    settings = json.loads(file.read_text(encoding="utf-8"))
    gone = ("backend", "is_local", "local_files_only", "auto_map")
    settings = {k: v for k, v in settings.items() if k not in gone and v is not None}
    if (folder / "tokenizer.json").exists():
        settings["tokenizer_class"] = "PreTrainedTokenizerFast"
    if isinstance(extra := settings.get("extra_special_tokens"), list):  # a dict in version 4
        del settings["extra_special_tokens"]
        settings["additional_special_tokens"] = extra
    file.write_text(json.dumps(settings, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def save_generation_config(config, stop_ids: list[int], tokenizer, folder: Path) -> None:
    """Write the checkpoint's generation settings, with every end token at which training stops."""
    # As text, because some versions of save_pretrained reject contradictory settings.
    settings = json.loads(config.to_json_string())
    # Else version 4 takes the end tokens from config.json.
    settings.pop("_from_model_config", None)
    settings["eos_token_id"] = stop_ids if len(stop_ids) > 1 else stop_ids[0]
    settings["pad_token_id"] = tokenizer.pad_token_id
    text = json.dumps(settings, indent=2, sort_keys=True) + "\n"
    (folder / "generation_config.json").write_text(text, encoding="utf-8")


CARD = """---
{metadata}
---

# {title}

{summary}

| | |
|---|---|
{table}
"""
USE = {
    "student": "The student of a Goldilocks RL run: GRPO on problems with verified answers.",
    "teacher": "The Teacher of a Goldilocks RL run: it predicts the utility √(p(1-p)) of a problem"
    " for its student, from the text alone. `backbone/` is a Hugging Face directory,"
    " `head.safetensors` the linear head, with the pooling in its metadata.",
}


class Card:
    """The model card, README.md, of a run's exported models. config: train.Config, or part of it.
    Code and command are recorded when it is made: the files may change while the run goes on."""

    def __init__(self, config):
        self.settings = vars(config)
        models = (self.settings.get(name, "") for name in ("model", "teacher_model"))
        self.hub_ids = [name for name in models if is_hub_id(name)]
        git = ["git", "-C", str(ROOT), "describe", "--always", "--dirty", "--abbrev=40"]
        try:
            done = subprocess.run([*git, "--exclude=*"], capture_output=True, text=True)
            self.commit = done.stdout.strip()
        except OSError:  # no git
            self.commit = ""
        launcher = ["python"]
        if ranks := os.environ.get("LOCAL_WORLD_SIZE"):
            launcher = ["torchrun", "--nproc_per_node", ranks]
            if (machines := os.environ.get("GROUP_WORLD_SIZE", "1")) != "1":
                launcher += ["--nnodes", machines]
        self.command = ""
        if Path(sys.argv[0]).name == "train.py":  # not a test's, or another program's
            self.command = shlex.join([*launcher, "train.py", *sys.argv[1:]])

    def write(self, folder: Path, role: str) -> None:
        """Write README.md in `folder` for the "student" or the "teacher"."""
        settings = {name: str(value) for name, value in self.settings.items()}
        base = settings["model" if role == "student" else "teacher_model"]
        metadata = ["library_name: transformers", "tags:", "- goldilocks-rl", "- grpo", "- math"]
        if role == "student":
            metadata = ["pipeline_tag: text-generation", *metadata]
        if base in self.hub_ids:
            metadata = [f"base_model: {base}", *metadata]
        rows = {"base model": base, "sampler": settings.get("sampler")}
        rows |= {"training data": settings.get("train_data")}
        rows |= {"validation data": settings.get("val_data"), "command": self.command}
        rows |= {"commit": self.commit}
        rows |= {name: settings.get(name) for name in ("steps", "seed")}
        if role == "student":
            rows |= accuracies(Path(settings["out"]) / "metrics.jsonl")
        cells = [f"| {name} | {code(value)} |" for name, value in rows.items() if value]
        text = CARD.format(
            metadata="\n".join(metadata),
            title=f"{Path(base).name}, {role}",
            summary=USE[role],
            table="\n".join(cells),
        )
        (folder / "README.md").write_text(text, encoding="utf-8")


def accuracies(metrics: Path) -> dict[str, str]:
    """Return the first and the last validation accuracy of a run, with their steps."""
    rows = [row for row in read_lines(metrics) if row.get("val_accuracy") is not None]
    if not rows:
        return {}
    ends = {"accuracy before": rows[0], "accuracy after": rows[-1]}
    form = "{val_accuracy:.1%} (greedy pass@1, step {step})"
    return {name: form.format_map(row) for name, row in ends.items()}


def is_hub_id(name: str) -> bool:
    """Return whether a model's name is a hub id, not a path."""
    return not Path(name).exists() and re.fullmatch(r"[\w.-]+/[\w.-]+", name) is not None


def code(text: str) -> str:
    """Quote a text for a cell of a Markdown table. Paths into this project, which presets have,
    lose the place of the project on the machine."""
    text = text.replace(f"{ROOT}/", "").replace("\n", " ")
    return "`" + text.replace("|", "\\|").replace("`", "'") + "`"

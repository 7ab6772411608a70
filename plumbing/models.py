"""Model directories: checks before the first step, loading, checksums."""

import zlib
from contextlib import contextmanager
from pathlib import Path

import torch
from huggingface_hub import snapshot_download
from safetensors import safe_open
from torch import nn
from transformers import AutoConfig, AutoTokenizer, PreTrainedModel

from plumbing.errors import first_lines

# What is downloaded of a model: no pickles, no code, none of the copies for other libraries.
FILES = ["model*.safetensors", "*.json", "*.txt", "*.model", "*.jinja", "*.tiktoken"]
HALVES = {"BF16": torch.bfloat16, "F16": torch.float16}  # as safetensors names them


def download(name: str) -> str:
    """Return the directory of a model, `name` itself or the cached files of a hub id, after a
    download if any is missing. Raises ValueError, in one line."""
    if not name or Path(name).is_dir():
        return name
    with trial(name, "is no directory and cannot be downloaded from the hub"):
        return snapshot_download(name, allow_patterns=FILES, ignore_patterns="*/*")


def download_models(config) -> dict[str, str]:
    """Return the directories of both models of a train.Config, by its fields."""
    return {role: download(getattr(config, role)) for role in ("model", "teacher_model")}


def check_directory(name: str, tokens: int, kind, attention: str = "eager") -> tuple:
    """Load `name` (directory or hub id) on the CPU in float32, by default with its own attention.

    kind: AutoModel or AutoModelForCausalLM. Returns (model, tokenizer). Raises ValueError, in one
    line, unless the model has all its weights, a tokenizer with a pad token, and room for rows of
    `tokens` tokens. No code that comes with the model is run.
    """
    folder, trust = download(name), {"trust_remote_code": False}  # by default transformers asks
    with trial(name, "is not a Hugging Face model directory"):
        config = AutoConfig.from_pretrained(folder, **trust)
        tokenizer = AutoTokenizer.from_pretrained(folder, **trust)
        if not tokenizer("1 + 1").input_ids:  # transformers replaces a missing file by an empty one
            raise ValueError("its tokenizer has no vocabulary")
    longest = getattr(config, "max_position_embeddings", None) or tokens
    size, border = config.vocab_size, longrope_border(config) or tokens
    row = f"tokens, and a row may take {tokens}: lower --max_prompt_tokens, --max_completion_tokens"
    problems = {
        "has no weights: no .safetensors file": not any(Path(folder).glob("*.safetensors")),
        "has no pad token: set tokenizer.pad_token, save it": tokenizer.pad_token_id is None,
        f"has {size} embeddings for {len(tokenizer)} tokens of its tokenizer": size
        < len(tokenizer),
        f"has room for {longest} {row}": tokens > longest,
        f"changes its rotary angles beyond {border} {row}": tokens > border,
    }
    if found := [problem for problem, present in problems.items() if present]:
        raise ValueError(f"model {name!r} {found[0]}")
    options = {"dtype": "float32", "attn_implementation": attention, **trust}
    options |= {"ignore_mismatched_sizes": True, "output_loading_info": True}
    with trial(name, "cannot be loaded"):
        model, info = kind.from_pretrained(folder, **options)
    missing = sorted([*info["missing_keys"], *(key for key, *_ in info["mismatched_keys"])])
    if missing:  # transformers would continue with random numbers
        raise ValueError(f"the weights of {name!r} lack {missing[0]!r}, or its shape differs")
    for key, p in model.named_parameters():
        if not all(extreme.isfinite() for extreme in p.aminmax()):  # isfinite(p) would copy p
            raise ValueError(f"the weights of model {name!r} are not finite: {key!r}")
    return model.eval(), tokenizer


@contextmanager
def trial(name: str, problem: str):
    """Raise ValueError, "model NAME PROBLEM: ...", at any error within."""
    try:
        yield
    except Exception as error:  # transformers raises all kinds at a damaged file
        reason = f"{type(error).__name__}: {first_lines(error)}"
        raise ValueError(f"model {name!r} {problem}: {reason}") from error


def load(kind, name: str, dtype: torch.dtype, attention: str, device) -> PreTrainedModel:
    """Load a model without dropout: activation checkpointing and LoRA need train mode, in which
    dropout would make two forwards differ. Switches cuDNN's attention off for the process.

    Weights that keep the file's dtype are mapped, not read, and all ranks of a machine share the
    pages. So half-precision weights become float32 on the device only, and no host holds 8 copies.
    """
    # cuDNN, SDPA's first choice on Hopper, plans each new shape and is not deterministic.
    torch.backends.cuda.enable_cudnn_sdp(False)
    folder = download(name)
    config = AutoConfig.from_pretrained(folder)
    for setting, value in config.to_dict().items():
        if "drop" in setting and isinstance(value, float):
            setattr(config, setting, 0.0)
    options = {"config": config, "attn_implementation": attention}
    stored = half_precision(Path(folder)) if dtype == torch.float32 else None
    lm = kind.from_pretrained(folder, dtype=stored or dtype, **options)
    if stored and any(b.dtype == stored for b in lm.buffers()):  # computed with less precision
        lm = kind.from_pretrained(folder, dtype=dtype, **options)
    lm.config.dtype = dtype
    for p in lm.parameters():
        p.data = p.data.to(device).to(dtype)
    return lm.to(device)


def half_precision(folder: Path) -> torch.dtype | None:
    """Return the dtype of a directory's weights if it is the same 16-bit one for all, else None."""
    names = set()
    for path in folder.glob("*.safetensors"):
        with safe_open(path, "pt") as file:
            names |= {part.get_dtype() for part in map(file.get_slice, file.keys())}
    return HALVES.get(names.pop()) if len(names) == 1 else None


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


def longrope_border(config) -> int | None:
    """Return the length beyond which longrope changes a row's rotary angles: a longer row would be
    trained on with other angles than its first tokens were generated with."""
    rope = getattr(config, "rope_parameters", None) or {}
    kinds = [rope, *(part for part in rope.values() if isinstance(part, dict))]  # one a layer type
    longropes = [part for part in kinds if part.get("rope_type") == "longrope"]
    return min((part["original_max_position_embeddings"] for part in longropes), default=None)

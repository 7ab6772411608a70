"""Model directories: checks before the first step, loading, checksums."""

import zlib
from contextlib import contextmanager

import torch
from torch import nn
from torch.distributed.tensor import DTensor
from transformers import AutoConfig, AutoTokenizer, PreTrainedModel

from plumbing.errors import first_lines


def check_directory(name: str, tokens: int, kind, attention="eager", unused=()) -> tuple:
    """Load `name` (directory or hub id) on the CPU in float32, by default with its own attention.

    kind: AutoModel or AutoModelForCausalLM. unused: prefixes of weights that may be missing.
    Returns (model, tokenizer). Raises ValueError, in one line, unless the model has its weights, a
    tokenizer with a pad token, and room for rows of `tokens` tokens. Runs no code of the model."""
    trust = {"trust_remote_code": False}  # by default transformers asks
    with trial(name, "is no Hugging Face model directory or hub id"):
        config = AutoConfig.from_pretrained(name, **trust)
        tokenizer = AutoTokenizer.from_pretrained(name, **trust)
        if not tokenizer("1 + 1").input_ids:  # transformers replaces a missing file by an empty one
            raise ValueError("its tokenizer has no vocabulary")
    size, ids = config.vocab_size, len(tokenizer)
    longest = getattr(config, "max_position_embeddings", None) or tokens
    rope = getattr(config, "rope_parameters", None) or {}
    if rope.get("rope_type") == "longrope":  # beyond, a row is trained with other angles than drawn
        longest = rope["original_max_position_embeddings"]
    row = f"tokens, and a row may take {tokens}: lower --max_prompt_tokens, --max_completion_tokens"
    defects = {
        "has no pad token: set tokenizer.pad_token, save it": tokenizer.pad_token_id is None,
        f"has {size} embeddings for {ids} tokens of its tokenizer": size < ids,
        f"has room for {longest} {row}": tokens > longest,
    }
    if present := [defect for defect, is_present in defects.items() if is_present]:
        raise ValueError(f"model {name!r} {present[0]}")
    options = {"dtype": "float32", "attn_implementation": attention, **trust}
    options |= {"ignore_mismatched_sizes": True, "output_loading_info": True}
    options |= {"use_safetensors": True}  # no pickles
    with trial(name, "cannot be loaded"):
        model, info = kind.from_pretrained(name, **options)
    lost = [*info["missing_keys"], *(key for key, *_ in info["mismatched_keys"])]  # now random
    if missing := sorted(key for key in lost if not key.startswith(unused)):
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
    dropout would make two forwards differ. Switches cuDNN's attention off for the process."""
    # cuDNN, SDPA's first choice on Hopper, plans each new shape and is not deterministic.
    torch.backends.cuda.enable_cudnn_sdp(False)
    config = AutoConfig.from_pretrained(name)
    for setting, value in config.to_dict().items():
        if "drop" in setting and isinstance(value, float):
            setattr(config, setting, 0.0)
    options = {"config": config, "attn_implementation": attention, "use_safetensors": True}
    return kind.from_pretrained(name, dtype=dtype, **options).to(device)


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

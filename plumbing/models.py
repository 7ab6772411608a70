"""Model folders, looked at before anything is built from them."""

import zlib
from contextlib import contextmanager
from pathlib import Path

import torch
from transformers import AutoConfig, AutoTokenizer

from plumbing.errors import first_lines


def check_folder(name: str, tokens: int, kind) -> tuple:
    """Loads `name` (folder or hub id) on the CPU in float32, with the model's own attention code.

    kind: AutoModel or AutoModelForCausalLM. Raises ValueError, in one line, unless it is such a
    model with all its weights, a tokenizer with a pad token, and room for rows of `tokens` tokens.
    No code that comes with it is run. Returns (model, tokenizer).
    """
    trust = {"trust_remote_code": False}  # else transformers asks at the terminal
    try:
        config = AutoConfig.from_pretrained(name, **trust)
        tokenizer = AutoTokenizer.from_pretrained(name, **trust)
        if not tokenizer("1 + 1").input_ids:  # where a file is missing, transformers makes one up
            raise ValueError("its tokenizer has no vocabulary")
    except Exception as error:  # at a torn or odd file transformers raises anything
        what = "is no Hugging Face model folder"
        what = what if Path(name).is_dir() else "is no folder and cannot be had from the hub"
        raise ValueError(f"model {name!r} {what}: {first_lines(error)}") from error
    if Path(name).is_dir() and not any(Path(name).glob("*.safetensors")):
        raise ValueError(f"model {name!r} has no weights: no .safetensors file in the folder")
    if tokenizer.pad_token_id is None:
        advice = "set tokenizer.pad_token and save it again"
        raise ValueError(f"the tokenizer of {name!r} has no pad token: {advice}")
    if len(tokenizer) > config.vocab_size:
        counts = f"{len(tokenizer)} tokens, its model only {config.vocab_size}"
        raise ValueError(f"the tokenizer of {name!r} has {counts}")
    advice = "lower --max_prompt_tokens or --max_completion_tokens"
    if tokens > (room := getattr(config, "max_position_embeddings", None) or tokens):
        why = f"{name!r} has room for {room}"
        raise ValueError(f"a row may take {tokens} tokens, but {why}: {advice}")
    if tokens > (border := longrope_border(config) or tokens):
        why = f"the rotary angles of {name!r} change beyond {border}"
        raise ValueError(f"a row may take {tokens} tokens, but {why}: {advice}")
    try:
        how = {"dtype": "float32", "attn_implementation": "eager", "output_loading_info": True}
        model, found = kind.from_pretrained(name, ignore_mismatched_sizes=True, **trust, **how)
    except Exception as error:
        raise ValueError(f"model {name!r} cannot be loaded: {first_lines(error)}") from error
    lacking = sorted([*found["missing_keys"], *(key for key, *_ in found["mismatched_keys"])])
    if lacking:  # transformers would go on with random numbers
        raise ValueError(
            f"the weights of {name!r} lack {lacking[0]!r}, or have it in another shape"
        )
    if wild := [key for key, p in model.named_parameters() if not p.isfinite().all()]:
        raise ValueError(f"the weights of model {name!r} are not finite: {wild[0]!r}")
    return model.eval(), tokenizer


@contextmanager
def trial(name: str, doing: str):
    """Anything raised within, in a library's code, becomes a ValueError of one line: that the model
    cannot do it."""
    try:
        yield
    except Exception as error:
        why = f"{type(error).__name__}: {first_lines(error)}"
        raise ValueError(f"model {name!r} cannot {doing} here: {why}") from error


def load(kind, name: str, dtype, attention: str):
    """The model, as kind.from_pretrained has it, without dropout: in train mode, which activation
    checkpointing and LoRA ask for, it would make two forwards of the same weights differ. Its
    config says so, also where it is exported. Switches cuDNN's attention off, for the process."""
    # SDPA's first choice on Hopper makes a plan for every new shape, and repeats no result exactly.
    torch.backends.cuda.enable_cudnn_sdp(False)
    config = AutoConfig.from_pretrained(name)
    for setting, value in config.to_dict().items():
        if "drop" in setting and isinstance(value, float):
            setattr(config, setting, 0.0)
    how = {"config": config, "dtype": dtype, "attn_implementation": attention}
    return kind.from_pretrained(name, **how)


@torch.no_grad()
def checksum(model) -> int:
    """A number that two copies of the same weights have in common."""
    bits = {2: torch.int16, 4: torch.int32}
    sums = [p.view(bits[p.element_size()]).sum(dtype=torch.int64) for p in model.parameters()]
    return zlib.crc32(torch.stack(sums).cpu().numpy())


def recompute_activations(lm) -> None:
    """Has each layer compute its activations again in backward: less memory, more time. It works in
    train mode only; `load` has left no dropout."""
    # Older transformers know the second name only, newer ones warn at it.
    enable = getattr(lm, "activation_checkpointing_enable", None)
    (enable or lm.gradient_checkpointing_enable)({"use_reentrant": False})
    lm.train()


def longrope_border(config) -> int | None:
    """The longest row with the angles of short ones, where longrope has others for long rows: one
    that grows past it would be trained on with other angles than it was generated with."""
    rope = getattr(config, "rope_parameters", None) or {}
    kinds = [rope, *(part for part in rope.values() if isinstance(part, dict))]  # one a layer type
    longropes = [part for part in kinds if part.get("rope_type") == "longrope"]
    return min((part["original_max_position_embeddings"] for part in longropes), default=None)

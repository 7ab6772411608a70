"""Model directories: loading, checksums, export."""

import json
import shutil
import zlib
from pathlib import Path

import torch
from torch import nn
from torch.distributed.tensor import DTensor
from transformers import AutoConfig, PreTrainedConfig, PreTrainedModel
from transformers.utils import cached_file

# The files of a model directory, other than weights, that its tokens, prompts and end of text
# depend on.
SETTINGS = ("*.json", "*.jinja", "*.model", "*.txt", "*.tiktoken")

# Loading


def suffix_length(tokenizer) -> int:
    """Count the special tokens that the tokenizer puts after a text, such as its end token."""
    is_special = tokenizer("1", return_special_tokens_mask=True).special_tokens_mask
    return [*is_special[::-1], 0].index(0)


def load(kind, name: str, dtype: torch.dtype, attention: str, device) -> PreTrainedModel:
    """Load a model without dropout: activation checkpointing and LoRA need train mode, in which
    dropout would make two forwards differ. Switches cuDNN's attention off for the process."""
    # cuDNN, SDPA's first choice on Hopper, plans each new shape and is not deterministic.
    torch.backends.cuda.enable_cudnn_sdp(False)
    config = AutoConfig.from_pretrained(name)
    remove_dropout(config)
    model = kind.from_pretrained(
        name, config=config, dtype=dtype, attn_implementation=attention, use_safetensors=True
    ).to(device)
    if head := model.get_output_embeddings():  # a checkpoint that says "tied" may have its own head
        model.config.tie_word_embeddings = head.weight is model.get_input_embeddings().weight
    return model


def remove_dropout(config: PreTrainedConfig) -> None:
    """Set every rate of dropout in a config to 0."""
    for setting, value in config.to_dict().items():
        if "drop" in setting and isinstance(value, float):
            setattr(config, setting, 0.0)


def unsharded(tensor: torch.Tensor) -> torch.Tensor:
    """Return all of a tensor that FSDP may have sharded. A collective of its ranks."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


@torch.no_grad()
def checksum(model: nn.Module) -> int:
    """Compute a checksum of all weights."""
    sums = [p.view(torch.int16).sum(dtype=torch.int64) for p in model.parameters()]
    return zlib.crc32(torch.stack(sums).cpu().numpy())


@torch.no_grad()
def dither(model: nn.Module) -> None:
    """Spread the weights of each trained tensor that bf16 can hold at random over the float32
    numbers that round to them.

    bf16 still computes with the stored weights, and follows small steps: one of a tenth of its
    spacing moves one rounded weight in ten. Without dither none would move before the sum of the
    steps is half of the spacing: 49 steps of 1e-5 for a weight of 0.2."""
    own = torch.Generator().manual_seed(0)  # of the CPU: the same weights on any device
    for p in model.parameters():
        if p.requires_grad and (p == p.bfloat16()).all():
            shift = torch.empty(p.shape, dtype=torch.int16).random_(-0x7FFF, 0x8000, generator=own)
            bits = p.data.view(torch.int32)
            bits += shift.to(p.device) * (p != 0)  # the bits below those of 0 are a NaN


def recompute_activations(lm: PreTrainedModel) -> None:
    """Make each layer compute its activations again in backward: less memory, more time. Raises
    ValueError if the model cannot.

    It has an effect in train mode only. The parts of a layer stay in eval mode, where a router adds
    no noise and nothing is dropped, whatever the settings are called."""
    lm.activation_checkpointing_enable({"use_reentrant": False})
    for module in lm.modules():
        module.training = getattr(module, "gradient_checkpointing", False)


def files_of(name: str, *patterns: str) -> list[Path]:
    """Return the files of a model, a directory or a hub id in the cache, by patterns."""
    folder = Path(name)
    if not folder.is_dir():
        folder = Path(cached_file(name, "config.json", local_files_only=True)).parent
    return sorted(path for pattern in patterns for path in folder.glob(pattern))


# Export


def write(folder: Path, config: PreTrainedConfig, stop_ids=()) -> None:
    """Write all files of a model directory but the weights: those of the checkpoint that `config`
    is from, so that the programs that can read the one can read the other. Saved anew by another
    version, settings would change their names, which older servers ignore in silence.

    stop_ids: the tokens at which training stops, for a model that generates."""
    folder.mkdir(parents=True, exist_ok=True)
    for path in files_of(config.name_or_path, *SETTINGS):
        if not path.name.endswith(".index.json"):  # of the checkpoint's weights
            shutil.copyfile(path, folder / path.name)
    # transformers reads "dtype" from version 5 on, "torch_dtype" before.
    dtype = str(config.dtype).removeprefix("torch.")
    _update(
        folder / "config.json",
        drop="auto_map",  # it names code that is not copied
        architectures=config.architectures,
        tie_word_embeddings=config.tie_word_embeddings,
        dtype=dtype,
        torch_dtype=dtype,
    )
    if stop_ids:  # with the setting that is dropped, version 4 takes them from config.json
        file = folder / "generation_config.json"
        _update(file, drop="_from_model_config", eos_token_id=sorted(stop_ids))


def _update(file: Path, drop: str, **settings) -> None:
    """Change settings in a JSON file, and drop one."""
    old = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
    old.pop(drop, None)
    file.write_text(json.dumps(old | settings, indent=2) + "\n")

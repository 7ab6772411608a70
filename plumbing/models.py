"""Model directories: checks before the first step, loading, checksums, export."""

import json
import re
import shutil
import unicodedata
import zlib
from contextlib import contextmanager
from pathlib import Path

import torch
from torch import nn
from torch.distributed.tensor import DTensor
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoTokenizer,
    GenerationConfig,
    PreTrainedConfig,
    PreTrainedModel,
)
from transformers.utils import cached_file, is_sentencepiece_available

from plumbing.errors import InputError, first_lines

# The files of a model directory, other than weights, that its tokens, prompts and end of text
# depend on.
SETTINGS = ("*.json", "*.jinja", "*.model", "*.txt", "*.tiktoken")

# Checks of what a run would not notice. All else is the libraries' own error, in one line.


def check_directory(name: str, tokens: int, kind, attention="eager", unused=()) -> tuple:
    """Load `name` (directory or hub id) on the CPU in float32, by default with its own attention.

    kind: AutoModel or AutoModelForCausalLM. unused: prefixes of weights that may be missing.
    Returns (model, tokenizer). Raises ValueError, in one line, unless the model has its weights, a
    tokenizer with a pad token, and room for rows of `tokens` tokens. Runs no code of the model."""
    with trial(name, "cannot be used"):
        if (Path(name) / "adapter_config.json").exists():  # transformers might ignore it
            raise ValueError("it has a LoRA adapter: merge it with peft's merge_and_unload()")
        config = AutoConfig.from_pretrained(name, trust_remote_code=False)  # default: it asks
        check_precision(config)
        remove_dropout(config)
        if kind is AutoModelForCausalLM:
            check_generation_settings(name)
        tokenizer = load_tokenizer(name)
        check_words(tokenizer, "0 1 2 3 4 5 6 7 8 9")
        check_tokenizer(tokenizer, config)
        check_room(config, tokens)
        model, info = kind.from_pretrained(
            name,
            config=config,
            dtype="float32",
            attn_implementation=attention,
            use_safetensors=True,
            trust_remote_code=False,
            output_loading_info=True,
        )
        check_weights(model, info, unused)
    return model.eval(), tokenizer


def check_precision(config: PreTrainedConfig) -> None:
    """Raise ValueError if the weights of the checkpoint are quantised. Training needs float32, and
    what it wrote would be rounded again, or be without its scales."""
    settings = config.to_dict()
    parts = [settings, *(part for part in settings.values() if isinstance(part, dict))]
    for part in parts:
        for name in ("quantization_config", "compression_config"):
            if quantization := part.get(name):
                method = quantization.get("quant_method", "")
                raise ValueError(
                    f"it is quantised (config.json: {name} {method}): train the checkpoint that it "
                    "was made from, or a dequantised one without this setting"
                )


def check_generation_settings(name: str) -> None:
    """Raise ValueError if generation_config.json is damaged, or has settings that transformers does
    not load. It would ignore damage, which loses the tokens that end a completion."""
    file = "generation_config.json"
    path = cached_file(name, file, _raise_exceptions_for_missing_entries=False)
    if not path:
        return
    json.loads(Path(path).read_text(encoding="utf-8"))
    try:
        GenerationConfig.from_pretrained(name)
    except ValueError as error:
        raise ValueError(f"{file}: {first_lines(error)} Remove the setting") from error


def load_tokenizer(name: str):
    """Load a tokenizer. Raises ValueError if its only file is one of sentencepiece, which is not
    installed: transformers' error is about another package."""
    try:
        return AutoTokenizer.from_pretrained(name, trust_remote_code=False)
    except Exception as error:  # transformers raises all kinds
        models = [] if files_of(name, "tokenizer.json") else files_of(name, "*.model")
        if models and not is_sentencepiece_available():
            raise ValueError(
                f"its tokenizer, {models[0].name}, needs sentencepiece, which is not installed: "
                "pip install sentencepiece protobuf"
            ) from error
        raise


def check_tokenizer(tokenizer, config: PreTrainedConfig) -> None:
    """Raise ValueError unless the tokenizer has a pad token, and fits the model."""
    if tokenizer.pad_token_id is None:
        raise ValueError("its tokenizer has no pad token: set tokenizer.pad_token, and save it")
    pads = {"the tokenizer": tokenizer.pad_token_id, "config.json": config.pad_token_id or 0}
    for place, pad in pads.items():
        if pad >= config.vocab_size:
            raise ValueError(
                f"the pad token of {place}, {pad}, is beyond its {config.vocab_size} embeddings: "
                "choose a token that it has"
            )
    ends = config.eos_token_id or 0
    end = min(ends) if isinstance(ends, list) else ends
    if not end < len(tokenizer) <= config.vocab_size:
        raise ValueError(
            f"it has {config.vocab_size} embeddings and the end token {end}, its tokenizer "
            f"{len(tokenizer)} tokens: is it another model's?"
        )


def check_words(tokenizer, text: str) -> None:
    """Raise ValueError if a tokenizer loses letters or digits of `text`, or joins or splits words
    or numbers. ASCII alone: other signs may be unknown to it."""

    def words(text: str) -> list[str]:
        return re.findall(r"[A-Za-z]+|[0-9]+", unicodedata.normalize("NFKC", text))

    ids = tokenizer(text, add_special_tokens=False).input_ids
    back = tokenizer.decode(ids, clean_up_tokenization_spaces=False)
    if words(back) != words(text):
        cause = "are its files missing, or another model's?"
        raise ValueError(f"its tokenizer turns {text!r:.80} into {back!r:.80}: {cause}")


def check_room(config: PreTrainedConfig, tokens: int) -> None:
    """Raise ValueError if a row of `tokens` tokens has positions that the model was not made for,
    or that switch longrope's angles in mid-row, so that it is trained with others than drawn."""
    room = getattr(config, "max_position_embeddings", None) or tokens
    rope = getattr(config, "rope_parameters", None) or {}
    if rope.get("rope_type") == "longrope":
        room = rope["original_max_position_embeddings"]
    if tokens > room:
        raise ValueError(
            f"it has room for {room} tokens, and a row may take {tokens}: "
            "lower --max_prompt_tokens, --max_completion_tokens"
        )


def check_weights(model: PreTrainedModel, info: dict, unused: tuple) -> None:
    """Raise ValueError unless the model got finite weights, all that it has and the file has.
    info: from_pretrained's report. unused: prefixes of weights that may be missing."""
    for key in info["missing_keys"]:  # random now
        if not key.startswith(unused):
            raise ValueError(f"its weights lack {key!r}")
    # A backbone has no place for a head, but one for each of the checkpoint's layers.
    parts = {model.base_model_prefix, *(child for child, _ in model.named_children())}
    for key in info["unexpected_keys"]:
        if key.split(".")[0] in parts:
            raise ValueError(f"its config.json has no place for the weight {key!r}")
    for key, p in model.named_parameters():
        if p.dtype != torch.float32:  # as which it was loaded
            raise ValueError(f"its weight {key!r} is quantised: {p.dtype}")
        if not all(extreme.isfinite() for extreme in p.aminmax()):  # isfinite(p) would copy p
            raise ValueError(f"its weight {key!r} is not finite")


def suffix_length(tokenizer) -> int:
    """Count the special tokens that the tokenizer puts after a text, such as its end token."""
    is_special = tokenizer("1", return_special_tokens_mask=True).special_tokens_mask
    return [*is_special[::-1], 0].index(0)


@contextmanager
def trial(name: str, problem: str):
    """Raise InputError, "model NAME PROBLEM: ...", at any error within."""
    try:
        yield
    except Exception as error:  # transformers raises all kinds at a damaged file
        reason = f"{type(error).__name__}: {first_lines(error)}"  # which may list all models
        if isinstance(error, OSError) and not Path(name).exists():
            problem += ": no such folder; from the hub"
        raise InputError(f"model {name!r} {problem}: {reason:.400}") from error


# Loading


def load(kind, name: str, dtype: torch.dtype, attention: str, device) -> PreTrainedModel:
    """Load a model without dropout: activation checkpointing and LoRA need train mode, in which
    dropout would make two forwards differ. Switches cuDNN's attention off for the process."""
    # cuDNN, SDPA's first choice on Hopper, plans each new shape and is not deterministic.
    torch.backends.cuda.enable_cudnn_sdp(False)
    config = AutoConfig.from_pretrained(name)
    remove_dropout(config)
    options = {"config": config, "attn_implementation": attention, "use_safetensors": True}
    model = kind.from_pretrained(name, dtype=dtype, **options).to(device)
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
    # Older transformers have the second name only, newer ones warn at it.
    enable = getattr(lm, "activation_checkpointing_enable", None)
    (enable or lm.gradient_checkpointing_enable)({"use_reentrant": False})
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

"""Checks of a model before the first step: what a run would not notice, but would go wrong by.

All else is the libraries' own error, in one line.
"""

import json
import re
import unicodedata
from contextlib import contextmanager
from pathlib import Path

import torch
from torch.nn.functional import cross_entropy
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoTokenizer,
    PreTrainedConfig,
    PreTrainedModel,
)
from transformers.utils import cached_file

import grpo
from plumbing.errors import InputError, first_lines
from plumbing.models import remove_dropout

LARGE = 1000.0  # a logit that no model needs, but that training may come near

# Files, settings and weights


def check_directory(name: str, tokens: int, kind, attention="eager", unused=()) -> tuple:
    """Load `name` (directory or hub id) on the CPU in float32, by default with its own attention.

    kind: AutoModel or AutoModelForCausalLM. unused: prefixes of weights that may be missing.
    Returns (model, tokenizer). Raises ValueError, in one line, unless the model has its weights, a
    tokenizer with a pad token, and room for rows of `tokens` tokens. Runs no code of the model."""
    with reject_on_error(name, "cannot be used"):
        if (Path(name) / "adapter_config.json").exists():  # transformers might ignore it
            raise ValueError("it has a LoRA adapter: merge it with peft's merge_and_unload()")
        config = AutoConfig.from_pretrained(name, trust_remote_code=False)  # default: it asks
        check_precision(config)
        remove_dropout(config)
        if kind is AutoModelForCausalLM:
            check_generation_settings(name)
        tokenizer = AutoTokenizer.from_pretrained(name, trust_remote_code=False)
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
    """Raise ValueError if generation_config.json is damaged. transformers would ignore it, which
    loses the tokens that end a completion."""
    file = "generation_config.json"
    path = cached_file(name, file, _raise_exceptions_for_missing_entries=False)
    if path:
        json.loads(Path(path).read_text(encoding="utf-8"))


def check_tokenizer(tokenizer, config: PreTrainedConfig) -> None:
    """Raise ValueError unless the tokenizer has a pad token, and fits the model."""
    pad = tokenizer.pad_token_id
    if pad is None:
        raise ValueError("its tokenizer has no pad token: set tokenizer.pad_token, and save it")
    if pad >= config.vocab_size:
        raise ValueError(
            f"the pad token of its tokenizer, {pad}, is beyond its {config.vocab_size} embeddings: "
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


@contextmanager
def reject_on_error(name: str, problem: str):
    """Raise InputError, "model NAME PROBLEM: ...", at any error within."""
    try:
        yield
    except Exception as error:  # transformers raises all kinds at a damaged file
        reason = f"{type(error).__name__}: {first_lines(error)}"  # which may list all models
        if isinstance(error, OSError) and not Path(name).exists():
            problem += ": no such folder; from the hub"
        raise InputError(f"model {name!r} {problem}: {reason:.400}") from error


# Whether a language model computes what Generator and Policy compute in its place


def check_window(name: str, config: PreTrainedConfig, tokens: int) -> None:
    """Raise ValueError if the model attends to less than rows of `tokens` tokens."""
    window = getattr(config, "sliding_window", None)
    if window and tokens > window:
        raise ValueError(
            f"model {name!r} attends to the last {window} tokens only, a row may take {tokens}"
        )


def own_logps(lm: PreTrainedModel, prompt_ids: list[int], ids: list[int]) -> torch.Tensor:
    """Compute log-probs (N,) of a completion's N tokens by the model's own attention and head."""
    row_1_T = torch.tensor([prompt_ids + ids], device=lm.device)
    N = len(ids)
    logits_T_V = lm(row_1_T).logits[0]
    logits_N_V = logits_T_V[-N - 1 : -1].float()
    target_N = row_1_T[0, -N:]
    return -cross_entropy(logits_N_V, target_N, reduction="none")


def check_logps(
    name: str,
    part: str,
    logp_N: torch.Tensor,
    own_logp_N: torch.Tensor,
) -> None:
    """Raise ValueError unless the log-probs that `part` computed are the model's own."""
    gap_N = (logp_N - own_logp_N).abs()
    gap = gap_N.max().item()
    if not gap < 0.01:  # NaN, too
        raise ValueError(
            f"model {name!r}: {part}'s log-probs are off by {gap:.2g}: "
            "it may cap, scale or bias its logits, or attend in its own way"
        )


def check_head(name: str, lm: PreTrainedModel, ids: list[int]) -> None:
    """Raise ValueError unless the model's logits are the product of its last hidden states and its
    head, as large as they are and however large. A cap such as c tanh(logit / c) hardly changes
    small logits, as those of a few tokens may be, and a bias of some tokens hardly large ones: so
    the input of the head is scaled up, too."""
    row_1_T = torch.tensor([ids], device=lm.device)
    head = lm.get_output_embeddings()
    hidden_T_D = lm.base_model(row_1_T).last_hidden_state[0]
    logits_T_V = grpo.logits(hidden_T_D, head.weight)
    largest = logits_T_V.abs().max().item() or 1.0
    for size in (largest, LARGE):
        factor = size / largest

        def enlarge(module, inputs, factor=factor):
            return tuple(hidden * factor for hidden in inputs)

        hook = head.register_forward_pre_hook(enlarge)
        try:
            own_logits_T_V = lm(row_1_T).logits[0]
        finally:
            hook.remove()
        gap = (own_logits_T_V - factor * logits_T_V).abs().max().item()
        if not gap < 1e-3 * size:  # NaN, too
            raise ValueError(
                f"model {name!r}: it caps, scales or biases its logits: one of {size:.4g} is off "
                f"by {gap:.2g}"
            )

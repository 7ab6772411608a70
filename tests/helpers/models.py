"""Tiny random checkpoints that load like the real ones."""

from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedTokenizerFast

ROOT = Path(__file__).resolve().parents[2]
SPECIALS = ["<pad>", "<eos>", "<unk>"]  # ids 0, 1, 2
CHARACTERS = [chr(i) for i in range(32, 127)] + ["\n"]  # ids from 3
# The families of the paper's presets. Not all can choose head_dim, which is 8 = 32 / 4 therefore.
FAMILIES = {
    "qwen2": {"tie_word_embeddings": True},
    "olmo2": {"tie_word_embeddings": False},
    "qwen3": {"tie_word_embeddings": True, "head_dim": 8},
    "phi3": {"tie_word_embeddings": True},
}


def tiny_tokenizer() -> PreTrainedTokenizerFast:
    """Make a tokenizer with one token a character, whose decoding is exact; pad and eos differ.

    It is byte-level BPE without merges: transformers turns any Qwen2 tokenizer into that."""
    symbol = {" ": "Ġ", "\n": "Ċ"}  # how byte-level BPE writes them
    tokens = SPECIALS + [symbol.get(c, c) for c in CHARACTERS]
    vocab = {token: i for i, token in enumerate(tokens)}
    tokenizer = Tokenizer(models.BPE(vocab, merges=[], unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="<pad>", eos_token="<eos>", unk_token="<unk>"
    )


def save_tiny_model(folder: Path, family: str = "qwen2", **changes) -> Path:
    """Write a causal LM of about 20K random float32 parameters, its config with `changes`, and its
    tokenizer. At the usual std of 0.02 every distribution would be uniform, and a test of padding
    or of positions could not fail."""
    tokenizer = tiny_tokenizer()
    settings = {
        "vocab_size": len(tokenizer),
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 4096,
        "initializer_range": 0.3,
        "bos_token_id": None,
        "eos_token_id": tokenizer.eos_token_id,
        "pad_token_id": tokenizer.pad_token_id,
    }
    config = AutoConfig.for_model(family, **settings | FAMILIES.get(family, {}) | changes)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = AutoModelForCausalLM.from_config(config)
        for p in model.parameters():
            if not p.any():  # biases
                torch.nn.init.normal_(p, std=0.3)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder

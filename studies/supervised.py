"""Small untrained models, their tokenizers, and supervised training.

toy_task and cold_start train a model; letters makes one that cold_start trains.
"""

import re
from collections.abc import Callable

import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from tqdm import trange
from transformers import Olmo2Config, Olmo2ForCausalLM, PreTrainedTokenizerFast


def make_olmo2(tokenizer: PreTrainedTokenizerFast, seed: int, **sizes: int) -> Olmo2ForCausalLM:
    """Return a fresh OLMo-2 in float32, a family whose tokenizer AutoTokenizer leaves as saved.
    sizes: settings of Olmo2Config."""
    torch.manual_seed(seed)
    config = Olmo2Config(
        **sizes,
        vocab_size=len(tokenizer),
        tie_word_embeddings=True,
        pad_token_id=tokenizer.pad_token_id,
        eos_token_id=tokenizer.eos_token_id,
        bos_token_id=None,
    )
    return Olmo2ForCausalLM(config)


def make_tokenizer_of(pieces: list[str]) -> PreTrainedTokenizerFast:
    """Return a tokenizer with one token for each of these pieces of text, the longest first, beside
    <pad>, <eos> and <unk>. Decoding gives the text back exactly."""
    vocabulary = {piece: i for i, piece in enumerate(["<pad>", "<eos>", "<unk>", *pieces])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    pattern = "|".join(map(re.escape, sorted(pieces, key=len, reverse=True)))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(pattern), behavior="isolated")
    tokenizer.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        model_max_length=128,
        pad_token="<pad>",
        eos_token="<eos>",
        unk_token="<unk>",
        padding_side="left",
        clean_up_tokenization_spaces=False,
    )


def descend(
    model: torch.nn.Module, loss_of: Callable[[], torch.Tensor], steps: int, warmup: int, **settings
) -> None:
    """Take steps of AdamW, each on the gradient of a new loss_of(), clipped at a norm of 1. The
    learning rate rises in a line for `warmup` of them, and then falls in a line to zero.
    settings: of AdamW."""
    optimizer = torch.optim.AdamW(model.parameters(), **settings)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda t: min((t + 1) / warmup, (steps - t) / max(steps - warmup, 1))
    )
    for _ in (bar := trange(steps, unit=" steps")):
        loss = loss_of()
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        bar.set_postfix(loss=f"{loss.item():.4f}", refresh=False)

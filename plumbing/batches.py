"""Rows of different lengths as tensors, shared out over ranks and micro-batches."""

from collections import Counter
from dataclasses import dataclass
from functools import partial
from itertools import accumulate, chain

import torch
from torch.nn.utils.rnn import pad_sequence

from grpo import Completion
from plumbing.distributed.layout import Layout
from plumbing.shared_prompts import SharedPrompts

Row = tuple[list[int], Completion]  # the prompt's token ids, and one of its completions


@dataclass
class Batch:
    """A micro-batch on the device: some completions of a step, with columns for their N tokens.

    It is one row of T tokens, without padding. With flash-attn each completion follows its prompt.
    Else each prompt is there once, before all completions (plumbing/shared_prompts.py)."""

    ids_1_T: torch.Tensor
    position_1_T: torch.Tensor  # in the completion's own text
    attention: dict  # arguments of the attention function: which tokens see which
    source_N: torch.Tensor  # for each token of a completion, where the token before it is in T
    target_N: torch.Tensor  # the tokens of the completions
    row_N: torch.Tensor  # the completion that each belongs to
    generator_logp_N: torch.Tensor  # log-probs when the generator drew the tokens
    advantage_N: torch.Tensor  # of its completion
    weight_N: torch.Tensor  # in the loss
    old_logp_N: torch.Tensor | None = None  # by the policy before the step's first update
    ref_logp_N: torch.Tensor | None = None  # by the initial policy
    idle: bool = False  # this rank has no completion, but must take part: its weights are 0
    last: bool = False  # gradients are reduced over the ranks after it


def collate(rows: list[Row], device, packed: bool = False) -> Batch:
    """Make a Batch of some completions and their prompts. packed: each completion follows a copy of
    its prompt, as flash-attn needs it. A prompt's keys would need a copy for each there, too."""
    prompts, completions = zip(*rows, strict=True)
    prompts_P, prompt_B = distinct(prompts)
    ids_T, position_T, source_N = lay_out(rows, prompts_P, prompt_B, packed)
    ids_B = [completion.ids for completion in completions]
    logps_B = [completion.logps for completion in completions]
    if packed:
        attention = packed_attention(rows, device)
    else:
        attention = {"shared": SharedPrompts.of(prompts_P, ids_B, prompt_B, device)}
    tensor = partial(torch.tensor, device=device)
    row_N = tensor([row for row, ids in enumerate(ids_B) for _ in ids])
    advantage_B = tensor([completion.advantage for completion in completions])
    weight_B = tensor([completion.weight for completion in completions])
    return Batch(
        ids_1_T=tensor([ids_T]),
        position_1_T=tensor([position_T]),
        attention=attention,
        source_N=tensor(source_N),
        target_N=tensor([*chain(*ids_B)]),
        row_N=row_N,
        generator_logp_N=tensor([*chain(*logps_B)]),
        advantage_N=advantage_B[row_N],
        weight_N=weight_B[row_N],
    )


def lay_out(rows: list[Row], prompts_P: list, prompt_B: list[int], packed: bool) -> tuple:
    """Put prompts and completions end to end. Returns all tokens, their positions in their own
    texts, and for each token of a completion the place of the token before it."""
    ids_T = []
    position_T = []
    source_N = []

    def add(ids: list[int], first_position: int) -> range:
        """Append tokens; return their places."""
        start = len(ids_T)
        ids_T.extend(ids)
        position_T.extend(range(first_position, first_position + len(ids)))
        return range(start, len(ids_T))

    places_P = [] if packed else [add(prompt, 0) for prompt in prompts_P]
    for p, (prompt, completion) in zip(prompt_B, rows, strict=True):
        before = add(prompt, 0) if packed else places_P[p]
        own = add(completion.ids, len(prompt))
        source_N += [before[-1], *own[:-1]]
    return ids_T, position_T, source_N


def packed_attention(rows: list[Row], device) -> dict:
    """Return flash-attn's arguments: where packed rows begin and end, and the longest."""
    lengths = []
    for prompt, completion in rows:
        lengths.append(len(prompt) + len(completion.ids))
    longest = max(lengths)
    boundaries = [0, *accumulate(lengths)]
    ends = torch.tensor(boundaries, dtype=torch.int32, device=device)
    return {
        "cu_seq_lens_q": ends,
        "cu_seq_lens_k": ends,
        "max_length_q": longest,
        "max_length_k": longest,
    }


def distinct(prompts: list) -> tuple[list, list[int]]:
    """Return the distinct prompts, as tuples, and for each prompt which of these it is."""
    place = {}  # of each among the distinct prompts
    prompt_B = [place.setdefault(tuple(prompt), len(place)) for prompt in prompts]
    return list(place), prompt_B


def micro_batches(
    rows: list[Row], layout: Layout, max_tokens: int, pad_id: int, packed: bool
) -> list[Batch]:
    """Make this student rank's share of `rows`, which are in the order of their prompts, into
    Batches of at most `max_tokens` tokens. FSDP needs every rank in backward: one without a share
    gets a row of two tokens, with weight 0."""
    share = balance(rows, layout.n_students)[layout.rank]
    idle = not share
    if idle:
        filler = Completion([pad_id], [0.0], finished=True)
        share = [([pad_id], filler)]
    parts = cut(share, max_tokens, shared=not packed)
    batches = [collate(part, layout.device, packed) for part in parts]
    batches[0].idle = idle
    batches[-1].last = True
    return batches


def balance(rows: list[Row], n: int) -> list[list[Row]]:
    """Cut rows into n parts of about equal numbers of tokens, in order, so that few prompts are on
    two ranks. A prompt's tokens count once."""
    copies = Counter(tuple(prompt) for prompt, _ in rows)
    tokens_B = []
    for prompt, completion in rows:
        prompt_share = len(prompt) / copies[tuple(prompt)]
        tokens_B.append(len(completion.ids) + prompt_share)
    total = sum(tokens_B)
    parts = [[] for _ in range(n)]
    begin = 0.0  # of a row, in tokens
    for row, tokens in zip(rows, tokens_B, strict=True):
        middle = begin + tokens / 2
        parts[int(n * middle / total)].append(row)
        begin += tokens
    return parts


def cut(rows: list[Row], max_tokens: int, shared: bool) -> list[list[Row]]:
    """Cut rows, in order, into parts of at most `max_tokens` tokens, or of one row. shared: count
    the prompt of neighbouring rows once in a part; completions, which attention pads to their
    longest, may take twice as many."""
    parts = [[]]
    used = 0
    longest = 0
    last_prompt = None
    for prompt, completion in rows:
        length = len(completion.ids)
        longest = max(longest, length)
        used += length
        if not (shared and prompt == last_prompt):
            used += len(prompt)
        padded = longest * (len(parts[-1]) + 1)
        is_full = used > max_tokens or (shared and padded > 2 * max_tokens)
        if parts[-1] and is_full:
            parts.append([])
            used = len(prompt) + length
            longest = length
        parts[-1].append((prompt, completion))
        last_prompt = prompt
    return parts


def cut_longest_first(tokens_B: list[int], max_tokens: int) -> list[list[int]]:
    """Cut rows, longest first, into parts of at most `max_tokens` tokens, padding to the longest of
    a part included, or of one row. Returns the rows' numbers."""
    left = sorted(range(len(tokens_B)), key=tokens_B.__getitem__, reverse=True)
    parts = []
    while left:
        n = max(1, max_tokens // tokens_B[left[0]])
        parts.append(left[:n])
        left = left[n:]
    return parts


def pad(rows: list, pad_id: int, device, side="right") -> tuple[torch.Tensor, torch.Tensor]:
    """Pad token ids on a side; return ids (B, T) and the attention mask of 0 and 1."""
    ids_B = [torch.tensor(row) for row in rows]
    padded = pad_sequence(ids_B, batch_first=True, padding_value=-1, padding_side=side)
    ids_B_T = padded.to(device)
    is_token_B_T = ids_B_T >= 0
    return ids_B_T.where(is_token_B_T, pad_id), is_token_B_T.long()

"""Rows of different lengths as tensors, shared out over ranks and micro-batches."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import accumulate

import torch
from torch.nn.utils.rnn import pad_sequence

from grpo import Completion
from plumbing.distributed.layout import Layout

Row = tuple[list[int], Completion]  # the prompt's token ids, and one of its completions


@dataclass
class Batch:
    """A micro-batch on the device: some rows of a step, and columns for their N response tokens.

    Rows are right-padded or, if packed, laid end to end as one row (B = 1) with positions that
    restart at 0. Columns hold the rows' response tokens end to end."""

    ids_B_T: torch.Tensor
    response_B_T: torch.Tensor  # bool: tokens of completions, stop tokens included
    position_1_T: torch.Tensor
    row_N: torch.Tensor  # the row of the batch that each response token belongs to, on the CPU
    generator_logp_N: torch.Tensor  # log-probs when the generator drew the tokens
    advantage_N: torch.Tensor
    weight_N: torch.Tensor
    cu_seqlens: dict = field(default_factory=dict)  # flash-attn's arguments for packed rows
    old_logp_N: torch.Tensor | None = None  # by the policy before the step's first update
    ref_logp_N: torch.Tensor | None = None  # by the initial policy
    idle: bool = False  # this rank has no row, but must take part: its weights are 0
    last: bool = False  # gradients are reduced over the ranks after it


def collate(rows: list[Row], pad_id: int, device, packed: bool = False) -> Batch:
    """Make a Batch of some completions and their prompts."""
    ids = [torch.tensor(prompt_ids + completion.ids) for prompt_ids, completion in rows]
    positions = [torch.arange(len(row)) for row in ids]
    responses = [t >= len(prompt_ids) for (prompt_ids, _), t in zip(rows, positions, strict=True)]
    cu_seqlens = {}
    if packed:
        tensors = [torch.cat(parts)[None] for parts in (ids, responses, positions)]
        ends = torch.tensor([0, *accumulate(map(len, ids))], dtype=torch.int32).to(device)
        cu_seqlens = {"cu_seq_lens_q": ends, "cu_seq_lens_k": ends}
        cu_seqlens |= dict.fromkeys(("max_length_q", "max_length_k"), max(map(len, ids)))
    else:
        tensors = [pad_sequence(ids, True, pad_id), pad_sequence(responses, True)]
        tensors.append(max(positions, key=len)[None])
    completions = [completion for _, completion in rows]
    lengths_B = torch.tensor([len(completion.ids) for completion in completions])
    logp_N = torch.tensor([logp for completion in completions for logp in completion.logps])
    advantage_B = torch.tensor([completion.advantage for completion in completions])
    weight_B = torch.tensor([completion.weight for completion in completions])
    return Batch(
        *(tensor.to(device) for tensor in tensors),
        row_N=torch.arange(len(rows)).repeat_interleave(lengths_B),
        generator_logp_N=logp_N.to(device),
        advantage_N=advantage_B.repeat_interleave(lengths_B).to(device),
        weight_N=weight_B.repeat_interleave(lengths_B).to(device),
        cu_seqlens=cu_seqlens,
    )


def micro_batches(
    rows: list[Row], layout: Layout, max_tokens: int, pad_id: int, packed: bool
) -> list[Batch]:
    """Make this student rank's share of `rows` into Batches of at most `max_tokens` tokens. FSDP
    needs every rank in backward: one without a share gets a row of two tokens, with weight 0."""
    tokens_B = [len(prompt_ids) + len(completion.ids) for prompt_ids, completion in rows]
    share = balance(range(len(rows)), tokens_B, layout.n_students)[layout.rank]
    # Padding costs as much as tokens do; another micro-batch costs little.
    parts = pack(share, tokens_B, max_tokens, 0.75, packed)
    batches = [collate([rows[b] for b in part], pad_id, layout.device, packed) for part in parts]
    if not batches:
        idle_row = [pad_id], Completion([pad_id], [0.0], finished=True)
        batches = [collate([idle_row], pad_id, layout.device, packed)]
        batches[0].idle = True
    batches[-1].last = True
    return batches


def balance(rows: Iterable[int], tokens_B: list[int], n: int) -> list[list[int]]:
    """Share rows out over n ranks: the longest first, each to the rank with the fewest tokens."""
    shares, loads = [[] for _ in range(n)], [0] * n
    for b in sorted(rows, key=lambda b: (-tokens_B[b], b)):
        rank = loads.index(min(loads))
        shares[rank].append(b)
        loads[rank] += tokens_B[b]
    return shares


def pack(
    rows: Iterable[int], tokens_B: list[int], max_tokens: int, shortest=0.0, packed=False
) -> list[list[int]]:
    """Cut rows, longest first, into micro-batches of at most `max_tokens` tokens, or of one row.
    Unless `packed`, padding counts as tokens, and no row is below `shortest` times the longest."""
    batches, longest, used = [], 0, 0  # the last batch's longest row and number of tokens
    for b in sorted(rows, key=lambda b: (-tokens_B[b], b)):
        needed = tokens_B[b] if packed else longest
        if batches and used + needed <= max_tokens and needed * shortest <= tokens_B[b]:
            batches[-1].append(b)
            used += needed
        else:
            batches.append([b])
            longest = used = tokens_B[b]
    return batches


def pad(rows: list[list[int]], pad_id: int, device, side="right") -> tuple[torch.Tensor, ...]:
    """Pad token ids on a side; return ids (B, T) and the attention mask of 0 and 1."""
    ids = pad_sequence([torch.tensor(row) for row in rows], True, pad_id, side)
    mask = pad_sequence([torch.ones(len(row), dtype=torch.long) for row in rows], True, 0, side)
    return ids.to(device), mask.to(device)

"""Rows of different lengths as tensors, shared out over ranks and micro-batches."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import accumulate

import torch
from torch.nn.utils.rnn import pad_sequence

from plumbing.distributed.layout import Layout


@dataclass
class Batch:
    """A micro-batch on the device: some rows of a step, and columns for their N response tokens.

    Rows are right-padded or, if packed, laid end to end as one row (B = 1) with positions that
    restart at 0. Columns hold the rows' response tokens end to end."""

    ids_B_T: torch.Tensor
    response_B_T: torch.Tensor  # bool: tokens of completions, stop tokens included
    position_1_T: torch.Tensor
    row_N: torch.Tensor  # the step's row that each response token belongs to, on the CPU
    generator_logp_N: torch.Tensor  # log-probs when the generator drew the tokens
    cu_seqlens: dict = field(default_factory=dict)  # flash-attn's arguments for packed rows
    advantage_N: torch.Tensor | None = None
    weight_N: torch.Tensor | None = None
    old_logp_N: torch.Tensor | None = None  # by the policy before the step's first update
    ref_logp_N: torch.Tensor | None = None  # by the initial policy
    idle: bool = False  # this rank has no row, but must take part: its weights are 0
    last: bool = False  # gradients are reduced over the ranks after it


def collate(rollouts, rows: list[int], pad_id: int, device, packed: bool = False) -> Batch:
    """Make a Batch of some rows of a rollout.Rollouts."""
    ids = [torch.tensor(rollouts.prompt_ids[b] + rollouts.completion_ids[b]) for b in rows]
    positions = [torch.arange(len(row)) for row in ids]
    responses = [t >= len(rollouts.prompt_ids[b]) for b, t in zip(rows, positions, strict=True)]
    cu_seqlens = {}
    if packed:
        tensors = [torch.cat(parts)[None] for parts in (ids, responses, positions)]
        ends = torch.tensor([0, *accumulate(map(len, ids))], dtype=torch.int32).to(device)
        cu_seqlens = {"cu_seq_lens_q": ends, "cu_seq_lens_k": ends}
        cu_seqlens |= dict.fromkeys(("max_length_q", "max_length_k"), max(map(len, ids)))
    else:
        tensors = [pad_sequence(ids, True, pad_id), pad_sequence(responses, True)]
        tensors.append(max(positions, key=len)[None])
    row_N = torch.tensor([b for b in rows for _ in rollouts.completion_ids[b]])
    logp_N = torch.tensor([logp for b in rows for logp in rollouts.logps[b]])
    return Batch(*(t.to(device) for t in tensors), row_N, logp_N.to(device), cu_seqlens)


def micro_batches(
    rollouts, rows: list[int], advantage_B, weight_B, layout: Layout, max_tokens, pad_id, packed
) -> list[Batch]:
    """Make this student rank's share of `rows` into Batches of at most `max_tokens` tokens. FSDP
    needs every rank in backward: one without a share gets the shortest row with weight 0."""
    tokens_B, device, batches = rollouts.total_tokens(), layout.device, []
    share = balance(rows, tokens_B, layout.n_students)[layout.rank]
    shortest = [tokens_B.index(min(tokens_B))]
    # Padding costs as much as tokens do; another micro-batch costs little.
    for part in pack(share or shortest, tokens_B, max_tokens, 0.75, packed):
        batch = collate(rollouts, part, pad_id, device, packed)
        batch.idle = not share
        batch.advantage_N = advantage_B[batch.row_N].float().to(device)
        batch.weight_N = (weight_B[batch.row_N] * bool(share)).float().to(device)
        batches.append(batch)
    batches[-1].last = True
    return batches


def balance(rows: list[int], tokens_B: list[int], n: int) -> list[list[int]]:
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

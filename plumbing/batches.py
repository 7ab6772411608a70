"""Rows of different lengths as tensors, shared out over ranks and micro-batches."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import accumulate

import torch
from torch.nn.utils.rnn import pad_sequence


@dataclass
class Batch:
    """A micro-batch on the device: some rows of a step, and columns that go with their N response
    tokens, laid end to end in the order of the rows.

    Rows are right-padded or, packed, laid end to end as one (B = 1), with positions that begin at 0
    in each. The mask covers every token of a completion, its stop token included.
    """

    ids_B_T: torch.Tensor
    response_B_T: torch.Tensor  # bool: which tokens are of a completion
    position_1_T: torch.Tensor
    row_N: torch.Tensor  # the step's row that each response token is of, on the CPU
    generated_logp_N: torch.Tensor  # by the generator, which drew the token, on the CPU
    borders: dict = field(default_factory=dict)  # of packed rows, as flash-attn is told of them
    advantage_N: torch.Tensor | None = None
    weight_N: torch.Tensor | None = None
    old_logp_N: torch.Tensor | None = None  # by the policy before the step's first update
    ref_logp_N: torch.Tensor | None = None  # by the initial policy
    idle: bool = False  # only there because a rank must have some row
    last: bool = False  # of those whose gradients are summed: ranks meet here


def collate(rollouts, rows: list[int], pad_id: int, device, packed: bool = False) -> Batch:
    """Some rows of a rollout.Rollouts as a Batch."""
    full = [torch.tensor(rollouts.prompt_ids[b] + rollouts.completion_ids[b]) for b in rows]
    positions = [torch.arange(len(ids)) for ids in full]
    responses = [t >= len(rollouts.prompt_ids[b]) for b, t in zip(rows, positions, strict=True)]
    borders = {}
    if packed:
        ids, response, position = (torch.cat(x)[None] for x in (full, responses, positions))
        ends = torch.tensor([0, *accumulate(map(len, full))], dtype=torch.int32).to(device)
        borders = {"cu_seq_lens_q": ends, "cu_seq_lens_k": ends}
        borders |= dict.fromkeys(("max_length_q", "max_length_k"), max(map(len, full)))
    else:
        ids, response = pad_sequence(full, True, pad_id), pad_sequence(responses, True)
        position = max(positions, key=len)[None]
    row_N = torch.tensor([b for b in rows for _ in rollouts.completion_ids[b]])
    logps_N = torch.tensor([logp for b in rows for logp in rollouts.logps[b]])
    on_device = ids.to(device), response.to(device), position.to(device)
    return Batch(*on_device, row_N, logps_N, borders)


def halves(rows: list[int], G: int) -> list[list[int]]:
    """The rows of every second group that is there, and the rest; all as one if there is one."""
    groups = sorted({b // G for b in rows})
    parts = [{*groups[::2]}, {*groups[1::2]}]
    return [[b for b in rows if b // G in part] for part in parts] if len(groups) > 1 else [rows]


def micro_batches(
    rollouts, rows, advantage_B, weight_B, rank, ranks, budget, pad_id, device, packed
):
    """This rank's share of `rows` as a list of Batches of at most `budget` tokens. FSDP needs every
    rank in backward: one without a share gets the shortest row, idle: with weight 0."""
    tokens_B = rollouts.total_tokens()
    mine = balance(rows, tokens_B, ranks)[rank]
    idle = not mine
    batches = []
    # Padding costs as much as tokens do; another micro-batch costs little.
    for share in pack(mine or [tokens_B.index(min(tokens_B))], tokens_B, budget, 0.75, packed):
        batch = collate(rollouts, share, pad_id, device, packed)
        batch.advantage_N = advantage_B[batch.row_N].float().to(device)
        batch.weight_N = (weight_B[batch.row_N] * (not idle)).float().to(device)
        batch.idle = idle
        batches.append(batch)
    batches[-1].last = True
    return batches


def balance(rows: list[int], tokens_B: list[int], n: int) -> list[list[int]]:
    """Shares rows out over n ranks so that their tokens are nearly equal: longest first, to the
    emptiest rank."""
    shares, load = [[] for _ in range(n)], [0] * n
    for b in sorted(rows, key=lambda b: (-tokens_B[b], b)):
        r = load.index(min(load))
        shares[r].append(b)
        load[r] += tokens_B[b]
    return shares


def pack(
    rows: Iterable[int], tokens_B: list[int], budget: int, shortest=0.0, packed=False
) -> list[list[int]]:
    """Cuts rows, longest first, into micro-batches of at most `budget` tokens (a single row may
    exceed it).

    Unless `packed`, padding counts as tokens, and no row is shorter than the share `shortest` of
    its micro-batch's longest, so no more than the rest is padding.
    """
    batches, longest, taken = [], 0, 0  # of the last batch: its longest row, and what it holds
    for b in sorted(rows, key=lambda b: (-tokens_B[b], b)):
        takes = tokens_B[b] if packed else longest
        if batches and taken + takes <= budget and takes * shortest <= tokens_B[b]:
            batches[-1].append(b)
            taken += takes
        else:
            batches.append([b])
            longest = taken = tokens_B[b]
    return batches


def pad(
    rows: list[list[int]], pad_id: int, device, left=False
) -> tuple[torch.Tensor, torch.Tensor]:
    """Token ids -> ids (B, T), padded on the right or left, and the attention mask of 0 and 1."""
    side = "left" if left else "right"
    ids = pad_sequence([torch.tensor(row) for row in rows], True, pad_id, side)
    mask = pad_sequence([torch.ones(len(row), dtype=torch.long) for row in rows], True, 0, side)
    return ids.to(device), mask.to(device)

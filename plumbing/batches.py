"""Rows of different lengths as tensors, shared out over ranks and micro-batches."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
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
    row_N: torch.Tensor  # the completion that each belongs to, on the CPU
    generator_logp_N: torch.Tensor  # log-probs when the generator drew the tokens
    advantage_N: torch.Tensor
    weight_N: torch.Tensor
    old_logp_N: torch.Tensor | None = None  # by the policy before the step's first update
    ref_logp_N: torch.Tensor | None = None  # by the initial policy
    idle: bool = False  # this rank has no completion, but must take part: its weights are 0
    last: bool = False  # gradients are reduced over the ranks after it


def collate(rows: list[Row], device, packed: bool = False) -> Batch:
    """Make a Batch of some completions and their prompts."""
    completions = [completion for _, completion in rows]
    lengths_B = torch.tensor([len(completion.ids) for completion in completions])
    lay_out = _lay_out_packed if packed else _lay_out_shared
    ids_T, position_T, source_N, attention = lay_out(rows, device)

    def column(values_B) -> torch.Tensor:
        return torch.tensor(values_B).repeat_interleave(lengths_B).to(device)

    return Batch(
        ids_1_T=torch.tensor([ids_T]).to(device),
        position_1_T=torch.tensor([position_T]).to(device),
        attention=attention,
        source_N=torch.tensor(source_N).to(device),
        target_N=torch.tensor(_join(o.ids for o in completions)).to(device),
        row_N=torch.arange(len(rows)).repeat_interleave(lengths_B),
        generator_logp_N=torch.tensor(_join(o.logps for o in completions)).to(device),
        advantage_N=column([o.advantage for o in completions]),
        weight_N=column([o.weight for o in completions]),
    )


def _lay_out_shared(rows: list[Row], device) -> tuple[list[int], list[int], list[int], dict]:
    """Lay out each distinct prompt, then the completions. Returns ids, positions, source_N and
    Batch.attention."""
    number = {}  # prompt -> its place among the distinct prompts
    prompt_B = [number.setdefault(tuple(prompt), len(number)) for prompt, _ in rows]
    prompt_lengths = [len(prompt) for prompt in number]
    lengths = [len(completion.ids) for _, completion in rows]
    ids_T = _join([*number, *(completion.ids for _, completion in rows)])
    position_T = _join(range(n) for n in prompt_lengths)
    prompt_end = [end - 1 for end in accumulate(prompt_lengths)]  # the place of its last token
    source_N = []
    start = len(position_T)
    for p, n in zip(prompt_B, lengths, strict=True):
        position_T += range(prompt_lengths[p], prompt_lengths[p] + n)
        source_N += [prompt_end[p], *range(start, start + n - 1)]
        start += n
    shared = SharedPrompts.of(prompt_lengths, lengths, prompt_B, device)
    return ids_T, position_T, source_N, {"shared": shared}


def _lay_out_packed(rows: list[Row], device) -> tuple[list[int], list[int], list[int], dict]:
    """Lay out each completion after a copy of its prompt, for flash-attn. A prompt's keys would
    need a copy for each completion there, too. Returns what _lay_out_shared does."""
    lengths = [len(prompt) + len(completion.ids) for prompt, completion in rows]
    ids_T = _join(prompt + completion.ids for prompt, completion in rows)
    ends = [0, *accumulate(lengths)]
    source_N = _join(
        range(start + len(prompt) - 1, start + len(prompt) + len(completion.ids) - 1)
        for (prompt, completion), start in zip(rows, ends[:-1], strict=True)
    )
    ends_B = torch.tensor(ends, dtype=torch.int32).to(device)
    attention = {"cu_seq_lens_q": ends_B, "cu_seq_lens_k": ends_B}
    attention |= {"max_length_q": max(lengths), "max_length_k": max(lengths)}
    return ids_T, _join(range(n) for n in lengths), source_N, attention


def _join(parts: Iterable[Iterable]) -> list:
    return [*chain.from_iterable(parts)]


def micro_batches(
    rows: list[Row], layout: Layout, max_tokens: int, pad_id: int, packed: bool
) -> list[Batch]:
    """Make this student rank's share of `rows`, which are in the order of their prompts, into
    Batches of at most `max_tokens` tokens. FSDP needs every rank in backward: one without a share
    gets a row of two tokens, with weight 0."""
    share = balance(rows, layout.n_students)[layout.rank]
    parts = cut(share, max_tokens, shared=not packed)
    batches = [collate(part, layout.device, packed) for part in parts]
    if not batches:
        idle_row = [pad_id], Completion([pad_id], [0.0], finished=True)
        batches = [collate([idle_row], layout.device, packed)]
        batches[0].idle = True
    batches[-1].last = True
    return batches


def balance(rows: list[Row], n: int) -> list[list[Row]]:
    """Cut rows into n parts of about equal numbers of tokens, in order, so that few prompts are on
    two ranks. A prompt's tokens count once."""
    copies = Counter(tuple(prompt) for prompt, _ in rows)
    tokens_B = [len(o.ids) + len(prompt) / copies[tuple(prompt)] for prompt, o in rows]
    parts = [[] for _ in range(n)]
    done = 0.0
    for row, tokens in zip(rows, tokens_B, strict=True):
        middle = (done + tokens / 2) / sum(tokens_B)
        parts[int(n * middle)].append(row)
        done += tokens
    return parts


def cut(rows: list[Row], max_tokens: int, shared: bool) -> list[list[Row]]:
    """Cut rows, in order, into parts of at most `max_tokens` tokens, or of one row. shared: count
    the prompt of neighbouring rows once in a part."""
    parts = []
    used = 0
    for row in rows:
        prompt, completion = row
        known = shared and parts and prompt == parts[-1][-1][0]
        tokens = len(completion.ids) + (0 if known else len(prompt))
        if not parts or used + tokens > max_tokens:
            parts.append([])
            used = 0
            tokens = len(prompt) + len(completion.ids)
        parts[-1].append(row)
        used += tokens
    return parts


def pack(rows: Iterable[int], tokens_B: list[int], max_tokens: int) -> list[list[int]]:
    """Cut rows, longest first, into parts of at most `max_tokens` tokens, padding to the longest of
    a part included, or of one row."""
    parts = []
    for b in sorted(rows, key=lambda b: (-tokens_B[b], b)):
        if parts and (len(parts[-1]) + 1) * tokens_B[parts[-1][0]] <= max_tokens:
            parts[-1].append(b)
        else:
            parts.append([b])
    return parts


def pad(rows: list[list[int]], pad_id: int, device, side="right") -> tuple[torch.Tensor, ...]:
    """Pad token ids on a side; return ids (B, T) and the attention mask of 0 and 1."""
    ids = pad_sequence([torch.tensor(row) for row in rows], True, pad_id, side)
    mask = pad_sequence([torch.ones(len(row), dtype=torch.long) for row in rows], True, 0, side)
    return ids.to(device), mask.to(device)

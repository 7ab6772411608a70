"""Rows of different lengths as tensors, shared out over ranks and micro-batches."""

from collections import Counter
from dataclasses import dataclass

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


class Line:
    """The columns of a Batch as lists, which grow prompt by prompt and completion by completion: of
    all tokens T, of the completions' tokens N, and of the completions B."""

    def __init__(self):
        self.ids_T = []
        self.position_T = []
        self.source_N = []
        self.target_N = []
        self.generator_logp_N = []
        self.length_B = []
        self.advantage_B = []
        self.weight_B = []

    def add_prompt(self, ids: list[int]) -> int:
        """Add a prompt; return the place of its last token."""
        self.ids_T += ids
        self.position_T += range(len(ids))
        return len(self.ids_T) - 1

    def add_completion(self, completion: Completion, prompt_end: int) -> None:
        """Add a completion of the prompt whose last token is at `prompt_end`."""
        n = len(completion.ids)
        start = len(self.ids_T)
        first_position = self.position_T[prompt_end] + 1
        self.ids_T += completion.ids
        self.position_T += range(first_position, first_position + n)
        self.source_N.append(prompt_end)
        self.source_N += range(start, start + n - 1)
        self.target_N += completion.ids
        self.generator_logp_N += completion.logps
        self.length_B.append(n)
        self.advantage_B.append(completion.advantage)
        self.weight_B.append(completion.weight)


def collate(rows: list[Row], device, packed: bool = False) -> Batch:
    """Make a Batch of some completions and their prompts."""
    line = Line()
    lay_out = _lay_out_packed if packed else _lay_out_shared
    attention = lay_out(line, rows, device)
    length_B = torch.tensor(line.length_B)
    row_B = torch.arange(len(rows))

    def column(values: list) -> torch.Tensor:
        return torch.tensor(values).to(device)

    def repeated(values_B: list[float]) -> torch.Tensor:
        values_N = torch.tensor(values_B).repeat_interleave(length_B)
        return values_N.to(device)

    return Batch(
        ids_1_T=column([line.ids_T]),
        position_1_T=column([line.position_T]),
        attention=attention,
        source_N=column(line.source_N),
        target_N=column(line.target_N),
        row_N=row_B.repeat_interleave(length_B),
        generator_logp_N=column(line.generator_logp_N),
        advantage_N=repeated(line.advantage_B),
        weight_N=repeated(line.weight_B),
    )


def _lay_out_shared(line: Line, rows: list[Row], device) -> dict:
    """Lay out each distinct prompt once, then the completions. Returns Batch.attention."""
    prompts_B = [prompt for prompt, _ in rows]
    prompts_P, prompt_B = distinct(prompts_B)
    end_P = [line.add_prompt(prompt) for prompt in prompts_P]
    for p, row in zip(prompt_B, rows, strict=True):
        _, completion = row
        line.add_completion(completion, end_P[p])
    length_P = [len(prompt) for prompt in prompts_P]
    shared = SharedPrompts.of(length_P, line.length_B, prompt_B, device)
    return {"shared": shared}


def _lay_out_packed(line: Line, rows: list[Row], device) -> dict:
    """Lay out each completion after a copy of its prompt, for flash-attn. A prompt's keys would
    need a copy for each completion there, too. Returns Batch.attention."""
    ends = [0]
    for prompt, completion in rows:
        prompt_end = line.add_prompt(prompt)
        line.add_completion(completion, prompt_end)
        end = len(line.ids_T)
        ends.append(end)
    ends_B = torch.tensor(ends, dtype=torch.int32)
    lengths_B = ends_B.diff()
    longest = lengths_B.max().item()
    ends_B = ends_B.to(device)
    return {
        "cu_seq_lens_q": ends_B,
        "cu_seq_lens_k": ends_B,
        "max_length_q": longest,
        "max_length_k": longest,
    }


def distinct(prompts: list[list[int]]) -> tuple[list[tuple[int, ...]], list[int]]:
    """Return the distinct prompts, and for each prompt which of these it is."""
    number = {}  # prompt -> its place among the distinct prompts
    prompt_B = []
    for prompt in prompts:
        key = tuple(prompt)
        p = number.setdefault(key, len(number))
        prompt_B.append(p)
    return list(number), prompt_B


def micro_batches(
    rows: list[Row], layout: Layout, max_tokens: int, pad_id: int, packed: bool
) -> list[Batch]:
    """Make this student rank's share of `rows`, which are in the order of their prompts, into
    Batches of at most `max_tokens` tokens. FSDP needs every rank in backward: one without a share
    gets a row of two tokens, with weight 0."""
    shares = balance(rows, layout.n_students)
    share = shares[layout.rank]
    idle = not share
    if idle:
        completion = Completion([pad_id], [0.0], finished=True)
        share = [([pad_id], completion)]
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
        n_copies = copies[tuple(prompt)]
        prompt_share = len(prompt) / n_copies
        tokens = len(completion.ids) + prompt_share
        tokens_B.append(tokens)
    total = sum(tokens_B)
    parts = [[] for _ in range(n)]
    done = 0.0
    for row, tokens in zip(rows, tokens_B, strict=True):
        middle = done + tokens / 2
        part = int(n * (middle / total))
        parts[part].append(row)
        done += tokens
    return parts


def cut(rows: list[Row], max_tokens: int, shared: bool) -> list[list[Row]]:
    """Cut rows, in order, into parts of at most `max_tokens` tokens, or of one row. shared: count
    the prompt of neighbouring rows once in a part."""
    parts = []
    used = 0
    last_prompt = None
    for row in rows:
        prompt, completion = row
        tokens = len(prompt) + len(completion.ids)
        known = shared and prompt == last_prompt
        added = len(completion.ids) if known else tokens
        if not parts or used + added > max_tokens:
            parts.append([])
            used = 0
            added = tokens
        parts[-1].append(row)
        used += added
        last_prompt = prompt
    return parts


def cut_longest_first(tokens_B: list[int], max_tokens: int) -> list[list[int]]:
    """Cut rows, longest first, into parts of at most `max_tokens` tokens, padding to the longest of
    a part included, or of one row. Returns the rows' numbers."""
    longest_first = sorted(range(len(tokens_B)), key=tokens_B.__getitem__, reverse=True)
    parts = []
    room = 0  # rows that the last part has still room for
    for b in longest_first:
        if room == 0:
            parts.append([])
            room = max(1, max_tokens // tokens_B[b])
        parts[-1].append(b)
        room -= 1
    return parts


def pad(rows: list[list[int]], pad_id: int, device, side="right") -> tuple[torch.Tensor, ...]:
    """Pad token ids on a side; return ids (B, T) and the attention mask of 0 and 1."""
    ids_B = [torch.tensor(row) for row in rows]
    ones_B = [torch.ones_like(ids) for ids in ids_B]
    ids_B_T = pad_sequence(ids_B, True, pad_id, side)
    mask_B_T = pad_sequence(ones_B, True, 0, side)
    return ids_B_T.to(device), mask_B_T.to(device)

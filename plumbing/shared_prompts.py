"""Attention in which the completions of a group share the keys and values of their prompt.

A micro-batch is one row of tokens without padding: each distinct prompt once, then the completions.
All parts of a layer but attention treat a token alone. `attend_with_shared_prompts` lays the
prompts and the completions out as two padded rectangles; a completion attends to its prompt and to
itself.
"""

from dataclasses import dataclass

import torch
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface


class _Pad(torch.autograd.Function):
    """Copy the rows of `line` to `place` in a larger tensor of zeros."""

    @staticmethod
    def forward(ctx, line, place, size):
        ctx.save_for_backward(place)
        row_shape = line.shape[1:]
        padded = line.new_zeros(size, *row_shape)
        return padded.index_copy_(0, place, line)

    @staticmethod
    def backward(ctx, gradient):
        (place,) = ctx.saved_tensors
        return gradient.index_select(0, place), None, None


class _Unpad(torch.autograd.Function):
    """Take the rows at `place`, each at most once: the reverse of _Pad. The backward of torch's
    index_select adds row by row, because its indices may repeat."""

    @staticmethod
    def forward(ctx, padded, place):
        ctx.save_for_backward(place)
        ctx.size = len(padded)
        return padded.index_select(0, place)

    @staticmethod
    def backward(ctx, gradient):
        (place,) = ctx.saved_tensors
        row_shape = gradient.shape[1:]
        padded = gradient.new_zeros(ctx.size, *row_shape)
        return padded.index_copy_(0, place, gradient), None


@dataclass
class Rectangle:
    """Sequences of unlike lengths, end to end in a line, and padded on the right in a rectangle."""

    rows: int
    width: int
    place_N: torch.Tensor  # of each token of the line, in the flattened rectangle

    @classmethod
    def of(cls, lengths: list[int], device) -> "Rectangle":
        rows = len(lengths)
        width = max(lengths)
        places = []
        for row, n in enumerate(lengths):
            first = row * width
            place_n = torch.arange(first, first + n)
            places.append(place_n)
        place_N = torch.cat(places)
        return cls(rows, width, place_N.to(device))

    def pad(self, line_N_H_D: torch.Tensor) -> torch.Tensor:
        """Return (rows, H, width, D), zero at the padding."""
        size = self.rows * self.width
        padded = _Pad.apply(line_N_H_D, self.place_N, size)
        rectangle = padded.unflatten(0, (self.rows, self.width))
        return rectangle.transpose(1, 2)

    def unpad(self, rectangle: torch.Tensor) -> torch.Tensor:
        """Return (N, H, D) of a tensor (rows, H, width, D)."""
        padded = rectangle.transpose(1, 2).flatten(0, 1)
        return _Unpad.apply(padded, self.place_N)


@dataclass
class SharedPrompts:
    """The layout of a micro-batch: P prompts, and B completions that continue them."""

    prompts: Rectangle
    completions: Rectangle
    prompt_B: torch.Tensor  # the prompt of each completion
    visible_B_1_T_S: torch.Tensor  # whether completion token T sees key S: a prompt's, then its own
    bias: torch.Tensor | None = None  # 0 where a key is visible, else -inf

    @classmethod
    def of(cls, prompt_lengths: list[int], lengths: list[int], prompt_B: list[int], device):
        prompts = Rectangle.of(prompt_lengths, device)
        completions = Rectangle.of(lengths, device)
        B = completions.rows
        T = completions.width
        S = prompts.width
        prompt_length_B = torch.tensor(prompt_lengths)[prompt_B]
        in_prompt_B_S = torch.arange(S) < prompt_length_B[:, None]
        in_prompt_B_T_S = in_prompt_B_S[:, None].expand(B, T, S)
        earlier_B_T_S = torch.ones(T, T, dtype=torch.bool).tril().expand(B, T, T)
        visible_B_T_S = torch.cat([in_prompt_B_T_S, earlier_B_T_S], dim=2)
        return cls(
            prompts=prompts,
            completions=completions,
            prompt_B=torch.tensor(prompt_B, device=device),
            visible_B_1_T_S=visible_B_T_S[:, None].to(device),
        )

    def bias_for(self, query: torch.Tensor) -> torch.Tensor:
        """Return what is added to the scores of completions, (B, 1, T, S), once for all layers."""
        dtype = query.dtype
        if self.bias is None or self.bias.dtype != dtype:
            masked_B_1_T_S = ~self.visible_B_1_T_S
            zeros = torch.zeros_like(masked_B_1_T_S, dtype=dtype)
            self.bias = zeros.masked_fill_(masked_B_1_T_S, -torch.inf)
        return self.bias

    def split(self, line_1_H_N_D: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the rectangles of prompts (P, H, T, D) and of completions (B, H, T, D)."""
        line_H_N_D = line_1_H_N_D[0]
        line_N_H_D = line_H_N_D.transpose(0, 1)
        n = len(self.prompts.place_N)
        of_prompts = self.prompts.pad(line_N_H_D[:n])
        of_completions = self.completions.pad(line_N_H_D[n:])
        return of_prompts, of_completions

    def join(self, of_prompts: torch.Tensor, of_completions: torch.Tensor) -> torch.Tensor:
        """Return the line (1, N, H, D) of two rectangles."""
        prompt_line = self.prompts.unpad(of_prompts)
        completion_line = self.completions.unpad(of_completions)
        line_N_H_D = torch.cat([prompt_line, completion_line])
        return line_N_H_D[None]


def attend_with_shared_prompts(
    module, query, key, value, attention_mask, scaling=None, shared=None, **kwargs
):
    """Compute transformers' SDPA for the layout `shared`: query (1, H, N, D), key and value
    (1, H_kv, N, D). Returns (1, N, H, D)."""
    copies = query.shape[1] // key.shape[1]
    if copies > 1:  # SDPA with a mask would copy them, too
        key = key.repeat_interleave(copies, dim=1)
        value = value.repeat_interleave(copies, dim=1)
    prompt_query, query = shared.split(query)
    prompt_key, key = shared.split(key)
    prompt_value, value = shared.split(value)
    of_prompts = scaled_dot_product_attention(
        prompt_query,
        prompt_key,
        prompt_value,
        is_causal=True,
        scale=scaling,
    )
    # Indexing, because its gradient on a GPU is a sum in a fixed order.
    key = torch.cat([prompt_key[shared.prompt_B], key], dim=2)
    value = torch.cat([prompt_value[shared.prompt_B], value], dim=2)
    bias = shared.bias_for(query)
    of_completions = scaled_dot_product_attention(query, key, value, bias, scale=scaling)
    return shared.join(of_prompts, of_completions), None


# transformers builds no mask for an implementation without a mask function.
AttentionInterface.register("shared_prompts", attend_with_shared_prompts)

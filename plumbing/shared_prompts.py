"""Attention in which the completions of a group share the keys and values of their prompt.

A micro-batch is one row of tokens without padding: each distinct prompt once, then the completions.
All parts of a layer but attention treat a token alone. `attend_with_shared_prompts` pads prompts
and completions to two batches; a completion attends to its prompt and to itself.
"""

from dataclasses import dataclass

import torch
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface


@dataclass
class Padding:
    """The way from packed sequences, end to end, to a batch padded on the right, and back."""

    is_token: torch.Tensor  # (rows, width), not padding; on the CPU
    place_N: torch.Tensor  # of each packed token, in the flattened batch

    @classmethod
    def of(cls, sequences: list, device) -> "Padding":
        lengths = torch.tensor([len(sequence) for sequence in sequences])
        is_token = torch.arange(lengths.max()) < lengths[:, None]
        place_N = is_token.flatten().nonzero()[:, 0]
        return cls(is_token, place_N.to(device))

    def pad(self, packed_N_H_D: torch.Tensor) -> torch.Tensor:
        """Return (rows, H, width, D), zero at the padding."""
        zeros = packed_N_H_D.new_zeros(self.is_token.numel(), *packed_N_H_D.shape[1:])
        # autograd keeps no rows of it, as it would for index_copy
        padded = zeros.index_put((self.place_N,), packed_N_H_D)
        return padded.unflatten(0, self.is_token.shape).transpose(1, 2)

    def unpad(self, batch: torch.Tensor) -> torch.Tensor:
        """Return (N, H, D) of a tensor (rows, H, width, D)."""
        padded = batch.transpose(1, 2).flatten(0, 1)
        return padded.index_select(0, self.place_N)


@dataclass
class SharedPrompts:
    """The layout of a micro-batch: P prompts, and B completions that continue them."""

    prompts: Padding
    completions: Padding
    prompt_B: torch.Tensor  # the prompt of each completion
    visible_B_1_T_S: torch.Tensor  # whether completion token T sees key S: a prompt's, then its own

    @classmethod
    def of(cls, prompts_P: list, ids_B: list, prompt_B: list[int], device) -> "SharedPrompts":
        prompts = Padding.of(prompts_P, device)
        completions = Padding.of(ids_B, device)
        B, T = completions.is_token.shape
        in_prompt_B_1_S = prompts.is_token[prompt_B][:, None]
        earlier_T_T = torch.ones(T, T, dtype=torch.bool).tril()
        visible_B_T_S = torch.cat(
            [in_prompt_B_1_S.expand(B, T, -1), earlier_T_T.expand(B, T, T)], dim=2
        )
        return cls(
            prompts=prompts,
            completions=completions,
            prompt_B=torch.tensor(prompt_B, device=device),
            visible_B_1_T_S=visible_B_T_S[:, None].to(device),
        )

    def split(self, packed_1_H_N_D: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the padded prompts (P, H, T, D) and completions (B, H, T, D)."""
        packed_N_H_D = packed_1_H_N_D[0].transpose(0, 1)
        n = len(self.prompts.place_N)
        return self.prompts.pad(packed_N_H_D[:n]), self.completions.pad(packed_N_H_D[n:])


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
    of_completions = scaled_dot_product_attention(
        query, key, value, shared.visible_B_1_T_S, scale=scaling
    )
    packed_N_H_D = torch.cat(
        [shared.prompts.unpad(of_prompts), shared.completions.unpad(of_completions)]
    )
    return packed_N_H_D[None], None  # no attention weights


# transformers builds no mask for an implementation without a mask function.
AttentionInterface.register("shared_prompts", attend_with_shared_prompts)

"""A static key-value cache for decoding, and the attention that reads it."""

import torch
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface, AttentionMaskInterface, Cache
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask
from transformers.utils import is_flash_attn_2_available


class SlotCache(Cache):
    """A static key-value cache with one slot for each token.

    Row b continues prompt prompt_B[b] and uses first_B[b] to `slot`, where its next token goes.
    `prompts`, the cache that the distinct prompts were read into, is changed in place: the first
    `keep` copies each prompt into its rows. varlen: `attend` reads the slots in use only, without a
    mask."""

    def __init__(self, prompts: Cache, position_P_T, prompt_B: torch.Tensor, varlen: bool):
        super().__init__(layers=prompts.layers)
        keys = self.layers[0].keys
        _, self.H_kv, self.prompt_T, _ = keys.shape
        last_slot = self.prompt_T - 1
        last_position_P = position_P_T[:, -1]
        self.first_B = last_slot - last_position_P  # of prompts, until the first `keep`
        self.source_B = prompt_B  # the row of the layers' tensors that holds row b
        self.varlen = varlen
        self.slot = last_slot
        if prompt_B.is_cuda:  # a CUDA graph reads it on the device
            self.slot = torch.full((1,), last_slot, device=prompt_B.device)

    def keep(self, active: torch.Tensor, t: int, room: int) -> None:
        """Drop all rows but the active ones, which have the keys of t tokens. Make room for `room`
        tokens after the prompt."""
        rows_B = self.source_B[active]
        used = self.prompt_T + t
        S = self.prompt_T + room
        if rows_B.is_cuda:
            S += -S % 16  # or SDPA copies the mask at every call
        for layer in self.layers:
            layer.keys = resized(layer.keys, rows_B, used, S)
            layer.values = resized(layer.values, rows_B, used, S)
        self.S = S
        self.first_B = self.first_B[rows_B]
        B = len(rows_B)
        self.source_B = torch.arange(B, device=rows_B.device)
        if self.varlen:
            self.sequences = sequences(self.first_B, self.H_kv, S)

    def ignore(self, finished_B: torch.Tensor, t: int) -> None:
        """Let finished rows attend to nothing before token t."""
        slot = self.prompt_T + t
        self.first_B.masked_fill_(finished_B, slot)

    def update(self, keys, values, layer_idx, *args, **kwargs):
        """Store the keys and values of one token a row; return those of all slots, because a CPU
        reads a part, which is not contiguous, half as fast."""
        layer = self.layers[layer_idx]
        store(layer.keys, self.slot, keys)
        store(layer.values, self.slot, values)
        return layer.keys, layer.values

    def inputs(self, dtype: torch.dtype) -> dict:
        """Make a model's arguments for the next token of each row."""
        position_B = self.slot - self.first_B
        position_B_1 = position_B[:, None]
        inputs = {"position_ids": position_B_1, "past_key_values": self}
        if self.varlen:  # models pass on what they do not know, and any 4-D mask, to `attend`
            used = used_slots(position_B, self.H_kv)
            inputs["slots_in_use"] = (*self.sequences, used, self.S)
            inputs["attention_mask"] = position_B_1[None, None]
        else:
            inputs["attention_mask"] = mask_slots(self.first_B, self.slot, self.S, dtype)
        return inputs


def store(slots: torch.Tensor, slot: torch.Tensor | int, new: torch.Tensor) -> None:
    """Write the keys or values of one token a row, (B, H_kv, 1, D), to a slot."""
    if slots.is_cuda:
        slots.index_copy_(2, slot, new)
    else:  # five times as fast
        here = slice(slot, slot + 1)
        slots[:, :, here] = new


def resized(old: torch.Tensor, rows_B: torch.Tensor, used: int, S: int) -> torch.Tensor:
    """Copy the first `used` slots of these rows into a tensor with S slots."""
    _, H_kv, _, D = old.shape
    B = len(rows_B)
    new = old.new_empty(B, H_kv, S, D)
    source = old[:, :, :used]
    target = new[:, :, :used]
    torch.index_select(source, 0, rows_B, out=target)
    new[:, :, used:] = 0  # uninitialised memory times a masked slot's 0 may be NaN
    return new


def mask_slots(first_B: torch.Tensor, slot: torch.Tensor | int, S: int, dtype) -> torch.Tensor:
    """Return what SDPA adds to the scores of S slots: (B, 1, 1, S)."""
    slot_S = torch.arange(S, device=first_B.device)
    first_B_1 = first_B[:, None]
    begun_B_S = slot_S >= first_B_1
    written_S = slot_S <= slot
    visible_B_S = begun_B_S & written_S
    mask_B_S = torch.where(visible_B_S, 0.0, -torch.inf)
    mask_B_1_1_S = mask_B_S[:, None, None]
    return mask_B_1_1_S.to(dtype)


def sequences(first_B: torch.Tensor, H_kv: int, S: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Describe a cache as B * H_kv sequences for flash attention: where each begins in the queries,
    and in the B * H_kv * S slots."""
    B = len(first_B)
    first = first_B.repeat_interleave(H_kv)
    query_start = torch.arange(B * H_kv + 1, device=first.device, dtype=torch.int32)
    start = query_start * S
    start[:-1] += first
    return query_start, start


def used_slots(position_B: torch.Tensor, H_kv: int) -> torch.Tensor:
    """Return the length of each of these sequences when row b's next position is position_B[b]."""
    used_B = position_B + 1
    used = used_B.repeat_interleave(H_kv)
    return used.int()


def attend(module, query, key, value, attention_mask, scaling=None, slots_in_use=None, **kwargs):
    """Compute transformers' SDPA, without copying the cache for one query token a row.

    query (B, H, T, D), key and value (B, H_kv, S, D). Given a mask, transformers 5.17 copies keys
    and values for all H heads. Here the H / H_kv heads that share a key are rows of one query."""
    B, H, T, D = query.shape
    if T > 1:
        return sdpa_attention_forward(
            module,
            query,
            key,
            value,
            attention_mask,
            scaling=scaling,
            **kwargs,
        )
    H_kv = key.shape[1]
    query = query.reshape(B, H_kv, -1, D)
    if slots_in_use:
        out = attend_to_slots(query, key, value, scaling, *slots_in_use)
    elif query.is_cpu and attention_mask is not None:  # SDPA is slow with many small matrices
        scale = scaling or D**-0.5
        query = query * scale
        scores = query @ key.mT + attention_mask
        p = scores.softmax(dim=-1)
        out = p @ value
    else:
        out = scaled_dot_product_attention(query, key, value, attention_mask, scale=scaling)
    D_value = value.shape[-1]
    out = out.reshape(B, 1, H, D_value)
    return out, None  # no attention weights


def attend_to_slots(query, key, value, scaling, query_start, start, used, S: int):
    """Attend to `used` slots from `start` on, by flash attention. A sequence has one key head: with
    more of them PyTorch would copy the query and the output, twice each."""
    from torch.nn.attention.varlen import varlen_attn_out  # PyTorch 2.11 lacks it

    queries = query.flatten(0, 1)
    keys = key.reshape(-1, 1, key.shape[-1])
    values = value.reshape(-1, 1, value.shape[-1])
    out = torch.empty_like(queries, memory_format=torch.contiguous_format)
    varlen_attn_out(
        out,
        queries,
        keys,
        values,
        cu_seq_q=query_start,
        cu_seq_k=start,
        max_q=1,
        max_k=S,
        scale=scaling,
        enable_gqa=True,
        seqused_k=used,
    )
    return out.view(query.shape)


AttentionInterface.register("grouped_sdpa", attend)
AttentionMaskInterface.register("grouped_sdpa", sdpa_mask)


def attention_for(device) -> str:
    """Choose flash-attn where it is installed and the card is Ampere or newer, else SDPA with each
    prompt once."""
    if device.type == "cuda" and is_flash_attn_2_available():
        capability = torch.cuda.get_device_capability(device)
        if capability >= (8, 0):
            return "flash_attention_2"
    return "shared_prompts"

"""A static key-value cache for decoding, and the attention that reads it."""

import torch
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface, AttentionMaskInterface, Cache
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask
from transformers.utils import is_flash_attn_2_available


class SlotCache(Cache):
    """A static key-value cache with one slot for each token. Row b uses first_B[b] to `slot`, where
    its next token goes.

    `prompts`, the cache that the distinct prompts were read into, is changed in place: the first
    `keep` copies each prompt into the rows that continue it."""

    def __init__(self, prompts: Cache, position_P_T: torch.Tensor):
        super().__init__(layers=prompts.layers)
        self.prompt_T = self.layers[0].keys.shape[2]
        last_position_B = position_P_T[:, -1]
        self.first_B = self.prompt_T - 1 - last_position_B
        self.slot = self.prompt_T
        if self.first_B.is_cuda:  # a CUDA graph reads it on the device
            self.slot = torch.full((1,), self.slot, device=self.first_B.device)

    def keep(self, row_B: torch.Tensor, used: int, room: int) -> None:
        """Continue with these rows, which have `used` tokens after the prompt, and room for `room`
        of them. A row may be taken several times."""
        used += self.prompt_T
        S = self.prompt_T + room
        if row_B.is_cuda:
            S += -S % 16  # or SDPA copies the mask at every call
        for layer in self.layers:
            layer.keys = resized(layer.keys, row_B, used, S)
            layer.values = resized(layer.values, row_B, used, S)
        self.S = S
        self.first_B = self.first_B[row_B]

    def update(self, keys, values, layer_idx, *args, **kwargs):
        """Store the keys and values of one token a row; return those of all slots, because a CPU
        reads a part, which is not contiguous, half as fast."""
        layer = self.layers[layer_idx]
        for slots, new in ((layer.keys, keys), (layer.values, values)):
            if slots.is_cuda:
                slots.index_copy_(2, self.slot, new)
            else:  # five times as fast
                slots[:, :, self.slot : self.slot + 1] = new
        return layer.keys, layer.values

    def inputs(self, dtype: torch.dtype) -> dict:
        """Make a model's arguments for the next token of each row. The mask, (B, 1, 1, S), is what
        SDPA adds to the scores of the slots."""
        position_B = self.slot - self.first_B
        slot_S = torch.arange(self.S, device=self.first_B.device)
        begun_B_S = slot_S >= self.first_B[:, None]
        visible_B_S = begun_B_S & (slot_S <= self.slot)
        mask_B_S = torch.where(visible_B_S, 0.0, -torch.inf)
        return {
            "position_ids": position_B[:, None],
            "past_key_values": self,
            "attention_mask": mask_B_S[:, None, None].to(dtype),
        }


def resized(old: torch.Tensor, row_B: torch.Tensor, used: int, S: int) -> torch.Tensor:
    """Copy the first `used` slots of these rows into a tensor with S slots."""
    _, H_kv, _, D = old.shape
    new = old.new_empty(len(row_B), H_kv, S, D)
    source = old[:, :, :used]
    target = new[:, :, :used]
    torch.index_select(source, 0, row_B, out=target)
    new[:, :, used:] = 0  # uninitialised memory times a masked slot's 0 may be NaN
    return new


def attend_to_slots(
    module,
    query,
    key,
    value,
    attention_mask,
    scaling=None,
    **kwargs,
):
    """Compute transformers' SDPA, without copying the cache for one query token a row.

    query (B, H, T, D), key and value (B, H_kv, S, D). Given a mask, transformers 5.17 copies keys
    and values for all H heads. Here the H / H_kv heads that share a key are rows of one query."""
    B, H, T, D = query.shape
    if T > 1:
        return sdpa_attention_forward(
            module, query, key, value, attention_mask, scaling=scaling, **kwargs
        )
    query = query.reshape(B, key.shape[1], -1, D)
    if query.is_cpu and attention_mask is not None:  # SDPA is slow with many small matrices
        scale = scaling or D**-0.5
        scores = (query * scale) @ key.mT + attention_mask
        out = scores.softmax(dim=-1) @ value
    else:
        out = scaled_dot_product_attention(
            query,
            key,
            value,
            attention_mask,
            scale=scaling,
        )
    out = out.reshape(B, 1, H, value.shape[-1])
    return out, None  # no attention weights


AttentionInterface.register("grouped_sdpa", attend_to_slots)
AttentionMaskInterface.register("grouped_sdpa", sdpa_mask)


def attention_for(device) -> str:
    """Choose flash-attn where it is installed and the card is Ampere or newer, else SDPA with each
    prompt once."""
    if device.type != "cuda" or not is_flash_attn_2_available():
        return "shared_prompts"
    capability = torch.cuda.get_device_capability(device)
    return "flash_attention_2" if capability >= (8, 0) else "shared_prompts"

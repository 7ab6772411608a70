"""Fast decoding: a static key-value cache, CUDA graphs, attention that copies no keys."""

from collections.abc import Callable

import torch
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface, AttentionMaskInterface, Cache
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask
from transformers.utils import is_flash_attn_2_available

from plumbing.errors import first_lines


class SlotCache(Cache):
    """A static key-value cache with one slot for each token. Its `layers`, those of the cache that
    the prompts were read into, are changed in place."""

    def make_room(self, rows_B: torch.Tensor, used: int, capacity: int) -> None:
        """Grow to `capacity` slots; keep the first `used` of these rows, in this order."""
        self.slot = torch.tensor([used], device=rows_B.device)  # the next token's
        for layer in self.layers:
            for name in ("keys", "values"):
                old = getattr(layer, name)[:, :, :used]
                new = old.new_empty(len(rows_B), old.shape[1], capacity, old.shape[3])
                torch.index_select(old, 0, rows_B, out=new[:, :, :used])
                new[:, :, used:] = 0  # uninitialised memory times a masked slot's 0 may be NaN
                setattr(layer, name, new)

    def update(self, keys, values, layer_idx, *args, **kwargs):
        """Store the keys and values of one token a row; return those of all slots, because a CPU
        reads a part, which is not contiguous, half as fast."""
        layer = self.layers[layer_idx]
        layer.keys.index_copy_(2, self.slot, keys)
        layer.values.index_copy_(2, self.slot, values)
        return layer.keys, layer.values


class Recorder:
    """Recorder of decoding steps as CUDA graphs, in one memory pool."""

    def __init__(self):
        self.stream, self.pool = torch.cuda.Stream(), torch.cuda.graph_pool_handle()
        self.graph = None  # the last one, kept because a pool must not lose all of its graphs
        self.error = None  # why a step could not be captured

    def __call__(self, step: Callable[[], torch.Tensor]) -> Callable[[], torch.Tensor]:
        """Return a function that replays the kernels of `step`, which is run twice. If a capture
        fails, as it does where rotary embeddings compute on the host, return `step` itself."""
        if self.error:
            return step
        graph = torch.cuda.CUDAGraph()
        self.stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.stream):
            step()  # libraries allocate and choose kernels at first use, which a capture forbids
            if torch.cuda.mem_get_info()[0] < 2**30:
                torch.cuda.empty_cache()  # a capture cannot, and torch.cuda.graph always does
            try:
                graph.capture_begin(pool=self.pool, capture_error_mode="thread_local")
                try:
                    out = step()
                finally:
                    graph.capture_end()
            except RuntimeError as error:
                self.error = first_lines(error.__context__ or error)
                reason = f"a decoding step cannot be a CUDA graph ({self.error})"
                print(f"note: {reason}: generation is slower", flush=True)
        torch.cuda.current_stream().wait_stream(self.stream)
        if self.error:
            return step
        self.graph = graph

        def replay() -> torch.Tensor:
            graph.replay()
            return out

        return replay


def attend(module, query, key, value, attention_mask, scaling=None, **kwargs):
    """Compute transformers' SDPA, without copying the cache for one query token a row.

    query (B, H, T, D), key and value (B, H_kv, S, D). With a mask SDPA needs as many heads on both
    sides, and transformers 5.17 copies the keys and values of the whole cache for that, at every
    token. Instead the H / H_kv heads that share a key become as many rows of queries to it.
    """
    B, H, T, D = query.shape
    if T > 1:
        arguments = (module, query, key, value, attention_mask)
        return sdpa_attention_forward(*arguments, scaling=scaling, **kwargs)
    query = query.reshape(B, key.shape[1], -1, D)
    out = scaled_dot_product_attention(query, key, value, attention_mask, scale=scaling)
    return out.reshape(B, 1, H, value.shape[-1]), None


AttentionInterface.register("grouped_sdpa", attend)
AttentionMaskInterface.register("grouped_sdpa", sdpa_mask)


def attention_for(device) -> str:
    """Choose flash-attn where it is installed and the card is Ampere or newer, else SDPA."""
    installed = device.type == "cuda" and is_flash_attn_2_available()
    supported = installed and torch.cuda.get_device_capability(device) >= (8, 0)
    return "flash_attention_2" if supported else "sdpa"

"""What makes decoding fast: a cache of slots, CUDA graphs of steps, attention without copies."""

from collections.abc import Callable

import torch
from torch.nn.functional import scaled_dot_product_attention
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import AttentionInterface, AttentionMaskInterface, Cache
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask
from transformers.utils import is_flash_attn_2_available


class SlotCache(Cache):
    """A key-value cache with room for the tokens of a block, each written into its slot: nothing is
    concatenated.

    `layers` are those of the cache that the prompts were read into; it takes them over.
    """

    def __init__(self, layers: list):
        super().__init__(layers=layers)

    def make_room(self, rows_B: torch.Tensor, used: int, capacity: int) -> None:
        """Keeps these rows (in this order, repeated as asked) and their first `used` slots of now
        `capacity`."""
        self.slot = torch.tensor([used], device=rows_B.device)  # where the next token goes
        for layer in self.layers:
            for name in ("keys", "values"):
                old = getattr(layer, name)[:, :, :used]
                new = old.new_empty(len(rows_B), old.shape[1], capacity, old.shape[3])
                torch.index_select(old, 0, rows_B, out=new[:, :, :used])
                # A masked slot has weight 0, and 0 times what was in memory may be NaN.
                new[:, :, used:] = 0
                setattr(layer, name, new)

    def update(self, keys, values, layer_idx, *args, **kwargs):
        """Called by each attention layer with the keys and values of one token a row; returns those
        of all slots.

        Of all, not of the used ones: those are no contiguous tensor, and a CPU takes twice as long
        to read them.
        """
        layer = self.layers[layer_idx]
        layer.keys.index_copy_(2, self.slot, keys)
        layer.values.index_copy_(2, self.slot, values)
        return layer.keys, layer.values


class HostReads(TorchDispatchMode):
    """Counts where the host waits for numbers on the device, or hands it some: a CUDA graph cannot
    hold that. It sees what PyTorch's operators say of themselves, and copies between devices."""

    count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        aten, out = torch.ops.aten, func(*args, **(kwargs or {}))
        if func.overloadpacket in (aten.index, aten.index_put, aten.index_put_):
            waits = any(i is not None and i.dtype in (torch.bool, torch.uint8) for i in args[1])
        elif func.overloadpacket in (aten._to_copy, aten.copy_):
            waits = len({x.device.type for x in (*args, out) if isinstance(x, torch.Tensor)}) > 1
        else:
            tags = torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape
            waits = any(tag in func.tags for tag in tags)
        self.count += waits
        return out


class Recorder:
    """Makes CUDA graphs of decoding steps, one after the other: one stream, one pool of memory."""

    def __init__(self):
        self.stream, self.pool = torch.cuda.Stream(), torch.cuda.graph_pool_handle()

    def __call__(self, step: Callable[[], torch.Tensor]) -> Callable[[], torch.Tensor]:
        """`step` as its kernels on their addresses, launched at once; `step` itself where the host
        has a part in it, as in some rotary embeddings. Running it twice must do no harm."""
        self.stream.wait_stream(torch.cuda.current_stream())
        # Libraries allocate and choose kernels at their first use: not while recording.
        with torch.cuda.stream(self.stream), HostReads() as reads:
            step()
        torch.cuda.current_stream().wait_stream(self.stream)
        if reads.count:
            return step
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self.pool, stream=self.stream):
            out = step()

        def replay() -> torch.Tensor:
            graph.replay()
            return out

        return replay


def run_as_it_is(step: Callable[[], torch.Tensor]) -> Callable[[], torch.Tensor]:
    """The Recorder of a machine without CUDA graphs."""
    return step


def attend(module, query, key, value, attention_mask, scaling=None, **kwargs):
    """transformers' SDPA, but that one query token a row reads keys and values where they are.

    query (B, H, T, D), key and value (B, H_kv, S, D). SDPA needs as many heads on both sides where
    there is a mask, and transformers 5.17 copies the keys and values of the whole cache for that,
    at every token. The heads that share a key are H / H_kv rows of queries to it as well.
    """
    B, H, T, D = query.shape
    if T > 1:
        own = {"scaling": scaling, **kwargs}
        return sdpa_attention_forward(module, query, key, value, attention_mask, **own)
    query = query.reshape(B, key.shape[1], -1, D)
    out = scaled_dot_product_attention(query, key, value, attention_mask, scale=scaling)
    return out.reshape(B, 1, H, value.shape[-1]), None


AttentionInterface.register("grouped_sdpa", attend)
AttentionMaskInterface.register("grouped_sdpa", sdpa_mask)


def attention_for(device) -> str:
    """flash-attn where it is installed and the card is one that it can run on (Ampere or newer),
    else PyTorch's own."""
    installed = device.type == "cuda" and is_flash_attn_2_available()
    able = installed and torch.cuda.get_device_capability(device) >= (8, 0)
    return "flash_attention_2" if able else "sdpa"

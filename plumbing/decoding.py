"""Fast decoding: a static key-value cache, CUDA graphs, attention that copies no keys."""

import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext, suppress
from functools import partial
from types import MethodType
from unittest.mock import patch

import torch
from torch.nn.functional import rms_norm, scaled_dot_product_attention
from transformers import AttentionInterface, AttentionMaskInterface, Cache, PreTrainedModel
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask
from transformers.utils import is_flash_attn_2_available

from plumbing.errors import NonFiniteError, first_lines


class SlotCache(Cache):
    """A static key-value cache with one slot for each token. Row b uses first_B[b] to `slot`, where
    its next token goes. `layers`, of the cache that the prompts were read into, are changed in
    place. varlen: `attend` reads the slots in use only, without a mask."""

    def __init__(self, layers, first_B: torch.Tensor, used: int, varlen: bool):
        super().__init__(layers=layers)
        self.first_B, self.varlen = first_B, varlen
        slot = torch.full((1,), used - 1, device=first_B.device)
        self.slot = slot if slot.is_cuda else used - 1  # a CUDA graph reads it from the device

    def make_room(self, rows_B: torch.Tensor, used: int, capacity: int) -> None:
        """Grow to `capacity` slots; keep the first `used` of these rows, in this order."""
        self.first_B = self.first_B[rows_B]
        for layer in self.layers:
            for name in ("keys", "values"):
                old = getattr(layer, name)[:, :, :used]
                new = old.new_empty(len(rows_B), old.shape[1], capacity, old.shape[3])
                torch.index_select(old, 0, rows_B, out=new[:, :, :used])
                new[:, :, used:] = 0  # uninitialised memory times a masked slot's 0 may be NaN
                setattr(layer, name, new)
        if self.varlen:
            self.sequences = sequences(self.first_B, *new.shape[1:3])

    def update(self, keys, values, layer_idx, *args, **kwargs):
        """Store the keys and values of one token a row; return those of all slots, because a CPU
        reads a part, which is not contiguous, half as fast."""
        layer = self.layers[layer_idx]
        for cached, new in ((layer.keys, keys), (layer.values, values)):
            if cached.is_cuda:
                cached.index_copy_(2, self.slot, new)
            else:  # five times as fast
                cached[:, :, self.slot : self.slot + 1] = new
        return layer.keys, layer.values

    def inputs(self, dtype: torch.dtype) -> dict:
        """Make a model's arguments for the next token of each row."""
        H_kv, S = self.layers[0].keys.shape[1:3]
        position_B_1 = (self.slot - self.first_B)[:, None]
        inputs = {"position_ids": position_B_1, "past_key_values": self}
        if self.varlen:  # models pass on what they do not know, and any 4-D mask, to `attend`
            used = (position_B_1[:, 0] + 1).int().repeat_interleave(H_kv)
            inputs |= {"slots_in_use": (*self.sequences, used, S)}
            return inputs | {"attention_mask": position_B_1[None, None]}
        return inputs | {"attention_mask": mask_slots(self.first_B, self.slot, S, dtype)}


def mask_slots(first_B: torch.Tensor, slot: torch.Tensor | int, S: int, dtype) -> torch.Tensor:
    """Return what SDPA adds to the scores of S slots: (B, 1, 1, S)."""
    slots = torch.arange(S, device=first_B.device)
    mask = torch.where((slots >= first_B[:, None]) & (slots <= slot), 0.0, -torch.inf)
    return mask.to(dtype)[:, None, None]


def sequences(first_B: torch.Tensor, H_kv: int, S: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Describe a cache as B * H_kv sequences for flash attention: where each begins in the queries,
    and in the B * H_kv * S slots."""
    query_start = torch.arange(len(first_B) * H_kv + 1, device=first_B.device, dtype=torch.int32)
    start = query_start * S
    start[:-1] += first_B.repeat_interleave(H_kv)
    return query_start, start


def check_finite(logp_B_T: torch.Tensor) -> None:
    """Raise NonFiniteError if logits were not finite: then the log-probs of the tokens are not."""
    damaged_B_T = ~logp_B_T.isfinite()
    if damaged_B_T.any():
        row, token = damaged_B_T.nonzero()[0].tolist()
        where = f"completion token {token} of row {row} of a micro-batch"
        cause = "an update diverged, or the model's numbers are too large for its dtype"
        raise NonFiniteError(f"the model's logits are not finite ({where}): {cause}")


class Recorder:
    """Recorder of a model's decoding steps as CUDA graphs, in one memory pool."""

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
                # PyTorch before 2.13 leaves the allocator as during a capture, in which it does not
                # free its cache and try again when memory runs out. Later versions raise here.
                with suppress(RuntimeError):
                    torch._C._cuda_endAllocateToPool(self.stream.device_index, self.pool)
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


def attend(module, query, key, value, attention_mask, scaling=None, slots_in_use=None, **kwargs):
    """Compute transformers' SDPA, without copying the cache for one query token a row.

    query (B, H, T, D), key and value (B, H_kv, S, D). Given a mask, transformers 5.17 copies keys
    and values for all H heads. Here the H / H_kv heads that share a key are rows of one query."""
    B, H, T, D = query.shape
    if T > 1:
        arguments = (module, query, key, value, attention_mask)
        return sdpa_attention_forward(*arguments, scaling=scaling, **kwargs)
    query = query.reshape(B, key.shape[1], -1, D)
    if slots_in_use:
        out = attend_to_slots(query, key, value, scaling, *slots_in_use)
    elif query.is_cpu and attention_mask is not None:  # SDPA is slow with many small matrices
        scores = (query * (scaling or D**-0.5)) @ key.mT + attention_mask
        out = scores.softmax(dim=-1) @ value
    else:
        out = scaled_dot_product_attention(query, key, value, attention_mask, scale=scaling)
    return out.reshape(B, 1, H, value.shape[-1]), None


def attend_to_slots(query, key, value, scaling, query_start, start, used, S: int):
    """Attend to `used` slots from `start` on, by flash attention. A sequence has one key head: with
    more of them PyTorch would copy the query and the output, twice each."""
    from torch.nn.attention.varlen import varlen_attn_out  # PyTorch 2.11 lacks it

    queries = query.flatten(0, 1)
    keys, values = key.reshape(-1, 1, key.shape[-1]), value.reshape(-1, 1, value.shape[-1])
    out = torch.empty_like(queries, memory_format=torch.contiguous_format)
    options = {"scale": scaling, "enable_gqa": True, "seqused_k": used}
    varlen_attn_out(out, queries, keys, values, query_start, start, 1, S, **options)
    return out.view(query.shape)


AttentionInterface.register("grouped_sdpa", attend)
AttentionMaskInterface.register("grouped_sdpa", sdpa_mask)


def attention_for(device) -> str:
    """Choose flash-attn where it is installed and the card is Ampere or newer, else SDPA with each
    prompt once."""
    installed = device.type == "cuda" and is_flash_attn_2_available()
    supported = installed and torch.cuda.get_device_capability(device) >= (8, 0)
    return "flash_attention_2" if supported else "shared_prompts"


# Faster kernels, where they compute the same on this card and with these versions


def outputs_match(new: Callable, old: Callable, *arguments) -> bool:
    """Whether the numbers, of the order 1, that two functions return differ by few roundings."""
    try:
        pairs = zip(new(*arguments), old(*arguments), strict=True)
        pairs = ((a.cpu().float(), b.cpu().float()) for a, b in pairs)
        return all(torch.allclose(a, b, rtol=0.03, atol=0.03) for a, b in pairs)
    except Exception:  # a kernel may not support the card, a model's function take other arguments
        return False


def random_numbers(like: PreTrainedModel | torch.Tensor, *shape: int) -> torch.Tensor:
    """Return numbers like the activations of a model, on its device and of its dtype."""
    generator = torch.Generator().manual_seed(sum(shape))
    return torch.randn(shape, generator=generator).to(like.device, like.dtype)


def varlen_works(lm: PreTrainedModel) -> bool:
    """Whether attend_to_slots can replace SDPA with a mask."""
    config, S = lm.config.get_text_config(), 2304  # as long as in a run: kernels split long caches
    H = config.num_attention_heads
    H_kv = getattr(config, "num_key_value_heads", None) or H  # GPT-2 has no such setting
    D = getattr(config, "head_dim", None) or config.hidden_size // H
    query, *cache = (random_numbers(lm, 2, H_kv, n, D) for n in (H // H_kv, S, S))
    query *= 3  # so that few slots decide: the mean of many would be near 0 with any kernel
    first_B, slot = torch.tensor([700, 0], device=lm.device), torch.tensor([2200], device=lm.device)
    used = (slot + 1 - first_B).int().repeat_interleave(H_kv)
    return outputs_match(
        lambda: attend_to_slots(query, *cache, None, *sequences(first_B, H_kv, S), used, S),
        lambda: scaled_dot_product_attention(query, *cache, mask_slots(first_B, slot, S, lm.dtype)),
    )


def fusions(lm: PreTrainedModel) -> AbstractContextManager:
    """Return a context in which layers call `rotate`, if it computes what their function does."""
    arguments = [random_numbers(lm, 2, heads, 1, 32) for heads in (6, 2)]
    arguments += [random_numbers(lm, n, 1, 32)[:2] for n in (2, 3)]  # cos and sin
    module = sys.modules[type(lm).__module__]
    same = outputs_match(rotate, getattr(module, "apply_rotary_pos_emb", None), *arguments)
    return patch.object(module, "apply_rotary_pos_emb", rotate) if same else nullcontext()


def fuse_norms(model: torch.nn.Module) -> None:
    """Let RMS norms call torch's fused kernel, in place, where it computes the same output and, if
    the model is trained, gradient of the input: 3 launches instead of 26."""
    trained = any(p.requires_grad for p in model.parameters())

    def numbers(forward, norm) -> tuple[torch.Tensor, ...]:
        x = random_numbers(norm.weight, 4, norm.weight.numel()).requires_grad_(trained)
        out = forward(norm, x)
        return out, *(torch.autograd.grad(out, x, x.detach().flip(0)) if trained else ())

    for norm in model.modules():
        new, own = partial(numbers, normalize), partial(numbers, type(norm).forward)
        if type(norm).__name__.endswith("RMSNorm") and outputs_match(new, own, norm):
            norm.forward = MethodType(normalize, norm)


def normalize(norm, hidden: torch.Tensor) -> torch.Tensor:
    """Compute a transformers RMSNorm with 1 kernel instead of 8."""
    return rms_norm(hidden, norm.weight.shape, norm.weight, norm.variance_epsilon)


def rotate(q, k, cos, sin, unsqueeze_dim=1) -> tuple[torch.Tensor, torch.Tensor]:
    """Compute transformers' apply_rotary_pos_emb with 4 kernels instead of 10. Heads are dimension
    `unsqueeze_dim`; of a head's dimensions, as many are rotated as cos has."""
    cos, sin, n = cos.unsqueeze(unsqueeze_dim), sin.unsqueeze(unsqueeze_dim), cos.shape[-1]
    x = torch.cat((q, k), dim=unsqueeze_dim)
    first, second, rest = x.split((n // 2, n // 2, x.shape[-1] - n), dim=-1)
    out = x[..., :n] * cos
    out[..., : n // 2].addcmul_(second, sin[..., : n // 2], value=-1)
    out[..., n // 2 :].addcmul_(first, sin[..., n // 2 :])
    out = torch.cat((out, rest), dim=-1) if rest.numel() else out
    heads = q.shape[unsqueeze_dim], k.shape[unsqueeze_dim]
    return out.to(q.dtype).split(heads, dim=unsqueeze_dim)

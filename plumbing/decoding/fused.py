"""Faster kernels, where they compute the same on this card and with these versions."""

import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from types import MethodType

import torch
from torch.nn.functional import rms_norm, scaled_dot_product_attention
from transformers import PreTrainedModel

from plumbing.decoding.cache import attend_to_slots, mask_slots, sequences, used_slots


def outputs_match(new: Callable, old: Callable, *arguments) -> bool:
    """Whether the numbers, of the order 1, that two functions return differ by few roundings."""
    try:
        for a, b in zip(new(*arguments), old(*arguments), strict=True):
            a = a.cpu().float()
            b = b.cpu().float()
            if not torch.allclose(a, b, rtol=0.03, atol=0.03):
                return False
    except Exception:  # a kernel may not support the card, a model's function take other arguments
        return False
    return True


def random_numbers(like: PreTrainedModel | torch.Tensor, *shape: int) -> torch.Tensor:
    """Return numbers like the activations of a model, on its device and of its dtype."""
    generator = torch.Generator()
    generator.manual_seed(sum(shape))
    numbers = torch.randn(shape, generator=generator)
    return numbers.to(like.device, like.dtype)


def varlen_works(lm: PreTrainedModel) -> bool:
    """Whether attend_to_slots can replace SDPA with a mask."""
    H, H_kv, D = attention_shape(lm)
    S = 2304  # as long as in a run: kernels split long caches
    key = random_numbers(lm, 2, H_kv, S, D)
    value = key
    # Times 3, so that few slots decide: the mean of many would be near 0 with any kernel.
    query = random_numbers(lm, 2, H_kv, H // H_kv, D) * 3
    first_B = torch.tensor([700, 0], device=lm.device)
    slot = torch.tensor([2200], device=lm.device)

    def by_slots() -> torch.Tensor:
        position_B = slot - first_B
        query_start, start = sequences(first_B, H_kv, S)
        return attend_to_slots(
            query,
            key,
            value,
            scaling=None,
            query_start=query_start,
            start=start,
            used=used_slots(position_B, H_kv),
            S=S,
        )

    def by_mask() -> torch.Tensor:
        mask = mask_slots(first_B, slot, S, lm.dtype)
        return scaled_dot_product_attention(query, key, value, mask)

    return outputs_match(by_slots, by_mask)


def attention_shape(lm: PreTrainedModel) -> tuple[int, int, int]:
    """Return a layer's number of query heads H and of key heads H_kv, and their dimension D."""
    config = lm.config.get_text_config()
    H = config.num_attention_heads
    H_kv = getattr(config, "num_key_value_heads", None) or H  # GPT-2 has no such setting
    D = getattr(config, "head_dim", None) or config.hidden_size // H
    return H, H_kv, D


# Rotary embeddings


class FusedRotary(AbstractContextManager):
    """A context in which the model's layers call `rotate`, if it computes what their function does.
    It can be entered again."""

    def __init__(self, lm: PreTrainedModel):
        name = type(lm).__module__
        self.module = sys.modules[name]
        self.own = getattr(self.module, "apply_rotary_pos_emb", None)
        q = random_numbers(lm, 2, 6, 1, 32)
        k = random_numbers(lm, 2, 2, 1, 32)
        cos = random_numbers(lm, 2, 1, 32)
        sin = cos.flip(0)
        self.works = outputs_match(rotate, self.own, q, k, cos, sin)

    def __enter__(self) -> None:
        if self.works:
            self.module.apply_rotary_pos_emb = rotate

    def __exit__(self, *_) -> None:
        if self.works:
            self.module.apply_rotary_pos_emb = self.own


def rotate(q, k, cos, sin, unsqueeze_dim=1) -> tuple[torch.Tensor, torch.Tensor]:
    """Compute transformers' apply_rotary_pos_emb with 4 kernels instead of 10. Heads are dimension
    `unsqueeze_dim`; of a head's dimensions, as many are rotated as cos has."""
    n = cos.shape[-1]
    D = q.shape[-1]
    H = q.shape[unsqueeze_dim]
    H_kv = k.shape[unsqueeze_dim]
    x = torch.cat((q, k), dim=unsqueeze_dim)
    rotated, rest = x.split([n, D - n], dim=-1)
    left, right = rotated.tensor_split(2, dim=-1)
    cos = cos.unsqueeze(unsqueeze_dim)
    sin = sin.unsqueeze(unsqueeze_dim)
    sin_left, sin_right = sin.tensor_split(2, dim=-1)
    out = rotated * cos
    out_left, out_right = out.tensor_split(2, dim=-1)
    out_left.addcmul_(right, sin_left, value=-1)
    out_right.addcmul_(left, sin_right)
    if n < D:
        out = torch.cat((out, rest), dim=-1)
    out = out.to(q.dtype)
    return out.split([H, H_kv], dim=unsqueeze_dim)


# RMS norms


def fuse_norms(model: torch.nn.Module) -> None:
    """Let RMS norms call torch's fused kernel, in place, where it computes the same output and, if
    the model is trained, gradient of the input: 3 launches instead of 26."""
    trained = any(p.requires_grad for p in model.parameters())
    for norm in model.modules():
        kind = type(norm)
        if not kind.__name__.endswith("RMSNorm"):
            continue
        new = partial(_output_and_gradient, normalize)
        own = partial(_output_and_gradient, kind.forward)
        if outputs_match(new, own, norm, trained):
            norm.forward = MethodType(normalize, norm)


def normalize(norm, hidden: torch.Tensor) -> torch.Tensor:
    """Compute a transformers RMSNorm with 1 kernel instead of 8."""
    weight = norm.weight
    return rms_norm(hidden, weight.shape, weight, norm.variance_epsilon)


def _output_and_gradient(forward: Callable, norm, trained: bool) -> list[torch.Tensor]:
    """Return what `forward` computes of random numbers, and if trained, its gradient."""
    weight = norm.weight
    D = weight.numel()
    x = random_numbers(weight, 4, D)
    x.requires_grad_(trained)
    out = forward(norm, x)
    if not trained:
        return [out]
    grad_out = x.detach().flip(0)
    (grad_x,) = torch.autograd.grad(out, x, grad_out)
    return [out, grad_x]

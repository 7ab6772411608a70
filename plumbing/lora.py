"""LoRA (App. L.3): low-rank updates of frozen linear layers, and their merge into the weights."""

import math

import torch
from torch import nn

from plumbing.errors import InputError

LORA_RANK = 256
LORA_ALPHA = 512
LORA_DROPOUT = 0.01


class LoRALinear(nn.Module):
    """W x + (α/r) B A dropout(x), with W frozen and B = 0 at the start."""

    def __init__(self, base: nn.Linear, rank=LORA_RANK, alpha=LORA_ALPHA, dropout=LORA_DROPOUT):
        super().__init__()
        self.base = base
        self.scale = alpha / rank
        self.dropout = nn.Dropout(dropout)
        W = base.weight
        D_out, D_in = W.shape
        A = torch.empty(rank, D_in, dtype=W.dtype)
        B = torch.zeros(D_out, rank, dtype=W.dtype)
        nn.init.kaiming_uniform_(A, a=math.sqrt(5))
        self.A = nn.Parameter(A)
        self.B = nn.Parameter(B)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        Wx = self.base(x)
        x = self.dropout(x)
        Ax = x @ self.A.T
        BAx = Ax @ self.B.T
        return Wx + self.scale * BAx


def add_lora(backbone: nn.Module) -> None:
    """Freeze the backbone and wrap each nn.Linear in a LoRALinear, in place. Other layers, such as
    GPT-2's Conv1D and fused experts, stay frozen. Raises InputError if there is no nn.Linear."""
    backbone.requires_grad_(False)
    wrapped = 0
    for module in list(backbone.modules()):
        for name, child in module.named_children():
            if isinstance(child, nn.Linear):
                layer = LoRALinear(child)
                setattr(module, name, layer)
                wrapped += 1
    if wrapped == 0:
        raise InputError("--teacher_mode lora: the teacher has no nn.Linear; choose another mode")


def merge_lora(weights: dict[str, torch.Tensor], model: nn.Module) -> None:
    """Replace, in a model's state dict, the weights of each LoRALinear by those of the nn.Linear
    that computes the same."""
    for name, layer in model.named_modules():
        if not isinstance(layer, LoRALinear):
            continue
        A = weights.pop(f"{name}.A")
        B = weights.pop(f"{name}.B")
        W = weights.pop(f"{name}.base.weight")
        scaled_B = layer.scale * B
        weights[f"{name}.weight"] = W + scaled_B @ A
        if layer.base.bias is not None:
            bias = weights.pop(f"{name}.base.bias")
            weights[f"{name}.bias"] = bias

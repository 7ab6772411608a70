"""LoRA (App. L.3): low-rank updates of frozen linear layers, and their merge into the weights."""

import math

import torch
from torch import nn

from plumbing.errors import InputError


class LoRALinear(nn.Linear):
    """W x + b + (α/r) B A dropout(x). W and b, those of `base`, are frozen; B is 0 at the start."""

    def __init__(
        self,
        base: nn.Linear,
        rank=256,
        alpha=512,
        dropout=0.01,
    ):
        super().__init__(base.in_features, base.out_features, device="meta")
        self.weight = base.weight
        self.bias = base.bias
        self.scale = alpha / rank
        self.dropout = nn.Dropout(dropout)
        A = torch.empty(rank, base.in_features)
        B = torch.zeros(base.out_features, rank)
        nn.init.kaiming_uniform_(A, a=math.sqrt(5))
        self.A = nn.Parameter(A)
        self.B = nn.Parameter(B)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        Wx = super().forward(x)
        Ax = self.dropout(x) @ self.A.T
        BAx = Ax @ self.B.T
        return Wx + self.scale * BAx


def add_lora(backbone: nn.Module) -> None:
    """Freeze the backbone and replace each nn.Linear by a LoRALinear, in place. Other layers, such
    as GPT-2's Conv1D and fused experts, stay frozen. Raises InputError if there is no nn.Linear:
    the head alone would be trained."""
    backbone.requires_grad_(False)
    linear = {}
    for name, module in backbone.named_modules():
        if isinstance(module, nn.Linear):
            linear[name] = module
    if not linear:
        raise InputError("--teacher_mode lora: the teacher has no nn.Linear; choose another mode")
    for name, layer in linear.items():
        backbone.set_submodule(name, LoRALinear(layer))


def set_dropout(model: nn.Module, active: bool) -> None:
    """Switch the dropout of LoRALinear layers on or off, and nothing else: in train mode a router
    of the backbone may add noise."""
    for layer in model.modules():
        if isinstance(layer, LoRALinear):
            layer.train(active)


def merge_lora(weights: dict[str, torch.Tensor], model: nn.Module) -> None:
    """Replace, in a model's state dict, the weights of each LoRALinear by those of the nn.Linear
    that computes the same."""
    for name, layer in model.named_modules():
        if isinstance(layer, LoRALinear):
            A = weights.pop(f"{name}.A")
            B = weights.pop(f"{name}.B")
            W = weights[f"{name}.weight"]
            update = layer.scale * B @ A
            weights[f"{name}.weight"] = W + update

"""A small student for checkpoints, and states that have been in one."""

import torch

from plumbing.run import checkpoint
from plumbing.run.checkpoint import TrainedModel, TrainedModels


def trained(width=2) -> TrainedModels:
    """Make a student with an optimizer that has taken a step."""
    model = torch.nn.Linear(width, width)
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.ones(1, width)).sum().backward()
    optimizer.step()
    return {"student": TrainedModel(model, optimizer, checksum=lambda: 1, export=None)}


def through_file(state: dict) -> dict:
    """Return a sampler's state as a checkpoint holds it."""
    return checkpoint.unpack(checkpoint.pack(state))

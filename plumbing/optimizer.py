"""The Teacher's AdamW: many small steps, of which the host waits for none."""

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import DTensor


class ShardedAdamW(torch.optim.AdamW):
    """AdamW of parameters that FSDP may have sharded, without weight decay.

    group: the ranks that hold the shards; None if each rank holds all of every parameter. Once a
    gradient was not finite, all further steps change nothing."""

    def __init__(self, parameters: list[nn.Parameter], learning_rate: float, group=None):
        super().__init__(parameters, lr=learning_rate, weight_decay=0.0, fused=True)
        self.parameters = parameters
        self.group = group
        # torch's name: its fused kernels, where this is 1, leave weights and moments as they are.
        # So the device itself skips a bad step. To decide it on the host, the host would wait for
        # the gradient at each step, and the device then for the host.
        self.found_inf = torch.zeros((), device=parameters[0].device)

    def checked_step(self) -> torch.Tensor:
        """Take a step if this and all earlier gradients are finite; clear the gradient. Returns its
        norm, which is the same on all ranks, on the device."""
        norm = self._gradient_norm()
        is_bad = ~norm.isfinite()
        self.found_inf = torch.maximum(self.found_inf, is_bad)  # once 1, always 1
        self.step()
        self.zero_grad()
        return norm

    @torch.no_grad()  # else to_local builds a graph
    def _gradient_norm(self) -> torch.Tensor:
        """Compute the norm of the whole gradient."""
        shards = [local_shard(parameter.grad) for parameter in self.parameters]
        norm = nn.utils.get_total_norm(shards)
        if self.group:
            dist.all_reduce(norm.square_(), group=self.group)
            norm.sqrt_()
        return norm

    def _init_group(self, group: dict, *lists: list[torch.Tensor]) -> bool:
        """Fill the lists that torch hands to its kernel: parameters, gradients, moments and counts
        of steps. They get shards in place of DTensors, of which a model has hundreds: operations
        on these cost more host time."""
        has_complex = super()._init_group(group, *lists)
        for tensors in lists:
            tensors[:] = map(local_shard, tensors)
        return has_complex


def local_shard(tensor: torch.Tensor) -> torch.Tensor:
    """Return this rank's part of a tensor that FSDP may have sharded."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor

"""Process roles, groups, devices, and collectives."""

import ctypes
import math
import os
from collections import Counter
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard

from plumbing.config import Config
from plumbing.distributed.launch import launch
from plumbing.errors import Fault, InputError
from plumbing.models import dither

GPU_NODE = Path("/dev/nvidiactl")


class Layout:
    """The role, device and process group of this rank. roles: the ranks of the students, then those
    of the teachers. group_of_role(roles, rank, timeout) makes this rank's group in `connect`."""

    def __init__(self, config: Config, roles: tuple[range, range], group_of_role: Callable):
        self.world, self.rank, self.local_rank = launch()
        self.roles = roles
        self.group_of_role = group_of_role
        self.n_students, self.n_teachers = map(len, roles)
        self.is_teacher = self.rank >= self.n_students
        self.rank_in_role = self.rank - self.n_students * self.is_teacher
        self.first = self.rank_in_role == 0
        self.device = torch.device(device_type(config.device))
        if self.device.type == "cuda":  # a student and a teacher may share a GPU
            self.device = torch.device("cuda", self.local_rank % torch.cuda.device_count())
        in_bf16 = self.device.type == "cuda" or config.bf16
        # Of generation, forward and backward; trained weights are float32.
        self.dtype = torch.bfloat16 if in_bf16 else torch.float32
        self.store: dist.Store | None = None  # where all ranks meet, once connected
        self.stopping = False  # whether this rank has received a signal to stop

    def connect(self, timeout_minutes: float) -> None:
        """Join the other ranks; build this role's process group and device mesh."""
        cuda = self.device.type == "cuda"
        if cuda:
            # Segments of fixed size fragment where each step has other lengths.
            os.environ.setdefault("PYTORCH_ALLOC_CONF", "expandable_segments:True")
            torch.cuda.set_device(self.device)
        else:
            _prepare_cpu()
        timeout = timedelta(minutes=timeout_minutes)
        self.store = self._join_store(timeout)
        dist.init_process_group(
            # Control messages are CPU tensors over gloo, weights and gradients go over NCCL.
            backend="cpu:gloo,cuda:nccl" if cuda else "gloo",
            rank=self.rank,
            world_size=self.world,
            timeout=timeout,
            store=self.store,
        )
        self.group = self.group_of_role(self.roles, self.rank, timeout)
        self.mesh = DeviceMesh.from_group(self.group, self.device.type)

    def _join_store(self, timeout: timedelta) -> dist.Store:
        """Return the store over which all ranks meet."""
        if self.world == 1:
            return dist.HashStore()
        # torchrun's store exists before its ranks do, unless torchrun has died since. PyTorch
        # makes two attempts of this length.
        store, _, _ = next(dist.rendezvous("env://", timeout=timedelta(seconds=30)))
        store.set_timeout(timeout)
        # After `torchrun --max-restarts` the keys of the previous start must not be visible.
        start = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
        return dist.PrefixStore(start, store)

    def shard(self, model: nn.Module, float32=(), units: int | None = None) -> None:
        """Apply FSDP2 over this role's ranks: float32 weights, dithered for bf16, and reduction.

        Decoder layers form `units` units, or one each; embedding, norm and head another. A unit
        costs host time, and memory for its gradients. Modules in `float32` compute in float32."""
        if dist.get_world_size(self.group) == 1 and self.dtype == torch.float32:
            return  # a GPU's models are always wrapped: that casts their weights
        if self.dtype == torch.bfloat16:
            dither(model)
        stacks = (module for module in model.modules() if isinstance(module, nn.ModuleList))
        layers = list(next(stacks))  # the outermost
        size = math.ceil(len(layers) / (units or len(layers)))
        shared = {"mesh": self.mesh, "reshard_after_forward": False}
        for module in float32:
            fully_shard(module, **shared)
        policy = MixedPrecisionPolicy(param_dtype=self.dtype, reduce_dtype=torch.float32)
        for start in range(0, len(layers), size):
            fully_shard(layers[start : start + size], mp_policy=policy, **shared)
        fully_shard(model, mp_policy=policy, **shared)

    def set_gradient_sync(self, model: nn.Module, last: bool) -> None:
        """Let the next backward of students add up their gradients only if it is the `last` of a
        step: ranks have different numbers of micro-batches."""
        if isinstance(model, FSDPModule):  # not on a single CPU rank
            model.set_requires_gradient_sync(last or self.n_students == 1)
            model.set_reshard_after_backward(last)

    def gather_world(self, mine) -> list:
        """Return the objects of all ranks of both roles, in order. Also a barrier."""
        return _gather(mine, dist.group.WORLD)

    def gather_role(self, mine) -> list:
        """Return the objects of this role's ranks, in order. Also a barrier of the role."""
        return _gather(mine, self.group)

    def share(self, rows: list) -> tuple[int, list]:
        """Return where this student rank's contiguous part of `rows` begins, and the part."""
        n = len(rows)
        first = n * self.rank // self.n_students
        end = n * (self.rank + 1) // self.n_students
        return first, rows[first:end]

    def on_rank_0(self, function: Callable):
        """Call function() on rank 0; return its result on all ranks. Raises InputError on all ranks
        if it raises ValueError or OSError."""
        result = None
        if self.rank == 0:
            try:
                result = function()
            except (ValueError, OSError) as error:
                result = InputError(str(error) or repr(error))
        result, *_ = self.gather_world(result)
        if isinstance(result, InputError):
            raise result
        return result

    def sum(self, numbers: dict[str, float]) -> dict[str, float]:
        """Sum each number over this role's ranks, which all pass the same names."""
        sums = Counter()
        for part in self.gather_role(numbers):
            sums.update(part)  # adds them
        return dict(sums)

    def assert_equal_in_world(self, values: dict) -> None:
        """Raise Fault if ranks pass different values under one name."""
        _assert_equal(self.gather_world(values))

    def assert_equal_in_role(self, values: dict) -> None:
        """Raise Fault if ranks of this role pass different values under one name."""
        _assert_equal(self.gather_role(values))


def _prepare_cpu() -> None:
    # AdamW would take memory of the first GPU, also for weights on the CPU.
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
    # glibc gives freed memory back at once: page faults would take a tenth of a step.
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt:
        mallopt(-1, 2**31 - 1)  # M_TRIM_THRESHOLD
        mallopt(-3, 2**25)  # M_MMAP_THRESHOLD


def _gather(mine, group) -> list:
    parts = [mine] * dist.get_world_size(group)
    # Not for one rank: gloo's thread would start OpenMP threads, which stop ours from spinning.
    if len(parts) > 1:
        dist.all_gather_object(parts, mine, group=group)
    return parts


def _assert_equal(parts: list[dict]) -> None:
    first = {}  # by name: the first rank that has it, and its value
    for rank, part in enumerate(parts):
        for name, value in part.items():
            holder, held = first.setdefault(name, (rank, value))
            if value != held:
                raise Fault(
                    f"{name}: ranks {holder} and {rank} differ: {held!r:.60} and {value!r:.60}"
                )


def device_type(wanted: str) -> str:
    """Return "cpu" or "cuda" for --device. Raises ValueError if torch can use no GPU, but one is
    wanted, or this machine has one that is not hidden: a large model would train on the CPU."""
    if wanted == "cpu":
        return "cpu"
    if torch.cuda.is_available():
        return "cuda"
    hidden = os.environ.get("CUDA_VISIBLE_DEVICES") in ("", "-1")
    if wanted == "auto" and (hidden or not GPU_NODE.exists()):
        return "cpu"
    raise ValueError(
        f"--device {wanted}: torch {torch.__version__} can use no GPU here; or add --device cpu"
    )

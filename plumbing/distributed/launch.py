"""What torchrun tells its processes through environment variables."""

import os
from typing import NamedTuple

from plumbing.errors import InputError

NEEDED = ("RANK", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")  # by ranks that are not alone


class Launch(NamedTuple):
    """How many ranks there are, here and on all machines, and which of them this process is."""

    world: int = 1
    rank: int = 0
    local_world: int = 1
    local_rank: int = 0


def launch() -> Launch:
    """Read the environment; a process without torchrun is a single rank. An empty variable is taken
    as not set. Raises InputError if a value is no number or out of range, or others are missing."""
    world = _number("WORLD_SIZE", 1)
    rank = _number("RANK", 0)
    local_rank = _number("LOCAL_RANK", 0)
    local_world = _number("LOCAL_WORLD_SIZE", local_rank + 1 if world > 1 else 1)
    missing = [name for name in NEEDED if not os.environ.get(name)]
    if world > 1 and missing:
        raise InputError(
            f"WORLD_SIZE={world} is set, but not {', '.join(missing)}: "
            f"start with torchrun --nproc_per_node {world} train.py, or unset WORLD_SIZE"
        )
    _check_below("RANK", rank, "WORLD_SIZE", world)
    _check_below("LOCAL_RANK", local_rank, "LOCAL_WORLD_SIZE", local_world)
    return Launch(
        world=world,
        rank=rank,
        local_world=min(local_world, world),
        local_rank=local_rank,
    )


def lacks_launcher() -> bool:
    """Return whether srun or mpirun has started this process beside others, without torchrun."""
    sizes = ("SLURM_STEP_NUM_TASKS", "SLURM_NTASKS", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE")
    several = any(os.environ.get(name, "1") not in ("", "0", "1") for name in sizes)
    return several and not os.environ.get("RANK")


def _number(name: str, default: int) -> int:
    text = os.environ.get(name) or str(default)
    least = int(name.endswith("SIZE"))
    if not text.isdecimal() or int(text) < least:
        raise InputError(
            f"{name}={text}: must be a whole number from {least} on; "
            "start with torchrun, which sets it, or unset it"
        )
    return int(text)


def _check_below(name: str, number: int, size_name: str, size: int) -> None:
    if number >= size:
        raise InputError(
            f"{name}={number}: must be below {size_name}, {size}: "
            f"start with torchrun, or unset {name}"
        )

"""What torchrun tells its processes through environment variables."""

import os
from typing import NamedTuple


class Launch(NamedTuple):
    """How many ranks there are on all machines, and which of them this process is."""

    world: int
    rank: int
    local_rank: int


def launch() -> Launch:
    """Read the environment; a process without torchrun is a single rank. Raises ValueError if a
    value is no number, or the rank is not below the number of ranks."""
    world = int(os.environ.get("WORLD_SIZE", 1))
    rank = int(os.environ.get("RANK", 0))
    local_rank = int(os.environ.get("LOCAL_RANK", 0))
    if not 0 <= rank < world:
        raise ValueError(f"RANK={rank}, WORLD_SIZE={world}: start with torchrun, or unset both")
    return Launch(world, rank, local_rank)

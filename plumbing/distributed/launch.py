"""What torchrun tells its processes through environment variables."""

import os
from typing import NamedTuple

from plumbing.errors import InputError


class Launch(NamedTuple):
    """How many ranks there are, here and on all machines, and which of them this process is."""

    world: int = 1
    rank: int = 0
    local_world: int = 1
    local_rank: int = 0


def launch() -> Launch:
    """Read the environment; a process without torchrun is a single rank. An empty variable is taken
    as not set. Raises ValueError if a value is no number, or a rank is not below its number."""

    def read(name: str, default: int) -> int:
        return int(os.environ.get(name) or default)

    world = read("WORLD_SIZE", 1)
    rank = read("RANK", 0)
    local_rank = read("LOCAL_RANK", 0)
    local_world = min(world, read("LOCAL_WORLD_SIZE", local_rank + 1))
    place = Launch(world, rank, local_world, local_rank)
    if not (0 <= rank < world and 0 <= local_rank < local_world):
        raise InputError(f"{place}: start with torchrun, or unset RANK, WORLD_SIZE and LOCAL_RANK")
    return place

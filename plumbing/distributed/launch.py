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
    as not set. Raises InputError if a value is no number, or out of range."""
    world, rank, local_rank = _number("WORLD_SIZE", 1), _number("RANK", 0), _number("LOCAL_RANK", 0)
    local_world = min(_number("LOCAL_WORLD_SIZE", local_rank + 1), world)
    if not (0 <= rank < world and 0 <= local_rank < local_world):
        raise InputError(
            f"RANK={rank}, WORLD_SIZE={world}, LOCAL_RANK={local_rank}, LOCAL_WORLD_SIZE="
            f"{local_world}: a rank is not below its number: start with torchrun, or unset them"
        )
    return Launch(world, rank, local_world, local_rank)


def _number(name: str, default: int) -> int:
    try:
        return int(os.environ.get(name) or default)
    except ValueError as error:
        raise InputError(f"{name}: {error}: start with torchrun, or unset it") from error

"""What torchrun tells its processes through environment variables."""

import os
from typing import NamedTuple
from unittest.mock import patch


class Launch(NamedTuple):
    """How many ranks there are on all machines, and which of them this process is."""

    world: int
    rank: int
    local_rank: int


def launch() -> Launch:
    """Read the environment; a process without torchrun is a single rank. Raises ValueError if a
    value is no number, the rank is not below the number of ranks, or several ranks have no place to
    meet."""
    world = number("WORLD_SIZE", "1")
    rank = number("RANK", "0")
    local_rank = number("LOCAL_RANK", "0")
    if not 0 <= rank < world:
        raise ValueError(f"RANK={rank}, WORLD_SIZE={world}: start with torchrun, or unset both")
    if world > 1:
        if not os.environ.get("MASTER_ADDR"):
            raise ValueError(f"WORLD_SIZE={world} without MASTER_ADDR: start with torchrun")
        number("MASTER_PORT")
    return Launch(world, rank, local_rank)


def as_rank_0_of(world: int):
    """Return a context in which `launch` answers as rank 0 of so many would, for estimates of jobs
    on other machines."""
    variables = {"WORLD_SIZE": str(world), "RANK": "0", "LOCAL_RANK": "0"}
    return patch.dict(os.environ, variables, MASTER_ADDR="localhost", MASTER_PORT="0")


def number(name: str, default: str = "") -> int:
    """Return the number in an environment variable. Raises ValueError if it is none."""
    text = os.environ.get(name, default)
    try:
        return int(text)
    except ValueError:
        text = f"{name}={text!r}: must be a number: start with torchrun"
        raise ValueError(text) from None

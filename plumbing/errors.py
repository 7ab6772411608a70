"""The errors that end a run: each knows its exit status, and which rank says so."""

import sys


class RunError(Exception):
    """A reason that one line can tell. An error of no such class is shown whole.

    speaker: who prints the line: the first rank of the "role" that met it, the first of the "run",
    "each" rank that met it, or the one that speaks "first".
    """

    status = 4
    speaker = "role"


class InputError(RunError, ValueError):
    """The user's data, flags or folder cannot be used: the line says which, why and what to do."""

    status = 2


class Refused(InputError):
    """What the first rank found wrong with the inputs, as all ranks were told."""

    speaker = "run"


class RewardError(InputError):
    """The user's reward function raised, or returned what is neither 0 nor 1."""

    speaker = "each"  # no other rank knows of it


class NonFiniteError(RunError, FloatingPointError):
    """A loss or gradient is not finite, and no update was made with it."""

    status = 3


class Fault(RunError, RuntimeError):
    """The run cannot go on for a reason outside it, which all ranks know of; its checkpoints are
    intact."""

    speaker = "run"


class DiskError(Fault):
    """A file of the run cannot be written or read."""

    speaker = "each"


class Lost(Fault):
    """Another rank, or torchrun's store, cannot be reached any more."""

    speaker = "first"  # of every other kind of error somebody is sure to speak

    def __init__(self, error: object):
        super().__init__(
            f"a rank died, or was waited for longer than --timeout_minutes ({first_lines(error)}); "
            "the same command goes on from the newest checkpoint"
        )


def first_lines(error: object) -> str:
    """The beginning of a message, of which the first line may only introduce the second."""
    return " ".join(str(error).split("\n")[:2]).strip() or type(error).__name__


def say(error: object) -> None:
    """What ended the run, in one line."""
    print("error:", " ".join(str(error).splitlines()), file=sys.stderr, flush=True)

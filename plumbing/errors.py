"""The errors that end a run: a line that says why, and an exit status."""

import sys


class RunError(Exception):
    """A reason that one line can tell: by the first rank that has something to print_error, and by no
    other. An error of no such class is shown whole, by each rank that met it."""

    status = 4


class InputError(RunError, ValueError):
    """The user's data, flags or files cannot be used: the line says which, why and what to do."""

    status = 2


class NonFiniteError(RunError, FloatingPointError):
    """A loss or gradient is not finite, and no update was made with it."""

    status = 3


class Fault(RunError, RuntimeError):
    """The run cannot go on for a reason outside it; its checkpoints are intact."""


class PeerLostError(Fault):
    """Another rank, or torchrun's store, cannot be reached any more."""

    def __init__(self, error: object):
        super().__init__(
            f"a rank died, or was waited for longer than --timeout_minutes ({first_lines(error)}); "
            "the same command goes on from the newest checkpoint"
        )


def first_lines(error: object) -> str:
    """The beginning of a message, of which the first line may only introduce the second."""
    return " ".join(str(error).split("\n")[:2]).strip() or type(error).__name__


def print_error(error: object) -> None:
    """What ended the run, in one line."""
    print("error:", " ".join(str(error).splitlines()), file=sys.stderr, flush=True)

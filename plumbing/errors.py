"""The errors that end a run: each knows its exit status, and which rank says so."""

import sys


class RunError(Exception):
    """A reason that one line can tell. An error of no such class is shown whole."""

    status = 4

    def speaks(self, layout, said: bool) -> bool:
        """Whether this rank prints the line. said: another rank has said why it ended, or is about
        to: of every other kind of error one is sure to."""
        return layout.first  # all ranks of the role know of it, and no others


class InputError(RunError, ValueError):
    """The user's data, flags or folder cannot be used: the line says which, why and what to do."""

    status = 2


class Refused(InputError):
    """What the first rank found wrong with the inputs, as all ranks were told."""

    def speaks(self, layout, said):
        return layout.rank == 0


class RewardError(InputError):
    """The user's reward function raised, or returned what is neither 0 nor 1."""

    def speaks(self, layout, said):
        return True  # only the rank that it happened to knows of it


class NonFiniteError(RunError, FloatingPointError):
    """A loss or gradient is not finite, and no update was made with it."""

    status = 3


class Fault(RunError, RuntimeError):
    """The run cannot go on for a reason outside it; its checkpoints are intact."""

    def speaks(self, layout, said):
        return layout.rank == 0  # all ranks know of it


class DiskError(Fault):
    """A file of the run cannot be written or read."""

    def speaks(self, layout, said):
        return True


class Lost(Fault):
    """Another rank, or torchrun's store, cannot be reached any more."""

    def __init__(self, error: object):
        super().__init__(
            f"a rank died, or was waited for longer than --timeout_minutes ({first_lines(error)}); "
            "the same command goes on from the newest checkpoint"
        )

    def speaks(self, layout, said):
        return not said


def first_lines(error: object) -> str:
    """The beginning of a message, of which the first line may only introduce the second."""
    return " ".join(str(error).split("\n")[:2]).strip() or type(error).__name__


def say(error: object) -> None:
    """What ended the run, in one line."""
    print("error:", " ".join(str(error).splitlines()), file=sys.stderr, flush=True)

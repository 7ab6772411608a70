"""The errors that end a run with one line. Any other is shown whole, by the rank that met it."""


class RunError(Exception):
    """status: the exit status. alone: only the rank that raised it knows, so that it has to speak."""

    status = 4
    alone = False


class InputError(RunError, ValueError):
    """The user's data, flags or folder cannot be used: the line says which, why and what to do."""

    status = 2


class RewardError(InputError):
    """The user's reward function raised, or returned what is neither 0 nor 1."""

    alone = True


class NonFiniteError(RunError, FloatingPointError):
    """A loss or gradient is not finite, and no update was made with it."""

    status = 3


class Fault(RunError, RuntimeError):
    """The run cannot go on for a reason outside it (a full disk, copies that differ); its
    checkpoints are intact."""


def first_lines(error: BaseException) -> str:
    """The beginning of a message, of which the first line may only introduce the second."""
    return " ".join(str(error).split("\n")[:2]).strip() or type(error).__name__

"""Errors that end a run with one line and an exit status."""

import io
import sys


class RunError(Exception):
    """An error that one rank prints in one line. Each rank that raises another error prints it with
    its traceback."""

    status = 4


class InputError(RunError, ValueError):
    """The user's data, flags or files cannot be used. The message names the value and a remedy."""

    status = 2


class NonFiniteError(RunError, FloatingPointError):
    """A loss or gradient is not finite. No checkpoint holds weights that were updated with it."""

    status = 3


class Fault(RunError, RuntimeError):
    """An external reason (full disk, lost rank) ends the run; its checkpoints are intact."""


def escape_output() -> None:
    """Print characters that the output's encoding lacks as escapes; print each line at once. Every
    command calls it, through its parser."""
    if isinstance(sys.stdout, io.TextIOWrapper):  # a notebook's takes any text
        sys.stdout.reconfigure(errors="backslashreplace", line_buffering=True)


def first_lines(error: object) -> str:
    """Return the first two lines of a message as one: the first may only introduce the second."""
    return " ".join(str(error).split("\n")[:2]).strip() or type(error).__name__


def print_error(error: object, source: str = "error") -> None:
    """Print an error to stderr as one line, which begins with its source."""
    print(f"{source}:", " ".join(str(error).splitlines()), file=sys.stderr, flush=True)


def check_finite(logp_B_T) -> None:
    """Raise NonFiniteError if logits were not finite: then the log-probs of the tokens are not."""
    if not logp_B_T.isfinite().all():
        raise NonFiniteError(
            "the model's logits are not finite: an update diverged, --temperature is near 0, or "
            "its dtype is too small for its numbers"
        )

"""Errors that end a run with one line and an exit status."""

import errno
import io
import os
import sys
from contextlib import suppress

READER_GONE = (errno.EPIPE, errno.EIO)  # of `| head -2`; a closed terminal


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
    print_line(f"{source}: {' '.join(str(error).splitlines())}", sys.stderr)


def print_line(text: str, stream=None) -> None:
    """Print to stdout, or another stream, at once. The work goes on where that fails: a run must
    not end because nobody reads it, or because the disk of its log is full."""
    stream = stream or sys.stdout
    try:
        print(text, file=stream, flush=True)
    except OSError as error:
        if error.errno in READER_GONE:
            discard(stream)


def discard(stream) -> None:
    """Drop what a stream still holds, and all that follows: at its exit Python would fail to write
    it, and end with status 120."""
    with suppress(OSError):  # a notebook's stream has no descriptor
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, stream.fileno())
        os.close(null)


def check_finite(logp_B_T) -> None:
    """Raise NonFiniteError if logits were not finite: then the log-probs of the tokens are not."""
    if not logp_B_T.isfinite().all():
        raise NonFiniteError(
            "the model's logits are not finite: an update diverged, --temperature is near 0, or "
            "its dtype is too small for its numbers"
        )

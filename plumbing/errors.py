"""Errors that end a run with one line and an exit status."""

import io
import os
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


class _Output(io.FileIO):
    """Standard output or error. What cannot be written because of one of `ignored` is dropped."""

    ignored: type[OSError] = OSError

    def write(self, data) -> int:
        try:
            return super().write(data) or len(data)  # None: the reader is slow
        except self.ignored:
            return len(data)


def survive_lost_output(ignored: type[OSError] = OSError) -> None:
    """Let prints be dropped where nobody takes them: a run must not end because a pipe or terminal
    was closed, or the disk of its log is full. A command whose output is its result ignores
    BrokenPipeError alone, as in `| head`. Streams that others have replaced stay."""
    for number, name in ((1, "stdout"), (2, "stderr")):
        stream = getattr(sys, name)
        if stream is None:  # closed before Python started: the next file to be opened would be it
            descriptor = os.open(os.devnull, os.O_WRONLY)
            if descriptor != number:
                os.dup2(descriptor, number)
                os.close(descriptor)
        elif stream is not getattr(sys, f"__{name}__"):
            continue
        text = {"encoding": "utf-8", "errors": "backslashreplace"}
        if stream:
            text = {"encoding": stream.encoding, "errors": stream.errors}
        output = _Output(number, "w", closefd=False)
        output.ignored = ignored
        output = io.BufferedWriter(output)
        setattr(sys, name, io.TextIOWrapper(output, **text, line_buffering=True))


def first_lines(error: object) -> str:
    """Return the first two lines of a message as one: the first may only introduce the second."""
    return " ".join(str(error).split("\n")[:2]).strip() or type(error).__name__


def print_error(error: object) -> None:
    """Print an error to stderr as one line."""
    print("error:", " ".join(str(error).splitlines()), file=sys.stderr, flush=True)


def check_finite(logp_B_T) -> None:
    """Raise NonFiniteError if logits were not finite: then the log-probs of the tokens are not."""
    damaged_B_T = ~logp_B_T.isfinite()
    if damaged_B_T.any():
        row, token = damaged_B_T.nonzero()[0].tolist()
        where = f"completion token {token} of row {row} of a micro-batch"
        cause = "an update diverged, or the model's numbers are too large for its dtype"
        raise NonFiniteError(f"the model's logits are not finite ({where}): {cause}")

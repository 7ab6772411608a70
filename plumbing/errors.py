"""Errors that end a run with one line and an exit status, and output that cannot fail."""

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
    """Let no print fail: characters that the output's encoding lacks are printed as escapes, and
    text that nobody takes (a closed pipe or terminal, a full disk) is dropped. A command whose
    output is its result ignores BrokenPipeError alone, as in `| head`.

    Every command calls it, through its parser. Streams that others have replaced, as a notebook
    does, stay."""
    for number, name in ((1, "stdout"), (2, "stderr")):
        stream = getattr(sys, name)
        if stream is None:  # closed before Python started: the next file would be written to
            setattr(sys, name, open(os.devnull, "w"))  # noqa: PTH123, SIM115
        elif stream is getattr(sys, f"__{name}__"):
            output = _Output(number, "w", closefd=False)
            output.ignored = ignored
            text = io.TextIOWrapper(
                io.BufferedWriter(output),
                encoding=stream.encoding,
                errors="backslashreplace",
                line_buffering=True,
            )
            setattr(sys, name, text)


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
        raise NonFiniteError(
            f"the model's logits are not finite (completion token {token} of row {row} of a "
            "micro-batch): an update diverged, --temperature is near 0, or its dtype is too small "
            "for its numbers"
        )

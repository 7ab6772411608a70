"""What the commands of this repository share: a parser, and errors as one line."""

import sys
from contextlib import contextmanager
from pathlib import Path

from plumbing.command_line import Parser
from plumbing.errors import InputError, RunError, discard, print_error
from plumbing.plugins import place_of


def make_parser(doc: str | None, runs: bool = False, out: str = "") -> Parser:
    """A command line that takes run directories if `runs`, and --out with this default."""
    parser = Parser(doc)
    add = parser.add_argument
    if runs:
        add("runs", nargs="+", metavar="RUN", type=Path, help="run directories")
    if out:
        add("--out", type=Path, default=out, help="where to write (%(default)s)")
    return parser


@contextmanager
def exit_on_error(command: str):
    """Turn errors of ours, of files, of values and of missing packages into one line on stderr and
    an exit status: 2, or as training's, such as 3 for logits that are not finite."""
    try:
        yield
    except BrokenPipeError:  # of `| head -2`: results are printed last, when files are written
        discard(sys.stdout)
    except (RunError, OSError, ValueError, ImportError) as error:
        place = "" if isinstance(error, RunError) else place_of(error)
        print_error(f"{error}{place}", command)
        sys.exit(getattr(error, "status", InputError.status))

"""Start-up of a process, and how ranks stop together: signals, exit statuses."""

import os
import signal
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
import transformers
from safetensors import SafetensorError

from plumbing.distributed.launch import launch
from plumbing.distributed.layout import Layout
from plumbing.errors import (
    Fault,
    InputError,
    RunError,
    escape_output,
    first_lines,
    print_error,
    print_line,
)
from plumbing.plugins import describe, place_of

# A scheduler, Ctrl-C, a terminal that closes, Slurm's --signal=USR1.
STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1)


def begin_process() -> None:
    """Set up a process before anything else runs in it."""
    escape_output()
    os.environ.setdefault("FLASH_ATTENTION_DETERMINISTIC", "1")  # a fixed order of summation
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()


@contextmanager
def borrowed_process() -> Iterator[None]:
    """Begin a process, and give back what a run changes in it, so that a notebook can go on: signal
    handlers, environment, process groups."""
    if os.environ.get("RANK"):  # of torchrun: it ends with its process, and may still get SIGTERM
        begin_process()
        end_with_torchrun()
        yield
        return
    environment = dict(os.environ)
    handlers = {number: signal.getsignal(number) for number in STOP_SIGNALS}
    try:
        begin_process()
        yield
    finally:
        if dist.is_initialized():
            dist.destroy_process_group()
        for number, handler in handlers.items():
            signal.signal(number, handler)
        os.environ.clear()
        os.environ.update(environment)


def end_with_torchrun() -> None:
    """Let the system kill this rank if torchrun is killed: it must not go on writing to the run's
    files. Only Linux can; elsewhere such ranks go on, and the run's lock keeps a second job out."""
    kill_with_parent = getattr(torch.multiprocessing, "_prctl_pr_set_pdeathsig", None)
    if kill_with_parent and "TORCHELASTIC_RUN_ID" in os.environ:
        kill_with_parent(signal.SIGKILL)


def reject(error: Exception) -> int:
    """Print an error from before the ranks connect, on one of the ranks that have one. Returns its
    exit status, by default 2."""
    store = None
    with suppress(ValueError, dist.DistError):  # there is no torchrun, or it has ended
        launch()  # a rank without a place would wait, and torch prints the frames of its attempts
        # Another rank's exit must not end this one before it has printed.
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        store, _, _ = next(dist.rendezvous("env://", timeout=timedelta(seconds=10)))
    if is_first_to_report(store, default=True):
        print_error(error)
    return getattr(error, "status", InputError.status)


def is_first_to_report(store: dist.Store | None, default: bool) -> bool:
    """Whether no other rank has reported an error; `default` if the store, where all ranks meet,
    cannot be reached."""
    with suppress(dist.DistError):
        return store.add("reported", 1) == 1 if store else default
    return default


def run_ranks(layout: Layout, timeout_minutes: float, body: Callable[[], int]) -> int:
    """Connect the ranks and return body()'s exit status; report an error that ends it."""
    try:
        layout.connect(timeout_minutes)
        status = body()
        layout.gather_world(None)
    except (Exception, SystemExit) as error:  # a plug-in may raise anything
        return report(layout, error)
    dist.destroy_process_group()
    return status


def stop_at_signals(layout: Layout) -> None:
    """Make any of STOP_SIGNALS at any rank set `stopping` there; all ranks stop after the step, as
    a rank that stopped alone would leave the others waiting. Under nohup SIGHUP stays ignored."""

    def stop(number: int, frame) -> None:
        layout.stopping = True

    for number in STOP_SIGNALS:
        if number != signal.SIGHUP or signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, stop)


def stop_requested(layout: Layout) -> bool:
    """Return whether any rank of this role has received a signal to stop. A collective of the role.
    Teacher ranks send the answer to the students with their proposals."""
    return any(layout.gather_role(layout.stopping))


def report(layout: Layout, error: BaseException) -> int:
    """Report the error that ended the run, and return the exit status for it. One rank of all
    prints a RunError, in one line; each rank prints another error of its own with its traceback,
    and last, if it passed a plug-in, where."""
    stop_at_signals(layout)  # another rank's exit must not end this one before it has printed
    if isinstance(error, OSError | SafetensorError):
        error = Fault(error)
    elif layout.world > 1 and is_of_collective(error):
        cause = "a rank failed or exceeded --timeout_minutes"
        if not dist.is_initialized():
            cause = "the ranks did not meet at {MASTER_ADDR}:{MASTER_PORT}".format_map(os.environ)
        error = Fault(f"{cause} ({first_lines(error)}); the same command resumes the run")
    if not isinstance(error, RunError):  # before the store is used, which may be hard to reach
        frames = "".join(traceback.format_exception(error)).rstrip()
        print_line(f"error on rank {layout.rank}:\n{frames}", sys.stderr)
        if place_of(error):  # a study shows the last line
            print_error(describe(error))
    is_first = is_first_to_report(layout.store, default=layout.first)
    if not isinstance(error, RunError):
        return 1
    if is_first:
        print_error(error)
    return error.status


def is_of_collective(error: BaseException) -> bool:
    """Whether a collective or message raised an error, as it does when another rank has ended. gloo
    has no class of errors: a frame of torch/distributed, or of this folder, is the innermost."""
    folders = [Path(dist.__file__).parent, Path(__file__).parent]
    frames = traceback.extract_tb(error.__traceback__)[-1:]
    is_inside = any(
        Path(frame.filename).is_relative_to(folder) for frame in frames for folder in folders
    )
    return isinstance(error, dist.DistError) or (type(error) is RuntimeError and is_inside)

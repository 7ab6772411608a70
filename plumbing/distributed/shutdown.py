"""Start-up of a process, and how ranks stop together: signals, exit statuses."""

import os
import signal
import sys
import time
import traceback
from collections.abc import Callable
from contextlib import suppress

import torch.distributed as dist
import transformers
from safetensors import SafetensorError
from torch.multiprocessing import _prctl_pr_set_pdeathsig

from plumbing.distributed.launch import Launch, launch
from plumbing.distributed.layout import Layout
from plumbing.errors import (
    Fault,
    InputError,
    RunError,
    first_lines,
    print_error,
    survive_lost_output,
)

# A scheduler, Ctrl-C, a terminal that closes, Slurm's --signal=USR1.
STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1)
PEER_GONE = ("gloo/transport", "caused pair closure")  # in gloo's messages, and NCCL's
PEER_GONE += ("closed by peer", "reset by peer", "remote process exiting")


def begin_process() -> None:
    """Set up a rank's process before anything else runs in it. Exits with status 2 under -OO."""
    survive_lost_output()
    if sys.flags.optimize > 1:
        print_error("python -OO removes docstrings, and transformers loads no model without them")
        sys.exit(InputError.status)
    if "TORCHELASTIC_RUN_ID" in os.environ:  # do not outlive torchrun, and write to the run's files
        _prctl_pr_set_pdeathsig(signal.SIGKILL)
    os.environ.setdefault("FLASH_ATTENTION_DETERMINISTIC", "1")  # a fixed order of summation
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()


def reject(error: Exception) -> int:
    """Print an error from before the ranks connect, and return its exit status, by default 2. All
    ranks raise a ValueError, as of a flag, and one of a machine prints it."""
    try:
        place = launch()
    except InputError:
        place = Launch()
    shared = isinstance(error, ValueError)
    if shared and place.rank > 0:
        time.sleep(10)  # rank 0 prints it and exits, and torchrun ends the ranks of its machine
    if not shared or place.local_rank == 0:
        print_error(error)
    return getattr(error, "status", InputError.status)


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


def report(layout: Layout, error: Exception) -> int:
    """Print the error that ended the run, and return the exit status for it."""
    if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        stop_at_signals(layout)  # another rank's exit must not end this one before it has printed
    if isinstance(error, OSError | SafetensorError):
        error = Fault(error)
    elif not isinstance(error, RunError) and _is_lost_peer(layout, error):
        error = Fault(
            f"a rank failed or exceeded --timeout_minutes ({first_lines(error)}); "
            "run the same command again to resume from the newest checkpoint"
        )
    known = isinstance(error, RunError)
    if not known:  # before the store is used, which may be hard to reach
        print(f"error on rank {layout.rank} ({layout.role}):", file=sys.stderr)
        traceback.print_exception(error)
        sys.stderr.flush()
    prints = layout.first  # without a store one rank of each role prints
    if layout.store:
        with suppress(dist.DistError):
            prints = layout.store.add("reported", 1) == 1
    if known and prints:
        print_error(error)
    return error.status if known else 1


def _is_lost_peer(layout: Layout, error: Exception) -> bool:
    """Return whether another rank's end caused the error. gloo and NCCL raise one class for all
    errors. If the message does not decide, SIGTERM does: torchrun sends it to all ranks of a
    machine as soon as one of them ends."""
    if isinstance(error, dist.DistNetworkError | dist.DistStoreError):
        return True
    if layout.world == 1 or type(error) not in (RuntimeError, dist.DistBackendError):
        return False
    if any(words in str(error) for words in PEER_GONE):
        return True
    time.sleep(3)
    return layout.stopping

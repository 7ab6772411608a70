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

from plumbing.distributed.layout import Layout
from plumbing.errors import Fault, RunError, first_lines, print_error

PEER_GONE = ("gloo/transport", "caused pair closure")  # in gloo's messages, and NCCL's
PEER_GONE += ("closed by peer", "reset by peer", "remote process exiting")


def begin_process() -> None:
    """Set up a rank's process before anything else runs in it."""
    if "TORCHELASTIC_RUN_ID" in os.environ:  # do not outlive torchrun, and write to the run's files
        _prctl_pr_set_pdeathsig(signal.SIGKILL)
    os.environ.setdefault("FLASH_ATTENTION_DETERMINISTIC", "1")  # a fixed order of summation
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()


def reject(error: ValueError) -> int:
    """Print, once a machine, an error in the flags, which all ranks raise; return status 2."""
    if os.environ.get("RANK", "0") != "0":
        time.sleep(10)  # rank 0 prints it and exits, and torchrun ends the ranks of its machine
    if os.environ.get("LOCAL_RANK", "0") == "0":
        print_error(error)
    return 2


def run_ranks(layout: Layout, timeout_minutes: float, body: Callable[[], int]) -> int:
    """Connect the ranks and return body()'s exit status; report an error that ends it."""
    layout.connect(timeout_minutes)
    try:
        status = body()
        layout.gather(None)
    except Exception as error:  # any error: this rank reports it
        return report(layout, error)
    dist.destroy_process_group()
    return status


def stop_at_sigterm(layout: Layout) -> None:
    """Make SIGTERM or Ctrl-C at any rank set `stopping` there; all ranks stop after the step, as a
    rank that stopped alone would leave the others waiting."""

    def stop(number: int, frame) -> None:
        layout.stopping = True

    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGINT, stop)


def stop_requested(layout: Layout) -> bool:
    """Return whether any rank has received SIGTERM. A collective of the student ranks."""
    return any(layout.gather(layout.stopping, layout.group))


def report(layout: Layout, error: Exception) -> int:
    """Print the error that ended the run, and return the exit status for it."""
    if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        stop_at_sigterm(layout)  # another rank's exit must not end this one before it has printed
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

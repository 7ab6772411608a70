"""Start-up of a process, and how ranks stop together: signals, heartbeats, exit statuses."""

import atexit
import os
import select
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable
from contextlib import suppress

import datasets
import torch.distributed as dist
import transformers
from torch.multiprocessing import _prctl_pr_set_pdeathsig

from plumbing.distributed.layout import Layout
from plumbing.errors import Fault, PeerLostError, RunError, print_error

HEARTBEAT_S = 2
PEER_GONE = ("closed by peer", "reset by peer", "remote process exiting")  # gloo's, NCCL's messages


def begin_process() -> None:
    """Set up a rank's process before anything else runs in it."""
    if "TORCHELASTIC_RUN_ID" in os.environ:  # do not outlive torchrun, and write to the run's files
        _prctl_pr_set_pdeathsig(signal.SIGKILL)
    os.environ.setdefault("FLASH_ATTENTION_DETERMINISTIC", "1")  # a fixed order of summation
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    datasets.disable_progress_bars()
    datasets.logging.set_verbosity(datasets.logging.CRITICAL)  # it logs the errors that it raises


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
    """Make SIGTERM or Ctrl-C at any rank set a key in the store; all ranks stop after the step.

    A rank that stopped alone would leave the others waiting. A thread sets the key, because Python
    runs no handler in a rank that waits for another; it also sends a heartbeat every HEARTBEAT_S. A
    second Ctrl-C ends the process, unless torchrun started it, which forwards Ctrl-C.
    """
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    signal.set_wakeup_fd(writer)
    signal.signal(signal.SIGTERM, lambda *_: None)
    again = signal.SIG_IGN if "TORCHELASTIC_RUN_ID" in os.environ else signal.SIG_DFL
    signal.signal(signal.SIGINT, lambda *_: signal.signal(signal.SIGINT, again))

    def watch() -> None:
        received = None
        while received != 0:
            with suppress(dist.DistError):  # torchrun has died
                if received in (signal.SIGTERM, signal.SIGINT):
                    layout.sigterm.set()
                    layout.store.set("stop", "")
                if layout.first:
                    layout.store.add(f"{layout.role}/heartbeats", 1)
            ready = select.select([reader], [], [], HEARTBEAT_S)[0]
            received = os.read(reader, 1)[0] if ready else None

    def end() -> None:  # Python would crash if it exited during a call of the store
        os.write(writer, b"\0")
        thread.join(5)

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    atexit.register(end)


def heartbeats(layout: Layout, role: str) -> int:
    """Count the heartbeats of the role's first rank since its stop_at_sigterm."""
    return layout.store.add(f"{role}/heartbeats", 0)


def stop_requested(layout: Layout) -> bool:
    """Return whether any rank has received SIGTERM. A collective of the student ranks."""
    return layout.gather(layout.rank == 0 and layout.store.check(["stop"]), layout.group)[0]


def report(layout: Layout, error: Exception) -> int:
    """Print the error that ended the run, and return the exit status for it."""
    if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        stop_at_sigterm(layout)  # another rank's exit must not end this one before it has printed
    if isinstance(error, OSError):
        error = Fault(error)
    elif not isinstance(error, RunError) and _is_lost_peer(layout, error):
        error = PeerLostError(error)
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
    machine as soon as one of them ends, and they set a key in the store for other machines."""
    if isinstance(error, dist.DistNetworkError | dist.DistStoreError):
        return True
    if layout.world == 1 or type(error) not in (RuntimeError, dist.DistBackendError):
        return False
    if any(words in str(error) for words in PEER_GONE) or layout.sigterm.wait(3):
        return True
    with suppress(dist.DistError):
        return layout.store.check(["stop"])
    return True

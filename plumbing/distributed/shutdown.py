"""Start-up of a process, and how ranks stop together: signals, exit statuses."""

import os
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import torch
import torch.distributed as dist
import transformers
from safetensors import SafetensorError

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


def begin_process() -> None:
    """Set up a process before anything else runs in it."""
    survive_lost_output()
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
            if signal.getsignal(number) is not handler:
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
    """Print an error from before the ranks connect, once if it is that of all ranks of a machine.
    Returns its exit status, by default 2."""
    if os.environ.get("LOCAL_RANK", "0") != "0":
        time.sleep(10)  # if it is also the first rank's, torchrun ends this one in the meantime
    print_error(error)
    return getattr(error, "status", InputError.status)


def run_ranks(layout: Layout, timeout_minutes: float, body: Callable[[], int]) -> int:
    """Connect the ranks and return body()'s exit status; report an error that ends it."""
    try:
        connect(layout, timeout_minutes)
        status = body()
        layout.gather_world(None)
    except (Exception, SystemExit) as error:  # a plug-in may raise anything
        return report(layout, error)
    dist.destroy_process_group()
    return status


def connect(layout: Layout, timeout_minutes: float) -> None:
    """Join the other ranks. Raises Fault, with the place where they should meet."""
    try:
        layout.connect(timeout_minutes)
    except Exception as error:  # torch, gloo and NCCL raise all kinds
        place = ":".join(os.environ.get(name, "?") for name in ("MASTER_ADDR", "MASTER_PORT"))
        where = f" at {place} (MASTER_ADDR, MASTER_PORT)" * (layout.world > 1)
        raise Fault(f"the ranks did not meet{where}: {first_lines(error)}") from error


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
    """Print the error that ended the run, and return the exit status for it. What a collective
    raises when another rank has ended is that rank's error, printed there."""
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


def _is_lost_peer(layout: Layout, error: BaseException) -> bool:
    """Return whether another rank's end may have caused the error. gloo and NCCL raise one class
    for all errors, so that SIGTERM decides, which torchrun sends to all ranks of a machine as soon
    as one of them ends, and the words of the library's transport between machines."""
    if isinstance(error, dist.DistNetworkError | dist.DistStoreError):
        return True
    if layout.world == 1 or type(error) not in (RuntimeError, dist.DistBackendError):
        return False
    if "gloo/transport" in str(error) or "closed by peer" in str(error):
        return True
    time.sleep(3)
    return layout.stopping

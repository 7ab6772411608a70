"""Several ranks in a test: processes forked from this one, so that nobody imports torch again."""

import gc
import multiprocessing
import os
import signal
import socket
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.multiprocessing import _prctl_pr_set_pdeathsig


def on_ranks(n: int, tmp_path, body, *arguments):
    """Runs body(*arguments) on n ranks, as torchrun would set them up; returns what rank 0 returned.

    conftest.py says why a forked rank can train. The ranks end with the call, however it ends: one that hangs until
    the test's time is up would hold up pytest's own end.
    """
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    out = Path(tmp_path) / f"result_{n}_{port}.pt"
    others = multiprocessing.active_children()
    try:
        mp.start_processes(_rank, (n, port, body, arguments, out), nprocs=n, start_method="fork")
    finally:
        for process in set(multiprocessing.active_children()).difference(others):
            process.kill()
            process.join()
    return torch.load(out)


def _rank(rank, n, port, body, arguments, out):
    _prctl_pr_set_pdeathsig(signal.SIGKILL)  # where pytest itself is killed
    gc.freeze()  # a process group that a test has left to Python's collector hangs without its threads
    torch.set_num_threads(1)
    os.environ |= {
        "RANK": str(rank),
        "WORLD_SIZE": str(n),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
    }
    result = body(*arguments)
    if rank == 0:
        torch.save(result, out)
    if dist.is_initialized():
        dist.barrier()
        dist.destroy_process_group()

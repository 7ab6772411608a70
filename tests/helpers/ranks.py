"""Ranks as processes forked from this one, and small runs of train.py on them."""

import contextlib
import gc
import multiprocessing
import os
import secrets
import signal
import socket
import sys
import time
import zlib
from pathlib import Path
from typing import NamedTuple

import torch
import torch.distributed as dist

import train
from plumbing import progress
from plumbing.distributed.layout import Layout
from plumbing.files import read_lines
from plumbing.run.directory import RunDir
from sampler import file_of
from tests.helpers.models import ROOT
from verify import Verdict

DEMO = ROOT / "demo/model"


class Ended(NamedTuple):
    """How a command ended: each rank's exit status, and what all of them printed."""

    statuses: list[int]
    out: str
    err: str


def torchrun(n: int, folder: Path, command, before=lambda rank: None, machines: int = 1) -> Ended:
    """Run before(rank), then command(), on n forked ranks, as torchrun would.

    The store belongs to this process. Where a rank ends with another status than 0, the other ranks
    of its machine get SIGTERM. conftest.py says why a forked rank can train."""
    local = n // machines
    port = free_port()
    arguments = n, local, port, folder, command, before
    fork = multiprocessing.get_context("fork")
    ranks = [fork.Process(target=_rank, args=(rank, *arguments)) for rank in range(n)]
    healthy = [ranks[first : first + local] for first in range(0, n, local)]  # machines
    files = folder / "stdout", folder / "stderr"
    for file in files:
        file.touch()  # a rank that gets SIGTERM at its first instruction opens none
    try:
        for rank in ranks:
            rank.start()
        # After the forks, which its threads would not survive. Ranks wait until it is there.
        store = dist.TCPStore("127.0.0.1", port, is_master=True, wait_for_workers=False)
        while any(rank.is_alive() for rank in ranks):
            time.sleep(0.01)
            for machine in [each for each in healthy if any(rank.exitcode for rank in each)]:
                healthy.remove(machine)
                for rank in machine:
                    rank.terminate()
        del store
    finally:
        for rank in ranks:
            rank.kill()
            rank.join()
    ended = Ended([rank.exitcode for rank in ranks], *(file.read_text() for file in files))
    for file in files:
        file.unlink()
    return ended


def free_port() -> int:
    """Choose a port below those that the system gives to clients, so that none takes it."""
    while True:
        port = 20_000 + secrets.randbelow(12_000)
        with socket.socket() as free, contextlib.suppress(OSError):
            free.bind(("127.0.0.1", port))
            return port


def _rank(rank, n, local, port, folder, command, before):
    torch.multiprocessing._prctl_pr_set_pdeathsig(signal.SIGKILL)  # where pytest itself is killed
    # If Python's collector ended a process group that a test has left, it would wait for threads
    # that a fork does not have.
    gc.freeze()
    torch.set_num_threads(1)
    environment = {
        "RANK": rank,
        "WORLD_SIZE": n,
        "LOCAL_RANK": rank % local,
        "LOCAL_WORLD_SIZE": local,
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": port,
        "TORCHELASTIC_USE_AGENT_STORE": True,
    }
    os.environ |= {name: str(value) for name, value in environment.items()}
    sys.stdout, sys.stderr = ((folder / f"std{x}").open("a", buffering=1) for x in ("out", "err"))
    os.dup2(sys.stderr.fileno(), 2)
    before(rank)
    status = command()  # multiprocessing prints what it raises, and ends with status 1
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)  # closes the connections as the end of a process does


def on_ranks(n: int, tmp_path, body, *arguments):
    """Return what body(*arguments) returns on the first of n ranks; none may fail."""
    out = tmp_path / "result.pt"

    def command():
        result = body(*arguments)
        if os.environ["RANK"] == "0":
            torch.save(result, out)
        if dist.is_initialized():
            dist.barrier()
            dist.destroy_process_group()
        return 0

    ended = torchrun(n, tmp_path, command)
    assert not any(ended.statuses), ended
    return torch.load(out, weights_only=False)


# ---- runs of train.py


def parse(*flags):
    return train.parse([str(f) for f in flags])


def command(folder, *flags, model=DEMO, data):
    """Return the command line of a small run; `flags` come last and win."""
    small = {
        "preset": "demo",
        "out": folder,
        "model": model,
        "train_data": f"{data}/train.jsonl",
        "val_data": f"{data}/val.jsonl",
        "prompts_per_step": 6,
        "group_size": 4,
        "candidates": 4,
        "steps": 4,
        "max_completion_tokens": 32,
        "eval_every": 2,
        "teacher_epochs": 2,
    }
    return [f"--{name}={value}" for name, value in small.items()] + [str(flag) for flag in flags]


def make_run_dir(config, *flags) -> RunDir:
    """Make the RunDir of a single process."""
    return RunDir(config, one_rank(*flags), file_of(config.sampler))


class Grades:
    """Replaces the Verifier without starting a process: every second text is right."""

    def grade(self, completions, golds, extras):
        verdicts = Verdict(0.0, "wrong"), Verdict(1.0, "correct")
        return [verdicts[zlib.crc32(text.encode()) % 2] for text in completions]

    def check_golds(self, golds, extras, problems):
        return [True] * len(golds)


def launch(folder, *flags, ranks=1, model=DEMO, data, **torchrun_arguments) -> Ended:
    """Run train.py in forked ranks; it may fail."""

    def main():
        train.Verifier = lambda **settings: contextlib.nullcontext(Grades())
        progress.LINE_S = 0  # a line of progress for each step, which may fail
        return train.main(command(folder, *flags, model=model, data=data))

    return torchrun(ranks, folder.parent, main, **torchrun_arguments)


def run(folder, *flags, **launch_arguments) -> str:
    """Run train.py in forked ranks, successfully; return what it printed."""
    ended = launch(folder, *flags, **launch_arguments)
    assert not any(ended.statuses), ended
    return ended.out


def one_rank(*flags) -> Layout:
    """Return the layout of a single process that needs no process group."""
    layout = train.build_layout(parse("--teacher_ranks", 0, *flags))
    layout.group = None
    layout.gather_world = layout.gather_role = lambda mine: [mine]
    layout.sum, layout.on_rank_0 = dict, lambda function: function()
    return layout


def after(owner, name, function):
    """From now on function(*arguments) follows every call of a method, in this rank."""
    method = getattr(owner, name)

    def both(*arguments):
        result = method(*arguments)
        function(*arguments)
        return result

    setattr(owner, name, both)


def metrics_of(folder) -> list[dict]:
    """Read metrics.jsonl without the times."""
    rows = read_lines(folder / "metrics.jsonl")
    return [{k: row[k] for k in row if k != "seconds" and not k.endswith("_s")} for row in rows]


def assert_same_run(a, b):
    """Compare two finished runs: metrics but times, selections, samples, evaluations, weights."""
    assert metrics_of(a) == metrics_of(b), b / "metrics.jsonl"
    for names in ("selections.jsonl", "samples.jsonl", "evals/*", "**/*.safetensors"):
        for path in a.glob(names):
            assert path.read_bytes() == (b / path.relative_to(a)).read_bytes(), path


def contents(folder) -> dict:
    """Return every path under a folder with its file's bytes, to show that nothing changed."""
    return {str(p): p.read_bytes() if p.is_file() else None for p in folder.rglob("*")}

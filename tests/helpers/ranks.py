"""Several ranks in a test: processes forked from this one, so that nobody imports torch again; and
small runs of train.py on them."""

import contextlib
import faulthandler
import gc
import logging
import multiprocessing
import os
import secrets
import signal
import socket
import subprocess
import sys
import time
import zlib
from pathlib import Path
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch.distributed.launcher.api import elastic_launch
from torch.distributed.run import config_from_args, parse_args
from torch.multiprocessing import _prctl_pr_set_pdeathsig

import train
from plumbing.files import read_lines
from plumbing.run_dir import RunDir
from verify import Verdict

ROOT = Path(train.__file__).parent
DEMO = ROOT / "demo/model"


def on_ranks(n: int, tmp_path, body, *arguments):
    """What body(*arguments) returns on the first of n ranks; none may fail."""
    out = tmp_path / "result.pt"

    def main():
        first = os.environ["RANK"] == "0"
        result = body(*arguments)
        if first:
            torch.save(result, out)
        if dist.is_initialized():
            dist.barrier()
            dist.destroy_process_group()
        return 0

    ended = torchrun(n, tmp_path, main)
    assert not any(ended.statuses), ended
    return torch.load(out)


def free_port() -> int:
    """Below those that a system gives to whoever asks for any: none takes it before it is used."""
    while True:
        port = 20_000 + secrets.randbelow(12_000)
        with socket.socket() as free, contextlib.suppress(OSError):
            free.bind(("127.0.0.1", port))
            return port


class Ended(NamedTuple):
    """How a command ended: the exit status of each rank, and what all of them printed."""

    statuses: list[int]
    out: str
    err: str


def torchrun(n: int, folder: Path, command, before=lambda rank: None, machines: int = 1) -> Ended:
    """Runs command() on n forked ranks, after before(rank) in each, with torchrun's manners.

    The store is not theirs; where one ends with another status than 0, the others of its machine
    get SIGTERM. Of those that hang the stacks are shown. conftest.py says why a forked rank can
    train.
    """
    port = free_port()
    fork = multiprocessing.get_context("fork")
    here = n // machines
    arguments = n, here, port, folder, command, before
    ranks = [fork.Process(target=_life, args=(rank, *arguments)) for rank in range(n)]
    files = [(name, folder / f"{name}_{rank}") for name in ("out", "err") for rank in range(n)]
    for _, file in files:
        file.touch()  # a rank that SIGTERM meets at its first instruction opens none
    try:
        for rank in ranks:
            rank.start()
        # Not before: a fork is no place for the store's threads. The ranks try until it is there.
        store = dist.TCPStore("127.0.0.1", port, is_master=True, wait_for_workers=False)
        told, end = set(), time.monotonic() + 200
        while alive := [rank for rank in ranks if rank.is_alive()]:
            time.sleep(0.01)
            for first in set(range(0, n, here)) - told:
                if any(rank.exitcode for rank in ranks[first : first + here]):
                    told.add(first)
                    for rank in set(alive) & set(ranks[first : first + here]):
                        rank.terminate()
            if time.monotonic() > end:
                for rank in alive:
                    os.kill(rank.pid, signal.SIGABRT)
                time.sleep(1)
        del store
    finally:
        for rank in ranks:
            rank.kill()
            rank.join()
    said = {"out": "", "err": ""}
    for name, file in files:
        said[name] += file.read_text()
        file.unlink()
    return Ended([rank.exitcode for rank in ranks], **said)


def _life(rank, n, here, port, folder, command, before):
    _prctl_pr_set_pdeathsig(signal.SIGKILL)  # where pytest itself is killed
    # A process group that a test has left to Python's collector hangs without its threads.
    gc.freeze()
    torch.set_num_threads(1)
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(n)}
    os.environ |= {"LOCAL_RANK": str(rank % here), "LOCAL_WORLD_SIZE": str(here)}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    os.environ["TORCHELASTIC_USE_AGENT_STORE"] = "True"
    sys.stdout = (folder / f"out_{rank}").open("w", buffering=1)
    sys.stderr = (folder / f"err_{rank}").open("w", buffering=1)
    os.dup2(sys.stderr.fileno(), 2)
    faulthandler.enable(sys.stderr)
    for name in ("transformers", "datasets", "torch"):  # they hold on to an earlier stream
        logging.getLogger(name).handlers = [logging.StreamHandler(sys.stderr)]
    before(rank)
    status = command()  # what it raises, multiprocessing shows, and ends with status 1
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)  # as the end of a process does to its connections


# ---- runs of train.py


def command(folder, *flags, model, data):
    """Flags of a small run; `flags` come last and win."""
    small = {"preset": "demo", "out": folder, "prompts_per_step": 6, "group_size": 4}
    small |= {"candidates": 4, "steps": 4, "max_completion_tokens": 32, "eval_every": 2}
    small |= {"train_data": f"{data}/train.jsonl", "val_data": f"{data}/val.jsonl", "model": model}
    if not {"uniform", "thompson", "skip", "category", "static"} & set(flags):
        small |= {"teacher_model": model, "teacher_epochs": 2}
    words = [x for name, value in small.items() for x in (f"--{name}", value)]
    return [str(word) for word in (*words, *flags)]


class Grades:
    """Stands in for the Verifier: every second text is right. It starts no process."""

    def grade(self, completions, golds, extras):
        verdicts = Verdict(0.0, "wrong"), Verdict(1.0, "correct")
        return [verdicts[zlib.crc32(text.encode()) % 2] for text in completions]

    def check_golds(self, golds, extras, of):
        return [True] * len(golds)


def launch(folder, *flags, ranks=1, model=DEMO, data, **how):
    """A run in forked ranks, which may fail: how it ended."""

    def main():
        train.Verifier = lambda **settings: contextlib.nullcontext(Grades())
        return train.main(command(folder, *flags, model=model, data=data))

    return torchrun(ranks, folder.parent, main, **how)


def run(folder, *flags, **where):
    """A run in forked ranks that succeeds: what it printed."""
    ended = launch(folder, *flags, **where)
    assert not any(ended.statuses), ended
    return ended.out


def shell(argv, ranks=0):
    """train.py from the shell, under torchrun where ranks > 0: (succeeded, what was printed)."""
    launcher = ["-m", "torch.distributed.run", "--nproc_per_node", str(ranks)]
    line = [sys.executable, *(launcher if ranks else ()), str(ROOT / "train.py"), *argv]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(line, capture_output=True, text=True, env=environment, check=False)
    return done.returncode == 0, done.stdout + done.stderr


def agent(main, words, log, *flags):
    """torchrun with these flags, as a process that has begun; main(words) is what its ranks do.
    They are forked, so that nobody imports torch again."""

    def work(words):
        if status := main(words):  # else the agent waits for what the function returns
            sys.stdout.flush()
            os._exit(status)

    def launch():
        gc.freeze()  # as in _life
        sys.stdout = sys.stderr = log.open("a", buffering=1)
        config, *_ = config_from_args(parse_args([*map(str, flags), "train.py", *words]))
        config.start_method = "fork"
        elastic_launch(config, work)(words)

    process = multiprocessing.get_context("fork").Process(target=launch)
    process.start()
    return process


def script(main, folder, *words) -> Ended:
    """main() of one of scripts/, with these words, in a fork of this process."""

    def command():
        sys.argv = [main.__module__, *map(str, words)]
        return main() or 0

    return torchrun(1, folder, command)


def after(owner, name, what):
    """From now on what(*arguments) follows every call of a method, in this rank."""
    method = getattr(owner, name)

    def both(*arguments):
        result = method(*arguments)
        what(*arguments)
        return result

    setattr(owner, name, both)


def at_step(step, what):
    """Calls what(run) on this student rank as soon as that step has been logged."""

    def look(run, name, rows):
        if name == "metrics" and rows[0]["step"] == step:
            what(run)

    after(RunDir, "log", look)


def metrics_of(folder):
    """metrics.jsonl without what a clock measured."""

    def kept(name):
        return name != "seconds" and not name.endswith("_s")

    rows = read_lines(folder / "metrics.jsonl")
    return [{name: row[name] for name in filter(kept, row)} for row in rows]


def same_run(a, b):
    assert metrics_of(a) == metrics_of(b)
    weights = ("student/model", "teacher/backbone/model", "teacher/head")
    for name in ("selections.jsonl", *(f"{name}.safetensors" for name in weights)):
        assert not (a / name).exists() or (a / name).read_bytes() == (b / name).read_bytes(), name


def all_end(pids: list[int]) -> bool:
    """Whether they do within 20 seconds: gone, or dead and not yet collected by their parent."""

    def ended(pid) -> bool:
        try:
            return ") Z" in Path(f"/proc/{pid}/stat").read_text()
        except (FileNotFoundError, ProcessLookupError):
            return True

    deadline = time.monotonic() + 20
    while not (all_have := all(map(ended, pids))) and time.monotonic() < deadline:
        time.sleep(0.05)
    return all_have


def contents(folder):
    """Every path under a folder with the bytes of its file: what must not change."""
    return {str(p): p.read_bytes() if p.is_file() else None for p in folder.rglob("*")}


def parse(*flags):
    return train.parse([str(f) for f in flags])

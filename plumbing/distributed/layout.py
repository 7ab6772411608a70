"""Who is who: processes, their groups and devices, and how they stop together."""

import atexit
import math
import os
import select
import signal
import sys
import threading
import time
import traceback
from contextlib import contextmanager, suppress
from datetime import timedelta

import datasets
import torch
import torch.distributed as dist
import transformers
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.multiprocessing import _prctl_pr_set_pdeathsig

from plumbing.errors import Fault, InputError, PeerLostError, RunError, print_error

PEER_GONE = ("closed by peer", "reset by peer", "remote process exiting")  # gloo's words, NCCL's


class Layout:
    """Ranks [0, n_students) are students, the rest teachers. Groups and the device are built here.

    Raises ValueError where the ranks cannot be shared out so.
    """

    def __init__(self, config):
        self.world, self.rank = int(os.environ.get("WORLD_SIZE", 1)), int(os.environ.get("RANK", 0))
        self.n_teachers, P, G = config.teacher_ranks, config.prompts_per_step, config.group_size
        self.n_students = self.world - self.n_teachers
        if self.n_students < 1:
            what = f"--teacher_ranks {self.n_teachers} of {self.world} ranks leaves no student"
            raise ValueError(f"{what}: at most {self.world - 1}")
        if P * G % self.n_students:
            raise ValueError(
                f"{P} prompts x {G} = {P * G} completions cannot be shared equally by "
                f"{self.n_students} student ranks: use {self.what_divides(config)}; "
                f"--per_device_batch_size need not divide anything: it is how many full-length "
                f"rows of its share a rank takes at a time"
            )
        self.is_teacher = self.rank >= self.n_students
        self.role = "teacher" if self.is_teacher else "student"
        self.device = self.pick_device()
        self.sigterm = threading.Event()

    def what_divides(self, config) -> str:
        """The nearest settings that would let the student ranks share a step equally."""
        P, G, n = config.prompts_per_step, config.group_size, self.n_students
        unit = n // math.gcd(n, G)  # what the number of prompts must be a multiple of
        prompts = [p for p in (P // unit * unit, (P // unit + 1) * unit) if p]
        prompts = " or ".join(map(str, prompts))
        most = self.world if config.teacher_model else 2 * n
        students = [k for k in range(1, most + 1) if P * G % k == 0]
        nearest = sorted(students, key=lambda k: abs(k - n))[:2]
        if config.teacher_model:
            ranks = "--teacher_ranks " + " or ".join(str(self.world - k) for k in nearest)
        else:
            ranks = " or ".join(map(str, nearest)) + " ranks"
        return f"--prompts_per_step {prompts}, or {ranks}"

    def pick_device(self) -> torch.device:
        """A GPU of this machine, if it has any. Those of one role must have one each; a student and
        a teacher may share one. Raises ValueError where there are too few."""
        if not torch.cuda.is_available():
            return torch.device("cpu")
        devices = torch.cuda.device_count()
        local = int(os.environ.get("LOCAL_RANK", 0))
        here = range(int(os.environ.get("LOCAL_WORLD_SIZE", 1)))
        students = sum(self.rank - local + i < self.n_students for i in here)
        for role, n in (("student", students), ("teacher", len(here) - students)):
            if n > devices:
                raise ValueError(
                    f"{n} {role} ranks on a machine with {devices} GPU{'s' * (devices > 1)}: NCCL "
                    f"wants one each; start fewer with --nproc_per_node, see --teacher_ranks, or "
                    f"hide the GPUs (export CUDA_VISIBLE_DEVICES=)"
                )
        return torch.device("cuda", local % devices)

    def connect(self, timeout_minutes: float) -> None:
        """Joins the other ranks and builds this role's group and mesh."""
        cuda = self.device.type == "cuda"
        # Control messages are CPU tensors over gloo, weights and gradients go over NCCL.
        backend = "cpu:gloo,cuda:nccl" if cuda else "gloo"
        timeout = timedelta(minutes=timeout_minutes)
        if "RANK" in os.environ:
            # torchrun's store is there before its ranks are; if not, torchrun has died since. Two
            # tries of this length are made.
            store = next(dist.rendezvous("env://", timeout=timedelta(seconds=30)))[0]
            store.set_timeout(timeout)
            # A life after `torchrun --max-restarts` must not find the addresses of the last one.
            store = dist.PrefixStore(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"), store)
        else:
            store = dist.HashStore()
        self.store, self.timeout = store, timeout
        who = {"rank": self.rank, "world_size": self.world}
        dist.init_process_group(backend, timeout=timeout, store=store, **who)
        if cuda:
            torch.cuda.set_device(self.device)
        students, teachers = range(self.n_students), range(self.n_students, self.world)
        roles = [ranks for ranks in (students, teachers) if ranks]
        groups = [dist.new_group(list(ranks), timeout=timeout) for ranks in roles]
        self.group = groups[self.is_teacher]
        self.mesh = DeviceMesh.from_group(self.group, self.device.type)

    @property
    def first(self) -> bool:
        """Whether this rank is the first of its role."""
        return self.rank in (0, self.n_students)

    def shard(self, model: nn.Module, float32=()) -> None:
        """FSDP2 over this role's ranks: float32 masters, on GPUs bf16 compute, float32 reduction.

        Each decoder layer is a unit, the rest (embedding, norm, head) another. Modules in `float32`
        compute in it.
        """
        lists = (m for m in model.modules() if isinstance(m, nn.ModuleList))
        layers = next(lists)  # the outermost list: decoder layers
        exact = mixed = MixedPrecisionPolicy()
        if self.device.type == "cuda":
            mixed = MixedPrecisionPolicy(torch.bfloat16, torch.float32)
        units = [(m, exact) for m in float32] + [(m, mixed) for m in (*layers, model)]
        for module, policy in units:
            fully_shard(module, mesh=self.mesh, mp_policy=policy, reshard_after_forward=False)

    def gather(self, mine, group=None) -> list:
        """What every rank of the group (default: all ranks) brings, in the order of ranks. Also a
        barrier."""
        parts = [mine] * dist.get_world_size(group)
        # Alone it is left out: gloo's thread would start OpenMP threads, and stop ours spinning.
        if len(parts) > 1:
            with talking():
                dist.all_gather_object(parts, mine, group=group)
        return parts

    def share(self, rows: list) -> tuple[int, list]:
        """This student rank's part of rows that all of them have: where it begins, and the part."""
        first, end = (len(rows) * r // self.n_students for r in (self.rank, self.rank + 1))
        return first, rows[first:end]

    def on_first(self, look):
        """What look() returns on rank 0, on all ranks. Raises InputError on all of them where it
        raises ValueError or OSError there."""
        found = [None, None]
        if self.rank == 0:
            try:
                found[0] = look()
            except (ValueError, OSError) as error:
                found[1] = str(error)
        with talking():
            dist.broadcast_object_list(found)
        if found[1] is not None:
            raise InputError(found[1])
        return found[0]

    def sum(self, numbers: dict[str, float]) -> dict[str, float]:
        """Each number summed over this role's ranks, which all bring the same names."""
        sums = torch.tensor([numbers[name] for name in sorted(numbers)], dtype=torch.float64)
        with talking():
            dist.all_reduce(sums, group=self.group)
        return dict(zip(sorted(numbers), sums.tolist(), strict=True))

    def assert_replicas_equal(self, group=None, /, **copies) -> None:
        """Raises Fault unless all ranks (of the group) that bring a value under one name bring the
        same value."""
        parts = self.gather(copies, group)
        for name in {name for part in parts for name in part}:
            held = {rank: part[name] for rank, part in enumerate(parts) if name in part}
            first = min(held)
            if other := [rank for rank, value in held.items() if value != held[first]]:
                what = " and ".join(f"{held[rank]!r:.60}" for rank in (first, other[0]))
                raise Fault(f"{name}: ranks {first} and {other[0]} hold copies that differ: {what}")

    def stop_at_sigterm(self) -> None:
        """From now on SIGTERM at any rank, teachers included, only leaves a note in the store: a
        rank that acted alone would leave the others waiting. A thread does it, as Python runs no
        handler in a rank that waits for another. It also gives a sign of life every 2 seconds.
        Ctrl-C is the same; a second one ends a process that torchrun, which hands it on, has not
        started."""
        seen, signals = os.pipe()
        os.set_blocking(signals, False)
        signal.set_wakeup_fd(signals)
        signal.signal(signal.SIGTERM, lambda *_: None)
        again = signal.SIG_IGN if "TORCHELASTIC_RUN_ID" in os.environ else signal.SIG_DFL
        signal.signal(signal.SIGINT, lambda *_: signal.signal(signal.SIGINT, again))

        def watch() -> None:
            came = None
            while came != 0:
                with suppress(dist.DistError):  # torchrun has died, and there is nobody to tell
                    if came in (signal.SIGTERM, signal.SIGINT):
                        self.sigterm.set()
                        self.store.set("stop", "")
                    if self.first:
                        self.store.add(f"{self.role}/signs of life", 1)
                came = os.read(seen, 1)[0] if select.select([seen], [], [], 2)[0] else None

        def end() -> None:  # Python's end, amid a call of the store, would be a crash
            os.write(signals, b"\0")
            thread.join(5)

        thread = threading.Thread(target=watch, daemon=True)
        thread.start()
        atexit.register(end)

    def heartbeats(self, role: str) -> int:
        """How many the first rank of the role has given since stop_at_sigterm."""
        return self.store.add(f"{role}/signs of life", 0)

    def stopping(self) -> bool:
        """Whether a rank has had SIGTERM: the same answer on all student ranks, which all ask."""
        return self.gather(self.rank == 0 and self.store.check(["stop"]), self.group)[0]

    def report(self, error: Exception) -> int:
        """Says what ended the run, and returns the exit status for it."""
        if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
            self.stop_at_sigterm()  # a rank that ends sooner must not cost the line
        if isinstance(error, OSError):
            error = Fault(error)
        elif not isinstance(error, RunError) and self.is_lost(error):
            error = PeerLostError(error)
        if not isinstance(error, RunError):  # shown first, as the store may be hard to reach
            print(f"error on rank {self.rank} ({self.role}):", file=sys.stderr)
            traceback.print_exception(error)
            sys.stderr.flush()
        first = self.first  # where the store is gone with torchrun, one of each role speaks
        with suppress(dist.DistError):
            first = self.store.add("said", 1) == 1
        if not isinstance(error, RunError):
            return 1
        if first:
            print_error(error)
        return error.status

    def is_lost(self, error: Exception) -> bool:
        """Whether it comes of another rank's end. gloo and NCCL raise one class for everything.
        Where their words do not tell, torchrun does: it sends SIGTERM to all ranks of a machine as
        soon as one of them ends, and they leave a note for the others.
        """
        if isinstance(error, dist.DistNetworkError | dist.DistStoreError):
            return True
        of_all_kinds = self.world > 1 and type(error) in (RuntimeError, dist.DistBackendError)
        told = any(words in str(error) for words in PEER_GONE)
        return of_all_kinds and (told or self.sigterm.wait(3) or self.noted())

    def noted(self) -> bool:
        """Whether SIGTERM has come to a rank of any machine, or the store is gone with torchrun."""
        try:
            return self.store.check(["stop"])
        except dist.DistError:
            return True


def begin_process() -> None:
    """What every rank does first."""
    if "TORCHELASTIC_RUN_ID" in os.environ:
        # A rank without its torchrun would go on writing into the run's folder.
        _prctl_pr_set_pdeathsig(signal.SIGKILL)
    # Else flash-attn's backward adds in no fixed order.
    os.environ.setdefault("FLASH_ATTENTION_DETERMINISTIC", "1")
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    datasets.disable_progress_bars()
    # What it says of an error, the error says as well.
    datasets.logging.set_verbosity(datasets.logging.CRITICAL)


def reject(error: ValueError) -> int:
    """Says, once a machine, what is wrong with the flags, which all ranks find; returns 2."""
    if os.environ.get("RANK", "0") != "0":
        time.sleep(10)  # rank 0 says the same, and torchrun ends the others of its machine
    if os.environ.get("LOCAL_RANK", "0") == "0":
        print_error(error)
    return 2


@contextmanager
def talking():
    """For calls that only talk to other ranks: what goes wrong in them is a lost connection."""
    try:
        yield
    except RuntimeError as error:
        raise PeerLostError(error) from error

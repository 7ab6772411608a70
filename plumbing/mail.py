"""What student and teacher ranks say to each other."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
import torch.distributed as dist

from plumbing import errors
from sampler import Sampler, Selections

METRIC_NAMES = ("passes", "coverage", "overlong")
METRIC_NAMES += ("teacher_loss", "teacher_updates", "teacher_learn_s", "teacher_predict_s")


class NonFiniteError(errors.NonFiniteError):
    """`rows`: what it was computed from."""

    def __init__(self, message: str, rows: list[dict]):
        super().__init__(message)
        self.rows = rows


def pack(s: Selections) -> np.ndarray:
    """One float64 row a proposal, (N, 2K + 2): what goes over the wire."""
    columns = [s.pool_N_K, s.utilities_N_K, s.chosen_N, s.explored_N]
    return np.column_stack(columns).astype(float)


def unpack(rows: np.ndarray) -> Selections:
    """The inverse of pack."""
    K = (rows.shape[1] - 2) // 2
    pool, utilities, chosen, explored = np.split(rows, [K, 2 * K, 2 * K + 1], axis=1)
    chosen_N, explored_N = chosen[:, 0].astype(np.int64), explored[:, 0] > 0
    return Selections(pool.astype(np.int64), utilities, chosen_N, explored_N)


class Prefetching:
    """Fixes the order of effects around a sampler that learns, wherever it runs.

    observe(step t) leads to the proposals for step t+1. lag 1, the paper's asynchronous teacher: propose first,
    with what was learned up to step t-1, and learn from step t afterwards, while the student trains and rolls
    out. lag 0: learn first (Alg. 1 and 2 to the letter). `deliver(selections, metrics)` is called once they are ready.
    """

    def __init__(self, sampler: Sampler, n: int, lag: int):
        self.sampler, self.n, self.lag = sampler, n, lag
        self.deliver: Callable[[Selections, dict], None] = lambda selections, metrics: None
        self.next: tuple[Selections, dict] | None = (
            None  # proposals, and the sampler's metrics as they were made
        )
        self._metrics: dict[str, float] = {}

    def propose(self, n: int) -> Selections:
        if self.next is None:
            self._prefetch()
        (selections, self._metrics), self.next = self.next, None
        return selections

    def observe(self, index_N, successes_N, G) -> None:
        if self.lag == 0:
            self.sampler.observe(index_N, successes_N, G)
        self._prefetch()
        self.deliver(*self.next)
        if self.lag == 1:
            self.sampler.observe(index_N, successes_N, G)

    def _prefetch(self) -> None:
        self.next = self.sampler.propose(self.n), self.sampler.metrics()

    def state_dict(self) -> dict:
        held = None
        if self.next:
            selections, metrics = self.next
            timeless = {
                name: 0.0 if name.endswith("_s") else value for name, value in metrics.items()
            }
            held = selections.state_dict(), timeless  # the same on every rank
        return {"sampler": self.sampler.state_dict(), "next": held}

    def load_state_dict(self, state: dict) -> None:
        self.sampler.load_state_dict(state["sampler"])
        self.next = state["next"] and (
            Selections.from_state(state["next"][0]),
            state["next"][1],
        )

    def metrics(self) -> dict[str, float]:
        """The sampler's, as they were when the proposals in use were made."""
        return self._metrics

    @property
    def teacher(self):
        """The network behind the sampler, for checkpoints and export."""
        return self.sampler.teacher


REQUEST, FEEDBACK, SAVE, STOP = range(4)


@dataclass
class Wire:
    """Fixed-size CPU messages between the first student rank and the first teacher rank, over gloo.

    A message is int64 [what, argument, index_N, successes_N]; a reply float64: N packed selections, then the
    sampler's metrics in the order of `metric_names`. A posted NCCL receive would spin a GPU: these never do.
    """

    n: int
    K: int
    student: int  # global rank that speaks for the students
    teacher: int  # global rank that speaks for the teachers
    metric_names: tuple[str, ...] = METRIC_NAMES

    def message(self, what=STOP, argument=0, index_N=None, successes_N=None) -> torch.Tensor:
        empty = np.zeros(self.n)
        body = [empty if x is None else x for x in (index_N, successes_N)]
        return torch.from_numpy(np.concatenate([[what, argument], *body]).astype(np.int64))

    def reply(
        self, selections: Selections | None = None, metrics: dict | None = None
    ) -> torch.Tensor:
        if selections is None:
            return torch.zeros(
                self.n * (2 * self.K + 2) + len(self.metric_names), dtype=torch.float64
            )
        numbers = [metrics.get(name, math.nan) for name in self.metric_names]
        return torch.from_numpy(np.concatenate([pack(selections).ravel(), numbers]))


class RemoteSampler:
    """A sampler on the teacher ranks, seen from the student ranks as a `Sampler`. Keeps no state of its own:
    the proposals it may hold unread at a checkpoint are saved, and sent again on resume, by the server."""

    uses_teacher = True

    def __init__(self, wire: Wire, student_group):
        self.wire, self.group = wire, student_group
        self.speaks = dist.get_rank() == wire.student
        self.sending = (
            None  # the latest send and its tensor, which must live until the send is done
        )
        self.expecting = False
        self._metrics: dict[str, float] = {}

    def propose(self, n: int) -> Selections:
        if not self.expecting:
            self._send(self.wire.message(REQUEST))
        reply = self.wire.reply()
        if self.speaks:
            dist.recv(reply, src=self.wire.teacher)
        dist.broadcast(reply, src=self.wire.student, group=self.group)
        self.expecting = False
        packed, numbers = np.split(reply.numpy(), [len(reply) - len(self.wire.metric_names)])
        self._metrics = dict(zip(self.wire.metric_names, numbers.tolist(), strict=True))
        return unpack(packed.reshape(n, -1))

    def observe(self, index_N, successes_N, G) -> None:
        """Sends the feedback, which is also the request for the next step, and does not wait."""
        self._send(self.wire.message(FEEDBACK, G, index_N, successes_N))
        self.expecting = True

    def save(self, step: int) -> None:
        """Asks the server to write its part of checkpoint `step`."""
        self._send(self.wire.message(SAVE, step))

    def stop(self, finished: bool) -> None:
        """Ends the server, which is told whether the run is finished; returns when it has heard."""
        if self.expecting:
            self.propose(self.wire.n)
        self._send(self.wire.message(STOP, finished))
        if self.speaks:
            self.sending[0].wait()

    def _send(self, message: torch.Tensor) -> None:
        if self.speaks:
            if self.sending:
                self.sending[0].wait()
            self.sending = dist.isend(message, dst=self.wire.teacher), message

    def state_dict(self) -> dict:
        return {}

    def load_state_dict(self, state: dict) -> None: ...

    def metrics(self) -> dict[str, float]:
        return self._metrics

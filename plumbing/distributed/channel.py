"""The messages between student and teacher ranks, and when the teacher learns (App. K.3).

    student ranks                              teacher ranks
    RemoteSampler.propose   <- groups          serve: proposals for the first step
    RemoteSampler.observe   groups ->          Prefetching.prepare: proposals for the next step
    RemoteSampler.propose   <- groups          sent before Prefetching.learn: Alg. 2, meanwhile
    RemoteSampler.save      save ->            write this role's part; both roles wait for the other
    RemoteSampler.stop      stop ->            return

The first ranks of the roles exchange them over gloo, and hand them on to their role. A rank that
waits uses no GPU, and fails as soon as the other end's connections close.
"""

import pickle
from collections.abc import Callable

import torch
import torch.distributed as dist

from grpo import Group
from plumbing.distributed.layout import Layout
from plumbing.distributed.shutdown import stop_requested
from plumbing.files import plain


class Channel:
    """Messages, any Python values, between the ranks of the two roles, in order."""

    def __init__(self, layout: Layout):
        self.layout = layout
        self.peer = 0 if layout.is_teacher else layout.n_students
        self.sent: list[tuple] = []  # the last message: gloo reads its tensors later

    def send(self, message) -> None:
        """Wait until the previous message has been read, then send without waiting. All ranks of a
        role call it; the first sends."""
        if self.layout.first:
            self.wait()
            pickled = bytearray(pickle.dumps(message))
            content = torch.frombuffer(pickled, dtype=torch.uint8)
            length = torch.tensor([len(content)])
            self.sent = [(dist.isend(part, self.peer), part) for part in (length, content)]

    def wait(self) -> None:
        """Wait until the last message has been read."""
        for work, _ in self.sent:
            work.wait()
        self.sent = []

    def receive(self):
        """Return the next message of the other role. Raises RuntimeError if that role has ended, or
        has sent nothing for --timeout_minutes."""
        message = None
        if self.layout.first:
            length = torch.empty(1, dtype=torch.int64)
            dist.recv(length, self.peer)
            content = torch.empty(length.item(), dtype=torch.uint8)
            dist.recv(content, self.peer)
            message = pickle.loads(content.numpy())
        return self.layout.gather_role(message)[0]


class Prefetching:
    """A sampler with a teacher that proposes ahead: the groups of step t request the proposals for
    step t+1 (with DAPO's resampling, for the next round).

    lag 1, the paper's asynchronous teacher: propose with what was learned up to step t-1, then
    learn from step t while the student trains. lag 0: learn first, as in Alg. 1 and 2, except that
    all problems of a step are chosen at once."""

    def __init__(self, sampler, n: int, lag: int):
        self.sampler = sampler
        self.teacher = sampler.teacher
        self.n = n
        self.lag = lag
        self.next: tuple[list[Group], dict] | None = None  # proposals; metrics as they were made
        self._metrics: dict[str, float] = {}

    def propose(self, n: int) -> list[Group]:
        """Return the `self.n` proposals that are ready, or make the first ones."""
        if self.next is None:
            self._propose_next()
        groups, self._metrics = self.next
        self.next = None
        return groups

    def observe(self, groups: list[Group]) -> None:
        self.prepare(groups)
        self.learn(groups)

    def prepare(self, groups: list[Group]) -> None:
        """Make the next proposals; with lag 0 learn from these groups before."""
        if self.lag == 0:
            self.sampler.observe(groups)
        self._propose_next()

    def learn(self, groups: list[Group]) -> None:
        """With lag 1, learn from these groups after the next proposals."""
        if self.lag == 1:
            self.sampler.observe(groups)

    def _propose_next(self) -> None:
        self.next = self.sampler.propose(self.n), self.sampler.metrics()

    def more(self, groups: list[Group]) -> list[Group]:
        return []

    def train_on(self, groups: list[Group], n: int) -> list[Group]:
        return self.sampler.train_on(groups, n)

    def metrics(self) -> dict[str, float]:
        """Return the sampler's metrics when the latest proposals in use were made."""
        return self._metrics

    def state_dict(self) -> dict:
        pending = None
        if self.next:
            groups, metrics = self.next
            # Seconds differ from rank to rank, and all ranks must return the same state.
            metrics = {k: 0.0 if k.endswith("_s") else v for k, v in metrics.items()}
            pending = [vars(group) for group in groups], plain(metrics)
        return {"sampler": self.sampler.state_dict(), "next": pending}

    def load_state_dict(self, state: dict) -> None:
        self.sampler.load_state_dict(state["sampler"])
        self.next = None
        if state["next"]:
            groups, metrics = state["next"]
            self.next = [Group(**group) for group in groups], metrics


class RemoteSampler:
    """The sampler on the teacher ranks as the student ranks see it: a `Sampler` without state.
    train_on: that of the sampler's class."""

    teacher = None  # in this process

    def __init__(self, channel: Channel, train_on: Callable):
        self.channel = channel
        self.train_on = train_on
        self._metrics: dict[str, float] = {}

    def propose(self, n: int) -> list[Group]:
        """Wait for this round's proposals; the teacher ranks know `n`."""
        groups, self._metrics, stop = self.channel.receive()
        self.channel.layout.stopping |= stop
        return groups

    def observe(self, groups: list[Group]) -> None:
        """Send the groups, which also request the next proposals, without waiting."""
        self.channel.send(("observe", groups))

    def more(self, groups: list[Group]) -> list[Group]:
        return []

    def save(self, step: int) -> None:
        """Request the teacher ranks' part of checkpoint `step`; it includes unread proposals."""
        self.channel.send(("save", step))

    def stop(self, finished: bool) -> None:
        """End `serve`; finished: whether the run has taken all its steps."""
        self.channel.send(("stop", finished))
        self.channel.wait()

    def state_dict(self) -> None:
        """Return None: the teacher ranks save the sampler's state."""

    def load_state_dict(self, state: dict) -> None: ...

    def metrics(self) -> dict[str, float]:
        return self._metrics


def serve(sampler: Prefetching, channel: Channel, save: Callable[[int, dict], None]) -> bool:
    """Run the teacher ranks' main loop ("Teacher Process (Server)", App. K.3) until the stop
    message; return whether the run is finished. save(step, state) is called at a checkpoint."""
    proposals = sampler.propose(sampler.n)
    channel.send((proposals, sampler.metrics(), stop_requested(channel.layout)))
    while True:
        kind, content = channel.receive()
        if kind == "observe":
            sampler.prepare(content)
            channel.send((*sampler.next, stop_requested(channel.layout)))
            sampler.learn(content)
        elif kind == "save":
            save(content, sampler.state_dict())
        elif kind == "stop":
            return content

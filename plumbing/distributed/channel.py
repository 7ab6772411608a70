"""The messages between student and teacher ranks (App. K.3): both ends on one page.

    student ranks                                   teacher ranks
    RemoteSampler.propose   <- selections, metrics  serve: proposals for the first step
    RemoteSampler.observe   outcomes ->             teacher.Prefetching.observe: proposals for the
    RemoteSampler.propose   <- selections, metrics  next round, then learning (lag 1)
    RemoteSampler.save      save ->                 write this role's part of the checkpoint
    RemoteSampler.stop      stop ->                 return

The first ranks of the roles exchange them over gloo, and hand them on to their role. A rank that
waits uses no GPU, and fails as soon as the other end's connections close.
"""

import pickle
from collections.abc import Callable

import torch
import torch.distributed as dist

from plumbing.distributed.layout import Layout


class Channel:
    """Messages, any Python values, between the ranks of the two roles, in order."""

    def __init__(self, layout: Layout):
        self.layout, self.peer = layout, 0 if layout.is_teacher else layout.n_students
        self.sent: list[tuple] = []  # the last message: gloo reads its tensors later

    def send(self, message) -> None:
        """Send without waiting, once the previous message has been read. All ranks of a role call
        it; the first sends."""
        if self.layout.first:
            self.wait()
            content = torch.frombuffer(bytearray(pickle.dumps(message)), dtype=torch.uint8)
            parts = torch.tensor([len(content)]), content
            self.sent = [(dist.isend(part, self.peer), part) for part in parts]

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
            dist.recv(length := torch.empty(1, dtype=torch.int64), self.peer)
            dist.recv(content := torch.empty(length.item(), dtype=torch.uint8), self.peer)
            message = pickle.loads(content.numpy())
        return self.layout.gather(message, self.layout.group)[0]


class RemoteSampler:
    """The sampler on the teacher ranks as the student ranks see it: a `Sampler` without state."""

    def __init__(self, channel: Channel, train_on: Callable):
        self.channel, self.train_on = channel, train_on  # the sampler's own, which has no state
        self._metrics: dict[str, float] = {}

    def propose(self, n: int):
        """Wait for this round's proposals; the teacher ranks know `n`."""
        selections, self._metrics, stop = self.channel.receive()
        self.channel.layout.stopping |= stop
        return selections

    def observe(self, outcomes) -> None:
        """Send the outcomes, which also request the next proposals, without waiting."""
        self.channel.send(("observe", outcomes))

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


def serve(sampler, channel: Channel, save: Callable[[int, dict], None]) -> bool:
    """Run the teacher ranks' main loop ("Teacher Process (Server)", App. K.3) until the stop
    message; return whether the run is finished. sampler: teacher.Prefetching. save(step, state) is
    called at a checkpoint."""
    sampler.deliver = lambda *ready: channel.send((*ready, channel.layout.stopping))
    sampler.deliver(sampler.propose(sampler.n), sampler.metrics())
    while True:
        kind, *content = channel.receive()
        if kind == "observe":
            sampler.observe(*content)
        elif kind == "save":
            save(*content, sampler.state_dict())
        elif kind == "stop":
            return content[0]

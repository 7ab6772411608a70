"""The messages between student and teacher ranks (App. K.3): both ends on one page.

    student ranks                                   teacher ranks
    RemoteSampler.propose   <- selections, metrics  serve: proposals for the first step
    RemoteSampler.observe   outcomes ->             teacher.Prefetching.observe: proposals for the
    RemoteSampler.propose   <- selections, metrics  next round, then learning (lag 1)
    RemoteSampler.save      save ->                 write this role's part of the checkpoint
    RemoteSampler.stop      stop ->                 return

Messages are kept in torchrun's key-value store: one rank writes, all ranks of the other role read.
A rank that waits uses no GPU, and may read late.
"""

import pickle
import time
from collections.abc import Callable

from plumbing.distributed.layout import Layout
from plumbing.distributed.shutdown import heartbeats
from plumbing.errors import PeerLostError

POLL_S = 0.01  # between checks for a message: store.wait would print a warning at each timeout
CHECK_PEER_S = 1.0  # between checks whether the sender is alive
HEARTBEAT_TIMEOUT_S = 15  # without a heartbeat a peer is dead, after SIGTERM; torchrun kills at 30
NO_SIGTERM_FACTOR = 10  # times longer without SIGTERM, as when a whole machine dies


class Channel:
    """Numbered messages, any Python values, between the ranks of the two roles."""

    def __init__(self, layout: Layout):
        self.layout, self.store = layout, layout.store
        roles = {"student": layout.n_students, "teacher": layout.n_teachers}
        self.readers = roles.pop(layout.role)
        (self.peer,) = roles
        self.sent = self.received = 0

    def send(self, message) -> None:
        """Send without waiting. All ranks of a role call it; the first writes."""
        if self.layout.first:
            self.store.set(f"{self.layout.role}/{self.sent}", pickle.dumps(message))
        self.sent += 1

    def receive(self):
        """Return the next message of the other role. Raises PeerLostError if that role has ended,
        or has sent nothing for --timeout_minutes."""
        key, beats, waited, silent = f"{self.peer}/{self.received}", 0, 0.0, 0.0
        next_check = time.monotonic() + CHECK_PEER_S
        while not self.store.check([key]):
            time.sleep(POLL_S)
            if time.monotonic() < next_check:
                continue
            # Count checks, not clock time: the whole job may have been suspended and continued.
            next_check = time.monotonic() + CHECK_PEER_S
            waited, silent = waited + CHECK_PEER_S, silent + CHECK_PEER_S
            # SIGTERM comes when a rank has died, but also to stop a run after its step.
            count, stopping = heartbeats(self.layout, self.peer), self.layout.sigterm.is_set()
            if count > beats or not (count or stopping):  # alive, or still starting
                beats, silent = count, 0.0
            dead = silent > HEARTBEAT_TIMEOUT_S * (1 if stopping else NO_SIGTERM_FACTOR)
            late = waited > self.layout.timeout.total_seconds()
            if dead or late or self.store.check(["reported"]):
                raise PeerLostError(f"no message from the {self.peer} ranks")
        message = pickle.loads(self.store.get(key))
        if self.store.add(f"{key}/read", 1) == self.readers:  # the last reader cleans up
            self.store.delete_key(key)
            self.store.delete_key(f"{key}/read")
        self.received += 1
        return message


class RemoteSampler:
    """The sampler on the teacher ranks as the student ranks see it: a `Sampler` without state."""

    def __init__(self, channel: Channel, train_on: Callable):
        self.channel, self.train_on = channel, train_on  # the sampler's own, which has no state
        self._metrics: dict[str, float] = {}

    def propose(self, n: int):
        """Wait for this round's proposals; the teacher ranks know `n`."""
        selections, self._metrics = self.channel.receive()
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

    def state_dict(self) -> None:
        """Return None: the teacher ranks save the sampler's state."""

    def load_state_dict(self, state: dict) -> None: ...

    def metrics(self) -> dict[str, float]:
        return self._metrics


def serve(sampler, channel: Channel, save: Callable[[int, dict], None]) -> bool:
    """Run the teacher ranks' main loop ("Teacher Process (Server)", App. K.3) until the stop
    message; return whether the run is finished. sampler: teacher.Prefetching. save(step, state) is
    called at a checkpoint."""
    sampler.deliver = lambda selections, metrics: channel.send((selections, metrics))
    sampler.deliver(sampler.propose(sampler.n), sampler.metrics())
    while True:
        kind, *content = channel.receive()
        if kind == "observe":
            sampler.observe(*content)
        elif kind == "save":
            save(*content, sampler.state_dict())
        elif kind == "stop":
            return content[0]

"""The conversation between student and teacher ranks (App. K.3): both ends, on one page.

    student ranks                                   teacher ranks
    RemoteSampler.propose   <- selections, metrics  serve: proposals for the first step
    RemoteSampler.observe   outcomes ->             sampler.Prefetching.observe: proposals for the
    RemoteSampler.propose   <- selections, metrics  next step, then learning (lag 1)
    RemoteSampler.save      save ->                 write this role's part of the checkpoint
    RemoteSampler.stop      stop ->                 return

Letters lie in torchrun's key-value store: one rank posts, all ranks of the other side read. Nobody
holds a connection or a GPU while waiting, and a letter is read by those who come late.
"""

import pickle
import time
from collections.abc import Callable

from plumbing.errors import PeerLostError

LOOK = 0.01  # seconds between looks for a letter: store.wait would print a warning at each time-out
TURN = 1.0  # seconds between looks at whether anybody will write it
HEARTBEAT_TIMEOUT_S = (
    15  # seconds without a sign of life, after SIGTERM, that mean death: torchrun kills at 30
)
MACHINE = 10  # times as long without SIGTERM: where all ranks of a machine die, nobody sends it


class Channel:
    """Numbered letters, any Python values, from the ranks of one role to those of the other."""

    def __init__(self, layout):
        self.layout, self.store = layout, layout.store
        roles = {"student": layout.n_students, "teacher": layout.n_teachers}
        self.readers = roles.pop(layout.role)
        (self.theirs,) = roles
        self.posted = self.taken = 0

    def post(self, letter) -> None:
        """All ranks of a role call it; the first one posts. It does not wait."""
        if self.layout.first:
            self.store.set(f"{self.layout.role}/{self.posted}", pickle.dumps(letter))
        self.posted += 1

    def take(self):
        """The next letter of the other role. Raises PeerLostError where that role has ended, or has not
        written for as long as --timeout_minutes."""
        key, heard, waited, silent = f"{self.theirs}/{self.taken}", 0, 0.0, 0.0
        turn = time.monotonic() + TURN
        while not self.store.check([key]):
            time.sleep(LOOK)
            if time.monotonic() < turn:
                continue
            # By turns, not by the clock: the whole job may have been stopped, and continued.
            turn, waited, silent = time.monotonic() + TURN, waited + TURN, silent + TURN
            # SIGTERM comes where a rank has died, but also to end a run well, after its step.
            signs, stopping = self.layout.heartbeats(self.theirs), self.layout.sigterm.is_set()
            if signs > heard or not (signs or stopping):  # without signs they are not ready yet
                heard, silent = signs, 0.0
            dead = silent > (HEARTBEAT_TIMEOUT_S if stopping else MACHINE * HEARTBEAT_TIMEOUT_S)
            late = waited > self.layout.timeout.total_seconds()
            if dead or late or self.store.check(["said"]):
                raise PeerLostError(f"no letter from the {self.theirs} ranks")
        letter = pickle.loads(self.store.get(key))
        if self.store.add(f"{key}/read", 1) == self.readers:  # nobody else will read it
            self.store.delete_key(key)
            self.store.delete_key(f"{key}/read")
        self.taken += 1
        return letter


class RemoteSampler:
    """A sampler on the teacher ranks, seen from the student ranks as a `Sampler`. It keeps no
    state: proposals that are unread at a checkpoint are saved, and sent again on resume, by
    `serve`."""

    uses_teacher = True

    def __init__(self, mail: Channel):
        self.mail = mail
        self._metrics: dict[str, float] = {}

    def propose(self, n: int):
        """The proposals that wait for this step, or come for it; `n` is known to their maker."""
        selections, self._metrics = self.mail.take()
        return selections

    def observe(self, index_N, successes_N, G: int) -> None:
        """Sends the feedback, which is also the request for the next step, and does not wait."""
        self.mail.post(("observe", index_N, successes_N, G))

    def save(self, step: int) -> None:
        """Asks the teacher ranks to write their part of checkpoint `step`."""
        self.mail.post(("save", step))

    def stop(self, finished: bool) -> None:
        """Ends `serve`, which is told whether the run is finished."""
        self.mail.post(("stop", finished))

    def state_dict(self) -> dict:
        return {}

    def load_state_dict(self, state) -> None: ...

    def metrics(self) -> dict[str, float]:
        return self._metrics


def serve(sampler, mail: Channel, save: Callable[[int], None]) -> bool:
    """The teacher ranks' main loop ("Teacher Process (Server)", App. K.3): propose, learn, and call
    save(step) at a checkpoint, until told to stop. Returns whether the run is finished.

    sampler: a sampler.Prefetching."""
    sampler.deliver = lambda selections, metrics: mail.post((selections, metrics))
    sampler.deliver(sampler.propose(sampler.n), sampler.metrics())
    while True:
        what, *content = mail.take()
        if what == "observe":
            sampler.observe(*content)
        elif what == "save":
            save(*content)
        elif what == "stop":
            return content[0]

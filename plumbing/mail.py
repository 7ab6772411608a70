"""The conversation between student and teacher ranks (App. K.3): both ends, on one page.

    student ranks                                   teacher ranks
    RemoteSampler.propose   -- propose -->          serve, sampler.Prefetching
                            <-- selections, metrics --
    RemoteSampler.observe   -- observe -->          propose for the next step, then learn (lag 1)
                            <-- selections, metrics --
    RemoteSampler.save      -- save -->             write this role's part of the checkpoint
    RemoteSampler.stop      -- stop -->             return

Letters lie in torchrun's key-value store: one rank posts, all ranks of the other side read. Nobody
holds a connection or a GPU while waiting, and a letter is read by those who come late.
"""

import pickle
import time
from collections.abc import Callable
from datetime import timedelta

import torch.distributed as dist

from plumbing.errors import Lost

GRACE = 20  # seconds after SIGTERM that a letter is still waited for: torchrun kills after 30


class Mailbox:
    """Numbered letters, any Python values, from the ranks of one role to those of the other."""

    def __init__(self, layout):
        self.layout, self.store = layout, layout.store
        roles = ("student", "teacher")
        self.mine, self.theirs = roles if not layout.is_teacher else roles[::-1]
        self.posted = self.taken = 0

    def post(self, letter) -> None:
        """All ranks of a role call it; the first one posts. It does not wait."""
        if self.layout.first:
            self.store.set(f"{self.mine}/{self.posted}", pickle.dumps(letter))
            # The two sides take turns: what was posted 4 letters ago has been read by all.
            self.store.delete_key(f"{self.mine}/{self.posted - 4}")
        self.posted += 1

    def take(self):
        """The next letter of the other role. Raises Lost where that role has ended."""
        key, start = f"{self.theirs}/{self.taken}", time.monotonic()
        patience = self.layout.timeout.total_seconds()
        while not self._arrives(key):
            if self.layout.sigterm.is_set() and patience > GRACE:
                start, patience = time.monotonic(), GRACE
            if self.store.check(["said"]) or time.monotonic() > start + patience:
                raise Lost(f"no letter from the {self.theirs} ranks")
        self.taken += 1
        return pickle.loads(self.store.get(key))

    def _arrives(self, key: str) -> bool:
        try:
            self.store.wait([key], timedelta(seconds=1))
        except dist.DistStoreError:  # not within a second
            return False
        return True


class RemoteSampler:
    """A sampler on the teacher ranks, seen from the student ranks as a `Sampler`. It keeps no state:
    proposals that are unread at a checkpoint are saved, and sent again on resume, by `serve`."""

    uses_teacher = True

    def __init__(self, mail: Mailbox):
        self.mail = mail
        self.expecting = False
        self._metrics: dict[str, float] = {}

    def propose(self, n: int):
        if not self.expecting:
            self.mail.post(("propose", n))
        selections, self._metrics = self.mail.take()
        self.expecting = False
        return selections

    def observe(self, index_N, successes_N, G: int) -> None:
        """Sends the feedback, which is also the request for the next step, and does not wait."""
        self.mail.post(("observe", index_N, successes_N, G))
        self.expecting = True

    def save(self, step: int) -> None:
        """Asks the teacher ranks to write their part of checkpoint `step`."""
        self.mail.post(("save", step))

    def stop(self, finished: bool) -> None:
        """Ends `serve`, which is told whether the run is finished."""
        if self.expecting:
            self.mail.take()
        self.mail.post(("stop", finished))

    def state_dict(self) -> None:
        return None

    def load_state_dict(self, state) -> None: ...

    def metrics(self) -> dict[str, float]:
        return self._metrics


def serve(sampler, mail: Mailbox, save: Callable[[int], None]) -> bool:
    """The teacher ranks' main loop ("Teacher Process (Server)", App. K.3): answer, learn, and call
    save(step) at a checkpoint, until told to stop. Returns whether the run is finished.

    sampler: a sampler.Prefetching."""
    sampler.deliver = lambda selections, metrics: mail.post((selections, metrics))
    while True:
        what, *content = mail.take()
        if what == "propose":
            sampler.deliver(sampler.propose(*content), sampler.metrics())
        elif what == "observe":
            sampler.observe(*content)
        elif what == "save":
            save(*content)
        elif what == "stop":
            return content[0]

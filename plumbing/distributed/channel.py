"""Messages between the student ranks and the teacher ranks (App. K.3).

    student ranks                  teacher ranks
    train.TeacherClient  groups -> teacher.TeacherServer.run: observe, propose
                     <- proposals
    train.train        save, stop, evaluating ->

The first ranks of the roles exchange them over gloo, and hand them on to their role. A rank that
waits uses no GPU, and fails as soon as the other end's connections close.
"""

import pickle

import torch
import torch.distributed as dist

from plumbing.distributed.layout import Layout


class Channel:
    """Messages between the ranks of the two roles, in order: pairs of any Python values, and
    whether their sender is to stop."""

    def __init__(self, layout: Layout):
        self.layout = layout
        self.peer = 0 if layout.is_teacher else layout.n_students
        self.sent: list[tuple] = []  # the last message: gloo reads its tensors later

    def send(self, kind, content) -> None:
        """Wait until the previous message has been read, then send without waiting. All ranks of a
        role call it; the first sends. Without teacher ranks there is no message."""
        if self.layout.first and self.layout.n_teachers:
            self.wait()
            pickled = bytearray(pickle.dumps((kind, content, self.layout.stopping)))
            content = torch.frombuffer(pickled, dtype=torch.uint8)
            length = torch.tensor([len(content)])
            for part in (length, content):
                work = dist.isend(part, self.peer)
                self.sent.append((work, part))

    def wait(self) -> None:
        """Wait until the last message has been read."""
        for work, _ in self.sent:
            work.wait()
        self.sent = []

    def receive(self) -> tuple:
        """Return the next message of the other role, and stop if it does. Raises RuntimeError if
        that role has ended, or has sent nothing for --timeout_minutes."""
        message = None
        if self.layout.first:
            length = torch.empty(1, dtype=torch.int64)
            dist.recv(length, self.peer)
            content = torch.empty(length.item(), dtype=torch.uint8)
            dist.recv(content, self.peer)
            message = pickle.loads(content.numpy())
        kind, content, stop = self.layout.gather_role(message)[0]
        self.layout.stopping |= stop
        return kind, content

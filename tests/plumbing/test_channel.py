"""plumbing/distributed/channel.py: who hears what, what a proposal has learned, and the silence of the dead.

Both ends run here, in threads that share a store; runs of several ranks are in test_train.py.
"""

import itertools
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from types import SimpleNamespace
from unittest.mock import Mock

import numpy as np
import pytest
import torch.distributed as dist

from plumbing.distributed import channel
from plumbing.distributed.channel import Channel, RemoteSampler, serve
from plumbing.errors import PeerLostError
from sampler import Prefetching, Selections


def ends(students: int, teachers: int, seconds=60.0) -> list[Channel]:
    """The mailboxes of all ranks, students first."""
    store, ranks = dist.HashStore(), []
    for rank in range(students + teachers):
        layout = SimpleNamespace(store=store, timeout=timedelta(seconds=seconds))
        layout.n_students, layout.n_teachers = students, teachers
        layout.role = "student" if rank < students else "teacher"
        layout.first, layout.sigterm = rank in (0, students), threading.Event()
        layout.heartbeats = lambda role: 0
        ranks.append(Channel(layout))
    return ranks


def counting() -> Mock:
    """A sampler that proposes problems 0 and 1, then 2 and 3, ..."""
    sampler = Mock()
    pairs = [np.array([2 * i, 2 * i + 1]) for i in range(20)]
    sampler.propose.side_effect = map(Selections.unscored, pairs)
    sampler.metrics.side_effect = [{"highest": pair.max()} for pair in pairs]
    return sampler


def study(box: Channel, steps: int, save_at: int):
    """A student rank: what it was proposed, and the metrics that came with it."""
    sampler, heard = RemoteSampler(box), []
    for step in range(1, steps + 1):
        index_N = sampler.propose(2).index_N
        heard.append((index_N.tolist(), sampler.metrics()["highest"]))
        sampler.observe(index_N, np.array([step % 5, 0]), 4)
        if step == save_at:
            sampler.save(step)
    sampler.stop(True)
    return heard


@pytest.mark.parametrize(("lag", "turn"), [(0, "op"), (1, "po")])
def test_lag_fixes_what_a_proposal_has_learned_and_all_ranks_hear_the_same(lag, turn):
    """Nine steps of three students and two teachers; what all have read is deleted."""
    boxes, samplers = ends(3, 2), [counting(), counting()]
    with ThreadPoolExecutor() as ranks:
        students = [ranks.submit(study, box, 9, 2) for box in boxes[:3]]
        teachers = []
        for box, sampler in zip(boxes[3:], samplers, strict=True):
            teachers.append(ranks.submit(serve, Prefetching(sampler, 2, lag), box, sampler.save))
        proposed = [student.result(60) for student in students]
        assert [teacher.result(60) for teacher in teachers] == [True, True]
    assert proposed == [[([2 * i, 2 * i + 1], 2 * i + 1) for i in range(9)]] * 3
    for sampler in samplers:
        order = [name[0] for name, *_ in sampler.mock_calls if name != "metrics"]
        assert "".join(order) == "p" + 2 * turn + "s" + 7 * turn
        index_N, successes_N, G = sampler.observe.call_args_list[1].args
        assert (index_N.tolist(), successes_N.tolist(), G) == ([2, 3], [2, 0], 4)
    assert boxes[0].store.num_keys() == 1  # the proposals for a tenth step


# ---- a letter that does not come


UNTIL = {  # how long the timeout is, and what else happens
    "the timeout": (0.1, lambda box: None),
    "a rank has said why it ended": (1e6, lambda box: box.store.add("said", 1)),
    "silence after SIGTERM": (1e6, lambda box: box.layout.sigterm.set()),
    "long silence": (1e6, lambda box: setattr(box.layout, "heartbeats", lambda role: 1)),
}


@pytest.mark.parametrize("until", UNTIL)
def test_it_is_waited_for_until(until, monkeypatch):
    """That a rank which gives signs of life after SIGTERM is waited for, test_faults.py shows."""
    monkeypatch.setattr(channel, "HEARTBEAT_TIMEOUT_S", 0.1)
    monkeypatch.setattr(channel, "TURN", 0.05)
    seconds, happens = UNTIL[until]
    student, teacher = ends(1, 1, seconds)
    for waits, silent in ((student, "teacher"), (teacher, "student")):
        happens(waits)
        with pytest.raises(
            PeerLostError, match=rf"--timeout_minutes \(no letter from the {silent} ranks\)"
        ):
            waits.take()


def test_a_job_that_is_stopped_and_goes_on_is_not_given_up(monkeypatch):
    """The clock runs on by 1000 s between any two looks, and the other role lives."""
    clock, heard = itertools.count(step=1000.0), []
    jumps = SimpleNamespace(sleep=time.sleep, monotonic=lambda: next(clock))
    monkeypatch.setattr(channel, "time", jumps)
    student, teacher = ends(1, 1, 1e6)

    def heartbeats(role):
        heard.append(role)
        if len(heard) == 20:
            teacher.post("letter")
        return len(heard) // 3

    student.layout.heartbeats = heartbeats
    assert student.take() == "letter" and set(heard) == {"teacher"}

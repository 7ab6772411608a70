"""plumbing/distributed/channel.py: order of messages, lost peers. Ranks are threads."""

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


def channels(students: int, teachers: int, seconds=60.0) -> list[Channel]:
    """Make the channels of all ranks, students first."""
    store, ranks = dist.HashStore(), []
    for rank in range(students + teachers):
        layout = SimpleNamespace(store=store, timeout=timedelta(seconds=seconds))
        layout.n_students, layout.n_teachers = students, teachers
        layout.role = "student" if rank < students else "teacher"
        layout.first, layout.sigterm = rank in (0, students), threading.Event()
        ranks.append(Channel(layout))
    return ranks


def counting() -> Mock:
    """Make a sampler that proposes problems 0 and 1, then 2 and 3, ..."""
    sampler = Mock()
    pairs = [np.array([2 * i, 2 * i + 1]) for i in range(20)]
    sampler.propose.side_effect = map(Selections.unscored, pairs)
    sampler.metrics.side_effect = [{"highest": pair.max()} for pair in pairs]
    return sampler


def study(channel: Channel):
    """Act as a student rank for nine steps; return its proposals with their metrics."""
    sampler, received = RemoteSampler(channel), []
    for step in range(1, 10):
        index_N = sampler.propose(2).index_N
        received.append((index_N.tolist(), sampler.metrics()["highest"]))
        sampler.observe(index_N, np.array([step % 5, 0]), 4)
        if step == 2:
            sampler.save(step)
    sampler.stop(True)
    return received


@pytest.mark.parametrize(("lag", "turn"), [(0, "op"), (1, "po")])
def test_lag_orders_learning_and_proposing(lag, turn):
    """Three students and two teachers; messages read by all are deleted."""
    ranks, samplers = channels(3, 2), [counting(), counting()]
    with ThreadPoolExecutor() as threads:
        students = [threads.submit(study, rank) for rank in ranks[:3]]
        teachers = [
            threads.submit(serve, Prefetching(sampler, 2, lag), rank, sampler.save)
            for rank, sampler in zip(ranks[3:], samplers, strict=True)
        ]
        proposed = [student.result(60) for student in students]
        assert [teacher.result(60) for teacher in teachers] == [True, True]
    assert proposed == [[([2 * i, 2 * i + 1], 2 * i + 1) for i in range(9)]] * 3
    for sampler in samplers:
        order = [name[0] for name, *_ in sampler.mock_calls if name != "metrics"]
        assert "".join(order) == "p" + 2 * turn + "ss" + 7 * turn  # state_dict, save
        index_N, successes_N, G = sampler.observe.call_args_list[1].args
        assert (index_N.tolist(), successes_N.tolist(), G) == ([2, 3], [2, 0], 4)
    # The proposals for a tenth step, and counts of heartbeats if a rank has waited for a second.
    assert 1 <= ranks[0].store.num_keys() <= 3


LOST = {  # --timeout_minutes in seconds, and an event at the waiting rank
    "timeout": (0.1, lambda rank: None),
    "another rank reported an error": (1e6, lambda rank: rank.store.add("reported", 1)),
    "no heartbeat after SIGTERM": (1e6, lambda rank: rank.layout.sigterm.set()),
    "no heartbeat for long": (1e6, lambda rank: rank.store.add(f"{rank.peer}/heartbeats", 1)),
}


@pytest.mark.parametrize("case", LOST)
def test_a_lost_peer_is_reported(case, monkeypatch):
    """tests/plumbing/test_faults.py shows that a peer with heartbeats is waited for."""
    monkeypatch.setattr(channel, "HEARTBEAT_TIMEOUT_S", 0.1)
    monkeypatch.setattr(channel, "CHECK_PEER_S", 0.05)
    seconds, event = LOST[case]
    student, teacher = channels(1, 1, seconds)
    for rank, peer in ((student, "teacher"), (teacher, "student")):
        event(rank)
        with pytest.raises(PeerLostError, match=rf"minutes \(no message from the {peer} ranks\)"):
            rank.receive()


def test_a_job_that_was_suspended_and_continued_is_not_given_up(monkeypatch):
    """The clock advances by 1000 s between any two checks, while the other role is alive."""
    clock, checked = itertools.count(step=1000.0), []
    jumps = SimpleNamespace(sleep=time.sleep, monotonic=lambda: next(clock))
    monkeypatch.setattr(channel, "time", jumps)
    student, teacher = channels(1, 1, 1e6)

    def heartbeats(layout, role):
        checked.append(role)
        if len(checked) == 20:
            teacher.send("message")
        return len(checked) // 3

    monkeypatch.setattr(channel, "heartbeats", heartbeats)
    assert student.receive() == "message" and set(checked) == {"teacher"}

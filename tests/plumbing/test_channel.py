"""plumbing/distributed/channel.py: order of messages, lost peers. Ranks are threads."""

import threading
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
from sampler import Selections
from teacher import Prefetching
from tests.helpers.samplers import outcomes


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
    """Make a sampler that proposes problems 0 and 1, 2 and 3, ..., every third time `again`."""
    sampler, pairs = Mock(), [np.array([2 * i, 2 * i + 1]) for i in range(20)]
    again = (Selections.unscored(pair, again=i % 3 == 2) for i, pair in enumerate(pairs))
    sampler.propose.side_effect, sampler.state_dict.return_value = again, {}
    sampler.metrics.side_effect = [{"highest": int(pair.max())} for pair in pairs]
    return sampler


def study(channel: Channel):
    """Act as a student rank; return the proposals of nine rounds with their metrics."""
    sampler, received = RemoteSampler(channel, Mock()), []
    for i in range(9):
        index_N = sampler.propose(2).index_N
        received.append((index_N.tolist(), sampler.metrics()["highest"]))
        sampler.observe(outcomes(index_N, [i, 0], step=i))
        if i == 4:
            sampler.save(i)
    sampler.stop(True)
    return received


PROPOSED = [([2 * i, 2 * i + 1], 2 * i + 1) for i in range(9)]


def order_of(sampler: Mock) -> str:
    """Return the first letters of a mock's calls, without those of `metrics`."""
    return "".join(name[0] for name, *_ in sampler.mock_calls if name != "metrics")


@pytest.mark.parametrize(("lag", "turn"), [(0, "op"), (1, "po")])
def test_lag_orders_learning_and_proposing(lag, turn):
    """Three students and two teachers; messages read by all are deleted. With `again` the sampler
    learns first whatever the lag."""
    ranks, samplers = channels(3, 2), [counting(), counting()]
    with ThreadPoolExecutor() as threads:
        students = [threads.submit(study, rank) for rank in ranks[:3]]
        teachers = [
            threads.submit(serve, Prefetching(sampler, 2, lag), rank, sampler.save)
            for rank, sampler in zip(ranks[3:], samplers, strict=True)
        ]
        assert [student.result(60) for student in students] == [PROPOSED] * 3
        assert [teacher.result(60) for teacher in teachers] == [True, True]
    three = turn + turn + "op"
    for sampler in samplers:
        assert order_of(sampler) == "p" + three + turn + turn + "ss" + "op" + three  # a save
        seen = sampler.observe.call_args_list[3].args[0]
        assert (seen.index_N.tolist(), seen.successes_N.tolist(), seen.step) == ([6, 7], [3, 0], 3)
    # The proposals for a tenth round, and counts of heartbeats if a rank has waited for a second.
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

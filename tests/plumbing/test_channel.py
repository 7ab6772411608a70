"""plumbing/distributed/channel.py: order of messages. Ranks are threads, connected by queues."""

from concurrent.futures import ThreadPoolExecutor
from functools import partial
from queue import Queue
from types import SimpleNamespace
from unittest.mock import Mock

import numpy as np
import pytest

from plumbing.distributed.channel import RemoteSampler, serve
from sampler import Selections
from teacher import Prefetching
from tests.helpers.samplers import outcomes


def channel(inbox: Queue, outbox: Queue) -> SimpleNamespace:
    """Make what Channel is to `serve` and RemoteSampler, for the one rank of a role."""
    layout, receive = SimpleNamespace(stopping=False), partial(inbox.get, timeout=60)
    return SimpleNamespace(layout=layout, receive=receive, send=outbox.put, wait=lambda: None)


def channels() -> tuple[SimpleNamespace, SimpleNamespace]:
    queues = Queue(), Queue()
    return channel(*queues), channel(*queues[::-1])


def counting() -> Mock:
    """Make a sampler that proposes problems 0 and 1, 2 and 3, ..., every third time `again`."""
    sampler, pairs = Mock(), [np.array([2 * i, 2 * i + 1]) for i in range(20)]
    again = (Selections.unscored(pair, again=i % 3 == 2) for i, pair in enumerate(pairs))
    sampler.propose.side_effect, sampler.state_dict.return_value = again, {}
    sampler.metrics.side_effect = [{"highest": int(pair.max())} for pair in pairs]
    return sampler


def study(sampler, rounds=range(9)):
    """Act as a student rank; return the proposals of some rounds with their metrics."""
    received = []
    for i in rounds:
        index_N = sampler.propose(2).index_N
        received.append((index_N.tolist(), sampler.metrics()["highest"]))
        sampler.observe(outcomes(index_N, [i, 0], step=i))
        if i == 4 and isinstance(sampler, RemoteSampler):
            sampler.save(i)
    return received


PROPOSED = [([2 * i, 2 * i + 1], 2 * i + 1) for i in range(9)]


def order_of(sampler: Mock) -> str:
    """Return the first letters of a mock's calls, without those of `metrics`."""
    return "".join(name[0] for name, *_ in sampler.mock_calls if name != "metrics")


@pytest.mark.parametrize(("lag", "turn"), [(0, "op"), (1, "po")])
def test_lag_orders_learning_and_proposing(lag, turn):
    """With `again` the sampler learns first whatever the lag."""
    (student, teacher), sampler = channels(), counting()
    with ThreadPoolExecutor() as threads:
        served = threads.submit(serve, Prefetching(sampler, 2, lag), teacher, sampler.save)
        remote = RemoteSampler(student, Mock())
        assert study(remote) == PROPOSED
        remote.stop(True)
        assert served.result(60)
    three = turn + turn + "op"
    assert order_of(sampler) == "p" + three + turn + turn + "ss" + "op" + three  # a save
    seen = sampler.observe.call_args_list[3].args[0]
    assert (seen.index_N.tolist(), seen.successes_N.tolist(), seen.step) == ([6, 7], [3, 0], 3)


def test_a_signal_at_a_teacher_stops_the_students():
    student, teacher = channels()
    student.send(("stop", False))
    teacher.layout.stopping = True
    assert not serve(Prefetching(counting(), 2, 1), teacher, None)
    RemoteSampler(student, None).propose(2)
    assert student.layout.stopping


@pytest.mark.parametrize(("lag", "turn"), [(0, "op"), (1, "po")])
def test_lag_in_one_process_also_after_a_resume_within_a_step(lag, turn):
    first, second = counting(), counting()
    whole, resumed = Prefetching(first, 2, lag), Prefetching(second, 2, lag)
    received = study(whole, range(2))
    resumed.load_state_dict(whole.state_dict())  # pending: the third proposals, which are `again`
    first.reset_mock()
    assert received + study(whole, range(2, 9)) == PROPOSED
    assert order_of(first) == "op" + 2 * (turn + turn + "op")
    assert study(resumed, [2]) == PROPOSED[2:3] and order_of(second) == "lop"

"""plumbing/mail.py: what a proposal has learned, and what survives a checkpoint or the wire."""

import numpy as np
from test_sampler import Numbers, build

from plumbing.mail import Prefetching, Wire, pack, unpack
from sampler import Goldilocks


def goldilocks(epsilon=0.0, K=8):
    return build(Goldilocks, Numbers(200), epsilon=epsilon, candidates=K)


def test_lag_fixes_what_each_proposal_has_learned():
    for lag, expected in ((0, [0, 2, 4]), (1, [0, 0, 2])):
        sampler, heard = goldilocks(), []
        predict, update = sampler.teacher.predict, sampler.teacher.update

        def spy(questions, predict=predict, update=update, heard=heard):
            heard.append(update.call_count)
            return predict(questions)

        sampler.teacher.predict = spy
        prefetching = Prefetching(sampler, 2, lag)
        for _ in range(2):
            prefetching.observe(prefetching.propose(2).index_N, np.array([1, 1]), 16)
        prefetching.propose(2)
        assert heard == expected


def test_prefetched_proposals_survive_a_checkpoint():
    a, b = (Prefetching(goldilocks(epsilon=0.3), 4, lag=1) for _ in range(2))
    s = a.propose(4)
    a.observe(s.index_N, np.array([1, 2, 3, 4]), 16)
    b.load_state_dict(a.state_dict())
    assert np.array_equal(pack(a.propose(4)), pack(b.propose(4)))
    assert a.metrics() == b.metrics()


def test_wire_round_trip():
    wire = Wire(3, 4, 0, 6, ("a", "b"))
    s = goldilocks(K=4).propose(3)
    reply = wire.reply(s, {"a": 1.5})
    assert reply.shape == wire.reply().shape
    back = unpack(reply[:-2].numpy().reshape(3, -1))
    assert np.array_equal(pack(back), pack(s))
    assert back.index_N.dtype == np.int64 and back.explored_N.dtype == bool
    assert reply[-2] == 1.5 and reply[-1].isnan()
    message = wire.message(1, 16, np.array([5, 6, 7]), np.array([0, 16, 3]))
    assert message.tolist() == [1, 16, 5, 6, 7, 0, 16, 3]
    assert message.shape == wire.message().shape

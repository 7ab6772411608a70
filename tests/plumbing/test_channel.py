"""App. K.3: the teacher's server with its lag, and the students' client, in one process and on the
two ends of plumbing/distributed/channel.py."""

import time
from functools import partial
from types import SimpleNamespace

import pytest

import train
from grpo import Group
from plumbing.distributed.channel import Channel
from sampler import Context, Sampler
from teacher import TeacherServer
from tests.helpers.checkpoints import through_file
from tests.helpers.groups import problems_of, solved
from tests.helpers.ranks import on_ranks, parse
from tests.helpers.samplers import Numbers, build


class Counting(Sampler):
    """Proposes problems 0 and 1, then 2 and 3, and so on; lists what it is asked to do."""

    def __init__(self, context):
        super().__init__(context)
        self.calls = []
        self.next = 0

    def propose(self, P):
        self.next += P
        self.calls.append("propose")
        return [
            Group(i, size=2, pool=[19, i], utilities=[0.5, i / 100], explored=False)
            for i in range(self.next - P, self.next)
        ]

    def observe(self, groups):
        self.calls.append(f"observe {problems_of(groups)}")

    def metrics(self):
        return {"made": self.next, "learn_s": 0.25}


def make_server(lag) -> TeacherServer:
    return TeacherServer(build(Counting, Numbers(20)), lag)


def context_of(*flags) -> Context:
    return Context(Numbers(20), parse(*flags), fits=lambda index: True)


def client_of(server, *flags) -> train.TeacherClient:
    """Make the students' sampler of a server in the same process."""
    context = context_of("--prompts_per_step", 2, *flags)
    return train.TeacherClient(context, server.latest, server.answer)


def study(client, steps: int) -> list[tuple]:
    """Take steps, one round each. Return the proposed problems, with the metrics beside them."""
    received = []
    for _ in range(steps):
        groups = client.propose(2)
        for group in groups:
            assert (group.utility, group.explored) == (group.problem / 100, False)
        received.append((problems_of(groups), client.metrics()["made"]))
        client.observe([solved(group.problem, right=1, of=2) for group in groups])
    return received


FOUR_STEPS = [([0, 1], 2), ([2, 3], 4), ([4, 5], 6), ([6, 7], 8)]
every_lag = pytest.mark.parametrize("lag", [0, 1])
TWO_STEPS = {
    0: ["propose", "observe [0, 1]", "propose", "send", "observe [2, 3]", "propose", "send"],
    1: ["propose", "propose", "send", "observe [0, 1]", "propose", "send", "observe [2, 3]"],
}


@every_lag
def test_with_lag_0_it_learns_before_it_answers_with_lag_1_afterwards(lag):
    server = make_server(lag)
    calls = server.sampler.calls
    answer = partial(server.answer, send=lambda proposals: calls.append("send"))
    client = train.TeacherClient(context_of("--prompts_per_step", 2), server.latest, answer)
    assert study(client, steps=2) == FOUR_STEPS[:2]
    assert calls == TWO_STEPS[lag]


@every_lag
@pytest.mark.parametrize("steps", [0, 2])
def test_a_resume_uses_the_proposals_that_were_pending(steps, lag):
    """Before the first step there are none. Seconds, which differ between ranks, are left out."""
    saved = make_server(lag)
    study(client_of(saved), steps)
    state = through_file(saved.state_dict())
    resumed = make_server(lag)
    resumed.load_state_dict(state)
    assert study(client_of(resumed), 4 - steps) == FOUR_STEPS[steps:]
    if steps:
        assert state["proposals"][1] == {"made": 6, "learn_s": 0.0}


@every_lag
def test_another_round_of_a_step_has_the_proposals_that_its_first_one_requested(lag):
    """DAPO's. The problems are dead."""
    server = make_server(lag)
    client = client_of(server, "--resample_rounds", 1)
    groups = client.propose(2)
    client.observe([solved(group.problem, 0) for group in groups])
    assert problems_of(client.more([solved(0, 0), solved(1, 0)], rounds=1)) == [2, 3]
    assert client.more([solved(problem, 0) for problem in range(4)], rounds=2) == []


def test_a_signal_is_kept_that_arrives_while_teacher_ranks_ask_each_other_for_signals():
    def gather_role(stopping):
        layout.stopping = True  # a signal: this rank has sent False already
        return [stopping, False]

    layout = SimpleNamespace(stopping=False, gather_role=gather_role)
    channel = SimpleNamespace(layout=layout, send=lambda *_: None, receive=lambda: ("stop", False))
    make_server(lag=1).run(channel, save=None)
    assert layout.stopping


def channel_run(lag) -> dict:
    """Take four steps on a student and two teacher ranks; return what all of them saw. With lag 1
    an evaluation of 10 seconds, in two parts, precedes them, and a rank waits for 9. After step 2
    there is a checkpoint, at which the second teacher rank, which does not send, gets a signal."""
    layout = train.build_layout(parse("--teacher_ranks", 2))
    layout.connect(timeout_minutes=0.15)
    channel = Channel(layout)
    server = make_server(lag)
    seen = {"received": [], "stopping": []}

    def save(step):
        seen["saved"] = step
        layout.stopping = layout.rank == 2

    if layout.is_teacher:
        seen["finished"] = server.run(channel, save)
        seen["calls"] = server.sampler.calls
    else:
        for part in range(2):  # together longer than a teacher waits for a message
            time.sleep(5 * lag)
            channel.send("evaluating", part)
        client = train.TeacherClient(
            context_of("--prompts_per_step", 2), channel.receive, partial(channel.send, "groups")
        )
        for step in range(1, 5):
            seen["received"] += study(client, 1)
            seen["stopping"].append(layout.stopping)
            if step == 2:
                channel.send("save", step)
        channel.receive()  # the proposals for a fifth step
        channel.send("stop", True)
        channel.wait()
    return layout.gather_world(seen)


@pytest.mark.slow
@every_lag
def test_over_a_channel_the_order_of_effects_is_that_of_one_process(lag, tmp_path):
    student, *teachers = on_ranks(3, tmp_path, channel_run, lag)
    alone = make_server(lag)
    assert student["received"] == study(client_of(alone), steps=4) == FOUR_STEPS
    assert student["stopping"] == [False, False, False, True]
    for teacher in teachers:
        assert teacher["calls"] == alone.sampler.calls
        assert teacher["saved"] == 2
        assert teacher["finished"]

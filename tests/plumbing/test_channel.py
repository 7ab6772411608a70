"""plumbing/distributed/channel.py: the lag rule, and the order of messages. The two ends are in one
process: scripted messages, or a thread for each role, connected by queues."""

import pickle
from concurrent.futures import ThreadPoolExecutor
from queue import Queue
from types import SimpleNamespace

import pytest

from grpo import Group
from plumbing.distributed.channel import Prefetching, RemoteSampler, serve
from tests.helpers.groups import problems_of, solved


class CountingSampler:
    """Proposes problems 0 and 1, then 2 and 3, and so on; lists what it is asked to do."""

    teacher = None

    def __init__(self):
        self.calls = []
        self.observed = []
        self.made = 0

    def propose(self, n):
        self.calls.append("propose")
        self.made += n
        return [Group(problem, size=2) for problem in range(self.made - n, self.made)]

    def observe(self, groups):
        self.calls.append("observe")
        self.observed += [(group.problem, group.successes) for group in groups]

    def train_on(self, groups, n):
        return groups[:1]

    def metrics(self):
        return {"made": self.made, "learn_s": 0.25}

    def state_dict(self):
        return {"made": self.made}

    def load_state_dict(self, state):
        self.made = state["made"]


def study(sampler, steps: int) -> list[tuple]:
    """Act as a student: take steps in which one completion of each group is right. Returns the
    proposed problems of each step, with the metrics that came with them."""
    received = []
    for _ in range(steps):
        groups = sampler.propose(2)
        received.append((problems_of(groups), sampler.metrics()["made"]))
        sampler.observe([solved(group.problem, right=1, of=2) for group in groups])
    return received


FOUR_STEPS = [([0, 1], 2), ([2, 3], 4), ([4, 5], 6), ([6, 7], 8)]
every_lag = pytest.mark.parametrize("lag", [0, 1])


# In one process


def test_with_lag_0_it_learns_and_then_proposes():
    sampler = CountingSampler()
    study(Prefetching(sampler, 2, lag=0), steps=2)
    assert sampler.calls == ["propose", "observe", "propose", "observe", "propose"]


def test_with_lag_1_it_proposes_and_then_learns():
    sampler = CountingSampler()
    study(Prefetching(sampler, 2, lag=1), steps=2)
    assert sampler.calls == ["propose", "propose", "observe", "propose", "observe"]


@every_lag
def test_proposals_come_in_order_with_the_metrics_of_their_making(lag):
    sampler = CountingSampler()
    assert study(Prefetching(sampler, 2, lag), steps=4) == FOUR_STEPS
    assert sampler.observed == [(problem, 1) for problem in range(8)]


@every_lag
def test_a_resume_uses_the_proposals_that_were_pending(lag):
    saved = Prefetching(CountingSampler(), 2, lag)
    study(saved, steps=2)
    resumed = Prefetching(CountingSampler(), 2, lag)
    resumed.load_state_dict(saved.state_dict())
    assert study(resumed, steps=2) == FOUR_STEPS[2:]


def test_a_resume_before_the_first_step_has_no_proposals_pending():
    saved = Prefetching(CountingSampler(), 2, lag=1)
    resumed = Prefetching(CountingSampler(), 2, lag=1)
    resumed.load_state_dict(saved.state_dict())
    assert study(resumed, steps=1) == FOUR_STEPS[:1]


def test_pending_proposals_keep_their_pool_and_predictions():
    saved = Prefetching(CountingSampler(), 2, lag=1)
    proposed = Group(7, size=2, pool=[5, 7], utilities=[0.25, 0.5], explored=False)
    saved.sampler.propose = lambda n: [proposed]
    saved.prepare([])
    resumed = Prefetching(CountingSampler(), 2, lag=1)
    resumed.load_state_dict(saved.state_dict())
    [group] = resumed.propose(2)
    assert vars(group) == vars(proposed)


def test_the_state_is_the_same_on_all_ranks_whatever_their_seconds():
    prefetching = Prefetching(CountingSampler(), 2, lag=1)
    study(prefetching, steps=1)
    _, metrics = prefetching.state_dict()["next"]
    assert metrics == {"made": 4, "learn_s": 0.0}


def test_the_samplers_choice_of_groups_to_train_on_is_kept():
    groups = [solved(0, 1), solved(1, 1)]
    assert Prefetching(CountingSampler(), 2, lag=1).train_on(groups, 2) == groups[:1]


def test_a_sampler_with_a_teacher_has_one_round():
    prefetching = Prefetching(CountingSampler(), 2, lag=1)
    assert prefetching.more(prefetching.propose(2)) == []


# The teacher ranks' end


def one_rank_layout() -> SimpleNamespace:
    """A role of one rank."""
    return SimpleNamespace(stopping=False, gather_role=lambda mine: [mine])


class ScriptedChannel:
    """Returns messages one after another; adds "send" to the calls."""

    def __init__(self, calls, *messages):
        self.calls = calls
        self.messages = list(messages)
        self.layout = one_rank_layout()

    def receive(self):
        return self.messages.pop(0)

    def send(self, message):
        self.calls.append("send")


def calls_of_serve(lag, *messages) -> list[str]:
    """Return what the teacher ranks do, in order, for these messages of the students."""
    sampler = CountingSampler()

    def save(step, state):
        sampler.calls.append(f"save {step}")

    channel = ScriptedChannel(sampler.calls, *messages, ("stop", True))
    serve(Prefetching(sampler, 2, lag), channel, save)
    return sampler.calls


OBSERVE = ("observe", [solved(0, right=1, of=2)])


def test_teacher_ranks_with_lag_1_send_the_next_proposals_before_they_learn():
    assert calls_of_serve(1, OBSERVE) == ["propose", "send", "propose", "send", "observe"]


def test_teacher_ranks_with_lag_0_learn_before_they_propose():
    assert calls_of_serve(0, OBSERVE) == ["propose", "send", "observe", "propose", "send"]


def test_teacher_ranks_save_where_the_students_do():
    first = ["propose", "send", "propose", "send", "observe"]
    second = ["propose", "send", "observe"]
    assert calls_of_serve(1, OBSERVE, ("save", 1), OBSERVE) == [*first, "save 1", *second]


@pytest.mark.parametrize("finished", [True, False])
def test_teacher_ranks_end_at_the_stop_message_and_return_whether_the_run_is_finished(finished):
    channel = ScriptedChannel([], ("stop", finished))
    assert serve(Prefetching(CountingSampler(), 2, 1), channel, save=None) == finished


# Both ends


class QueueChannel:
    """What Channel is to `serve` and RemoteSampler, for the one rank of a role."""

    def __init__(self, inbox: Queue, outbox: Queue):
        self.inbox = inbox
        self.outbox = outbox
        self.layout = one_rank_layout()

    def send(self, message):
        self.outbox.put(pickle.dumps(message))

    def receive(self):
        return pickle.loads(self.inbox.get(timeout=60))

    def wait(self): ...


@pytest.fixture
def ends() -> SimpleNamespace:
    """The students' and the teachers' end of a channel."""
    to_students = Queue()
    to_teachers = Queue()
    student = QueueChannel(inbox=to_students, outbox=to_teachers)
    teacher = QueueChannel(inbox=to_teachers, outbox=to_students)
    return SimpleNamespace(student=student, teacher=teacher)


@every_lag
def test_students_get_from_teacher_ranks_what_one_process_proposes(lag, ends):
    sampler = CountingSampler()
    remote = RemoteSampler(ends.student, train_on=None)
    with ThreadPoolExecutor() as threads:
        served = threads.submit(serve, Prefetching(sampler, 2, lag), ends.teacher, None)
        received = study(remote, steps=4)
        remote.stop(True)
        assert served.result(60)
    assert received == FOUR_STEPS
    assert sampler.observed == [(problem, 1) for problem in range(8)]


@every_lag
def test_a_checkpoint_of_the_teacher_ranks_holds_the_unread_proposals(lag, ends):
    states = {}
    remote = RemoteSampler(ends.student, train_on=None)
    sampler = Prefetching(CountingSampler(), 2, lag)
    with ThreadPoolExecutor() as threads:
        served = threads.submit(serve, sampler, ends.teacher, states.__setitem__)
        study(remote, steps=2)
        remote.save(2)
        remote.stop(False)
        assert not served.result(60)
    resumed = Prefetching(CountingSampler(), 2, lag)
    resumed.load_state_dict(states[2])
    assert study(resumed, steps=2) == FOUR_STEPS[2:]


def test_a_signal_at_a_teacher_stops_the_students(ends):
    ends.student.send(("stop", False))
    ends.teacher.layout.stopping = True
    serve(Prefetching(CountingSampler(), 2, 1), ends.teacher, None)
    RemoteSampler(ends.student, None).propose(2)
    assert ends.student.layout.stopping


def test_a_signal_at_any_teacher_rank_stops_the_students(ends):
    """The second of two; the first sends."""
    ends.student.send(("stop", False))
    ends.teacher.layout.gather_role = lambda mine: [mine, True]
    serve(Prefetching(CountingSampler(), 2, 1), ends.teacher, None)
    RemoteSampler(ends.student, None).propose(2)
    assert ends.student.layout.stopping


def test_students_choose_groups_to_train_on_by_the_class_of_the_sampler(ends):
    remote = RemoteSampler(ends.student, train_on=lambda groups, n: groups[:n])
    groups = [solved(0, 1), solved(1, 1)]
    assert remote.train_on(groups, 1) == groups[:1]
    assert remote.more(groups) == []


def test_students_save_no_state_of_the_sampler(ends):
    assert RemoteSampler(ends.student, None).state_dict() is None

"""sampler.py: numbers by hand, the pass over the data, selection rules, wire format, bad data files."""

import json
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sampler import (
    SAMPLERS,
    Goldilocks,
    Prefetching,
    Problems,
    Selections,
    Uniform,
    Unseen,
    Wire,
    epsilon_greedy,
    noise_floor,
    outcome_metrics,
    utility_target,
)


def fits_all(index):
    return True


class FakeTeacher:
    """Predicts i/1000 for the question 'i' and records what it is told."""

    def __init__(self):
        self.heard = []

    def predict(self, questions):
        return np.array([int(q) / 1000 for q in questions])

    def update(self, question, successes, G):
        self.heard.append((question, successes, G))

    def state_dict(self):
        return {"heard": len(self.heard)}

    def load_state_dict(self, state):
        self.heard = [None] * state["heard"]

    def metrics(self):
        return {"teacher_updates": float(len(self.heard))}


class Numbers:
    """Problems whose question is their own index."""

    def __init__(self, n):
        self.n = n

    def __len__(self):
        return self.n

    def question(self, index):
        return str(index)


def goldilocks(n=200, epsilon=0.0, seed=0, K=8):
    config = SimpleNamespace(candidates=K, epsilon=epsilon, seed=seed)
    return Goldilocks(Numbers(n), config, fits_all, FakeTeacher())


def test_utility_target_by_hand():
    assert utility_target(0.5) == 0.5
    assert utility_target(np.array([0, 0.2, 1])) == pytest.approx([0, 0.4, 0])


# ---- the pass over the data


def test_a_pass_visits_every_problem_once_then_begins_again():
    unseen = Unseen(10, np.random.default_rng(0), fits_all)
    seen = []
    for _ in range(5):
        drawn = unseen.draw(2)
        unseen.take(drawn)
        seen += drawn.tolist()
    assert sorted(seen) == list(range(10))
    assert unseen.passes == 1
    unseen.take(unseen.draw(2))
    assert unseen.passes == 2
    assert unseen.metrics()["coverage"] == pytest.approx(0.2)


def test_what_is_drawn_and_not_taken_returns():
    unseen = Unseen(8, np.random.default_rng(0), fits_all)
    for _ in range(7):  # 8 distinct candidates each time, one trained on: only possible if seven return
        drawn = unseen.draw(min(8, unseen.unseen))
        assert len(set(drawn.tolist())) == len(drawn)
        unseen.take(drawn[:1])
    assert unseen.unseen == 1


@settings(max_examples=60, deadline=None)
@given(
    st.integers(1, 30), st.integers(1, 8), st.integers(0, 2**20), st.lists(st.integers(0, 29), max_size=8), st.data()
)
def test_draws_are_distinct_unseen_and_fit(n, k, seed, too_long, data):
    bad = {i for i in too_long if i < n}
    unseen = Unseen(n, np.random.default_rng(seed), lambda i: i not in bad)
    if n - len(bad) < k:
        with pytest.raises(ValueError, match="fit the prompt limit"):
            for _ in range(n + 1):
                unseen.take(unseen.draw(k))
        return
    trained, passes = set(), 1
    for _ in range(6):
        drawn = unseen.draw(k).tolist()
        if unseen.passes > passes:
            trained, passes = set(), unseen.passes
        assert len(set(drawn)) == k
        assert not set(drawn) & bad
        assert not set(drawn) & trained
        taken = drawn[: data.draw(st.integers(0, k))]
        unseen.take(np.array(taken, dtype=np.int64))
        trained |= set(taken)
    assert sorted(unseen.order.tolist()) == list(range(n))
    assert set(unseen.order[unseen.kept :].tolist()) <= bad


def test_overlong_problems_are_counted():
    unseen = Unseen(20, np.random.default_rng(0), lambda i: i >= 5)
    for _ in range(15):
        unseen.take(unseen.draw(1))
    unseen.draw(15)  # a full second pass has met them all
    assert unseen.metrics()["overlong"] == 5


def test_draw_is_uniform():
    unseen = Unseen(6, np.random.default_rng(0), fits_all)
    counts = np.bincount(np.concatenate([unseen.draw(2) for _ in range(6000)]), minlength=6)
    assert np.abs(counts - 2000).max() < 5 * np.sqrt(2000 * 2 / 3)  # five standard deviations


# ---- selection rules


def test_epsilon_greedy_extremes_and_rate():
    rng = np.random.default_rng(0)
    utilities = rng.random((4000, 8))
    chosen, explored = epsilon_greedy(utilities, 0.0, rng)
    assert (chosen == utilities.argmax(1)).all() and not explored.any()
    chosen, explored = epsilon_greedy(utilities, 1.0, rng)
    assert explored.all()
    # The uniform branch may pick the argmax: one time in eight.
    assert (chosen == utilities.argmax(1)).mean() == pytest.approx(1 / 8, abs=5 * np.sqrt(1 / 8 * 7 / 8 / 4000))
    chosen, explored = epsilon_greedy(utilities, 0.2, rng)
    assert explored.mean() == pytest.approx(0.2, abs=5 * np.sqrt(0.16 / 4000))
    assert (chosen[~explored] == utilities.argmax(1)[~explored]).all()


def test_goldilocks_takes_the_best_of_each_pool_and_never_twice():
    sampler = goldilocks(n=200)
    seen = []
    for _ in range(5):
        s = sampler.propose(4)
        assert len(set(s.pool_N_K.ravel().tolist())) == 32  # one pool per prompt, all candidates distinct
        assert s.index_N.tolist() == s.pool_N_K.max(axis=1).tolist()  # the fake teacher likes large numbers
        assert s.utility_N == pytest.approx(s.index_N / 1000)
        seen += s.index_N.tolist()
    assert len(set(seen)) == 20


def test_goldilocks_feeds_the_teacher_in_order():
    sampler = goldilocks()
    sampler.observe(np.array([7, 3]), np.array([16, 0]), 16)
    assert sampler.teacher.heard == [("7", 16, 16), ("3", 0, 16)]


@pytest.mark.parametrize("name", SAMPLERS)
def test_state_dict_continues_bit_for_bit(name, tmp_path):
    import torch

    def make():
        config = SimpleNamespace(candidates=4, epsilon=0.5, seed=3)
        teacher = [FakeTeacher()] if SAMPLERS[name].uses_teacher else []
        return SAMPLERS[name](Numbers(100), config, lambda i: i % 7 > 0, *teacher)

    first, second = make(), make()
    for _ in range(3):
        first.propose(5)
    torch.save(first.state_dict(), tmp_path / "s.pt")
    second.load_state_dict(torch.load(tmp_path / "s.pt", weights_only=True))
    for _ in range(6):
        assert np.array_equal(first.propose(5).pack(), second.propose(5).pack(), equal_nan=True)
    assert first.metrics() == second.metrics()


def test_a_checkpoint_of_other_data_is_refused():
    state = goldilocks(n=100).state_dict()
    with pytest.raises(ValueError, match="saw 100 problems, the training data has 99"):
        goldilocks(n=99).load_state_dict(state)


def test_uniform_is_every_problem_once():
    sampler = Uniform(Numbers(12), SimpleNamespace(seed=0), fits_all)
    indices = np.concatenate([sampler.propose(4).index_N for _ in range(3)])
    assert sorted(indices.tolist()) == list(range(12))


def test_lag_fixes_what_each_proposal_has_learned():
    class Spy(FakeTeacher):
        def predict(self, questions):
            self.log.append(len(self.heard))
            return super().predict(questions)

    for lag, expected in ((0, [0, 2, 4]), (1, [0, 0, 2])):
        sampler = goldilocks()
        sampler.teacher = Spy()
        sampler.teacher.log = []
        prefetching = Prefetching(sampler, 2, lag)
        for _ in range(2):
            prefetching.observe(prefetching.propose(2).index_N, np.array([1, 1]), 16)
        prefetching.propose(2)
        assert sampler.teacher.log == expected


def test_prefetched_proposals_survive_a_checkpoint():
    a, b = (Prefetching(goldilocks(epsilon=0.3), 4, lag=1) for _ in range(2))
    s = a.propose(4)
    a.observe(s.index_N, np.array([1, 2, 3, 4]), 16)
    b.load_state_dict(a.state_dict())
    assert np.array_equal(a.propose(4).pack(), b.propose(4).pack())
    assert a.metrics() == b.metrics()


def test_wire_round_trip():
    wire = Wire(n=3, K=4, student=0, teacher=6, metric_names=("a", "b"))
    s = goldilocks(K=4).propose(3)
    reply = wire.reply(s, {"a": 1.5})
    assert reply.shape == wire.reply().shape
    back = Selections.unpack(reply[:-2].numpy().reshape(3, -1))
    assert np.array_equal(back.pack(), s.pack())
    assert back.index_N.dtype == np.int64 and back.explored_N.dtype == bool
    assert reply[-2] == 1.5 and reply[-1].isnan()
    message = wire.message(1, 16, np.array([5, 6, 7]), np.array([0, 16, 3]))
    assert message.tolist() == [1, 16, 5, 6, 7, 0, 16, 3]
    assert message.shape == wire.message().shape


# ---- prediction metrics


def test_noise_floor_by_hand():
    # G = 1: y is always 0 and a perfect teacher says √(p(1-p)).
    assert noise_floor(np.array([0.5]), 1) == pytest.approx(0.5)
    # G = 2, p = 1/2: p̂ is 0, 1/2, 1 with 1/4, 1/2, 1/4, so |0.5 - y| is 0.5 half of the time.
    assert noise_floor(np.array([0.5]), 2) == pytest.approx(0.25)
    assert noise_floor(np.array([0.0, 1.0]), 16) == 0
    assert noise_floor(np.array([0.5, 0.0]), 2) == pytest.approx(0.125)


def test_outcome_metrics_by_hand():
    s = Selections(
        pool_N_K=np.array([[1, 2], [3, 4], [5, 6]]),
        utilities_N_K=np.array([[0.1, 0.3], [0.5, 0.2], [0.4, 0.4]]),
        chosen_N=np.array([1, 0, 0]),
        explored_N=np.array([False, True, False]),
    )
    m = outcome_metrics(s, np.array([5, 0, 2]), 10)  # errors |0.3-0.5|, |0.5-0|, |0.4-0.4|
    assert m["reward_mean"] == pytest.approx(7 / 30)
    assert m["reward_std_group"] == pytest.approx((0.5 + 0 + 0.4) / 3)
    assert m["reward_std_batch"] == pytest.approx(np.std([1] * 7 + [0] * 23))
    assert (m["zero_variance"], m["zero_variance_hard"], m["zero_variance_easy"]) == pytest.approx((1 / 3, 1 / 3, 0))
    assert m["teacher_mae"] == pytest.approx(0.7 / 3)
    assert m["teacher_mae_explore"] == pytest.approx(0.5)
    assert m["teacher_mae_dead"] == pytest.approx(0.5)
    assert m["teacher_mu"] == pytest.approx(1.9 / 6)
    assert m["teacher_sigma"] == pytest.approx(np.std([0.1, 0.3, 0.5, 0.2, 0.4, 0.4]))
    assert outcome_metrics(s, np.array([5, 5, 2]), 10)["teacher_mae_dead"] is None


def test_nothing_predicted_nothing_measured():
    s = Uniform(Numbers(9), SimpleNamespace(seed=0), fits_all).propose(3)
    metrics = outcome_metrics(s, np.array([5, 0, 2]), 10)
    assert all(value is None for name, value in metrics.items() if name.startswith("teacher_"))
    assert metrics["reward_mean"] == pytest.approx(7 / 30)


# ---- problems


def write(path, lines):
    path.write_text("\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines) + "\n")
    return path


def test_problems_from_jsonl_and_parquet_agree(tmp_path):
    import datasets

    rows = [{"problem": f"q{i} é\n", "expected_answer": str(i), "extra": i} for i in range(5)]
    write(tmp_path / "a.jsonl", rows)
    datasets.Dataset.from_list(rows).to_parquet(tmp_path / "a.parquet")
    for name in ("a.jsonl", "a.parquet"):
        problems = Problems(tmp_path / name)
        assert len(problems) == 5
        assert problems.question(np.int64(3)) == "q3 é\n" and problems.answer(3) == "3"


def test_numeric_answers_become_text(tmp_path):
    problems = Problems(write(tmp_path / "a.jsonl", [{"problem": "1+1", "expected_answer": 2}]))
    assert problems.answer(0) == "2"


GOOD = {"problem": "q", "expected_answer": "1"}


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ([GOOD, "{not json"], "line 2: not JSON"),
        ([GOOD, "", {"problem": "q"}], "line 3: lacks the field 'expected_answer'"),
        ([{"question": "q", "expected_answer": "1"}], "line 1: lacks the field 'problem'"),
        ([GOOD, {"problem": " ", "expected_answer": "1"}], "line 2: lacks the field 'problem'"),
        ([GOOD, {"problem": "q", "expected_answer": None}], "line 2: lacks the field 'expected_answer'"),
        ([GOOD, "[1, 2]"], "line 2"),
        ([""], "holds no problem|cannot be read"),
    ],
)
def test_bad_rows_name_file_and_line(tmp_path, lines, message):
    with pytest.raises(ValueError, match=message) as error:
        Problems(write(tmp_path / "bad.jsonl", lines))
    assert "bad.jsonl" in str(error.value) and "\n" not in str(error.value)


def test_missing_empty_and_unknown_files(tmp_path):
    with pytest.raises(FileNotFoundError, match="no such data file"):
        Problems(tmp_path / "none.jsonl")
    (tmp_path / "empty.jsonl").touch()
    with pytest.raises(ValueError, match="the file is empty"):
        Problems(tmp_path / "empty.jsonl")
    with pytest.raises(ValueError, match=r"expected a .jsonl or .parquet file"):
        Problems(write(tmp_path / "a.csv", ["problem,expected_answer"]))

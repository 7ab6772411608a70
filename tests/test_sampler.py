"""sampler.py: numbers by hand, the pass over the data, selection rules, wire format, bad data files."""

import json
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sampler import (
    SAMPLERS,
    Category,
    Goldilocks,
    InputError,
    Pooled,
    Prefetching,
    Problems,
    Selections,
    Skip,
    Softmax,
    Static,
    SuccessRate,
    Thompson,
    Uniform,
    Unseen,
    Wire,
    boltzmann,
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

    def update(self, question, successes, G, target=utility_target):
        self.heard.append((question, successes, G, target(successes / G)))

    def state_dict(self):
        return {"heard": len(self.heard)}

    def load_state_dict(self, state):
        self.heard = [None] * state["heard"]

    def metrics(self):
        return {"teacher_updates": float(len(self.heard))}


class Numbers:
    """Problems whose question is their own index, with the columns given."""

    def __init__(self, n, **columns):
        self.n, self.columns = n, columns

    def __len__(self):
        return self.n

    def question(self, index):
        return str(index)

    def column(self, name):
        values, row = np.unique(self.columns[name], return_inverse=True)
        return values.tolist(), row


def build(cls, problems, fits=fits_all, **config):
    """A sampler with a fake teacher where it has one."""
    config = SimpleNamespace(
        **({"candidates": 8, "epsilon": 0.0, "seed": 0, "column": "column"} | config)
    )
    return cls(problems, config, fits, *[FakeTeacher()] * cls.uses_teacher)


def goldilocks(n=200, epsilon=0.0, seed=0, K=8):
    return build(Goldilocks, Numbers(n), epsilon=epsilon, seed=seed, candidates=K)


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
    for _ in range(
        7
    ):  # 8 distinct candidates each time, one trained on: only possible if seven return
        drawn = unseen.draw(min(8, unseen.unseen))
        assert len(set(drawn.tolist())) == len(drawn)
        unseen.take(drawn[:1])
    assert unseen.unseen == 1


@settings(max_examples=60)
@given(
    st.integers(1, 30),
    st.integers(1, 8),
    st.integers(0, 2**20),
    st.lists(st.integers(0, 29), max_size=8),
    st.data(),
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
    assert (chosen == utilities.argmax(1)).mean() == pytest.approx(
        1 / 8, abs=5 * np.sqrt(1 / 8 * 7 / 8 / 4000)
    )
    chosen, explored = epsilon_greedy(utilities, 0.2, rng)
    assert explored.mean() == pytest.approx(0.2, abs=5 * np.sqrt(0.16 / 4000))
    assert (chosen[~explored] == utilities.argmax(1)[~explored]).all()


def test_goldilocks_takes_the_best_of_each_pool_and_never_twice():
    sampler = goldilocks(n=200)
    seen = []
    for _ in range(5):
        s = sampler.propose(4)
        assert (
            len(set(s.pool_N_K.ravel().tolist())) == 32
        )  # one pool per prompt, all candidates distinct
        assert (
            s.index_N.tolist() == s.pool_N_K.max(axis=1).tolist()
        )  # the fake teacher likes large numbers
        assert s.utility_N == pytest.approx(s.index_N / 1000)
        seen += s.index_N.tolist()
    assert len(set(seen)) == 20


def test_goldilocks_feeds_the_teacher_in_order():
    sampler = goldilocks()
    sampler.observe(np.array([7, 3]), np.array([4, 0]), 20)
    assert sampler.teacher.heard == [("7", 4, 20, pytest.approx(0.4)), ("3", 0, 20, 0.0)]


def outcome(index_N, G=16):
    """How many of G are right, different for each problem and often none or all."""
    return np.clip(index_N % 23 - 3, 0, G)


@pytest.mark.parametrize("name", SAMPLERS)
def test_state_dict_continues_bit_for_bit(name, tmp_path):
    first, second = (
        build(
            SAMPLERS[name],
            Numbers(100, column=np.arange(100) % 5 / 5),
            lambda i: i % 7 > 0,
            candidates=4,
            epsilon=0.5,
        )
        for _ in range(2)
    )
    for _ in range(30):  # more than one pass
        index_N = first.propose(5).index_N
        first.observe(index_N, outcome(index_N), 16)
    torch.save(first.state_dict(), tmp_path / "s.pt")
    second.load_state_dict(torch.load(tmp_path / "s.pt", weights_only=True))
    for _ in range(6):
        s = first.propose(5)
        assert len(set(s.pool_N_K.ravel().tolist())) == s.pool_N_K.size
        assert np.array_equal(s.pack(), second.propose(5).pack(), equal_nan=True)
        for sampler in (first, second):
            sampler.observe(s.index_N, outcome(s.index_N), 16)
    assert first.metrics() == second.metrics()


@pytest.mark.parametrize("name", SAMPLERS)
def test_the_seed_decides_and_predictions_are_utilities(name):
    def run(seed):
        sampler = build(
            SAMPLERS[name], Numbers(300, column=np.arange(300) % 5 / 5), seed=seed, epsilon=0.2
        )
        selections = [sampler.propose(6)]
        for _ in range(20):
            sampler.observe(selections[-1].index_N, outcome(selections[-1].index_N), 16)
            selections.append(sampler.propose(6))
        utilities = np.concatenate([s.utilities_N_K for s in selections])
        assert np.isnan(utilities).all() or (utilities.min() >= 0 and utilities.max() <= 0.5)
        assert set(sampler.metrics()) >= set(Uniform.metric_names)
        return np.concatenate([s.index_N for s in selections]).tolist()

    assert run(1) == run(1) != run(2)


# ---- the other samplers, each by what defines it


def test_boltzmann_is_the_softmax():
    rng = np.random.default_rng(0)
    chosen, explored = boltzmann(np.tile(np.log([1.0, 3.0, 6.0]), (20_000, 1)), rng)
    share = np.bincount(chosen) / 20_000
    assert (
        share == pytest.approx([0.1, 0.3, 0.6], abs=5 * np.sqrt(0.25 / 20_000))
        and not explored.any()
    )


def test_softmax_prefers_e_times_for_a_temperature_more():
    sampler = build(Softmax, Numbers(2))
    pool = np.zeros((20_000, 2), dtype=int)
    utilities = np.tile([0.2, 0.2 + sampler.temperature], (20_000, 1))
    chosen, _ = sampler.choose(pool, utilities)
    assert chosen.mean() == pytest.approx(np.e / (1 + np.e), abs=0.02)  # 0.731


def test_success_rate_is_taught_p_and_takes_the_nearest_to_a_half():
    sampler = build(SuccessRate, Numbers(501))  # the fake teacher says i/1000 = p/2
    s = sampler.propose(5)
    p_N_K = s.pool_N_K / 500
    assert s.utilities_N_K == pytest.approx(np.sqrt(p_N_K * (1 - p_N_K)))
    nearest = np.abs(p_N_K - 0.5).min(axis=1)
    assert np.abs(s.index_N / 500 - 0.5) == pytest.approx(nearest)
    sampler.observe(np.array([7]), np.array([12]), 16)
    assert sampler.teacher.heard == [("7", 12, 16, 0.375)]  # half of 12/16


def test_thompson_counts_by_hand_forgets_half_and_comes_back():
    sampler = build(Thompson, Numbers(40), candidates=2)
    sampler.observe(np.array([3]), np.array([12]), 16)
    assert sampler.beta[3].tolist() == [13, 5]  # the prior's 1, 1 and 12 right, 4 wrong
    sampler.observe(np.array([3]), np.array([16]), 16)
    assert sampler.beta[3].tolist() == [23, 3]  # (13 + 1) / 2 + 16, (5 + 1) / 2 + 0
    assert sampler.beta[4].tolist() == [1, 1] and sampler.metrics()["coverage"] == 1 / 40
    p = 23 / 26  # so much evidence that the draws lie near the mean
    assert sampler.score(np.full((4000, 1), 3)).mean() == pytest.approx(
        np.sqrt(p * (1 - p)), abs=0.02
    )
    first, second = sampler.propose(20).index_N, sampler.propose(20).index_N
    assert set(first) & set(second)  # in a pass they would be two halves of the 40


def test_thompson_learns_to_leave_dead_problems():
    sampler = build(Thompson, Numbers(64), candidates=4)
    for _ in range(40):  # the first 16 are at p = 1/2, the rest always wrong
        index_N = sampler.propose(8).index_N
        sampler.observe(index_N, np.where(index_N < 16, 8, 0), 16)
    late = np.concatenate([sampler.propose(16).index_N for _ in range(20)])
    assert (
        late < 16
    ).mean() > 0.6  # uniform: 0.25; one of 4 is among the 16 in 1 - C(48,4)/C(64,4) = 0.69 of pools


def test_skip_passes_over_by_the_power_of_dead_groups_in_a_row():
    sampler = build(Skip, Numbers(4000))
    for _ in range(2):
        sampler.observe(
            np.arange(2000), np.repeat([0, 16], 1000), 16
        )  # all wrong, all right: both dead, twice
    assert sampler.dead[:2000].tolist() == [2] * 2000 and not sampler.dead[2000:].any()
    seen = np.concatenate([sampler.propose(10).index_N for _ in range(240)])
    assert len(set(seen)) == 2400  # one pass still: nothing twice
    assert (seen < 2000).mean() == pytest.approx(
        0.2, abs=0.04
    )  # 1/4 of them against all of the others
    sampler.observe(np.array([0]), np.array([1]), 16)
    assert sampler.dead[0] == 0
    for _ in range(9):
        sampler.observe(np.array([1]), np.array([0]), 16)
    assert sampler.dead[1] == 5


def test_skip_ends_where_every_problem_is_dead_and_says_where_there_are_too_few():
    sampler = build(Skip, Numbers(12))
    sampler.dead[:] = 5
    assert len(set(sampler.propose(12).index_N.tolist())) == 12
    with pytest.raises(InputError, match="draws 13 distinct problems"):
        sampler.propose(13)


def test_category_draws_a_category_first_whatever_its_size():
    # Of 80 problems 60 are "a" and 20 "b", and all 80 are one pool: equal values, so half of the choices fall on each.
    sampler = build(Category, Numbers(80, column=["a"] * 60 + ["b"] * 20), candidates=80)
    pool = np.tile(np.arange(80), (4000, 1))
    share = (sampler.choose(pool, sampler.score(pool))[0] < 60).mean()
    assert share == pytest.approx(0.5, abs=0.04)
    sampler.value_C[:] = 0.25, 0.25 + sampler.temperature  # b is now e times as likely as a
    share = (sampler.choose(pool, sampler.score(pool))[0] < 60).mean()
    assert share == pytest.approx(1 / (1 + np.e), abs=0.04)


def test_category_values_by_hand():
    sampler = build(Category, Numbers(8, column=list("aabbccdd")), candidates=1)
    sampler.observe(np.array([0, 1, 2]), np.array([10, 0, 4]), 20)  # y = 0.5, 0 | 0.4
    assert sampler.value_C == pytest.approx(
        [0.125, 0.2, 0, 0]
    )  # half of the way from 0 to their means
    sampler.observe(np.array([0]), np.array([10]), 20)
    assert sampler.value_C == pytest.approx([0.3125, 0.2, 0, 0])


def test_absolute_advantage_of_a_group_is_twice_its_utility():
    """So Category's value is the reward of its source, in the unit of utilities."""
    for successes in range(1, 16):
        rewards = np.repeat([1.0, 0.0], [successes, 16 - successes])
        advantages = (rewards - rewards.mean()) / rewards.std()
        assert np.abs(advantages).mean() == pytest.approx(2 * utility_target(successes / 16))


def test_static_takes_the_known_rate_nearest_to_a_half_and_counts_the_unknown():
    rates = ["0.0", "0.2", "0.5", "n/a"] * 20
    sampler = build(Static, Numbers(80, column=rates), candidates=4)
    assert sampler.score(np.arange(4)[None]) == pytest.approx(
        np.array([[0, 0.4, 0.5, 0.3]])
    )  # 0.3: mean of the known
    assert sampler.metrics()["unrated"] == 0.25
    s = sampler.propose(5)
    assert s.utility_N == pytest.approx(s.utilities_N_K.max(axis=1))


@pytest.mark.parametrize(
    ("rates", "first"), [(["easy", "hard"], "'easy'"), ([0.5, 85.0], "85.0"), ([-1, 0.5], "-1.0")]
)
def test_static_refuses_what_is_no_pass_rate(rates, first):
    with pytest.raises(InputError, match=rf"--column column: {first} is no pass rate in \[0, 1\]"):
        build(Static, Numbers(2, column=rates))


def test_a_new_sampler_is_one_formula():
    """The base class does the rest: pools, passes, checkpoints, metrics."""

    class Largest(Pooled):
        def score(self, pool_N_K):
            return pool_N_K / 1000

    sampler = build(Largest, Numbers(200))
    s = sampler.propose(4)
    assert s.index_N.tolist() == s.pool_N_K.max(axis=1).tolist() and not s.explored_N.any()
    assert sampler.metrics()["coverage"] == pytest.approx(4 / 200)


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
    assert (m["zero_variance"], m["zero_variance_hard"], m["zero_variance_easy"]) == pytest.approx(
        (1 / 3, 1 / 3, 0)
    )
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
    path.write_text(
        "\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines) + "\n"
    )
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


def test_a_check_maps_no_rows_and_copies_none(tmp_path):
    """3 million problems on 8 ranks must not be 8 copies: what is checked is let go of, and nothing is allocated."""
    rows = [
        {"problem": f"{i} " + "x" * 2_000, "expected_answer": str(i)} for i in range(20_000)
    ]  # 40 MB
    path = write(tmp_path / "a.jsonl", rows)
    Problems(path)  # converts the file

    def resident(name):
        lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
        return sum(int(line.split()[1]) for line in lines if line.startswith(name)) / 1024  # MiB

    before = resident("Rss:"), resident("Pss_Anon:")
    problems = Problems(path)
    assert problems.answer(19_999) == "19999"
    assert resident("Rss:") - before[0] < 20 and resident("Pss_Anon:") - before[1] < 20


def test_another_column_by_value(tmp_path):
    rows = [
        {"problem": "q", "expected_answer": "1", "level": level}
        for level in ("hard", "easy", None, "hard")
    ]
    path = write(tmp_path / "a.jsonl", rows)
    values, row = Problems(path).column("level")
    assert [values[i] for i in row] == ["hard", "easy", None, "hard"]
    with pytest.raises(
        InputError, match=r"a.jsonl: has no column 'lvl' for --column.* it has 'level'"
    ):
        Problems(path).column("lvl")
    with pytest.raises(InputError, match="it has none"):
        Problems(write(tmp_path / "b.jsonl", [GOOD])).column("problem")


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
        (
            [GOOD, {"problem": "q", "expected_answer": None}],
            "line 2: lacks the field 'expected_answer'",
        ),
        ([GOOD, "[1, 2]"], "line 2"),
        (
            [GOOD, {"problem": "\u00a0\t", "expected_answer": "1"}],
            "line 2: lacks the field 'problem'",
        ),
        (
            [{"problem": "q", "expected_answer": ["1"]}],
            "line 1: lacks the field 'expected_answer', as text or a number",
        ),
        (
            [GOOD, {"problem": "q", "expected_answer": 2}],
            "'expected_answer' must be text in every row",
        ),
        ([{"problem": "q", "expected_answer": "2024-01-01"}], "no date"),  # how Arrow reads it
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

"""sampler.py: numbers by hand, drawing without replacement, selection rules, --sampler."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from ranks import on_ranks

import train
from plumbing.errors import InputError
from sampler import (
    OTHERS,
    Context,
    Goldilocks,
    Pooled,
    Selections,
    Uniform,
    epsilon_greedy,
    find_sampler,
    noise_floor,
    outcome_metrics,
    sampler_file,
    utility_target,
)


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


def build(cls, problems, fits=lambda index: True, **config):
    """A sampler with a fake teacher where it has one."""
    defaults = {"candidates": 8, "epsilon": 0.0, "seed": 0, "column": "column"}
    teacher = FakeTeacher() if cls.uses_teacher else None
    return cls(Context(problems, SimpleNamespace(**defaults | config), fits, teacher))


def goldilocks(n=200, epsilon=0.0, K=8):
    return build(Goldilocks, Numbers(n), epsilon=epsilon, candidates=K)


def three() -> Selections:
    """Pools of two; the second was chosen from the first, and the second row explored."""
    return Selections(
        pool_N_K=np.array([[1, 2], [3, 4], [5, 6]]),
        utilities_N_K=np.array([[0.1, 0.3], [0.5, 0.2], [0.4, 0.4]]),
        chosen_N=np.array([1, 0, 0]),
        explored_N=np.array([False, True, False]),
    )


def test_utility_target_by_hand():
    assert utility_target(0.5) == 0.5
    assert utility_target(np.array([0, 0.2, 1])) == pytest.approx([0, 0.4, 0])


def test_selections_by_hand():
    s = three()
    assert s.index_N.tolist() == [2, 3, 5] and s.utility_N.tolist() == [0.3, 0.5, 0.4]
    both = s.take([2, 0]) + s.take([1])
    assert both.index_N.tolist() == [5, 2, 3] and both.explored_N.tolist() == [False, False, True]
    row = {"step": 7, "pool": [3, 4], "utilities": [0.5, 0.2], "chosen": 3, "explored": True}
    assert s.lines(7, np.array([5, 2, 0]), 10)[1] == row | {"successes": 2, "y": 0.4}
    back = Selections.from_state(s.state_dict())
    for name, array in vars(s).items():
        assert getattr(back, name).dtype == array.dtype and (getattr(back, name) == array).all()


# ---- drawing without replacement


def test_a_pass_visits_every_problem_once_then_begins_again():
    sampler = build(Uniform, Numbers(10))
    seen = np.concatenate([sampler.propose(2).index_N for _ in range(5)])
    assert sorted(seen) == list(range(10)) and seen.tolist() != list(range(10))
    assert sampler.metrics() == {"passes": 1, "coverage": 1, "overlong": 0}
    sampler.propose(2)
    assert sampler.metrics() == {"passes": 2, "coverage": 0.2, "overlong": 0}


def test_what_is_drawn_and_not_taken_returns():
    sampler = build(Uniform, Numbers(8))
    for left in range(8, 0, -1):  # all that are left each time, of which one is trained on
        drawn = sampler.draw(left)
        assert len(set(drawn)) == left
        sampler.take(drawn[:1])
    assert sampler.passes == 1 and sampler.metrics()["coverage"] == 1


@given(
    st.integers(1, 30),
    st.integers(1, 8),
    st.integers(0, 2**20),
    st.sets(st.integers(0, 29), max_size=8),
    st.data(),
)
def test_draws_are_distinct_unseen_and_fit(n, k, seed, too_long, data):
    too_long = {i for i in too_long if i < n}
    sampler = build(Uniform, Numbers(n), lambda i: i not in too_long, seed=seed)
    if n - len(too_long) < k:
        message = f"draws {k} distinct problems, but only {n - len(too_long)} of {n} fit the prompt"
        with pytest.raises(InputError, match=message):
            sampler.draw(k)
        return
    trained, passes = set(), 1
    for _ in range(6):
        drawn = sampler.draw(k).tolist()
        if sampler.passes > passes:
            assert len(trained | too_long) + k > n  # too few were left
            trained, passes = set(), sampler.passes
        assert len(set(drawn)) == k
        assert not set(drawn) & (too_long | trained)
        taken = drawn[: data.draw(st.integers(0, k))]
        sampler.take(np.array(taken, dtype=np.int64))
        trained |= set(taken)


def test_a_prompt_is_looked_at_when_drawn_and_the_overlong_counted_once():
    asked = []
    sampler = build(Uniform, Numbers(20), lambda i: asked.append(i) or i >= 5)
    sampler.propose(3)
    assert 3 <= len(asked) <= 8
    for _ in range(6):  # two passes over the 15 that fit
        sampler.propose(5)
    assert sampler.metrics()["overlong"] == 5 and sum(i < 5 for i in asked) == 5


def test_draw_is_uniform():
    sampler = build(Uniform, Numbers(6))
    counts = np.bincount(np.concatenate([sampler.draw(2) for _ in range(6000)]), minlength=6)
    assert np.abs(counts - 2000).max() < 5 * np.sqrt(2000 * 2 / 3)  # five standard deviations


def test_a_pass_goes_on_where_it_was_saved(tmp_path):
    first, second = (build(Uniform, Numbers(40), lambda i: i % 4 > 0) for _ in range(2))
    seen = first.propose(9).index_N.tolist()
    torch.save(first.state_dict(), tmp_path / "s.pt")
    second.load_state_dict(torch.load(tmp_path / "s.pt", weights_only=True))
    rest = second.propose(21).index_N.tolist()
    assert sorted(seen + rest) == [i for i in range(40) if i % 4] and second.passes == 1
    assert rest == first.propose(21).index_N.tolist()


# ---- Algorithm 1


def test_epsilon_greedy_by_hand():
    drawn = {"random": lambda n: np.array([0.1, 0.3, 0.19])}  # below ε, not below, below
    drawn |= {"integers": lambda K, size: np.array([2, 2, 0])}
    utilities = np.array([[0.1, 0.4, 0.2], [0.1, 0.4, 0.2], [0.5, 0.4, 0.2]])
    chosen, explored = epsilon_greedy(utilities, 0.2, SimpleNamespace(**drawn))
    assert chosen.tolist() == [2, 1, 0] and explored.tolist() == [True, False, True]


def test_epsilon_greedy_extremes_and_rate():
    rng = np.random.default_rng(0)
    utilities = rng.random((4000, 8))
    best = utilities.argmax(1)
    chosen, explored = epsilon_greedy(utilities, 0.0, rng)
    assert (chosen == best).all() and not explored.any()
    chosen, explored = epsilon_greedy(utilities, 1.0, rng)
    assert explored.all()
    # The uniform branch may pick the best: one time in eight, to five standard deviations.
    assert (chosen == best).mean() == pytest.approx(1 / 8, abs=5 * np.sqrt(1 / 8 * 7 / 8 / 4000))
    chosen, explored = epsilon_greedy(utilities, 0.2, rng)
    assert explored.mean() == pytest.approx(0.2, abs=5 * np.sqrt(0.16 / 4000))
    assert (chosen[~explored] == best[~explored]).all()


def test_goldilocks_takes_the_best_of_each_pool_and_never_twice():
    sampler, seen = goldilocks(n=200), []
    for _ in range(5):
        s = sampler.propose(4)
        assert len(set(s.pool_N_K.ravel().tolist())) == 32  # all candidates are distinct
        assert s.index_N.tolist() == s.pool_N_K.max(axis=1).tolist()  # what the teacher likes
        assert s.utility_N == pytest.approx(s.index_N / 1000)
        seen += s.index_N.tolist()
    assert len(set(seen)) == 20


def test_goldilocks_feeds_the_teacher_in_order():
    sampler = goldilocks()
    sampler.observe(np.array([7, 3]), np.array([4, 0]), 20)
    assert sampler.teacher.heard == [("7", 4, 20, pytest.approx(0.4)), ("3", 0, 20, 0.0)]


def test_a_new_sampler_is_one_formula():
    """The base class does the rest: pools, passes, checkpoints, metrics."""

    class Largest(Pooled):
        def score(self, pool_N_K):
            return pool_N_K / 1000

    sampler = build(Largest, Numbers(200))
    s = sampler.propose(4)
    assert s.index_N.tolist() == s.pool_N_K.max(axis=1).tolist() and not s.explored_N.any()
    assert sampler.metrics()["coverage"] == pytest.approx(4 / 200)


# ---- prediction metrics


def test_noise_floor_by_hand():
    # G = 1: y is always 0 and a perfect teacher says √(p(1-p)).
    assert noise_floor(np.array([0.5]), 1) == pytest.approx(0.5)
    # G = 2, p = 1/2: p̂ is 0, 1/2, 1 with 1/4, 1/2, 1/4, so |0.5 - y| is 0.5 half of the time.
    assert noise_floor(np.array([0.5]), 2) == pytest.approx(0.25)
    assert noise_floor(np.array([0.0, 1.0]), 16) == 0
    assert noise_floor(np.array([0.5, 0.0]), 2) == pytest.approx(0.125)


def test_outcome_metrics_by_hand():
    m = outcome_metrics(three(), np.array([5, 0, 2]), 10)  # errors |0.3-0.5|, |0.5-0|, |0.4-0.4|
    by_hand = {
        "reward_mean": 7 / 30,
        "reward_std_group": (0.5 + 0 + 0.4) / 3,
        "reward_std_batch": np.std([1] * 7 + [0] * 23),
        "zero_variance": 1 / 3,
        "zero_variance_easy": 0,
        "zero_variance_hard": 1 / 3,
        "groups": 3,
        "teacher_mae": 0.7 / 3,
        "teacher_mae_explore": 0.5,
        "teacher_mae_dead": 0.5,
        "teacher_noise_floor": noise_floor(np.array([0.5, 0, 0.2]), 10),
        "teacher_mu": 1.9 / 6,
        "teacher_sigma": np.std([0.1, 0.3, 0.5, 0.2, 0.4, 0.4]),
    }
    assert m == pytest.approx(by_hand)
    assert outcome_metrics(three(), np.array([5, 5, 2]), 10)["teacher_mae_dead"] is None


def test_nothing_predicted_nothing_measured():
    s = build(Uniform, Numbers(9)).propose(3)
    metrics = outcome_metrics(s, np.array([5, 0, 2]), 10)
    assert all(value is None for name, value in metrics.items() if name.startswith("teacher_"))
    assert metrics["reward_mean"] == pytest.approx(7 / 30)


# ---- --sampler

MINE = """
from sampler import Goldilocks

class Mine(Goldilocks):
    def choose(self, pool_N_K, utilities_N_K):
        return utilities_N_K.argmin(axis=1), utilities_N_K.min(axis=1) < 0

class Half:
    def propose(self, n): ...
    def observe(self, index_N, successes_N, G): ...
    def metrics(self): ...
"""


def test_a_sampler_is_found_by_name_or_file(tmp_path, monkeypatch):
    assert find_sampler("goldilocks") is Goldilocks and sampler_file("goldilocks") is None
    assert find_sampler("success_rate").__name__ == "SuccessRate"
    assert sampler_file("success_rate") == OTHERS / "success_rate.py"
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(MINE)
    cls = find_sampler("mine.py:Mine")
    s = build(cls, Numbers(200)).propose(4)
    assert s.index_N.tolist() == s.pool_N_K.min(axis=1).tolist()
    assert sampler_file("mine.py:Mine").resolve() == tmp_path / "mine.py"
    flags = "--preset demo --sampler mine.py:Mine --epsilon 0.5"
    config = train.parse(flags.split())
    assert config.out == "runs/demo-mine-seed0"


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("best", "best: there are goldilocks, uniform, category, .* and FILE.py:CLASS"),
        ("mine.py", "must be FILE.py:NAME"),
        ("gone.py:Mine", "there is no file gone.py"),
        ("mine.py:Yours", "mine.py has no class or function 'Yours'"),
        ("mine.py:Half", "lacks uses_teacher, flags, state_dict, load_state_dict "),
        ("raises.py:Mine", "raises.py cannot be run: ZeroDivisionError: division by zero"),
    ],
)
def test_what_is_no_sampler_is_said_in_one_line(spec, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(MINE)
    (tmp_path / "raises.py").write_text("1 / 0")
    with pytest.raises(InputError, match=message) as error:
        find_sampler(spec)
    assert str(error.value).startswith(f"--sampler {spec}: ") and "\n" not in str(error.value)


def test_a_run_with_a_file_goes_on_and_refuses_it_changed(tmp_path, tiny_model, tiny_data, capfd):
    file = tmp_path / "mine.py"
    file.write_text(MINE)
    flags = f"--preset demo --sampler {file}:Mine --out {tmp_path / 'run'} --eval_every 1"
    flags += f" --model {tiny_model} --teacher_model {tiny_model} --max_completion_tokens 8"
    flags += f" --train_data {tiny_data}/train.jsonl --val_data {tiny_data}/val.jsonl"
    flags += " --prompts_per_step 2 --group_size 2 --candidates 4"

    def run(steps):
        argv = f"{flags} --steps {steps}".split()
        return on_ranks(1, tmp_path, lambda: train.main(argv))

    assert run(1) == 0 and run(2) == 0
    rows = train.read_lines(tmp_path / "run/selections.jsonl")
    assert [row["step"] for row in rows] == [1, 1, 2, 2]
    for row in rows:
        assert row["chosen"] == row["pool"][np.argmin(row["utilities"])]
    file.write_text(MINE.replace("argmin", "argmax"))
    capfd.readouterr()
    assert run(3) == 2
    assert "belongs to another configuration: sampler_crc32" in capfd.readouterr().err

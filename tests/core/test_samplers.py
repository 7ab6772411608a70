"""samplers/: each follows the protocol, and makes the choice that defines it."""

import numpy as np
import pytest
import torch

from plumbing.errors import InputError
from sampler import FOLDER, SAMPLERS, find_sampler
from tests.helpers.samplers import Numbers, build, outcomes, same

NAMES = [*SAMPLERS, *sorted(path.stem for path in FOLDER.glob("*.py"))]


def make(name, n, fits=lambda index: True, values=(0, 0.2, 0.4, 0.6), **config):
    """Build a sampler by its name, over n problems; the values of its column repeat."""
    return build(find_sampler(name), Numbers(n, values), fits, **config)


@pytest.mark.parametrize("name", NAMES)
def test_every_sampler_follows_the_protocol(name, tmp_path):
    """Distinct problems that fit, utilities in [0, 0.5], bit-exact resume, randomness by seed."""
    config = {"n": 100, "fits": lambda i: i % 7 > 0, "candidates": 4, "epsilon": 0.5}
    first, second, other = (make(name, **config, seed=seed) for seed in (1, 1, 2))

    def step(sampler):
        s = sampler.propose(5)
        assert len(set(s.pool_N_K.ravel().tolist())) == s.pool_N_K.size
        assert (s.index_N % 7 > 0).all()
        u_N_K = s.utilities_N_K
        assert np.isnan(u_N_K).all() or (u_N_K.min() >= 0 and u_N_K.max() <= 0.5)
        sampler.observe(outcomes(s.index_N, np.clip(s.index_N % 23 - 3, 0, 16)))  # many none or all
        return s

    assert not same(step(first), step(other))
    for _ in range(30):  # more than one pass
        step(first)
    torch.save(first.state_dict(), tmp_path / "s.pt")
    second.load_state_dict(torch.load(tmp_path / "s.pt", weights_only=True))
    assert all(same(step(first), step(second)) for _ in range(6))
    assert first.metrics() == second.metrics() and first.metrics()["overlong"] == 15


@pytest.mark.parametrize("settings", [{}, {"temperature": 0.2}])
def test_softmax_chooses_by_the_softmax_of_utilities_over_the_temperature(settings):
    sampler = make("softmax", 3, settings=settings)
    temperature = settings.get("temperature", 0.05)
    utilities = np.tile(temperature * np.log([1.0, 3.0, 6.0]), (20_000, 1))
    chosen, explored = sampler.choose(None, utilities)
    share, five_deviations = np.bincount(chosen) / 20_000, 5 * np.sqrt(0.25 / 20_000)
    assert share == pytest.approx([0.1, 0.3, 0.6], abs=five_deviations) and not explored.any()


def test_success_rate_teaches_p_and_takes_the_nearest_to_one_half():
    sampler = make("success_rate", 501)  # the teacher predicts i/1000 = p/2
    s = sampler.propose(5)
    p_N_K = s.pool_N_K / 500
    assert s.utilities_N_K == pytest.approx(np.sqrt(p_N_K * (1 - p_N_K)))
    nearest = np.abs(p_N_K - 0.5).min(axis=1)
    assert np.abs(s.index_N / 500 - 0.5) == pytest.approx(nearest)
    sampler.observe(outcomes([7], [12]))
    call = sampler.teacher.update.call_args
    assert call.args == ("7", 12, 16) and call.kwargs["target"](0.75) == 0.375


def test_thompson_counts_by_hand_decays_them_and_revisits_problems():
    sampler = make("thompson", 40, candidates=2)
    sampler.observe(outcomes([3], [12]))
    assert (sampler.alpha[3], sampler.beta[3]) == (13, 5)  # the prior 1, 1 and 12 right, 4 wrong
    sampler.observe(outcomes([3], [16]))
    assert (sampler.alpha[3], sampler.beta[3]) == (23, 3)  # (13 + 1) / 2 + 16, (5 + 1) / 2 + 0
    assert sampler.alpha[4] == sampler.beta[4] == 1 and sampler.metrics()["coverage"] == 1 / 40
    p = 23 / 26  # so much evidence that the draws lie near the mean
    scores = sampler.score(np.full((4000, 1), 3))
    assert scores.mean() == pytest.approx(np.sqrt(p * (1 - p)), abs=0.02)
    first, second = sampler.propose(20).index_N, sampler.propose(20).index_N
    assert set(first) & set(second)  # in a pass they would be two halves of the 40


def test_skip_keeps_a_problem_with_half_the_probability_for_each_dead_group_in_a_row():
    sampler = make("skip", 4000)
    for _ in range(2):  # all wrong, all right: both dead, twice
        sampler.observe(outcomes(range(2000), np.repeat([0, 16], 1000)))
    seen = np.concatenate([sampler.propose(10).index_N for _ in range(240)])
    assert len(set(seen)) == 2400  # still one pass: nothing twice
    # A quarter of the first 2,000 and all of the others.
    assert (seen < 2000).mean() == pytest.approx(0.2, abs=0.04)
    sampler.observe(outcomes([0], [1]))
    for _ in range(9):
        sampler.observe(outcomes([1], [0]))
    assert sampler.dead[:2].tolist() == [0, 5]


def test_skip_still_proposes_where_every_problem_is_dead():
    sampler = make("skip", 12)
    sampler.dead[:] = 5
    assert len(set(sampler.propose(12).index_N.tolist())) == 12


def test_category_draws_a_category_first_whatever_its_size():
    sampler = make("category", 80, values=[*"aaab"], candidates=80, settings={"temperature": 0.1})
    pool = np.tile(np.arange(80), (4000, 1))  # all 80 are one pool
    for ahead, share in ((0, 0.5), (0.1, np.e / (1 + np.e))):
        sampler.value_C[:] = 0.25, 0.25 + ahead  # b is e times as likely as a, if ahead
        chosen, _ = sampler.choose(pool, sampler.score(pool))
        assert (chosen % 4 == 3).mean() == pytest.approx(share, abs=0.04)  # the share of b


def test_category_values_by_hand():
    sampler = make("category", 8, values=[*"abcd"])
    sampler.observe(outcomes([0, 4, 1], [10, 0, 4], 20))  # y = 0.5, 0 | 0.4
    assert sampler.value_C == pytest.approx([0.125, 0.2, 0, 0])  # half of the way to their means


def test_static_takes_the_known_rate_nearest_to_one_half_and_counts_the_unknown():
    sampler = make("static", 80, values=["0.0", "0.2", "0.5", "n/a"])
    known = [0, 0.4, 0.5]
    assert sampler.score(np.arange(4)) == pytest.approx([*known, np.mean(known)])
    assert sampler.metrics()["unrated"] == 0.25
    s = sampler.propose(5)
    assert s.utility_N == pytest.approx(s.utilities_N_K.max(axis=1))
    for rates, first in ((["easy", "hard"], "'easy'"), ([0.5, 85.0], "85.0"), ([-1, 0.5], "-1.0")):
        with pytest.raises(InputError, match=rf"--column c: {first} is no pass rate in \[0, 1\]"):
            make("static", 2, values=rates)


def test_headroom_draws_in_proportion_to_the_square_and_teaches_the_accuracy_left():
    """The teacher predicts 0, 0.001, 0.002, 0.003 for four problems: 0 : 1 : 4 : 9."""
    sampler = make("headroom", 4, candidates=4, epsilon=0)
    drawn = [sampler.propose(1).index_N[0] for _ in range(4000)]
    assert np.bincount(drawn) / 4000 == pytest.approx([0, 1 / 14, 4 / 14, 9 / 14], abs=0.04)
    pairs = make("headroom", 4, candidates=2, epsilon=0)
    both = [tuple(sorted(pairs.propose(2).index_N)) for _ in range(2000)]
    # 2 then 3, or 3 then 2.
    share = 4 / 14 * 9 / 10 + 9 / 14 * 4 / 5
    assert both.count((2, 3)) / 2000 == pytest.approx(share, abs=0.05)
    sampler.observe(outcomes([2], [4]))
    assert sampler.teacher.update.call_args.kwargs["target"](0.25) == pytest.approx(3**1.5 / 16)


def test_target_takes_the_nearest():
    s = make("target", 1000).propose(5)  # the teacher predicts i/1000
    assert s.index_N.tolist() == [min(pool, key=lambda i: abs(i - 400)) for pool in s.pool_N_K]

"""samplers/: each follows the protocol, and makes the choice that defines it."""

import itertools

import numpy as np
import pytest
import torch
from torch.utils._pytree import tree_map_only

from plumbing.errors import InputError
from sampler import FOLDER, SAMPLERS, find_sampler
from samplers.embedded import path_of
from samplers.knapsack import allocate
from samplers.vcrl import variance
from scripts.embed import save
from tests.helpers.samplers import Numbers, build, outcomes, same, take_step

NAMES = [*SAMPLERS, *sorted(path.stem for path in FOLDER.glob("*.py"))]


def make(name, n, fits=lambda index: True, values=(0, 0.2, 0.4, 0.6), **config):
    """Build a sampler by its name, over n problems; the values of its column repeat."""
    return build(find_sampler(name), Numbers(n, values), fits, **config)


def embedded(folder, embedding_N_D, model="M") -> dict:
    """Write embeddings of a data file; return what the sampler needs to find them."""
    (folder / "train.jsonl").write_text("data")
    save(embedding_N_D, model, folder / "train.jsonl")
    return {"train_data": folder / "train.jsonl", "max_prompt_tokens": 9}


@pytest.mark.parametrize("name", NAMES)
def test_every_sampler_follows_the_protocol(name, tmp_path):
    """Distinct problems that fit, utilities in [0, 0.5], bit-exact resume, randomness by seed."""
    config = {"n": 100, "fits": lambda i: i % 7 > 0, "candidates": 4, "epsilon": 0.5}
    config |= embedded(tmp_path, torch.eye(100))
    first, second, other = (make(name, **config, seed=seed) for seed in (1, 1, 2))

    def step(sampler, number):
        """Take a step in which many groups have none or all right."""
        rounds, o = take_step(sampler, 5, lambda i, G: G * (i % 23 - 3).clip(0, 16) // 16, number)
        for s in rounds:
            assert len(set(s.pool_N_K.ravel().tolist())) == s.pool_N_K.size
            assert (s.index_N % 7 > 0).all()
            scores = s.utilities_N_K
            assert np.isnan(scores).all() or (scores.min() >= 0 and scores.max() <= 0.5)
        chosen = sampler.train_on(o, 5)
        assert 0 < len(set(chosen.tolist())) == len(chosen) and set(chosen) <= {*range(len(o.y_N))}
        return rounds

    def equal(a, b):
        return len(a) == len(b) and all(map(same, a, b))

    assert equal(step(first, 1), step(other, 1)) == (name == "in_order")
    for number in range(2, 32):  # more than one pass
        step(first, number)
    # As a checkpoint does.
    torch.save(tree_map_only(np.ndarray, torch.from_numpy, first.state_dict()), tmp_path / "s.pt")
    state = torch.load(tmp_path / "s.pt", weights_only=True)
    second.load_state_dict(tree_map_only(torch.Tensor, torch.Tensor.numpy, state))
    assert all(equal(step(first, number), step(second, number)) for number in range(32, 38))
    assert first.metrics() == second.metrics() and first.metrics()["overlong"] == 15


def test_softmax_chooses_by_the_softmax_of_utilities_over_the_temperature():
    utilities = np.tile(0.2 * np.log([1.0, 3.0, 6.0]), (20_000, 1))
    chosen, explored = make("softmax", 3, settings={"temperature": 0.2}).choose(None, utilities)
    share, five_deviations = np.bincount(chosen) / 20_000, 5 * np.sqrt(0.25 / 20_000)
    assert share == pytest.approx([0.1, 0.3, 0.6], abs=five_deviations) and not explored.any()
    assert (make("softmax", 3, settings={"temperature": 0}).choose(None, utilities)[0] == 2).all()


def test_pcl_teaches_p_and_takes_the_nearest_to_one_half():
    sampler = make("pcl", 501)  # the teacher predicts i/1000 = p/2
    s = sampler.propose(5)
    p_N_K = s.pool_N_K / 500
    assert s.utilities_N_K == pytest.approx(np.sqrt(p_N_K * (1 - p_N_K)))
    assert np.abs(s.index_N / 500 - 0.5) == pytest.approx(np.abs(p_N_K - 0.5).min(axis=1))
    sampler.observe(outcomes([7], [12]))
    call = sampler.teacher.update.call_args
    assert call.args == ("7", 12, 16) and call.kwargs["target"](0.75) == 0.375


def test_mopps_counts_by_hand_decays_them_and_revisits_problems():
    sampler = make("mopps", 40, candidates=2)
    sampler.observe(outcomes([3], [12]))
    assert (sampler.alpha[3], sampler.beta[3]) == (13, 5)  # the prior 1, 1 and 12 right, 4 wrong
    sampler.observe(outcomes([3], [16]))
    assert (sampler.alpha[3], sampler.beta[3]) == (23, 3)  # (13 + 1) / 2 + 16, (5 + 1) / 2 + 0
    assert sampler.alpha[4] == sampler.beta[4] == 1 and sampler.metrics()["coverage"] == 1 / 40
    mean = sampler.score(np.full((4000, 1), 3)).mean()  # with much evidence the draws are near p
    assert mean == pytest.approx(np.sqrt(23 / 26 * 3 / 26), abs=0.02)
    assert {*sampler.propose(20).index_N} & {*sampler.propose(20).index_N}  # in a pass: two halves


def test_sec_values_by_hand_and_draws_a_category_whatever_its_size():
    sampler = make("sec", 80, values=[*"aaab"], candidates=80, settings={"temperature": 0.1})
    pool = np.tile(np.arange(80), (4000, 1))  # all 80 are one pool
    for ahead, share in ((0, 0.5), (0.1, np.e / (1 + np.e))):
        sampler.value_C[:] = 0.25, 0.25 + ahead  # b is e times as likely as a, if ahead
        chosen, _ = sampler.choose(pool, sampler.score(pool))
        assert (chosen % 4 == 3).mean() == pytest.approx(share, abs=0.04)  # the share of b
    sampler = make("sec", 8, values=[*"abcd"])
    sampler.observe(outcomes([0, 4, 1], [10, 0, 4], 20))  # y = 0.5, 0 | 0.4
    assert sampler.value_C == pytest.approx([0.125, 0.2, 0, 0])  # half of the way to their means


def test_static_takes_the_known_rate_nearest_to_one_half_and_counts_the_unknown():
    sampler = make("static", 80, values=["0.0", "0.2", "0.5", "n/a"])
    known = [0, 0.4, 0.5]
    assert sampler.score(np.arange(4)) == pytest.approx([*known, np.mean(known)])
    assert sampler.metrics()["unrated"] == 0.25
    s = sampler.propose(5)
    assert s.utility_N == pytest.approx(s.utilities_N_K.max(axis=1))
    for rates, first in ((["easy", "hard"], "easy"), ([0.5, 85.0], "85.0"), ([-1, 0.5], "-1.0")):
        with pytest.raises(InputError, match=rf"--column c: {first} is no pass rate in \[0, 1\]"):
            make("static", 2, values=rates)


def test_headroom_draws_in_proportion_to_the_square_and_teaches_the_accuracy_left():
    """The teacher predicts 0, 0.001, 0.002, 0.003 for four problems: 0 : 1 : 4 : 9."""
    sampler = make("headroom", 4, candidates=4, epsilon=0)
    drawn = [sampler.propose(1).index_N[0] for _ in range(4000)]
    assert np.bincount(drawn) / 4000 == pytest.approx([0, 1 / 14, 4 / 14, 9 / 14], abs=0.04)
    sampler.observe(outcomes([2], [4]))
    assert sampler.teacher.update.call_args.kwargs["target"](0.25) == pytest.approx(3**1.5 / 16)


def test_target_takes_the_nearest():
    s = make("target", 1000).propose(5)  # the teacher predicts i/1000
    assert s.index_N.tolist() == [min(pool, key=lambda i: abs(i - 400)) for pool in s.pool_N_K]


def test_best_of_all_takes_the_best_of_all_candidates():
    all_best = make("pcl", 501).propose(5)
    assert sorted(all_best.utility_N) == sorted(all_best.utilities_N_K.ravel())[-5:]
    of_pools = make("pcl", 501, settings={"best_of_all": 0}).propose(5)
    assert of_pools.utility_N.tolist() == of_pools.utilities_N_K.max(axis=1).tolist()
    assert of_pools.utility_N.sum() < all_best.utility_N.sum()


def test_in_order_takes_the_file_again_and_again():
    sampler = make("in_order", 10, lambda i: i % 7 > 0)
    order = [sampler.propose(3).index_N.tolist() for _ in range(3)]
    assert order == [[1, 2, 3], [4, 5, 6], [8, 9, 1]]
    assert sampler.metrics() == {"passes": 2, "coverage": 0.2, "overlong": 2}
    with pytest.raises(InputError, match="a step takes 9 distinct problems, only 8 of 10 problems"):
        sampler.propose(9)


def test_bag_of_words_by_hand_and_learns_a_word_that_decides():
    sampler = make("bag_of_words", 100, settings={"rate": 0.3})
    sampler.problems.question = lambda i: f"An {('even', 'odd')[i % 2]} number, {i % 7}."
    sampler.observe(outcomes([2], [16]))  # 6 equal gradients; AdaGrad's first step is its rate
    assert sampler.p(sampler.entries(2)) == pytest.approx(1 / (1 + np.exp(-0.3 * np.sqrt(6))))
    for i in range(400):
        sampler.observe(outcomes([i % 98], [0 if i % 2 else 8]))
    assert sampler.predict(np.array([98, 99])) == pytest.approx([0.5, 0], abs=0.1)
    assert (sampler.propose(5).index_N % 2 == 0).all()


def test_noisy_and_by_hand_and_learns_a_column_that_decides():
    sampler = make("noisy_and", 100, values=[*"ab"], candidates=4)  # texts differ, and are one word
    sampler.observe(outcomes([2], [0]))
    p = sampler.p(entries := sampler.entries(2))
    b = np.log(0.5**0.5 / (1 - 0.5**0.5))  # of two words, which take AdaGrad's first step, 1
    assert p == pytest.approx((1 / (1 + np.exp(1 - b))) ** 2)
    sampler.weight_V[entries[0]] += 1e-6
    before, after = (0.25 * np.log(x) + 0.75 * np.log(1 - x) for x in (p, sampler.p(entries)))
    assert after - before == pytest.approx(-1e-6 * sampler.gradient(entries, 0.25)[0], rel=1e-4)
    for i in range(400):
        sampler.observe(outcomes([i % 98], [0 if i % 2 else 8]))
    assert sampler.predict(np.array([98, 99])) == pytest.approx([0.5, 0], abs=0.1)
    assert (sampler.propose(5).index_N % 2 == 0).all()
    assert len(make("noisy_and", 100, column="").words(2)) == 1  # the text alone


def test_embedded_by_hand(tmp_path):
    config = embedded(tmp_path, torch.tensor([[3.0], [1], [2], [2]]))  # e = √2, -√2, 0, 0
    sampler, one = (make("embedded", 4, settings=x, **config) for x in ({}, {"window": 1}))
    assert sampler.score(np.arange(4)).tolist() == 4 * [0.25]
    for s in (sampler, one):
        s.observe(outcomes([0], [8]))  # y = 1/2
        # α = (y - 1/4) / (e² + 1 + ridge) = 1/16; f = 1/4 + α (e₀ e + 1)
        assert s.score(np.arange(4)) == pytest.approx(np.array([7, 3, 5, 5]) / 16, abs=1e-4)
        s.observe(outcomes([2], [0]))  # e = 0, y = 0
    # The latest alone: α = -1/4 / (1 + ridge) = -1/8, the same for all as e = 0.
    assert one.score(np.arange(4)) == pytest.approx(4 * [1 / 8])
    # Both: (4, 1; 1, 2) α = (1/4, -1/4), so α = (3, -5) / 28 and f = 1/4 - 2/28 + 3/28 e₀ e.
    expected = np.array([11, 0, 5, 5]) / 28  # the second would be -1/28
    assert sampler.score(np.arange(4)) == pytest.approx(expected, abs=1e-4)


def test_embedded_rejects_embeddings_that_are_not_of_these_data(tmp_path):
    config = embedded(tmp_path, torch.eye(4))
    state, data = make("embedded", 4, **config).state_dict(), config["train_data"]
    embedded(tmp_path, torch.eye(4), "another")
    with pytest.raises(InputError, match="of another, and those of the checkpoint are of M: rest"):
        make("embedded", 4, **config).load_state_dict(state)
    command = rf"; run python -m scripts.embed MODEL --data {data} --max_prompt_tokens 9$"
    data.write_text("other data")
    with pytest.raises(InputError, match=f"train.jsonl has changed since{command}"):
        make("embedded", 4, **config)
    for damage in (lambda: path_of(data).write_bytes(b"cut off"), path_of(data).unlink):
        damage()
        with pytest.raises(InputError, match=f"train.embeddings.safetensors: missing .*{command}"):
            make("embedded", 4, **config)


def test_greso_skips_by_the_streak():
    sampler = make("greso", 4000)
    for _ in range(2):  # all wrong, all right, live: the latter never count
        sampler.observe(outcomes(range(3000), np.repeat([0, 16, 8], 1000)))
    assert sampler.streak[[0, 1000, 2000, 3000]].tolist() == [-2, 2, 0, 0]
    seen = np.concatenate([sampler.kept(10) for _ in range(240)])
    assert len(set(seen)) == 2400  # still one pass: nothing twice
    # 0.5² of the first 2,000 and all of the others.
    assert (seen < 2000).mean() == pytest.approx(0.2, abs=0.04)


def test_greso_adapts_from_the_second_pass_on():
    sampler = make("greso", 10)
    groups = outcomes(range(10), [16, 0, *[8] * 8])  # a tenth easy, a tenth hard
    sampler.observe(groups)
    assert sampler.p_2.tolist() == [0.5, 0.5]
    sampler.passes = 2
    sampler.observe(groups)
    assert sampler.p_2 == pytest.approx([0.49, 0.51])  # targets: 1/12 easy, 1/6 hard
    for _ in range(50):
        sampler.observe(groups)
    assert sampler.p_2 == pytest.approx([0.05, 0.95])


def test_greso_refills_until_a_refill_should_suffice():
    def sizes(*live, n=100):
        """The number of problems in each round, of which so many are live."""
        left = iter(live)
        solve = lambda i, G: 8 * (np.arange(len(i)) < next(left, 0))  # noqa: E731
        rounds, o = take_step(sampler := make("greso", n), 8, solve)
        chosen = sampler.train_on(o, 8)
        assert o.live_N[chosen].sum() == min(8, o.live_N.sum()) and not sampler.rounds
        return [len(s.index_N) for s in rounds]

    assert sizes(8) == [12, 0]
    assert sizes(6, 1) == [12, 5]  # 2 missing: 1.25 · 2 / (6/12) = 5, the last though one is live
    assert sizes(2, 5) == [12, 12, 3]  # 1.25 · 6 / (2/12) = 45 > 12; then 1.25 · 1 / (5/12)
    assert sizes(n=20) == [12, 8, 0, 0]  # all problems tried, all dead


def test_speed_continues_live_groups_and_returns_the_surplus():
    sampler = make("speed", 32)
    rounds, o = take_step(sampler, 2, lambda i, G: np.where(i % 4 == 0, 0, G // 2))
    screened, (chosen, G_N) = rounds[0].index_N, (rounds[1].index_N, rounds[1].completions_N)
    assert len(screened) == 8 and set(rounds[0].completions_N) == {4} and set(G_N) == {12}
    live = screened[screened % 4 > 0]
    assert chosen.tolist() == live[:2].tolist()
    trained = sampler.train_on(o, 2)
    assert o.index_N[trained].tolist() == chosen.tolist()
    assert o.completions_N[trained].tolist() == [16, 16]
    assert (sampler.status[live[2:]] == sampler.UNSEEN).all()
    dead = take_step(sampler, 2, lambda i, G: 0 * G)
    assert len(dead[0][1].index_N) == len(sampler.train_on(dead[1], 2)) == 0
    with pytest.raises(InputError, match="--group_size 4: this sampler needs more than `screen`, "):
        make("speed", 32, group_size=4)


def test_lilo_continues_the_highest_variance():
    sampler = make("lilo", 8)  # all are screened; i of 8 are right
    rounds, o = take_step(sampler, 2, lambda i, G: i * G // 8)
    assert 4 in rounds[1].index_N and ({3, 5} & {*rounds[1].index_N})
    trained = sampler.train_on(o, 2)
    assert o.index_N[trained].tolist() == rounds[1].index_N.tolist()
    rounds, _ = take_step(make("lilo", 8), 2, lambda i, G: np.where(i == 6, 1, 0))
    assert rounds[1].index_N.tolist() == [6]


def test_reinforce_ada_leaves_with_two_right_and_two_wrong():
    sampler = make("reinforce_ada", 4)
    # Problem 0 has its two of each at once, 1 has one right a round, 2 none, 3 all.
    rounds, o = take_step(sampler, 4, lambda i, G: np.array([4, 1, 0, 8])[i])
    assert [len(s.index_N) for s in rounds] == [4, 3, 2, 2]
    by_problem = dict(zip(o.index_N.tolist(), o.completions_N.tolist(), strict=True))
    assert by_problem == {0: 8, 1: 16, 2: 32, 3: 32}
    assert sampler.train_on(o, 4).tolist() == [0, 1, 2, 3]
    rounds, _ = take_step(sampler, 4, lambda i, G: G // 2)
    assert [len(s.index_N) for s in rounds] == [4, 0]  # it learns too late that it is done


@pytest.mark.parametrize("p", [(0.5, 0.2, 0.9), (0.01, 0.7, 0.5), (0.0, 1.0, 0.3)])
def test_knapsack_is_the_best_allocation(p):
    p_3 = np.array(p)

    def value(G_3):
        return sum((1 - p_3**G_3 - (1 - p_3) ** G_3) * p_3 * (1 - p_3) ** 2)

    G_N = allocate(p_3, total=14, least=2, most=8)
    possible = (np.array(c) for c in itertools.product(range(2, 9), repeat=3) if sum(c) == 14)
    assert G_N.sum() == 14 and G_N.min() >= 2 and G_N.max() <= 8
    assert value(G_N) == pytest.approx(max(map(value, possible)))
    assert allocate(np.array([0.5, 0, 1]), 12, 2, 8).tolist() == [8, 2, 2]
    sampler = make("knapsack", 100)
    assert sampler.propose(5).completions_N.tolist() == 5 * [16]  # nothing is known yet
    sampler.predict = lambda index_N: np.where(index_N % 2, 0.1, 0.5)
    s = sampler.propose(10)  # odd problems are hard: more attempts make their groups live
    odd = s.index_N % 2 == 1
    assert s.completions_N.sum() == 160 and s.completions_N[odd].min() > s.completions_N[~odd].max()


def test_vcrl_replaces_low_variance_from_memory_at_most_twice():
    assert variance(outcomes(range(3), [2, 1, 0], 4)).tolist() == [1, 0.75, 0]
    assert variance(outcomes(range(2), [2, 1], 5)) == pytest.approx([1, 4 / 6])
    twin, right = make("vcrl", 100), np.zeros(100, dtype=int)
    a, b, c, d = first = twin.draw(4)  # what the sampler will draw
    twin.take(first)
    e, f, *_ = twin.draw(4)
    right[first], right[[e, f]] = (8, 7, 6, 5), 8  # of 16; all others are dead
    sampler, replayed = make("vcrl", 100), []
    for step in range(1, 7):
        rounds, o = take_step(sampler, 4, lambda i, G: right[i], step)
        assert len(rounds) == 2
        replayed.append({*rounds[1].index_N})
        best = o.index_N[sampler.train_on(o, 4)]
        assert sorted(right[best]) == sorted(right[o.index_N])[-4:]
    assert replayed == [set(), {a, b}, {a, b, e, f}, {c, d, e, f}, {c, d}, set()]
    for step, passed in ((20, 4), (21, 0)):  # 3 of 16: 0.61 of the largest variance
        sampler = make("vcrl", 100)
        take_step(sampler, 4, lambda i, G: 0 * G + 3, step)
        assert np.count_nonzero(sampler.left) == passed

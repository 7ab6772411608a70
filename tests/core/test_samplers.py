"""samplers/: each follows the protocol, and makes the choice that defines it."""

import itertools

import numpy as np
import pytest
import torch

from plumbing.files import file_crc32
from sampler import FOLDER, SAMPLERS, Pooled, find_sampler
from samplers.knapsack import allocate
from scripts.embed import save
from tests.helpers.checkpoints import through_file
from tests.helpers.checks import rejected
from tests.helpers.groups import group, problems_of, solved
from tests.helpers.samplers import Numbers, build, take_step, train_on

NAMES = [*SAMPLERS, *sorted(path.stem for path in FOLDER.glob("*.py"))]
every_sampler = pytest.mark.parametrize("name", NAMES)


def make(name, n, fits=lambda index: True, values=(0, 0.2, 0.4, 0.6), **config):
    """Build a sampler by its name, over n problems; the values of its column repeat."""
    return build(find_sampler(name), Numbers(n, values), fits, **config)


def embedded(folder, embedding_N_D, model="M") -> dict:
    """Write embeddings of a data file; return what the sampler needs to find them."""
    data = folder / "train.jsonl"
    data.write_text("data")
    save(embedding_N_D, model, data, file_crc32(data))
    return {"train_data": data, "max_prompt_tokens": 9}


def far_from(number):
    """Return a key that sorts problems by their distance from this number."""
    return lambda problem: abs(problem - number)


def shares_of(drawn) -> np.ndarray:
    """Return how often each number was drawn."""
    return np.bincount(drawn) / len(drawn)


# The protocol


@pytest.fixture
def make_any(tmp_path):
    """A function from a name to a sampler over 100 problems, 15 of which do not fit."""
    few = {"candidates": 4, "epsilon": 0.5, "prompts_per_step": 5}
    config = embedded(tmp_path, torch.eye(100)) | few
    return lambda name, **other: make(name, 100, lambda i: i % 7 > 0, **config | other)


def some_right(problem: int, size: int) -> int:
    """Solve problems so that many groups have none or all right, whatever the sampler."""
    sixteenths = min(max(problem % 23 - 3, 0), 16)
    return size * sixteenths // 16


def take_steps(sampler, steps: int) -> str:
    """Take steps of 5 problems; return all their groups as text, which has every digit."""
    return repr([take_step(sampler, some_right) for _ in range(steps)])


@every_sampler
def test_every_sampler_follows_the_protocol(name, make_any):
    """In more than one pass: its pools have no common candidates, all of which fit. take_step and
    train_on check the rest."""
    sampler = make_any(name)
    for _ in range(60):
        rounds = take_step(sampler, some_right)
        for groups in rounds:
            candidates = np.concatenate([group.pool for group in groups])
            assert len({*candidates}) == len(candidates)
            assert (candidates % 7 > 0).all()
        assert train_on(sampler, rounds)
    assert sampler.metrics()["overlong"] == 15


EXPLORING = {"bag_of_words", "embedded", "frontier", "goldilocks", "headroom", "target"}


@every_sampler
def test_which_samplers_with_predictions_explore_by_the_runs_epsilon(name, make_any):
    """All with ε = 1, and the others never."""
    for each in make_any(name, epsilon=1.0).propose(5):
        assert np.isnan(each.utility) or each.explored == (name in EXPLORING)


@every_sampler
def test_every_sampler_draws_its_random_numbers_from_the_seed(name, make_any):
    first = take_steps(make_any(name), 1)
    assert take_steps(make_any(name), 1) == first
    other = take_steps(make_any(name, seed=2), 1)
    assert other != first


@every_sampler
def test_every_sampler_resumes_bit_for_bit(name, make_any):
    saved, resumed = make_any(name), make_any(name)
    take_steps(saved, 31)
    resumed.load_state_dict(through_file(saved.state_dict()))
    assert take_steps(resumed, 6) == take_steps(saved, 6)
    assert resumed.metrics() == saved.metrics()


# Samplers with a teacher, which predicts i/1000 for problem i


def test_softmax_chooses_by_the_softmax_of_utilities_over_the_temperature():
    """Utilities 0.2 ln 1, 0.2 ln 3, 0.2 ln 6 at temperature 0.2: odds of 1 : 3 : 6."""
    utilities = np.tile(0.2 * np.log([1.0, 3.0, 6.0]), (20_000, 1))
    chosen, _ = make("softmax", 3, settings={"temperature": 0.2}).choose(None, utilities)
    assert shares_of(chosen) == pytest.approx([0.1, 0.3, 0.6], abs=0.02)


def test_pcl_takes_the_p_nearest_to_one_half_of_all_candidates_and_teaches_p():
    """The teacher predicts i/1000 = p/2, and learns p̂/2: its range is [0, 0.5]."""
    sampler = make("pcl", 501)
    groups = sampler.propose(5)
    candidates = sorted(itertools.chain(*(group.pool for group in groups)), key=far_from(250))
    assert sorted(problems_of(groups)) == sorted(candidates[:5])
    sampler.observe([solved(7, right=12)])
    assert sampler.teacher.updates == [("7", 0.375)]


def test_headroom_draws_in_proportion_to_the_square_and_teaches_the_accuracy_left_to_gain():
    """The teacher predicts 0, 0.001, 0.002, 0.003 for four problems: 0 : 1 : 4 : 9."""
    sampler = make("headroom", 4, candidates=4)
    drawn = [sampler.propose(1)[0].problem for _ in range(4000)]
    assert shares_of(drawn) == pytest.approx([0, 1 / 14, 4 / 14, 9 / 14], abs=0.04)
    sampler.observe([solved(2, right=4)])
    assert sampler.teacher.updates == [("2", pytest.approx(3**0.5 / 4 * 3 / 4))]  # √(p(1-p)) (1-p)


def test_target_takes_the_nearest_to_two_fifths():
    for each in make("target", 501).propose(5):
        assert each.problem == min(each.pool, key=far_from(400))


def test_candidates_auto_by_hand():
    """K = 2 / s. At first s = 1/4; then 1/8, from 4 that explored, none live; then 5 / 11.92, as
    0.98 · 4 + 4 + 4 explored, with the prior. Groups that the teacher chose do not count. Two
    pools have half of the 67 problems at most, 16 each."""
    sampler = make("goldilocks", 67, candidates="auto", epsilon=0.5)
    sizes = []
    for explored, right in ((4, 0), (4, 8), (100, 0), (0, 0)):
        sizes.append(len(sampler.propose(2)[0].pool))
        chosen = solved(5, right=8, explored=False)
        sampler.observe([*(solved(i, right) for i in range(explored)), chosen])
    assert sizes == [8, 16, 5, 16]
    assert sampler.metrics()["candidates"] == 16


def test_candidates_auto_fits_k_to_the_prompts_that_fit():
    """25 of 500, found in the first draw. Five prompts may choose from half of them: 2 each."""
    sampler = make("goldilocks", 500, candidates="auto", epsilon=0.5, prompts_per_step=5)
    sampler.context.fits = lambda index: index % 20 == 0
    groups = sampler.propose(5)
    assert [len(group.pool) for group in groups] == [2] * 5
    assert sampler.metrics().items() >= {"candidates": 2, "passes": 1, "overlong": 475}.items()


@every_sampler
@pytest.mark.parametrize("epsilon", [0.0, 0.5])
def test_candidates_auto_needs_groups_that_explore(name, epsilon, make_any):
    """K would stay at 8 in silence. A run is rejected before it begins. Samplers without pools
    ignore --candidates; of these only `knapsack` has an --epsilon, which it inherits."""
    explores = epsilon and name in EXPLORING | {"knapsack"}
    if issubclass(find_sampler(name), Pooled) and not explores:
        with rejected("--candidates auto"):
            make_any(name, candidates="auto", epsilon=epsilon)
    else:
        assert make_any(name, candidates="auto", epsilon=epsilon).propose(5)


# Samplers that learn from a problem's history or from a column


PARTIAL = group(2, [1, 0.5, 0.25, 0])  # counts as 1.75 right completions and 2.25 wrong ones
# Rounds of groups, most with so many of 16 right, of four problems in two categories, 0 and 2 in
# one, 1 and 3 in the other -> what the sampler has learned.
LEARNED = {
    # right and wrong ones beside the prior of 1; half remains at each visit
    "mopps": (
        [[solved(3, 12)], [solved(3, 16), solved(0, 1), PARTIAL]],
        {"alpha": [2, 1, 2.75, 13 / 2 + 1 / 2 + 16], "beta": [16, 1, 3.25, 5 / 2 + 1 / 2]},
    ),
    # the second round takes nineteen twentieths of the first one's counts
    "learnability_bins": (
        [[solved(0, 4), solved(2, 0), solved(1, 16)], [PARTIAL]],
        {"right_C": [0.95 * 4 + 1.75, 0.95 * 16], "wrong_C": [0.95 * 28 + 2.25, 0]},
    ),
    # half way to the mean y of a category in the round: 1/4, and 0
    "sec": (
        [[solved(0, 8), solved(2, 0), solved(1, 16)], [solved(2, 8)]],
        {"value_C": [(1 / 8 + 1 / 2) / 2, 0]},
    ),
    "difficulty_pools": (
        [[solved(0, 4), solved(1, 0)], [solved(1, 12)]],
        {"p_hat": [1 / 4, 3 / 4, np.nan, np.nan]},
    ),
}


@pytest.mark.parametrize("name", LEARNED)
def test_what_a_sampler_learns_by_hand(name):
    rounds, learned = LEARNED[name]
    sampler = make(name, 4, values=["a", "b"])
    for groups in rounds:
        sampler.observe(groups)
    for attribute, expected in learned.items():
        assert getattr(sampler, attribute) == pytest.approx(np.array(expected), nan_ok=True)


def test_mopps_draws_utilities_of_its_posterior():
    """The median of Beta(23, 3) is about (23 - 1/3) / (26 - 2/3)."""
    sampler = make("mopps", 4)
    sampler.alpha[3], sampler.beta[3] = 23, 3
    utilities = sampler.score(np.full((4000, 1), 3))
    assert np.median(utilities) == pytest.approx(np.sqrt(22.67 * 2.67) / 25.33, abs=0.01)


def test_weighted_draws_in_proportion_to_the_weight_also_among_the_rest():
    """Weights 8, 1, 1. Second comes problem 0 with 2/10 · 8/9, and else 1 as often as 2."""
    sampler = make("difficulty_pools", 3, settings={"hard_weight": 8.0})
    sampler.p_hat[0] = 0
    second = [sampler.draw(2)[1] for _ in range(10_000)]
    assert shares_of(second) == pytest.approx([16 / 90, 37 / 90, 37 / 90], abs=0.02)


def test_learnability_bins_share_follows_the_chance_of_a_live_group_whatever_its_size():
    """Of 1.6e9 completions in each bin, 1/2 are right in a, 1/16 in b: two of a bin differ with 1/2
    and 15/128. A bin without right ones has the least share, 0.05 / 2."""
    sampler = make("learnability_bins", 4, values=[*"aaab"], group_size=2)
    sampler.right_C[:] = 8e8, 1e8
    sampler.wrong_C[:] = 8e8, 15e8
    assert sampler.weights() == pytest.approx([*[64 / 79 / 3] * 3, 15 / 79], abs=1e-3)
    sampler.right_C[1] = 0
    assert sampler.weights()[3] == pytest.approx(0.025 / 1.025, abs=1e-3)


def test_learnability_bins_share_does_not_fall_with_prompts_that_are_too_long():
    """Of bin a only 2 of 20 problems fit, of b all 20. At first both bins have the same share."""
    sampler = make("learnability_bins", 40, lambda i: i % 2 or i < 4, values=[*"ab"], group_size=4)
    drawn = [sampler.draw(1)[0] % 2 for _ in range(2000)]
    assert shares_of(drawn[200:])[0] == pytest.approx(1 / 2, abs=0.05)


def test_difficulty_pools_weigh_problems_by_their_last_pass_rate():
    sampler = make("difficulty_pools", 5, settings={"easy_weight": 0.1})
    sampler.p_hat[:] = [1 / 4, 5 / 16, 3 / 4, 13 / 16, np.nan]
    assert sampler.weights().tolist() == [0.2, 1, 1, 0.1, 1]


def test_sec_draws_a_category_by_its_value_whatever_its_size():
    """A pool has three problems of category a and one of b. The temperature is 0.1, and b's value
    0.1 ahead, so that b is e times as likely as a."""
    sampler = make("sec", 4, values=[*"aaab"], settings={"temperature": 0.1})
    sampler.value_C[:] = [0.25, 0.35]
    pool = np.tile(np.arange(4), (4000, 1))
    chosen, _ = sampler.choose(pool, sampler.score(pool))
    assert np.mean(chosen == 3) == pytest.approx(np.e / (1 + np.e), abs=0.04)


def test_static_takes_the_known_rate_nearest_to_one_half():
    """An unknown rate has the mean utility."""
    sampler = make("static", 80, values=["0.0", "0.2", "0.5", "n/a"])
    assert sampler.score(np.arange(4)) == pytest.approx([0, 0.4, 0.5, 0.3])
    assert sampler.metrics()["unrated"] == 1 / 4
    for each in sampler.propose(5):
        assert each.utility == max(each.utilities)


def test_static_rejects_a_column_that_holds_no_pass_rates():
    with rejected("--column c: 85.0"):
        make("static", 2, values=["85.0", "9"])


# Samplers that read the problems


def test_bag_of_words_first_update_by_hand():
    """The question has 6 distinct words, whose gradients are equal; AdaGrad's first step is its
    rate."""
    sampler = make("bag_of_words", 100, settings={"rate": 0.3})
    sampler.problems.question = lambda i: "An even number, an even 2."
    sampler.observe([solved(2, right=16)])
    logit = 6 * 0.3 / np.sqrt(6)
    assert sampler.predict([2]) == pytest.approx(1 / (1 + np.exp(-logit)))


def test_noisy_and_gradient_by_hand():
    """The words "2" and the column's value: at first σ = √½ of both, so that p = 1/2. The cross
    entropy of p̂ and p = ∏ σ has the derivative (p - p̂) / (1 - p) · (1 - σ) for each."""
    sampler = make("noisy_and", 100)
    gradient = sampler.gradient(sampler.entries(2), p_hat=0.25)
    assert gradient == pytest.approx([0.25 / 0.5 * (1 - 0.5**0.5)] * 2)


def test_frontier_reads_words_length_columns_and_pairs_of_columns():
    sampler = make("frontier", 4, values=["sums, 3"])
    assert sampler.words(2) == [
        "2",
        "column sums, 3",
        "length 0",  # 4 log₂ 1
        "column (0, 'sums')",
        "column (1, '3')",
    ]


def test_frontier_takes_half_of_a_step_from_one_word_at_most():
    """Three of five candidates have word 1: of two one may have it, and one word 2."""
    sampler = make("frontier", 9)
    entries = [np.array([word]) for word in (1, 1, 1, 2, 2)]
    values = np.array([0.5, 0.4, 0.3, 0.2, 0.1])
    assert sampler.ranks(values, entries, P=2).tolist() == [0, 2, 3, 1, 4]
    sampler.share = 1.0
    assert sampler.ranks(values, entries, P=2).tolist() == [0, 1, 2, 3, 4]


def test_frontier_proposes_the_best_candidates_with_their_values():
    """p is i/20 for problem i, so that with G = 2 half of P(live) · (1-p) is p(1-p)². Problems 0 to
    9, which have the highest values, share a word, and so do the others: one of each is chosen."""

    def utility(problem):
        p = problem / 20
        return p * (1 - p) ** 2

    sampler = make("frontier", 20, group_size=2, candidates=4)
    sampler.predict = lambda indices: np.array(indices) / 20
    sampler.words = lambda index: ["low" if index < 10 else "high"]
    sampler.evidence = np.inf  # for the model of p: nothing is drawn uniformly
    groups = sampler.propose(2)
    candidates = [problem for each in groups for problem in each.pool]
    low, high = [i for i in candidates if i < 10], [i for i in candidates if i >= 10]
    assert sorted(problems_of(groups)) == [max(low, key=utility), max(high, key=utility)]
    for each in groups:
        assert each.utilities == pytest.approx([utility(i) for i in each.pool])


def test_frontier_compares_its_model_of_p_with_the_mean_of_the_groups_drawn_uniformly():
    """For the first group both predict 1/2. Then the mean is 1/4, with a prior of one group with
    p̂ = 1/2, and the model predicts 1/2 for a new word, where none is right."""
    sampler = make("frontier", 9)
    sampler.words = lambda index: [str(index)]
    sampler.observe([solved(1, right=0)])
    assert sampler.evidence == pytest.approx(0)
    sampler.observe([solved(2, right=0, explored=False)])
    assert sampler.evidence == pytest.approx(0.9 * (np.log(0.5) - np.log(0.75)))
    assert sampler.uniform_groups == pytest.approx(0.98)  # the second was chosen


@pytest.mark.parametrize(("odds", "share"), [(1, 1 / 2), (3, 1 / 4), (9, 0.2), (1e300, 0.2)])
def test_frontier_draws_uniformly_with_the_probability_that_the_mean_is_better(odds, share):
    """And at least with ε. odds: that the model of p predicts better."""
    sampler = make("frontier", 9, epsilon=0.2)
    sampler.evidence = np.log(odds)
    assert sampler.metrics()["uniform_share"] == pytest.approx(share)


EMBEDDED = {  # window -> predictions for four problems, e = √2, -√2, 0, 0
    # (4, 1; 1, 2) α = y - 1/4 = (1/4, -1/4), where 4 = e² + 1 + ridge. So α = (3, -5) / 28 and
    # f = 1/4 - 2/28 + 3/28 e₀ e. The second would be -1/28.
    9: [11 / 28, 0, 5 / 28, 5 / 28],
    # The first is forgotten: α = -1/4 / (1 + ridge) = -1/8, the same for all as e = 0.
    1: [1 / 8] * 4,
}


@pytest.mark.parametrize("window", EMBEDDED)
def test_embedded_by_hand(window, tmp_path):
    """Half of the completions of problem 0 are right, then none of problem 2."""
    config = embedded(tmp_path, torch.tensor([[3.0], [1], [2], [2]]))
    sampler = make("embedded", 4, settings={"window": window}, **config)
    sampler.observe([solved(0, right=8)])
    sampler.observe([solved(2, right=0)])
    assert sampler.score(np.arange(4)) == pytest.approx(EMBEDDED[window], abs=1e-4)


def test_embeddings_of_another_model_or_other_data_are_rejected(tmp_path):
    config = {"train_data": tmp_path / "train.jsonl", "max_prompt_tokens": 9}
    config["train_data"].write_text("data")
    with rejected("train.embeddings.safetensors is missing"):
        make("embedded", 4, **config)
    config = embedded(tmp_path, torch.eye(4))
    sampler = make("embedded", 4, **config)
    with rejected("of the checkpoint of another"):
        sampler.load_state_dict(sampler.state_dict() | {"model": "another"})
    config["train_data"].write_text("other data")
    with rejected("train.jsonl has changed"):
        make("embedded", 4, **config)


# Samplers with an order, rounds or group sizes of their own


def test_speed_needs_larger_groups_than_it_screens():
    with rejected("--group_size must be above"):
        make("speed", 32, group_size=4)


def test_speed_continues_the_first_live_problems_and_trains_on_them_whole():
    """Every fourth problem is dead."""
    sampler = make("speed", 32)
    rounds = take_step(sampler, lambda problem, size: 0 if problem % 4 == 0 else size // 2)
    one, two, *_ = [group.problem for group in rounds[0] if group.live]
    trained = train_on(sampler, rounds)
    assert [(g.problem, g.size, g.successes) for g in trained] == [(one, 16, 8), (two, 16, 8)]


def test_reinforce_ada_continues_problems_without_two_right_and_two_wrong():
    """Problem 0 has both at once, 1 has one right a round, 2 has none, 3 all. All completions of a
    problem are trained on as one group."""
    sampler = make("reinforce_ada", 4, prompts_per_step=4)
    rounds = take_step(sampler, lambda problem, size: [4, 1, 0, 8][problem])
    assert [len(groups) for groups in rounds] == [4, 3, 2, 2]
    outcomes = {group.problem: (group.size, group.successes) for group in train_on(sampler, rounds)}
    assert outcomes == {0: (8, 4), 1: (16, 2), 2: (32, 0), 3: (32, 32)}


@pytest.mark.parametrize("p", [(0.5, 0.2, 0.9), (0.01, 0.7, 0.5), (0.0, 1.0, 0.3)])
def test_knapsack_is_the_best_allocation(p):
    """Of all that give 2 to 8 completions to each of three problems, 14 in all."""
    p_3 = np.array(p)
    value = {}
    for G_3 in itertools.product(range(2, 9), repeat=3):
        live_3 = 1 - p_3**G_3 - (1 - p_3) ** G_3
        value[G_3] = (live_3 * p_3 * (1 - p_3) ** 2).sum() if sum(G_3) == 14 else -1
    G_3 = tuple(allocate(p_3, total=14, least=2, most=8).tolist())
    assert value[G_3] == pytest.approx(max(value.values()))


def test_knapsack_gives_hard_problems_more_completions():
    sampler = make("knapsack", 100)
    assert [group.size for group in sampler.propose(5)] == [16] * 5  # it knows nothing yet
    sampler.predict = lambda indices: np.where(np.array(indices) % 2, 0.1, 0.5)  # odd: hard
    groups = sampler.propose(10)
    hard, easy = ([g.size for g in groups if g.problem % 2 == odd] for odd in (1, 0))
    assert sum(hard + easy) == 160
    assert min(hard) > max(easy)

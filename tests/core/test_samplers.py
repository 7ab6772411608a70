"""samplers/: each follows the protocol, and makes the choice that defines it."""

import itertools

import numpy as np
import pytest
import torch

from plumbing.files import digest
from sampler import FOLDER, SAMPLERS, Sampler, find_sampler
from samplers.difficulty_pools import Weighted
from samplers.embedded import path_of
from samplers.knapsack import allocate
from scripts.embed import save
from tests.helpers.checkpoints import through_file
from tests.helpers.checks import rejected
from tests.helpers.groups import problems_of, solved
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
    save(embedding_N_D, model, data, digest(data)[1])
    return {"train_data": data, "max_prompt_tokens": 9}


def shares_of(drawn) -> np.ndarray:
    """Return how often each number was drawn."""
    return np.bincount(drawn) / len(drawn)


# The protocol


def test_which_samplers_have_rounds_of_their_own():
    own = {name for name in NAMES if find_sampler(name).more is not Sampler.more}
    assert own == {"greso", "reinforce_ada", "speed"}


@pytest.fixture
def make_any(tmp_path):
    """A function from a name to a sampler over 100 problems, 15 of which do not fit."""
    config = embedded(tmp_path, torch.eye(100))
    config |= {"candidates": 4, "epsilon": 0.5, "prompts_per_step": 5}
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
    """In more than one pass: it proposes distinct problems that fit, from pools without common
    candidates, with utilities in their range or none, and trains on groups of the step."""
    sampler = make_any(name)
    for _ in range(60):
        rounds = take_step(sampler, some_right)
        for groups in rounds:
            candidates = [candidate for group in groups for candidate in group.pool]
            assert len(set(candidates)) == len(candidates)
            assert all(candidate % 7 > 0 for candidate in candidates)
            utilities = np.array([utility for group in groups for utility in group.utilities])
            in_range = (utilities >= 0) & (utilities <= 0.5)
            assert in_range.all() or np.isnan(utilities).all()
        assert train_on(sampler, rounds)
    assert sampler.metrics()["overlong"] == 15


def test_which_samplers_explore_by_the_runs_epsilon(make_any):
    """With ε = 1 they choose uniformly from a pool whose utilities they know."""
    exploring = set()
    for name in NAMES:
        group = make_any(name, epsilon=1.0).propose(5)[0]
        if group.explored and group.utility == group.utility:
            exploring.add(name)
    expected = {"bag_of_words", "embedded", "fitted_pool", "goldilocks", "headroom", "target"}
    assert exploring == expected


@every_sampler
def test_every_sampler_draws_its_random_numbers_from_the_seed(name, make_any):
    first = take_steps(make_any(name), 1)
    assert take_steps(make_any(name), 1) == first
    other = take_steps(make_any(name, seed=2), 1)
    assert (other == first) == (name == "in_order")


@every_sampler
def test_every_sampler_resumes_bit_for_bit(name, make_any, tmp_path):
    saved = make_any(name)
    take_steps(saved, 31)
    resumed = make_any(name)
    resumed.load_state_dict(through_file(saved.state_dict(), tmp_path))
    assert take_steps(resumed, 6) == take_steps(saved, 6)
    assert resumed.metrics() == saved.metrics()


# Samplers with a teacher, which predicts i/1000 for problem i


def test_softmax_chooses_by_the_softmax_of_utilities_over_the_temperature():
    """Utilities 0.2 ln 1, 0.2 ln 3, 0.2 ln 6 at temperature 0.2: odds of 1 : 3 : 6."""
    utilities = np.tile(0.2 * np.log([1.0, 3.0, 6.0]), (20_000, 1))
    chosen, explored = make("softmax", 3, settings={"temperature": 0.2}).choose(None, utilities)
    five_deviations = 5 * np.sqrt(0.25 / 20_000)
    assert shares_of(chosen) == pytest.approx([0.1, 0.3, 0.6], abs=five_deviations)
    assert not explored.any()


def test_pcl_takes_the_p_nearest_to_one_half_of_all_candidates_and_teaches_p():
    sampler = make("pcl", 501)  # the teacher predicts i/1000 = p/2
    groups = sampler.propose(5)
    p = sorted(candidate / 500 for group in groups for candidate in group.pool)
    distances = sorted(abs(group.problem / 500 - 0.5) for group in groups)
    assert distances == pytest.approx(sorted(abs(each - 0.5) for each in p)[:5])
    first = groups[0].problem / 500
    assert groups[0].utility == pytest.approx(np.sqrt(first * (1 - first)))
    sampler.observe([solved(7, right=12)])
    assert sampler.teacher.updates == [("7", 0.375)]  # p̂/2, as a teacher's range is [0, 0.5]


def test_headroom_draws_in_proportion_to_the_square_and_teaches_the_accuracy_left_to_gain():
    """The teacher predicts 0, 0.001, 0.002, 0.003 for four problems: 0 : 1 : 4 : 9."""
    sampler = make("headroom", 4, candidates=4)
    drawn = [sampler.propose(1)[0].problem for _ in range(4000)]
    assert shares_of(drawn) == pytest.approx([0, 1 / 14, 4 / 14, 9 / 14], abs=0.04)
    sampler.observe([solved(2, right=4)])
    assert sampler.teacher.updates == [("2", pytest.approx(3**0.5 / 4 * 3 / 4))]  # √(p(1-p)) (1-p)


def test_target_takes_the_nearest_to_two_fifths():
    for group in make("target", 501).propose(5):
        assert group.problem == min(group.pool, key=lambda i: abs(i - 400))


def pool_sizes(sampler) -> set[int]:
    return {len(group.pool) for group in sampler.propose(2)}


def test_fitted_pool_by_hand():
    """K = 2 / f. At first f = 1/4; then 1/8, from 4 that explored, none live. Groups that the
    teacher chose do not count."""
    sampler = make("fitted_pool", 200, candidates=20)
    assert pool_sizes(sampler) == {8}
    dead = [solved(i, right=0) for i in range(4)]
    sampler.observe([*dead, solved(5, right=8, explored=False)])
    assert pool_sizes(sampler) == {16}
    sampler.observe(dead)  # f = 1 / (0.98 · 4 + 4 + 4), so that 2 / f is 23.84, above --candidates
    assert pool_sizes(sampler) == {20}
    sampler.observe([solved(i, right=8) for i in range(4)])
    # 0.98² · 4 + 0.98 · 4 + 4 + 4 = 15.76 that explored and the prior, of which 4 + 1 live
    assert pool_sizes(sampler) == {7}
    assert sampler.metrics()["candidates"] == 7


# Samplers that learn from a problem's history or from a column


def test_mopps_counts_by_hand():
    """Right and wrong completions beside the prior of 1, half of which remains at each visit."""
    sampler = make("mopps", 40)
    sampler.observe([solved(3, right=12)])
    assert (sampler.alpha[3], sampler.beta[3], sampler.alpha[4], sampler.beta[4]) == (13, 5, 1, 1)
    sampler.observe([solved(3, right=16)])
    assert (sampler.alpha[3], sampler.beta[3]) == (13 / 2 + 1 / 2 + 16, 5 / 2 + 1 / 2)
    assert sampler.metrics()["coverage"] == 1 / 40


def test_mopps_draws_utilities_near_p_once_it_has_much_evidence_and_revisits_problems():
    sampler = make("mopps", 40, candidates=2)
    sampler.alpha[3] = 230
    sampler.beta[3] = 30
    utilities = sampler.score(np.full((1000, 1), 3))
    assert utilities.mean() == pytest.approx(np.sqrt(23 / 26 * 3 / 26), abs=0.01)
    assert {*problems_of(sampler.propose(20))} & {*problems_of(sampler.propose(20))}


class OneToFour(Weighted):
    """Weighs problem i with i + 1."""

    def weights(self):
        return np.array([1.0, 2.0, 3.0, 4.0])


def test_weighted_draws_in_proportion_to_the_weight_also_among_the_rest():
    """P(3) = 4/10, and P(3, then 2) = 4/10 · 3/6."""
    sampler = build(OneToFour, Numbers(4))
    pairs = [tuple(sampler.draw(2)) for _ in range(10_000)]
    first = [pair[0] for pair in pairs]
    assert shares_of(first) == pytest.approx([0.1, 0.2, 0.3, 0.4], abs=0.025)
    assert pairs.count((3, 2)) / 10_000 == pytest.approx(0.2, abs=0.02)


def test_weighted_rejects_a_step_of_more_problems_than_fit():
    sampler = build(OneToFour, Numbers(4), fits=lambda index: index > 0)
    with rejected("a step draws 4 distinct problems, only 3 of 4 fit"):
        sampler.propose(4)


def two_bins(n, values="ab", right=(5e8, 5e8), wrong=(5e8, 5e8), **config):
    """Make learnability_bins with two bins and these counts."""
    sampler = make("learnability_bins", n, values=[*values], **config)
    sampler.right_C[:] = right
    sampler.wrong_C[:] = wrong
    return sampler


def test_learnability_bins_counts_by_hand():
    """The second round takes nineteen twentieths of the first one's counts."""
    sampler = two_bins(8, right=0, wrong=0)
    sampler.observe([solved(0, right=4), solved(2, right=0), solved(1, right=16)])
    assert (sampler.right_C.tolist(), sampler.wrong_C.tolist()) == ([4, 16], [28, 0])
    sampler.observe([solved(0, right=1)])
    assert sampler.right_C == pytest.approx([0.95 * 4 + 1, 0.95 * 16])
    assert sampler.wrong_C == pytest.approx([0.95 * 28 + 15, 0])


def test_learnability_bins_shares_follow_the_chance_of_a_live_group_down_to_the_least():
    """With much evidence p is 1/2 and 1/16: of 2 completions they differ with 1/2 and 15/128. The
    least share of two bins is 0.05 / 2, before both are scaled to the sum 1."""
    sampler = two_bins(8, right=(5e8, 1e8), wrong=(5e8, 15e8), group_size=2)
    assert sampler.shares() == pytest.approx([64 / 79, 15 / 79], abs=1e-3)
    dead = two_bins(8, right=(5e8, 0), wrong=(5e8, 1e9))
    assert dead.shares() == pytest.approx([1 / 1.025, 0.025 / 1.025], abs=1e-4)


def test_learnability_bins_share_does_not_depend_on_a_bins_size():
    sampler = two_bins(40, values="aaab")
    is_b = np.array([sampler.draw(1).item() % 4 == 3 for _ in range(4000)])
    assert is_b.mean() == pytest.approx(0.5, abs=0.04)


def test_difficulty_pools_weigh_problems_by_their_last_pass_rate():
    sampler = make("difficulty_pools", 6, settings={"easy_weight": 0.0})
    for problem, right in enumerate([4, 5, 12, 13, 0]):  # of 16; problem 5 is untried
        sampler.observe([solved(problem, right)])
    assert sampler.weights().tolist() == [0.2, 1, 1, 0, 0.2, 1]
    sampler.observe([solved(0, 8)])
    assert sampler.weights().tolist() == [1, 1, 1, 0, 0.2, 1]
    assert {sampler.draw(6)[-1] for _ in range(50)} == {3}  # a weight of 0 is drawn last


@pytest.mark.parametrize(("ahead", "share"), [(0, 0.5), (0.1, np.e / (1 + np.e))])
def test_sec_draws_a_category_by_its_value_whatever_its_size(ahead, share):
    """All 80 problems are one pool: 60 of category a, 20 of b. The temperature is 0.1, so that b is
    e times as likely as a if its value is 0.1 ahead."""
    settings = {"temperature": 0.1}
    sampler = make("sec", 80, values=[*"aaab"], candidates=80, settings=settings)
    sampler.value_C[:] = [0.25, 0.25 + ahead]
    pool = np.tile(np.arange(80), (4000, 1))
    chosen, _ = sampler.choose(pool, sampler.score(pool))
    is_b = chosen % 4 == 3
    assert is_b.mean() == pytest.approx(share, abs=0.04)


def test_sec_moves_values_half_way_to_the_mean_y_of_a_category():
    """Of category a y = 0.5 and 0, of category b 0.4."""
    sampler = make("sec", 8, values=[*"abcd"])
    sampler.observe([solved(0, 10, of=20), solved(4, 0, of=20), solved(1, 4, of=20)])
    assert sampler.value_C == pytest.approx([0.25 / 2, 0.4 / 2, 0, 0])


def test_static_takes_the_known_rate_nearest_to_one_half():
    """An unknown rate has the mean utility."""
    sampler = make("static", 80, values=["0.0", "0.2", "0.5", "n/a"])
    assert sampler.score(np.arange(4)) == pytest.approx([0, 0.4, 0.5, 0.3])
    assert sampler.metrics()["unrated"] == 0.25
    for group in sampler.propose(5):
        assert group.utility == max(group.utilities)


@pytest.mark.parametrize(
    ("rates", "first"), [(["easy", "hard"], "easy"), ([0.5, 85.0], "85.0"), ([-1, 0.5], "-1.0")]
)
def test_static_rejects_a_column_that_holds_no_pass_rates(rates, first):
    with rejected(f"--column c: {first} is no pass rate in [0, 1]"):
        make("static", 2, values=rates)


# Samplers that read the problems


def test_bag_of_words_first_update_by_hand():
    """The question has 6 words, whose gradients are equal; AdaGrad's first step is its rate."""
    sampler = make("bag_of_words", 100, settings={"rate": 0.3})
    sampler.problems.question = lambda i: "An even number, 2."
    sampler.observe([solved(2, right=16)])
    logit = 6 * 0.3 / np.sqrt(6)
    assert sampler.predict([2]) == pytest.approx(1 / (1 + np.exp(-logit)))


def test_noisy_and_first_update_by_hand():
    """Two words, the text "2" and the column's value. Each had the rate √(1/2), so that p was 1/2;
    AdaGrad's first step lowers their logits by 1."""
    sampler = make("noisy_and", 100)
    sampler.observe([solved(2, right=0)])
    logit = np.log(0.5**0.5 / (1 - 0.5**0.5)) - 1
    assert sampler.predict([2]) == pytest.approx((1 / (1 + np.exp(-logit))) ** 2)
    assert make("noisy_and", 100, column="").words(2) == ["2"]


def test_noisy_and_gradient_is_that_of_the_likelihood():
    sampler = make("noisy_and", 100)
    entries = sampler.entries(2)

    def loss():
        p = sampler.p(entries)
        return -(0.25 * np.log(p) + 0.75 * np.log(1 - p))

    before = loss()
    gradient = sampler.gradient(entries, p_hat=0.25)
    sampler.weight_V[entries[0]] += 1e-6
    assert loss() - before == pytest.approx(1e-6 * gradient[0], rel=1e-4)


@pytest.mark.parametrize("name", ["bag_of_words", "noisy_and"])
def test_samplers_that_read_learn_a_word_that_decides(name):
    """Of even problems half of the completions are right, of odd ones none."""
    sampler = make(name, 100, values=[*"ab"], candidates=4)
    sampler.problems.question = lambda i: f"An {('even', 'odd')[i % 2]} number, {i % 7}."
    for i in range(400):
        sampler.observe([solved(i % 98, right=0 if i % 2 else 8)])
    assert sampler.predict([98, 99]) == pytest.approx([0.5, 0], abs=0.1)
    assert [problem % 2 for problem in problems_of(sampler.propose(5))] == [0] * 5


EMBEDDED = {  # outcomes, of problems with e = √2, -√2, 0, 0, and the window -> predictions
    "no outcome": ([], 9, [1 / 4] * 4),
    # α = (y - 1/4) / (e² + 1 + ridge) = 1/16; f = 1/4 + α (e₀ e + 1)
    "one": ([(0, 8)], 9, [7 / 16, 3 / 16, 5 / 16, 5 / 16]),
    # (4, 1; 1, 2) α = (1/4, -1/4), so α = (3, -5) / 28 and f = 1/4 - 2/28 + 3/28 e₀ e. The second
    # would be -1/28.
    "two": ([(0, 8), (2, 0)], 9, [11 / 28, 0, 5 / 28, 5 / 28]),
    # α = -1/4 / (1 + ridge) = -1/8, the same for all as e = 0.
    "two, of which one is forgotten": ([(0, 8), (2, 0)], 1, [1 / 8] * 4),
}


@pytest.mark.parametrize("case", EMBEDDED)
def test_embedded_by_hand(case, tmp_path):
    outcomes, window, expected = EMBEDDED[case]
    config = embedded(tmp_path, torch.tensor([[3.0], [1], [2], [2]]))
    sampler = make("embedded", 4, settings={"window": window}, **config)
    for problem, right in outcomes:
        sampler.observe([solved(problem, right)])
    assert sampler.score(np.arange(4)) == pytest.approx(expected, abs=1e-4)


def test_embedded_does_not_resume_with_embeddings_of_another_model(tmp_path):
    state = make("embedded", 4, **embedded(tmp_path, torch.eye(4))).state_dict()
    other = make("embedded", 4, **embedded(tmp_path, torch.eye(4), model="another"))
    with rejected("of another, and those of the checkpoint are of M: restore them"):
        other.load_state_dict(state)


DAMAGE = {  # to train.jsonl or its embeddings -> the error
    "changed data": ("", "train.jsonl has changed since; run python -m scripts.embed MODEL"),
    "cut off": ("x", "train.embeddings.safetensors: missing or damaged"),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_embedded_rejects_embeddings_that_are_damaged_or_of_other_data(damage, tmp_path):
    config = embedded(tmp_path, torch.eye(4))
    text, message = DAMAGE[damage]
    file = path_of(config["train_data"]) if text else config["train_data"]
    file.write_text(text)
    with rejected(message):
        make("embedded", 4, **config)


# Samplers with an order, rounds or group sizes of their own


def test_in_order_takes_the_file_again_and_again():
    sampler = make("in_order", 10, lambda i: i % 7 > 0)
    proposed = [problems_of(sampler.propose(3)) for _ in range(3)]
    assert proposed == [[1, 2, 3], [4, 5, 6], [8, 9, 1]]
    assert sampler.metrics() == {"passes": 2, "coverage": 0.2, "overlong": 2}
    with rejected("a step takes 9 distinct problems, only 8 of 10 problems fit"):
        sampler.propose(9)


def test_greso_counts_easy_and_hard_groups_in_a_row():
    """A live group ends a streak, and an opposite one reverses it."""
    sampler = make("greso", 5)
    for right in ([0, 16, 8, 16], [0, 16, 8, 0]):
        sampler.observe([solved(*each) for each in enumerate(right)])
    assert sampler.streak.tolist() == [-2, 2, 0, -1, 0]


def test_greso_skips_problems_whose_groups_were_dead():
    """It keeps 0.5² of the first 2,000 problems, whose last two were dead, and all others: 500 of
    2,500. The pass goes on: nothing comes twice."""
    sampler = make("greso", 4000)
    sampler.streak[:2000] = 2
    sampler.streak[:1000] = -2
    sampler.tried = []
    kept = np.array([problem for _ in range(240) for problem in problems_of(sampler.refill(10))])
    assert len({*kept}) == 2400
    assert (kept < 2000).mean() == pytest.approx(0.2, abs=0.04)


def end_step(sampler) -> list[float]:
    """End a step of ten groups, one easy, one hard; return p_easy and p_hard."""
    assert sampler.more([solved(*each) for each in enumerate([16, 0] + [8] * 8)]) == []
    return [sampler.p_easy, sampler.p_hard]


def test_greso_adapts_towards_its_targets_from_the_second_pass_on():
    """The targets are 1/12 easy and 1/6 hard: too many are easy here, too few hard."""
    sampler = make("greso", 10, prompts_per_step=8)
    assert end_step(sampler) == [0.5, 0.5]
    sampler.passes = 2
    assert end_step(sampler) == pytest.approx([0.49, 0.51])
    for _ in range(50):
        end_step(sampler)
    assert end_step(sampler) == pytest.approx([0.05, 0.95])


@pytest.mark.parametrize("problems", [1000, 100])
def test_greso_adapts_once_a_step_also_if_it_has_tried_all_problems(problems):
    """Ten refills of 12 problems end a step in which all groups are dead: none easy, all hard."""
    sampler = make("greso", problems, prompts_per_step=8)
    sampler.passes = 2
    take_step(sampler, lambda problem, size: 0)
    assert [sampler.p_easy, sampler.p_hard] == pytest.approx([0.51, 0.49])


GRESO_REFILLS = {  # problems, live groups of each round -> problems of each round
    "enough at once": (100, [8], [12]),
    # 2 are missing and 6 of 12 were live: 1.25 · 2 / (6/12) = 5, the last though one is live.
    "one refill that should suffice": (100, [6, 1], [12, 5]),
    # 6 are missing: 1.25 · 6 / (2/12) = 45, more than 12; then 1: 1.25 · 1 / (5/12) = 3.
    "a full refill before the last": (100, [2, 5, 0], [12, 12, 3]),
    "all problems are tried": (20, [0, 0], [12, 8]),
}


@pytest.mark.parametrize("case", GRESO_REFILLS)
def test_greso_refills_until_a_refill_should_suffice_and_trains_on_live_groups_first(case):
    problems, live, sizes = GRESO_REFILLS[case]
    sampler = make("greso", problems, prompts_per_step=8)
    right = itertools.chain(
        *([8] * n + [0] * (size - n) for n, size in zip(live, sizes, strict=True))
    )
    rounds = take_step(sampler, lambda problem, size: next(right))
    assert [len(groups) for groups in rounds] == sizes
    trained = train_on(sampler, rounds)
    assert len(trained) == 8
    assert sum(group.live for group in trained) == sum(live)


def test_speed_continues_the_first_live_problems_and_trains_on_them_whole():
    """Every fourth problem is dead. Live ones beyond the second return to the pass."""
    sampler = make("speed", 32)
    rounds = take_step(sampler, lambda problem, size: 0 if problem % 4 == 0 else size // 2)
    screened, continued = rounds
    assert [group.size for group in screened] == [4] * 8
    live = [group.problem for group in screened if group.live]
    assert [(group.problem, group.size) for group in continued] == [(live[0], 12), (live[1], 12)]
    trained = train_on(sampler, rounds)
    assert problems_of(trained) == live[:2]
    assert [(len(group.completions), group.successes) for group in trained] == [(16, 8), (16, 8)]
    assert set(np.flatnonzero(sampler.status == sampler.UNSEEN)) >= set(live[2:])
    assert (sampler.status == sampler.TRAINED).sum() == 8 - len(live[2:])


def test_speed_trains_on_nothing_if_all_that_it_screened_are_dead():
    sampler = make("speed", 32)
    rounds = take_step(sampler, lambda problem, size: 0)
    assert len(rounds) == 1
    assert train_on(sampler, rounds) == []


def test_speed_rejects_a_group_size_that_the_screen_uses_up():
    with rejected("--group_size 4: this sampler needs more than `screen`, 4"):
        make("speed", 32, group_size=4)


def test_reinforce_ada_continues_problems_without_two_right_and_two_wrong():
    """Problem 0 has both at once, 1 has one right a round, 2 has none, 3 all. All completions of a
    problem are trained on as one group."""
    sampler = make("reinforce_ada", 4, prompts_per_step=4)
    rounds = take_step(sampler, lambda problem, size: [4, 1, 0, 8][problem])
    assert [{*problems_of(groups)} for groups in rounds] == [
        {0, 1, 2, 3},
        {1, 2, 3},
        {2, 3},
        {2, 3},
    ]
    trained = train_on(sampler, rounds)
    outcomes = {group.problem: (len(group.completions), group.successes) for group in trained}
    assert outcomes == {0: (8, 4), 1: (16, 2), 2: (32, 0), 3: (32, 32)}


@pytest.mark.parametrize("p", [(0.5, 0.2, 0.9), (0.01, 0.7, 0.5), (0.0, 1.0, 0.3)])
def test_knapsack_is_the_best_allocation(p):
    p_3 = np.array(p)

    def value(G_3):
        return sum((1 - p_3**G_3 - (1 - p_3) ** G_3) * p_3 * (1 - p_3) ** 2)

    G_3 = allocate(p_3, total=14, least=2, most=8)
    possible = [np.array(G) for G in itertools.product(range(2, 9), repeat=3) if sum(G) == 14]
    assert G_3.tolist() in [G.tolist() for G in possible]
    assert value(G_3) == pytest.approx(max(map(value, possible)))


def test_knapsack_gives_equal_sizes_until_it_knows_hard_problems():
    sampler = make("knapsack", 100)
    assert [group.size for group in sampler.propose(5)] == [16] * 5
    sampler.predict = lambda indices: np.where(np.array(indices) % 2, 0.1, 0.5)  # odd: hard
    hard, even = [], []
    for group in sampler.propose(10):
        (hard if group.problem % 2 else even).append(group.size)
    assert sum(hard + even) == 160
    assert min(hard) > max(even)

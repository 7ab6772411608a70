"""samplers/: each follows the protocol, and makes the choice that defines it."""

import itertools
import subprocess
import sys

import numpy as np
import pytest
import torch

from plumbing.errors import InputError
from plumbing.files import digest
from plumbing.plugins import check_proposals
from plumbing.run import checkpoint
from sampler import FOLDER, SAMPLERS, Goldilocks, Sampler, find_sampler
from samplers.difficulty_pools import Weighted
from samplers.embedded import path_of
from samplers.knapsack import allocate
from samplers.vcrl import variance
from scripts.embed import save
from tests.helpers.checkpoints import trained
from tests.helpers.groups import problems_of, solved
from tests.helpers.ranks import one_rank
from tests.helpers.samplers import Numbers, build, take_step

NAMES = [*SAMPLERS, *sorted(path.stem for path in FOLDER.glob("*.py"))]
every_sampler = pytest.mark.parametrize("name", NAMES)


def make(name, n, fits=lambda index: True, values=(0, 0.2, 0.4, 0.6), **config):
    """Build a sampler by its name, over n problems; the values of its column repeat."""
    return build(find_sampler(name), Numbers(n, values), fits, **config)


def pools_of(groups) -> np.ndarray:
    """Return the candidates of each group: (N, K)."""
    return np.array([group.pool for group in groups])


def utilities_of(groups) -> np.ndarray:
    """Return the predictions for the candidates of each group: (N, K)."""
    return np.array([group.utilities for group in groups])


# The protocol


def test_samplers_without_a_teacher_are_imported_without_torch():
    """Another trainer may choose problems in a process that has no GPU."""
    names = [name for name in NAMES if not find_sampler(name).uses_teacher]
    lines = f"import sys, sampler\nfor name in {names}: sampler.find_sampler(name)\n"
    lines += "sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", lines], cwd=FOLDER.parent).returncode == 0


@pytest.fixture
def make_any(tmp_path):
    """A function from a name and a seed to a sampler over 100 problems, 15 of which do not fit."""
    config = embedded(tmp_path, torch.eye(100))
    config |= {"candidates": 4, "epsilon": 0.5}
    return lambda name, seed=1: make(name, 100, lambda i: i % 7 > 0, seed=seed, **config)


def some_right(problem: int, drawn: int) -> int:
    """Solve problems so that many groups have none or all right, whatever the sampler."""
    sixteenths = min(max(problem % 23 - 3, 0), 16)
    return drawn * sixteenths // 16


def take_steps(sampler, steps: int) -> str:
    """Take steps of 5 problems; return all their groups as text, which has every digit."""
    return repr([take_step(sampler, 5, some_right) for _ in range(steps)])


@every_sampler
def test_every_sampler_proposes_distinct_problems_that_fit(name, make_any):
    sampler = make_any(name)
    propose = sampler.propose

    def checked(n):
        groups = propose(n)
        check_proposals(groups, 100)
        candidates = [candidate for group in groups for candidate in group.pool]
        assert len(set(candidates)) == len(candidates)
        assert all(candidate % 7 > 0 for candidate in candidates)
        return groups

    sampler.propose = checked
    take_steps(sampler, 100)  # more than one pass, and every problem of samplers without passes
    assert sampler.metrics()["overlong"] == 15


@every_sampler
def test_every_sampler_predicts_utilities_in_their_range_or_none(name, make_any):
    sampler = make_any(name)
    for _ in range(10):
        groups = take_step(sampler, 5, some_right).groups
        utilities = [utility for group in groups for utility in group.utilities]
        unknown = np.isnan(utilities)
        assert unknown.all() or not unknown.any()
        assert all(0 <= utility <= 0.5 for utility in utilities if utility == utility)


@every_sampler
def test_every_sampler_trains_on_groups_of_the_step(name, make_any):
    sampler = make_any(name)
    for _ in range(10):
        groups = take_step(sampler, 5, some_right).groups
        trained = sampler.train_on(groups, 5)
        assert len(trained) > 0
        assert all(group in groups for group in trained)
        assert len({id(group) for group in trained}) == len(trained)


@every_sampler
def test_every_sampler_draws_its_random_numbers_from_the_seed(name, make_any):
    first = take_steps(make_any(name, seed=1), 1)
    assert take_steps(make_any(name, seed=1), 1) == first
    other = take_steps(make_any(name, seed=2), 1)
    assert (other == first) == (name == "in_order")


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
@every_sampler
def test_every_sampler_resumes_bit_for_bit(name, make_any, tmp_path):
    saved = make_any(name)
    take_steps(saved, 31)
    checkpoint.save(tmp_path, 1, one_rank(), trained(), saved.state_dict(), {}, keep=1)
    resumed = make_any(name)
    resumed.load_state_dict(checkpoint.load_state(tmp_path, 1))
    assert take_steps(resumed, 6) == take_steps(saved, 6)
    assert resumed.metrics() == saved.metrics()


def test_a_sampler_with_a_teacher_and_rounds_of_its_own_is_rejected(tmp_path):
    file = tmp_path / "mine.py"
    text = "from sampler import Goldilocks\nclass Mine(Goldilocks):\n"
    file.write_text(text + "    def more(self, groups):\n        return []\n")
    with pytest.raises(InputError, match=r"mine.py:Mine: a sampler with a teacher has no rounds"):
        find_sampler(f"{file}:Mine")


def test_only_samplers_without_a_teacher_have_rounds_of_their_own():
    own = {name for name in NAMES if find_sampler(name).more is not Sampler.more}
    assert own == {"greso", "lilo", "reinforce_ada", "speed", "vcrl"}
    assert not any(find_sampler(name).uses_teacher for name in own)


# Samplers with a teacher, which predicts i/1000 for problem i


def test_softmax_chooses_by_the_softmax_of_utilities_over_the_temperature():
    """Utilities 0.2 ln 1, 0.2 ln 3, 0.2 ln 6 at temperature 0.2: odds of 1 : 3 : 6."""
    utilities = np.tile(0.2 * np.log([1.0, 3.0, 6.0]), (20_000, 1))
    sampler = make("softmax", 3, settings={"temperature": 0.2})
    chosen, explored = sampler.choose(None, utilities)
    shares = np.bincount(chosen) / 20_000
    five_deviations = 5 * np.sqrt(0.25 / 20_000)
    assert shares == pytest.approx([0.1, 0.3, 0.6], abs=five_deviations)
    assert not explored.any()


def test_softmax_at_temperature_0_takes_the_best():
    utilities = np.tile([0.1, 0.3, 0.2], (50, 1))
    chosen, _ = make("softmax", 3, settings={"temperature": 0}).choose(None, utilities)
    assert chosen.tolist() == [1] * 50


def test_pcl_takes_the_nearest_to_one_half_of_all_candidates():
    groups = make("pcl", 501).propose(5)  # the teacher predicts i/1000 = p/2
    p_N_K = pools_of(groups) / 500
    assert utilities_of(groups) == pytest.approx(np.sqrt(p_N_K * (1 - p_N_K)))
    distances = [abs(group.problem / 500 - 0.5) for group in groups]
    nearest_five = sorted(np.abs(p_N_K - 0.5).ravel())[:5]
    assert sorted(distances) == pytest.approx(nearest_five)


def test_pcl_teaches_p():
    sampler = make("pcl", 501)
    sampler.observe([solved(7, right=12)])
    [update] = sampler.teacher.updates
    assert update == ("7", 0.375)  # half of p̂, as a teacher's range is [0, 0.5]


def test_headroom_draws_in_proportion_to_the_square():
    """The teacher predicts 0, 0.001, 0.002, 0.003 for four problems: 0 : 1 : 4 : 9."""
    sampler = make("headroom", 4, candidates=4, epsilon=0)
    drawn = [sampler.propose(1)[0].problem for _ in range(4000)]
    shares = np.bincount(drawn) / 4000
    assert shares == pytest.approx([0, 1 / 14, 4 / 14, 9 / 14], abs=0.04)


def test_headroom_teaches_the_accuracy_left_to_gain():
    sampler = make("headroom", 4, candidates=4)
    sampler.observe([solved(2, right=4)])
    [update] = sampler.teacher.updates
    assert update.y == pytest.approx(3**0.5 / 4 * 3 / 4)  # √(p(1-p)) · (1-p)


def test_target_takes_the_nearest_to_two_fifths():
    for group in make("target", 1000).propose(5):
        assert group.problem == min(group.pool, key=lambda i: abs(i - 400))


def test_best_of_all_takes_the_best_of_all_candidates():
    class Greedy(Goldilocks):
        best_of_all = True

    groups = build(Greedy, Numbers(501)).propose(5)
    candidates = sorted(pools_of(groups).ravel().tolist())
    assert sorted(problems_of(groups)) == candidates[-5:]


def test_without_best_of_all_each_pool_gives_its_best():
    groups = build(Goldilocks, Numbers(501)).propose(5)
    candidates = sorted(pools_of(groups).ravel().tolist())
    assert problems_of(groups) == pools_of(groups).max(axis=1).tolist()
    assert sorted(problems_of(groups)) != candidates[-5:]


# Samplers that learn from a problem's history or from a column


def test_mopps_counts_by_hand():
    sampler = make("mopps", 40, candidates=2)
    sampler.observe([solved(3, right=12)])
    assert sampler.alpha[3] == 13  # the prior 1, and 12 right
    assert sampler.beta[3] == 5  # the prior 1, and 4 wrong
    assert sampler.alpha[4] == 1
    assert sampler.beta[4] == 1
    assert sampler.metrics()["coverage"] == 1 / 40


def test_mopps_decays_its_counts_by_hand():
    sampler = make("mopps", 40, candidates=2)  # by a half
    sampler.observe([solved(3, right=12)])
    sampler.observe([solved(3, right=16)])
    assert sampler.alpha[3] == 13 / 2 + 1 / 2 + 16
    assert sampler.beta[3] == 5 / 2 + 1 / 2 + 0


def test_mopps_draws_utilities_near_p_once_it_has_much_evidence():
    sampler = make("mopps", 40)
    sampler.alpha[3] = 230
    sampler.beta[3] = 30
    utilities = sampler.score(np.full((1000, 1), 3))
    assert utilities.mean() == pytest.approx(np.sqrt(23 / 26 * 3 / 26), abs=0.01)


def test_mopps_revisits_problems_in_a_pass():
    sampler = make("mopps", 40, candidates=2)
    first_half = problems_of(sampler.propose(20))
    second = problems_of(sampler.propose(20))
    assert set(first_half) & set(second)


class OneToFour(Weighted):
    """Weighs problem i with i + 1."""

    def weights(self):
        return np.array([1.0, 2.0, 3.0, 4.0])


def test_weighted_draws_a_problem_in_proportion_to_its_weight():
    sampler = build(OneToFour, Numbers(4))
    drawn = [sampler.draw(1).item() for _ in range(10_000)]
    shares = np.bincount(drawn) / 10_000
    assert shares == pytest.approx([0.1, 0.2, 0.3, 0.4], abs=0.025)


def test_weighted_draws_the_next_in_proportion_among_the_rest():
    """P(3, then 2) = 4/10 · 3/6."""
    sampler = build(OneToFour, Numbers(4))
    pairs = [tuple(sampler.draw(2)) for _ in range(10_000)]
    assert pairs.count((3, 2)) / 10_000 == pytest.approx(0.2, abs=0.02)


def test_weighted_rejects_a_step_of_more_problems_than_fit():
    sampler = build(OneToFour, Numbers(4), fits=lambda index: index > 0)
    with pytest.raises(InputError, match="a step draws 4 distinct problems, only 3 of 4 fit"):
        sampler.propose(4)


def test_learnability_bins_counts_by_hand():
    """Bins a and b. The second round takes nineteen twentieths of the first one's counts."""
    sampler = make("learnability_bins", 8, values=[*"ab"])
    sampler.observe([solved(0, right=4), solved(2, right=0), solved(1, right=16)])
    assert sampler.right_C.tolist() == [4, 16]
    assert sampler.wrong_C.tolist() == [28, 0]
    sampler.observe([solved(0, right=1)])
    assert sampler.right_C == pytest.approx([0.95 * 4 + 1, 0.95 * 16])
    assert sampler.wrong_C == pytest.approx([0.95 * 28 + 15, 0])


def test_learnability_bins_shares_follow_the_chance_of_a_live_group():
    """With much evidence p is 1/2 and 1/16. Of 2 completions they differ with 1/2 and 15/128."""
    sampler = make("learnability_bins", 8, values=[*"ab"], group_size=2)
    sampler.right_C[:] = [5e8, 1e8]
    sampler.wrong_C[:] = [5e8, 15e8]
    assert sampler.shares() == pytest.approx([64 / 79, 15 / 79], abs=1e-3)


def test_learnability_bins_give_a_dead_bin_the_least_share():
    """The least share of two bins is 0.05 / 2, before both are scaled to the sum 1."""
    sampler = make("learnability_bins", 8, values=[*"ab"])
    sampler.right_C[:] = [5e8, 0]
    sampler.wrong_C[:] = [5e8, 1e9]
    assert sampler.shares() == pytest.approx([1 / 1.025, 0.025 / 1.025], abs=1e-4)


def test_learnability_bins_share_does_not_depend_on_a_bins_size():
    sampler = make("learnability_bins", 40, values=[*"aaab"])
    sampler.right_C[:] = sampler.wrong_C[:] = 1e9
    drawn = np.array([sampler.draw(1).item() for _ in range(4000)])
    assert (drawn % 4 == 3).mean() == pytest.approx(0.5, abs=0.04)


def test_difficulty_pools_weigh_problems_by_their_last_pass_rate():
    sampler = make("difficulty_pools", 6)
    for problem, right in enumerate([4, 5, 12, 13, 0]):  # of 16; problem 5 is untried
        sampler.observe([solved(problem, right)])
    assert sampler.weights().tolist() == [0.2, 1, 1, 0.2, 0.2, 1]
    sampler.observe([solved(0, 8)])
    assert sampler.weights().tolist() == [1, 1, 1, 0.2, 0.2, 1]


def test_difficulty_pools_draw_a_weight_of_zero_last():
    sampler = make("difficulty_pools", 6, settings={"easy_weight": 0})
    sampler.observe([solved(2, right=16)])
    drawn = [sampler.draw(6) for _ in range(50)]
    assert {problems[-1] for problems in drawn} == {2}


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
    sampler = make("sec", 8, values=[*"abcd"])
    # Of category a y = 0.5 and 0, of category b 0.4.
    groups = [solved(0, 10, of=20), solved(4, 0, of=20), solved(1, 4, of=20)]
    sampler.observe(groups)
    assert sampler.value_C == pytest.approx([0.25 / 2, 0.4 / 2, 0, 0])


def test_static_gives_an_unknown_rate_the_mean_utility():
    sampler = make("static", 80, values=["0.0", "0.2", "0.5", "n/a"])
    assert sampler.score(np.arange(4)) == pytest.approx([0, 0.4, 0.5, 0.3])
    assert sampler.metrics()["unrated"] == 0.25


def test_static_takes_the_known_rate_nearest_to_one_half():
    groups = make("static", 80, values=["0.0", "0.2", "0.5", "n/a"]).propose(5)
    chosen = [group.utility for group in groups]
    assert chosen == pytest.approx(utilities_of(groups).max(axis=1))


@pytest.mark.parametrize(
    ("rates", "first"), [(["easy", "hard"], "easy"), ([0.5, 85.0], "85.0"), ([-1, 0.5], "-1.0")]
)
def test_static_rejects_a_column_that_holds_no_pass_rates(rates, first):
    with pytest.raises(InputError, match=rf"--column c: {first} is no pass rate in \[0, 1\]"):
        make("static", 2, values=rates)


# Samplers that read the problems


def even_or_odd(name, **config):
    """A sampler over 100 problems, in which one word tells even problems from odd ones."""
    sampler = make(name, 100, **config)
    sampler.problems.question = lambda i: f"An {('even', 'odd')[i % 2]} number, {i % 7}."
    return sampler


def learn_that_odd_is_hard(sampler):
    """Show it 400 groups: half of the completions are right for even problems, none for odd."""
    for i in range(400):
        sampler.observe([solved(i % 98, right=0 if i % 2 else 8)])


def assert_knows_that_odd_is_hard(sampler):
    assert sampler.predict(np.array([98, 99])) == pytest.approx([0.5, 0], abs=0.1)
    chosen = problems_of(sampler.propose(5))
    assert [problem % 2 for problem in chosen] == [0] * 5


def test_bag_of_words_first_update_by_hand():
    sampler = even_or_odd("bag_of_words", settings={"rate": 0.3})
    sampler.observe([solved(2, right=16)])
    # The question has 6 words, whose gradients are equal; AdaGrad's first step is its rate.
    logit = 6 * 0.3 / np.sqrt(6)
    assert sampler.p(sampler.entries(2)) == pytest.approx(1 / (1 + np.exp(-logit)))


def test_bag_of_words_learns_a_word_that_decides():
    sampler = even_or_odd("bag_of_words", settings={"rate": 0.3})
    learn_that_odd_is_hard(sampler)
    assert_knows_that_odd_is_hard(sampler)


def test_noisy_and_first_update_by_hand():
    sampler = make("noisy_and", 100, values=[*"ab"], candidates=4)
    sampler.observe([solved(2, right=0)])
    # Two words, the text "2" and the column's value. Each had the rate √(1/2), so that p was 1/2;
    # AdaGrad's first step lowers their logits by 1.
    rate = 0.5**0.5
    logit = np.log(rate / (1 - rate)) - 1
    assert sampler.p(sampler.entries(2)) == pytest.approx((1 / (1 + np.exp(-logit))) ** 2)


def test_noisy_and_gradient_is_that_of_the_likelihood():
    sampler = make("noisy_and", 100, values=[*"ab"], candidates=4)
    entries = sampler.entries(2)

    def loss():
        p = sampler.p(entries)
        return -(0.25 * np.log(p) + 0.75 * np.log(1 - p))

    before = loss()
    gradient = sampler.gradient(entries, p_hat=0.25)
    sampler.weight_V[entries[0]] += 1e-6
    assert loss() - before == pytest.approx(1e-6 * gradient[0], rel=1e-4)


def test_noisy_and_learns_a_column_that_decides():
    sampler = make("noisy_and", 100, values=[*"ab"], candidates=4)
    learn_that_odd_is_hard(sampler)
    assert_knows_that_odd_is_hard(sampler)


def test_noisy_and_reads_the_text_alone_without_a_column():
    assert make("noisy_and", 100, column="").words(2) == ["2"]


def embedded(folder, embedding_N_D, model="M") -> dict:
    """Write embeddings of a data file; return what the sampler needs to find them."""
    (folder / "train.jsonl").write_text("data")
    data = folder / "train.jsonl"
    save(embedding_N_D, model, data, digest(data)[1])
    return {"train_data": folder / "train.jsonl", "max_prompt_tokens": 9}


@pytest.fixture
def four_embeddings(tmp_path):
    """Embeddings 3, 1, 2, 2; with mean 0 and variance 1 they are e = √2, -√2, 0, 0."""
    return embedded(tmp_path, torch.tensor([[3.0], [1], [2], [2]]))


def test_embedded_begins_at_one_quarter(four_embeddings):
    sampler = make("embedded", 4, **four_embeddings)
    assert sampler.score(np.arange(4)).tolist() == [0.25] * 4


def test_embedded_after_one_outcome_by_hand(four_embeddings):
    sampler = make("embedded", 4, **four_embeddings)
    sampler.observe([solved(0, right=8)])  # y = 1/2
    # α = (y - 1/4) / (e² + 1 + ridge) = 1/16; f = 1/4 + α (e₀ e + 1)
    assert sampler.score(np.arange(4)) == pytest.approx([7 / 16, 3 / 16, 5 / 16, 5 / 16], abs=1e-4)


def test_embedded_after_two_outcomes_by_hand(four_embeddings):
    sampler = make("embedded", 4, **four_embeddings)
    sampler.observe([solved(0, right=8)])
    sampler.observe([solved(2, right=0)])  # e = 0, y = 0
    # (4, 1; 1, 2) α = (1/4, -1/4), so α = (3, -5) / 28 and f = 1/4 - 2/28 + 3/28 e₀ e. The second
    # would be -1/28.
    assert sampler.score(np.arange(4)) == pytest.approx([11 / 28, 0, 5 / 28, 5 / 28], abs=1e-4)


def test_embedded_forgets_outcomes_outside_its_window(four_embeddings):
    sampler = make("embedded", 4, settings={"window": 1}, **four_embeddings)
    sampler.observe([solved(0, right=8)])
    sampler.observe([solved(2, right=0)])
    # α = -1/4 / (1 + ridge) = -1/8, the same for all as e = 0.
    assert sampler.score(np.arange(4)) == pytest.approx([1 / 8] * 4)


def test_embedded_does_not_resume_with_embeddings_of_another_model(tmp_path):
    config = embedded(tmp_path, torch.eye(4))
    state = make("embedded", 4, **config).state_dict()
    embedded(tmp_path, torch.eye(4), model="another")
    with pytest.raises(InputError, match="of another, and those of the checkpoint are of M: rest"):
        make("embedded", 4, **config).load_state_dict(state)


def remedy(config) -> str:
    """Return the command that an error of `embedded` recommends."""
    command = "python -m scripts.embed MODEL --data"
    return rf"; run {command} {config['train_data']} --max_prompt_tokens 9$"


def test_embedded_rejects_embeddings_of_other_data(tmp_path):
    config = embedded(tmp_path, torch.eye(4))
    config["train_data"].write_text("other data")
    with pytest.raises(InputError, match=f"train.jsonl has changed since{remedy(config)}"):
        make("embedded", 4, **config)


@pytest.mark.parametrize("damage", ["cut off", "deleted"])
def test_embedded_rejects_missing_and_damaged_embeddings(damage, tmp_path):
    config = embedded(tmp_path, torch.eye(4))
    file = path_of(config["train_data"])
    file.unlink()
    if damage == "cut off":
        file.write_bytes(b"cut off")
    message = f"train.embeddings.safetensors: missing .*{remedy(config)}"
    with pytest.raises(InputError, match=message):
        make("embedded", 4, **config)


# Samplers with an order, rounds or group sizes of their own


def test_in_order_takes_the_file_again_and_again():
    sampler = make("in_order", 10, lambda i: i % 7 > 0)
    assert problems_of(sampler.propose(3)) == [1, 2, 3]
    assert problems_of(sampler.propose(3)) == [4, 5, 6]
    assert problems_of(sampler.propose(3)) == [8, 9, 1]
    assert sampler.metrics() == {"passes": 2, "coverage": 0.2, "overlong": 2}


def test_in_order_rejects_a_step_of_more_problems_than_fit():
    sampler = make("in_order", 10, lambda i: i % 7 > 0)
    with pytest.raises(InputError, match="a step takes 9 distinct problems, only 8 of 10 problems"):
        sampler.propose(9)


def of_thirds(right_a, right_b, right_c) -> list:
    """Groups of two of problems 0 to 2,999, with so many right in each third."""
    right = 1000 * [right_a] + 1000 * [right_b] + 1000 * [right_c]
    return [solved(problem, right[problem], of=2) for problem in range(3000)]


def test_greso_counts_a_problems_easy_and_hard_groups_in_a_row():
    sampler = make("greso", 4000)
    for _ in range(2):
        sampler.observe(of_thirds(0, 2, 1))
    assert sampler.streak[0] == -2
    assert sampler.streak[1000] == 2
    assert sampler.streak[2000] == 0
    assert sampler.streak[3000] == 0


def test_greso_a_live_group_ends_a_streak_and_an_opposite_one_reverses_it():
    sampler = make("greso", 4000)
    sampler.observe([solved(0, 16), solved(1, 16)])
    sampler.observe([solved(0, 8), solved(1, 0)])
    assert sampler.streak[0] == 0
    assert sampler.streak[1] == -1


def test_greso_skips_problems_whose_groups_were_dead():
    """It keeps 0.5² of the first 2,000 problems, whose last two were dead, and all others."""
    sampler = make("greso", 4000)
    for _ in range(2):
        sampler.observe(of_thirds(0, 2, 1))
    sampler.tried = []
    kept = [problem for _ in range(240) for problem in problems_of(sampler.refill(10))]
    assert len(set(kept)) == 2400  # still one pass: nothing twice
    share = np.mean(np.array(kept) < 2000)
    assert share == pytest.approx(0.2, abs=0.04)  # 500 of 2,500


def end_step(sampler) -> list[float]:
    """End a step of ten groups, one easy, one hard; return p_easy and p_hard."""
    sampler.n = 8  # so many are live
    assert sampler.more([solved(i, right) for i, right in enumerate([16, 0] + [8] * 8)]) == []
    return [sampler.p_easy, sampler.p_hard]


def test_greso_does_not_adapt_in_the_first_pass():
    sampler = make("greso", 10)
    assert end_step(sampler) == [0.5, 0.5]


def test_greso_adapts_towards_its_targets_from_the_second_pass_on():
    """The targets are 1/12 easy and 1/6 hard: too many are easy here, too few hard."""
    sampler = make("greso", 10)
    sampler.passes = 2
    assert end_step(sampler) == pytest.approx([0.49, 0.51])
    for _ in range(50):
        end_step(sampler)
    assert end_step(sampler) == pytest.approx([0.05, 0.95])


@pytest.mark.parametrize("problems", [1000, 100])
def test_greso_adapts_once_a_step_also_if_it_has_tried_all_problems(problems):
    """Ten refills of 12 problems end a step in which all groups are dead."""
    sampler = make("greso", problems)
    sampler.passes = 2
    take_step(sampler, 8, lambda problem, drawn: 0)
    after = [sampler.p_easy, sampler.p_hard]
    assert after == pytest.approx([0.51, 0.49])  # none easy, all hard


GRESO_REFILLS = {  # live groups of each round -> problems of each round
    "enough at once": ([8], [12]),
    # 2 are missing and 6 of 12 were live: 1.25 · 2 / (6/12) = 5, the last though one is live.
    "one refill that should suffice": ([6, 1], [12, 5]),
    # 6 are missing: 1.25 · 6 / (2/12) = 45, more than 12; then 1: 1.25 · 1 / (5/12) = 3.
    "a full refill before the last": ([2, 5, 0], [12, 12, 3]),
}


def greso_rounds(sampler, live: list[int]) -> tuple[list[int], list]:
    """Take a step of 8 in which live[r] groups of round r are live, the first ones. Returns the
    number of problems of each round, and the step's groups."""
    sizes = []
    groups = []
    proposed = sampler.propose(8)
    while proposed:
        right = [8] * live[len(sizes)] + [0] * 12
        graded = [solved(group.problem, right[i]) for i, group in enumerate(proposed)]
        groups += graded
        sizes.append(len(graded))
        sampler.observe(graded)
        proposed = sampler.more(groups)
    return sizes, groups


@pytest.mark.parametrize("case", GRESO_REFILLS)
def test_greso_refills_until_a_refill_should_suffice(case):
    live, expected = GRESO_REFILLS[case]
    sizes, _ = greso_rounds(make("greso", 100), live)
    assert sizes == expected


def test_greso_ends_a_step_that_has_tried_all_problems():
    sizes, groups = greso_rounds(make("greso", 20), live=[0] * 10)
    assert sizes == [12, 8]
    assert sorted(problems_of(groups)) == list(range(20))


def test_greso_trains_on_live_groups_before_dead_ones():
    sampler = make("greso", 100)
    _, groups = greso_rounds(sampler, live=[2, 5, 0])
    trained = sampler.train_on(groups, 8)
    assert len(trained) == 8
    assert sum(group.live for group in trained) == 7


def three_quarters_live(problem, drawn):
    """Solve half of the completions of all problems but every fourth."""
    return 0 if problem % 4 == 0 else drawn // 2


def test_speed_screens_many_problems_and_continues_the_first_live_ones():
    sampler = make("speed", 32)
    step = take_step(sampler, 2, three_quarters_live)
    screened, continued = step.rounds
    assert list(screened.values()) == [4] * 8
    live = [problem for problem in screened if problem % 4 > 0]
    assert continued == {live[0]: 12, live[1]: 12}


def test_speed_trains_on_the_whole_of_the_groups_that_it_continued():
    sampler = make("speed", 32)
    step = take_step(sampler, 2, three_quarters_live)
    trained = sampler.train_on(step.groups, 2)
    assert problems_of(trained) == list(step.rounds[1])
    assert [len(group.completions) for group in trained] == [16, 16]
    assert [group.successes for group in trained] == [2 + 6, 2 + 6]


def test_speed_returns_the_surplus_live_problems_to_the_pass():
    sampler = make("speed", 32)
    screened, continued = take_step(sampler, 2, three_quarters_live).rounds
    surplus = [problem for problem in screened if problem % 4 > 0 and problem not in continued]
    used = [problem for problem in screened if problem not in surplus]
    assert set(sampler.status[surplus]) == {sampler.UNSEEN}
    assert set(sampler.status[used]) == {sampler.TRAINED}


def test_speed_trains_on_nothing_if_all_that_it_screened_are_dead():
    sampler = make("speed", 32)
    step = take_step(sampler, 2, lambda problem, drawn: 0)
    assert step.sizes() == [8]
    assert sampler.train_on(step.groups, 2) == []


def test_speed_rejects_a_group_size_that_the_screen_uses_up():
    with pytest.raises(InputError, match="--group_size 4: this sampler needs more than `screen`, "):
        make("speed", 32, group_size=4)


def test_lilo_continues_the_highest_variance():
    sampler = make("lilo", 8)  # all are screened; i of 8 are right
    step = take_step(sampler, 2, lambda problem, drawn: problem * drawn // 8)
    chosen = list(step.rounds[1])
    assert 4 in chosen
    assert chosen[0] in (3, 4, 5)
    assert chosen[1] in (3, 4, 5)
    assert problems_of(sampler.train_on(step.groups, 2)) == chosen


def test_lilo_continues_live_groups_alone():
    step = take_step(make("lilo", 8), 2, lambda problem, drawn: int(problem == 6))
    assert list(step.rounds[1]) == [6]


def reinforce_ada_rights(problem, drawn):
    """Problem 0 has two right at once and more, 1 has one a round, 2 has none, 3 has all."""
    return [4, 1, 0, 8][problem]


def test_reinforce_ada_continues_problems_without_two_right_and_two_wrong():
    step = take_step(make("reinforce_ada", 4), 4, reinforce_ada_rights)
    assert [set(drawn) for drawn in step.rounds] == [{0, 1, 2, 3}, {1, 2, 3}, {2, 3}, {2, 3}]


def test_reinforce_ada_keeps_the_completions_of_earlier_rounds():
    sampler = make("reinforce_ada", 4)
    step = take_step(sampler, 4, reinforce_ada_rights)
    sizes = {group.problem: len(group.completions) for group in step.groups}
    assert sizes == {0: 8, 1: 16, 2: 32, 3: 32}
    assert sampler.train_on(step.groups, 4) == step.groups


def test_reinforce_ada_takes_one_round_if_all_have_their_quota():
    step = take_step(make("reinforce_ada", 4), 4, lambda problem, drawn: drawn // 2)
    assert step.sizes() == [4]


@pytest.mark.parametrize("p", [(0.5, 0.2, 0.9), (0.01, 0.7, 0.5), (0.0, 1.0, 0.3)])
def test_knapsack_is_the_best_allocation(p):
    p_3 = np.array(p)

    def value(G_3):
        return sum((1 - p_3**G_3 - (1 - p_3) ** G_3) * p_3 * (1 - p_3) ** 2)

    G_3 = allocate(p_3, total=14, least=2, most=8)
    assert G_3.sum() == 14
    assert G_3.min() >= 2
    assert G_3.max() <= 8
    possible = [np.array(G) for G in itertools.product(range(2, 9), repeat=3) if sum(G) == 14]
    assert value(G_3) == pytest.approx(max(value(G) for G in possible))


def test_knapsack_gives_a_hopeless_or_mastered_problem_the_least():
    assert allocate(np.array([0.5, 0, 1]), total=12, least=2, most=8).tolist() == [8, 2, 2]


def test_knapsack_gives_equal_sizes_while_it_knows_nothing():
    groups = make("knapsack", 100).propose(5)
    assert [group.size for group in groups] == [16] * 5


def test_knapsack_gives_hard_problems_more_completions():
    sampler = make("knapsack", 100)
    sampler.predict = lambda indices: np.where(np.array(indices) % 2, 0.1, 0.5)  # odd: hard
    groups = sampler.propose(10)
    hard = [group.size for group in groups if group.problem % 2 == 1]
    even = [group.size for group in groups if group.problem % 2 == 0]
    assert sum(hard) + sum(even) == 160
    assert min(hard) > max(even)


def test_vcrl_variance_by_hand():
    assert variance(solved(0, 2, of=4)) == 1
    assert variance(solved(0, 1, of=4)) == 3 / 4
    assert variance(solved(0, 0, of=4)) == 0
    assert variance(solved(0, 2, of=5)) == 1
    assert variance(solved(0, 1, of=5)) == 4 / 6  # 1 · 4 of at most 2 · 3


def vcrl_case():
    """Return the six problems that the sampler's first steps take and that are not dead, in the
    order of their variance, and how many of 16 are right for them."""
    twin = make("vcrl", 100)
    a, b, c, d = problems_of(twin.propose(4))
    e, f, *_ = problems_of(twin.propose(4))
    return {a: 8, b: 7, c: 6, d: 5, e: 8, f: 8}


def test_vcrl_replaces_low_variance_from_its_memory_at_most_twice():
    """The first step has no dead group, the second two, and all later ones four."""
    right = vcrl_case()
    a, b, c, d, e, f = right
    sampler = make("vcrl", 100)
    replayed = []
    for _ in range(6):
        rounds = take_step(sampler, 4, lambda problem, drawn: right.get(problem, 0)).rounds
        replayed.append(set(rounds[1]) if len(rounds) == 2 else set())
    assert replayed == [set(), {a, b}, {a, b, e, f}, {c, d, e, f}, {c, d}, set()]


def test_vcrl_trains_on_the_highest_variance():
    right = vcrl_case()
    sampler = make("vcrl", 100)
    for _ in range(6):
        step = take_step(sampler, 4, lambda problem, drawn: right.get(problem, 0))
        successes = sorted(group.successes for group in step.groups)
        trained = sampler.train_on(step.groups, 4)
        assert sorted(group.successes for group in trained) == successes[-4:]


@pytest.mark.parametrize(("step", "passed"), [(20, 4), (21, 0)])
def test_vcrl_raises_its_threshold_after_the_warm_up(step, passed):
    """3 of 16 right: 3 · 13 of 8 · 8, 0.61 of the largest variance; thresholds 0.3, then 0.8."""
    sampler = make("vcrl", 100)
    sampler.step = np.array(step - 1)
    take_step(sampler, 4, lambda problem, drawn: 3)
    assert np.count_nonzero(sampler.left) == passed

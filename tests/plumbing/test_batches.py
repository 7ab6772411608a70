"""plumbing/batches.py: rows as tensors, shared out over ranks and micro-batches, by hand.

test_invariance.py shows that ranks and micro-batches do not change the gradient.
"""

import pytest

from grpo import Completion
from plumbing.batches import balance, collate, cut, cut_longest_first, micro_batches
from tests.helpers.groups import completion
from tests.helpers.ranks import one_rank

PAD = 0
EOS = 1
FIRST = [5, 6, 7], Completion([9, EOS], [-0.1, -0.2], True, advantage=1.5, weight=0.25)
SECOND = [8], Completion([10, 13, EOS], [-0.3, -0.4, -0.5], True, advantage=-0.5, weight=0.125)
THIRD = [11], Completion([12], [-0.6], finished=False, advantage=2.0, weight=1.0)
SAME_PROMPT = [8], Completion([14], [-0.7], finished=False, advantage=0.5, weight=0.5)


@pytest.fixture
def batch():
    return collate([SECOND, FIRST, SAME_PROMPT], "cpu")


@pytest.fixture
def packed():
    return collate([SECOND, FIRST, THIRD], "cpu", packed=True)


def test_collate_lays_out_each_prompt_once_and_then_the_completions(batch):
    assert batch.ids_1_T.tolist() == [[8, 5, 6, 7, 10, 13, EOS, 9, EOS, 14]]


def test_positions_of_a_completion_continue_its_prompt(batch):
    assert batch.position_1_T.tolist() == [[0, 0, 1, 2, 1, 2, 3, 3, 4, 1]]


def test_a_completion_is_predicted_from_its_prompts_end_and_its_own_tokens(batch):
    assert batch.target_N.tolist() == [10, 13, EOS, 9, EOS, 14]
    assert batch.source_N.tolist() == [0, 4, 5, 3, 7, 0]


def test_a_completion_sees_its_prompt_and_its_earlier_tokens():
    """Prompts are padded to three tokens, completions, too: keys are three of each."""
    shared = collate([SECOND, FIRST], "cpu").attention["shared"]
    first, second = shared.visible_B_1_T_S[:, 0].long().tolist()
    assert first == [[1, 0, 0, 1, 0, 0], [1, 0, 0, 1, 1, 0], [1, 0, 0, 1, 1, 1]]
    assert second == [[1, 1, 1, 1, 0, 0], [1, 1, 1, 1, 1, 0], [1, 1, 1, 1, 1, 1]]


def test_collate_gives_each_token_the_columns_of_its_row(batch):
    assert batch.row_N.tolist() == [0, 0, 0, 1, 1, 2]
    assert batch.advantage_N.tolist() == [-0.5, -0.5, -0.5, 1.5, 1.5, 0.5]
    assert batch.weight_N.tolist() == [0.125, 0.125, 0.125, 0.25, 0.25, 0.5]
    logps = [-0.3, -0.4, -0.5, -0.1, -0.2, -0.7]
    assert batch.generator_logp_N.tolist() == pytest.approx(logps)


def test_packed_rows_lie_end_to_end_with_positions_that_restart(packed):
    assert packed.ids_1_T.tolist() == [[8, 10, 13, EOS, 5, 6, 7, 9, EOS, 11, 12]]
    assert packed.position_1_T.tolist() == [[0, 1, 2, 3, 0, 1, 2, 3, 4, 0, 1]]
    assert packed.source_N.tolist() == [0, 1, 2, 6, 7, 9]


def test_flash_attention_is_told_where_packed_rows_end(packed):
    ends = packed.attention["cu_seq_lens_q"]
    assert ends.tolist() == packed.attention["cu_seq_lens_k"].tolist() == [0, 4, 9, 11]
    assert packed.attention["max_length_q"] == packed.attention["max_length_k"] == 5


def test_a_rank_without_rows_gets_an_idle_batch_that_has_no_weight():
    layout = one_rank()
    layout.n_students = 2
    [batch] = micro_batches([FIRST], layout, max_tokens=100, pad_id=PAD, packed=False)
    assert batch.idle
    assert batch.last
    assert batch.ids_1_T.tolist() == [[PAD, PAD]]
    assert batch.weight_N.tolist() == [0]
    assert batch.advantage_N.tolist() == [0]


def row(prompt, tokens):
    return [prompt] * 4, completion(ids=[2] * tokens)


def lengths(parts):
    """The tokens of the completions in each part."""
    return [[len(each.ids) for _, each in part] for part in parts]


def test_balance_cuts_at_equal_numbers_of_tokens_and_counts_a_prompt_once():
    # Costs: 6 + 4/2, 2 + 4/2, 3 + 4, 1 + 4. The first half ends after 12 of 24.
    rows = [row(7, 6), row(7, 2), row(8, 3), row(9, 1)]
    assert lengths(balance(rows, 2)) == [[6, 2], [3, 1]]


CUTS = {  # rows as prompt and tokens, limit, whether prompts are shared -> tokens of each part
    "a prompt of neighbours counts once": ([(7, 3), (7, 3), (8, 3)], 10, True, [[3, 3], [3]]),
    "up to the limit": ([(7, 3), (7, 3), (8, 3)], 17, True, [[3, 3, 3]]),
    "every copy of a prompt counts": ([(7, 3), (7, 3), (8, 3)], 14, False, [[3, 3], [3]]),
    "padding to the longest, 4 · 11 > 2 · 20": (
        [(7, 11), (7, 1), (7, 1), (7, 1)],
        20,
        True,
        [[11, 1, 1], [1]],
    ),
    "a row over the limit is alone": ([(7, 30), (7, 20)], 10, True, [[30], [20]]),
}


@pytest.mark.parametrize("case", CUTS)
def test_rows_are_cut_into_parts_with_prompts_of_four_tokens(case):
    rows, limit, shared, parts = CUTS[case]
    assert lengths(cut([row(*each) for each in rows], limit, shared)) == parts


def test_rows_cut_longest_first_count_padding_to_the_first_of_a_part():
    # Longest first: [9], then 7 + 7, then 3 + 3 + 3.
    assert cut_longest_first([3, 9, 7, 3, 6, 2], max_tokens=14) == [[1], [2, 4], [0, 3, 5]]
    assert cut_longest_first([20, 30], max_tokens=14) == [[1], [0]]

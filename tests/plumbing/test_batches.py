"""plumbing/batches.py: rows as tensors, shared out over ranks and micro-batches, by hand."""

import pytest

from grpo import Completion
from plumbing.batches import balance, collate, micro_batches, pack
from tests.helpers.groups import completion
from tests.helpers.ranks import one_rank

PAD = 0
EOS = 1
FIRST = [5, 6, 7], Completion([9, EOS], [-0.1, -0.2], True, advantage=1.5, weight=0.25)
SECOND = [8], Completion([10, 13, EOS], [-0.3, -0.4, -0.5], True, advantage=-0.5, weight=0.125)
THIRD = [11], Completion([12], [-0.6], finished=False, advantage=2.0, weight=1.0)
pad_or_eos = pytest.mark.parametrize("pad_id", [PAD, EOS])


@pad_or_eos
def test_collate_pads_rows_on_the_right(pad_id):
    batch = collate([SECOND, FIRST], pad_id, "cpu")
    assert batch.ids_B_T.tolist() == [[8, 10, 13, EOS, pad_id], [5, 6, 7, 9, EOS]]
    assert batch.position_1_T.tolist() == [[0, 1, 2, 3, 4]]  # of both rows
    assert batch.cu_seqlens == {}


@pad_or_eos
def test_collate_marks_response_tokens_the_stop_token_included(pad_id):
    batch = collate([SECOND, FIRST], pad_id, "cpu")
    assert batch.response_B_T.long().tolist() == [[0, 1, 1, 1, 0], [0, 0, 0, 1, 1]]


def test_collate_gives_each_response_token_the_columns_of_its_row():
    batch = collate([SECOND, FIRST], PAD, "cpu")
    assert batch.row_N.tolist() == [0, 0, 0, 1, 1]
    assert batch.advantage_N.tolist() == [-0.5, -0.5, -0.5, 1.5, 1.5]
    assert batch.weight_N.tolist() == [0.125, 0.125, 0.125, 0.25, 0.25]
    assert batch.generator_logp_N.tolist() == pytest.approx([-0.3, -0.4, -0.5, -0.1, -0.2])


@pad_or_eos
def test_collate_packs_rows_end_to_end_with_positions_that_restart(pad_id):
    batch = collate([SECOND, FIRST, THIRD], pad_id, "cpu", packed=True)
    assert batch.ids_B_T.tolist() == [[8, 10, 13, EOS, 5, 6, 7, 9, EOS, 11, 12]]
    assert batch.response_B_T.long().tolist() == [[0, 1, 1, 1, 0, 0, 0, 1, 1, 0, 1]]
    assert batch.position_1_T.tolist() == [[0, 1, 2, 3, 0, 1, 2, 3, 4, 0, 1]]
    assert batch.row_N.tolist() == [0, 0, 0, 1, 1, 2]


def test_collate_tells_flash_attention_where_packed_rows_end():
    batch = collate([SECOND, FIRST, THIRD], PAD, "cpu", packed=True)
    assert batch.cu_seqlens["cu_seq_lens_q"].tolist() == [0, 4, 9, 11]
    assert batch.cu_seqlens["cu_seq_lens_k"].tolist() == [0, 4, 9, 11]
    assert batch.cu_seqlens["max_length_q"] == 5
    assert batch.cu_seqlens["max_length_k"] == 5


def batches_of_rank(rank, rows, max_tokens=100):
    """Make the micro-batches of one of two student ranks."""
    layout = one_rank()
    layout.n_students = 2
    layout.rank = rank
    return micro_batches(rows, layout, max_tokens, pad_id=PAD, packed=False)


def test_micro_batches_of_the_ranks_hold_each_row_once():
    """Rows of 5, 4 and 2 tokens: the first goes to rank 0, the others to rank 1."""
    [of_rank_0] = batches_of_rank(0, [FIRST, SECOND, THIRD], max_tokens=5)
    of_rank_1 = batches_of_rank(1, [FIRST, SECOND, THIRD], max_tokens=5)
    assert of_rank_0.ids_B_T.tolist() == [[5, 6, 7, 9, EOS]]
    assert [batch.ids_B_T.tolist() for batch in of_rank_1] == [[[8, 10, 13, EOS]], [[11, 12]]]


def test_the_last_micro_batch_of_a_rank_is_marked():
    batches = batches_of_rank(1, [FIRST, SECOND, THIRD], max_tokens=5)
    assert [batch.last for batch in batches] == [False, True]
    assert [batch.idle for batch in batches] == [False, False]


def test_a_rank_without_rows_gets_an_idle_batch_that_has_no_weight():
    [batch] = batches_of_rank(1, [FIRST])
    assert batch.idle
    assert batch.last
    assert batch.ids_B_T.tolist() == [[PAD, PAD]]
    assert batch.response_B_T.tolist() == [[False, True]]
    assert batch.weight_N.tolist() == [0]
    assert batch.advantage_N.tolist() == [0]


def test_a_step_without_rows_gives_an_idle_batch():
    [batch] = batches_of_rank(0, [])
    assert batch.idle


def test_a_micro_batch_holds_at_most_its_tokens_with_padding():
    rows = [([1] * 9, completion(ids=[2])) for _ in range(8)]  # 10 tokens each, 4 of a rank
    batches = batches_of_rank(0, rows, max_tokens=35)
    assert [tuple(batch.ids_B_T.shape) for batch in batches] == [(3, 10), (1, 10)]


def test_balance_gives_the_longest_row_to_the_rank_with_the_fewest_tokens():
    # 9 -> rank 0; 7 -> rank 1; 6 -> rank 1 (7 < 9); 5 -> rank 0 (9 < 13); 2 -> rank 1 (13 < 14)
    assert balance([0, 1, 2, 3, 4], [5, 9, 7, 2, 6], n=2) == [[1, 0], [2, 4, 3]]


def test_balance_leaves_ranks_without_rows():
    assert balance([3], [5, 9, 7, 2], n=3) == [[3], [], []]


TOKENS = [3, 9, 7, 3, 6, 2]


def test_pack_counts_padding_to_the_first_row_of_a_batch():
    # Longest first: [9], then 7 + 7, then 3 + 3 + 3.
    assert pack(range(6), TOKENS, max_tokens=14) == [[1], [2, 4], [0, 3, 5]]


def test_pack_counts_a_packed_rows_own_tokens_and_takes_short_rows():
    # 9 + 7, then 6 + 3 + 3 + 2.
    packed = pack(range(6), TOKENS, max_tokens=16, shortest=0.75, packed=True)
    assert packed == [[1, 2], [4, 0, 3, 5]]


def test_pack_keeps_rows_of_similar_length_together():
    # 6 is at least 0.75 of 8, and 5 is not; 4 is at least 0.75 of 5, and 3 is not.
    batches = pack(range(6), [8, 6, 5, 4, 3, 8], max_tokens=100, shortest=0.75)
    assert batches == [[0, 5, 1], [2, 3], [4]]


def test_pack_leaves_a_row_over_the_limit_alone():
    assert pack([0, 1], [20, 30], max_tokens=14) == [[1], [0]]

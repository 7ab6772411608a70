"""plumbing/batches.py: rows as tensors, shared out over ranks and micro-batches, by hand."""

import pytest

from plumbing.batches import balance, collate, pack
from rollout import Rollouts

PAD, EOS = 0, 1
ROLLOUTS = Rollouts(
    [[5, 6, 7], [8], [11]],
    [[9, EOS], [10, 13, EOS], [12]],
    [True, True, False],
    [[-0.1, -0.2], [-0.3, -0.4, -0.5], [-0.6]],
)


@pytest.mark.parametrize("pad_id", [PAD, EOS])
def test_collate_by_hand(pad_id):
    padded = collate(ROLLOUTS, [1, 0], pad_id, "cpu")
    assert padded.ids_B_T.tolist() == [[8, 10, 13, EOS, pad_id], [5, 6, 7, 9, EOS]]
    assert padded.response_B_T.long().tolist() == [[0, 1, 1, 1, 0], [0, 0, 0, 1, 1]]
    assert padded.position_1_T.tolist() == [[0, 1, 2, 3, 4]]  # of both rows
    assert padded.row_N.tolist() == [1, 1, 1, 0, 0]  # aligned with the mask, read row by row
    assert padded.generator_logp_N.tolist() == pytest.approx([-0.3, -0.4, -0.5, -0.1, -0.2])
    assert padded.cu_seqlens == {}
    packed = collate(ROLLOUTS, [1, 0, 2], pad_id, "cpu", packed=True)
    assert packed.ids_B_T.tolist() == [[8, 10, 13, EOS, 5, 6, 7, 9, EOS, 11, 12]]
    assert packed.response_B_T.long().tolist() == [[0, 1, 1, 1, 0, 0, 0, 1, 1, 0, 1]]
    assert packed.position_1_T.tolist() == [[0, 1, 2, 3, 0, 1, 2, 3, 4, 0, 1]]
    assert packed.row_N.tolist() == [1, 1, 1, 0, 0, 2]
    assert packed.cu_seqlens["cu_seq_lens_q"].tolist() == [0, 4, 9, 11]
    assert packed.cu_seqlens["max_length_k"] == 5


def test_balance_by_hand():
    # 9 -> rank 0; 7 -> rank 1; 6 -> rank 1 (7 < 9); 5 -> rank 0 (9 < 13); 2 -> rank 1 (13 < 14)
    assert balance([0, 1, 2, 3, 4], [5, 9, 7, 2, 6], 2) == [[1, 0], [2, 4, 3]]
    assert balance([3], [5, 9, 7, 2], 3) == [[3], [], []]


def test_pack_by_hand():
    tokens, rows = [3, 9, 7, 3, 6, 2], range(6)
    # Longest first; each row is padded to the first of its batch: [9], then 7 + 7, then 3 + 3 + 3.
    assert pack(rows, tokens, 14) == [[1], [2, 4], [0, 3, 5]]
    # If packed, a row counts its own tokens, 9 + 7, then 6 + 3 + 3 + 2, and it may be short.
    assert pack(rows, tokens, 16, shortest=0.75, packed=True) == [[1, 2], [4, 0, 3, 5]]
    # 6 is at least 0.75 of 8, and 5 is not; 4 is at least 0.75 of 5, and 3 is not.
    assert pack(rows, [8, 6, 5, 4, 3, 8], 100, shortest=0.75) == [[0, 5, 1], [2, 3], [4]]
    assert pack([0, 1], [20, 30], 14) == [[1], [0]]  # a row over the budget is alone

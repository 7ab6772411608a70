"""A step on many cards, by hand and from flags."""

import pytest

import train
from benchmarks.scaling import Assumptions, step_seconds
from tests.helpers.shapes import TINY


def test_exchange_and_training_by_hand():
    c = train.parse([])
    one, two = (step_seconds(TINY, TINY, c, cards, Assumptions()) for cards in (8, 16))
    # A float32 gradient and two bf16 copies of 328 weights; 6 ranks, then 12 on two machines.
    assert one["exchange"] == pytest.approx(8 * 328 * 5 / 6 / 300e9)
    assert two["exchange"] == pytest.approx(8 * 328 * 11 / 12 / 40e9)
    assert one["train"] == pytest.approx(2 * two["train"], rel=1e-3)


@pytest.mark.parametrize(
    ("cards", "updates", "ranks", "speed"),
    # 18 / 4 updates of 4 epochs over 64 outcomes, 8 a rank: 4 batches on 2 ranks, 1 from 8 on.
    [(8, 72, 2, 300e9), (32, 18, 8, 300e9), (64, 18, 16, 40e9)],
)
def test_teacher_updates_are_bound_by_exchange_on_fast_cards(cards, updates, ranks, speed):
    fast = Assumptions(peak_tflops=1e18, peak_tb_s=1e18)
    teacher = step_seconds(TINY, TINY, train.parse([]), cards, fast)["teacher"]
    assert teacher == pytest.approx(updates * 6 * 328 * (ranks - 1) / ranks / speed)

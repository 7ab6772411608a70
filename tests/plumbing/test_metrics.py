"""plumbing/metrics.py: gradient-noise statistics by hand.

tests/scripts/test_evaluate.py has evaluation, test_faults.py its interruption.
"""

import pytest
import torch

from plumbing.metrics import GradientNoise
from tests.helpers.ranks import one_rank


@pytest.fixture
def noise():
    """The statistics of one weight of two numbers, which is not sharded."""
    weight = torch.nn.Parameter(torch.zeros(2))
    noise = GradientNoise(torch.optim.AdamW([weight], betas=(0.9, 0.99), eps=0), one_rank())
    noise._sample = torch.flatten
    return noise


def test_grad_cosine_compares_the_gradients_of_both_halves(noise):
    (weight,) = noise.parameters
    gradients = torch.tensor([[3.0, 4.0], [8.0, 6.0]])  # cos = (3 * 8 + 4 * 6) / (5 * 10)
    weight.grad = torch.zeros(2)
    for half in noise.watch([[0], [1]]):
        weight.grad += gradients[half]
    assert noise["grad_cosine"] == pytest.approx(48 / 50)


def test_update_rms_by_hand(noise):
    (weight,) = noise.parameters
    weight.grad = torch.tensor([3.0, -4.0])
    noise.optimizer.step()
    noise.measure_update()
    assert noise["update_rms"] == pytest.approx(1)  # the first update is the gradient's sign
    weight.grad = -weight.grad
    noise.optimizer.step()
    noise.measure_update()
    # m̂ = (0.9 * 0.1 g - 0.1 g) / (1 - 0.81) = -0.01 g / 0.19, v̂ = g²
    assert noise["update_rms"] == pytest.approx(0.01 / 0.19, rel=1e-4)

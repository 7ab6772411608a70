"""Goldilocks with a Boltzmann choice: a candidate is likelier the higher its predicted utility."""

import numpy as np

from sampler import Choice, Context, Goldilocks


def boltzmann(value_P_K, temperature: float, rng) -> Choice:
    """Choose per row with probability softmax(value / temperature), by Gumbel noise."""
    noisy_P_K = value_P_K + temperature * rng.gumbel(size=value_P_K.shape)
    chosen_P = noisy_P_K.argmax(axis=1)
    return chosen_P, np.zeros(len(chosen_P), dtype=bool)


class Softmax(Goldilocks):
    """P(candidate) ∝ exp(utility / T) over its pool: the Boltzmann choice of Teacher-Student
    Curriculum Learning (Matiisen et al., 2017, arXiv 1707.00183)."""

    uses_epsilon = False  # the temperature explores

    def __init__(self, context: Context, temperature=0.05):  # ours: 0.05 better, e times as likely
        super().__init__(context)
        self.temperature = temperature

    def choose(self, pool_P_K, utilities_P_K):
        return boltzmann(utilities_P_K, self.temperature, self.rng)

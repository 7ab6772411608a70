"""Goldilocks with a Boltzmann choice: a candidate is likelier the higher its predicted utility."""

import numpy as np

from sampler import Choice, Goldilocks


def boltzmann(value_N_K, temperature: float, rng) -> Choice:
    """Choose per row with probability softmax(value / temperature), by Gumbel noise."""
    noise_N_K = rng.gumbel(size=value_N_K.shape)
    noisy_N_K = value_N_K + temperature * noise_N_K
    chosen_N = noisy_N_K.argmax(axis=1)
    explored_N = np.zeros(len(chosen_N), dtype=bool)
    return chosen_N, explored_N


class Softmax(Goldilocks):
    """P(candidate) ∝ exp(utility / T) over its pool: the Boltzmann choice of Teacher-Student
    Curriculum Learning (Matiisen et al., 2017, arXiv 1707.00183)."""

    flags = ("candidates",)
    settings = {"temperature": 0.05}  # ours: a candidate 0.05 better is e times as likely

    def choose(self, pool_N_K, utilities_N_K):
        return boltzmann(utilities_N_K, self.settings["temperature"], self.rng)

"""A bandit whose arms are the values of --column; within a category it draws uniformly."""

import numpy as np

from sampler import Context, Pooled
from samplers.softmax import boltzmann


class Sec(Pooled):
    """Self-Evolving Curriculum (Chen et al., 2025, arXiv 2505.14970). Its reward, a group's mean
    |Â|, is 2y; here the value of an arm follows y. In a pool P(c) ∝ exp(value / T)."""

    needs_column = True
    flags = ("candidates", "column")
    settings = {"rate": 0.5, "temperature": 0.05}  # ours, the temperature as in Softmax
    learned = {"value_C": np.empty(0)}

    def __init__(self, context: Context):
        super().__init__(context)
        self.value_C = np.zeros(len(self.values_C))

    def score(self, pool_N_K):
        return self.value_C[self.value_of[pool_N_K]]

    def choose(self, pool_N_K, utilities_N_K):
        category_N_K = self.value_of[pool_N_K]
        # The problems of one category share its probability.
        own_N_K_1 = category_N_K[:, :, None]
        other_N_1_K = category_N_K[:, None, :]
        is_alike_N_K_K = own_N_K_1 == other_N_1_K
        alike_N_K = is_alike_N_K_K.sum(axis=2)
        T = self.settings["temperature"]
        value_N_K = utilities_N_K - T * np.log(alike_N_K)
        return boltzmann(value_N_K, T, self.rng)

    def observe(self, groups):
        rate = self.settings["rate"]
        y_N = np.array([group.y for group in groups])
        index_N = [group.problem for group in groups]
        category_N = self.value_of[index_N]
        for c in np.unique(category_N):
            mean_y = y_N[category_N == c].mean()
            error = mean_y - self.value_C[c]
            self.value_C[c] += rate * error

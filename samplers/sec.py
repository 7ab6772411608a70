"""A bandit whose arms are the values of --column; within a category it draws uniformly."""

import numpy as np

from sampler import Context, Pooled
from samplers.softmax import boltzmann


class Sec(Pooled):
    """Self-Evolving Curriculum (Chen et al., 2025, arXiv 2505.14970). Its reward, a group's mean
    |Â|, is 2y; here the value of an arm follows y. In a pool P(c) ∝ exp(value / T)."""

    def __init__(self, context: Context, rate=0.5, temperature=0.05):  # ours, as in Softmax
        super().__init__(context)
        self.rate = rate
        self.temperature = temperature
        values_C, self._category_of = self.categories()
        self.value_C = np.zeros(len(values_C))

    def score(self, pool_P_K):
        return self.value_C[self._category_of[pool_P_K]]

    def choose(self, pool_P_K, utilities_P_K):
        category_P_K = self._category_of[pool_P_K]
        # The problems of one category share its probability.
        own_P_K_1 = category_P_K[:, :, None]
        other_P_1_K = category_P_K[:, None, :]
        is_alike_P_K_K = own_P_K_1 == other_P_1_K
        alike_P_K = is_alike_P_K_K.sum(axis=2)
        T = self.temperature
        value_P_K = utilities_P_K - T * np.log(alike_P_K)
        return boltzmann(value_P_K, T, self.rng)

    def observe(self, groups):
        y_P = np.array([group.y for group in groups])
        index_P = [group.problem for group in groups]
        category_P = self._category_of[index_P]
        for c in np.unique(category_P):
            mean_y = y_P[category_P == c].mean()
            error = mean_y - self.value_C[c]
            self.value_C[c] += self.rate * error

"""A bandit whose arms are the values of --column; within a category it draws uniformly."""

from collections import defaultdict

import numpy as np

from sampler import Context, Pooled
from samplers.softmax import boltzmann


class Sec(Pooled):
    """Self-Evolving Curriculum (Chen et al., 2025, arXiv 2505.14970; class BanditPriority of
    rsshyam/MT-GRPO at 16f432d, which has the flags of its authors' ServiceNow/sec). The value of a
    category moves by `rate` towards the mean y of its groups in a round, and in a pool
    P(c) ∝ exp(value / T).

    Theirs takes the mean |Â|, which is 2y, so that its T of 0.2 to 1 is 0.1 to 0.5 here. It draws
    categories from all of the data, and the value of one that is not drawn moves towards 0."""

    uses_epsilon = False  # the temperature explores

    def __init__(self, context: Context, rate=0.5, temperature=0.05):  # T is ours, as in Softmax
        super().__init__(context)
        self.rate = rate
        self.temperature = temperature
        values_C, self._category_of = self.categories()
        self.value_C = np.zeros(len(values_C))

    def score(self, pool_P_K):
        return self.value_C[self._category_of[pool_P_K]]

    def choose(self, pool_P_K, utilities_P_K):
        # The problems of one category share its probability.
        category_P_K = self._category_of[pool_P_K]
        is_alike_P_K_K = category_P_K[:, :, None] == category_P_K[:, None, :]
        alike_P_K = is_alike_P_K_K.sum(axis=2)
        shared_P_K = self.temperature * np.log(alike_P_K)
        value_P_K = utilities_P_K - shared_P_K
        return boltzmann(value_P_K, self.temperature, self.rng)

    def observe(self, groups):
        super().observe(groups)
        ys_of = defaultdict(list)
        for group in groups:
            c = self._category_of[group.problem]
            ys_of[c].append(group.y)
        for c, ys in ys_of.items():
            error = np.mean(ys) - self.value_C[c]
            self.value_C[c] += self.rate * error

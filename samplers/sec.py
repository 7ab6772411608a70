"""A bandit whose arms are the values of --column; within a category it draws uniformly."""

import numpy as np

from sampler import Context, Pooled
from samplers.softmax import boltzmann


class Sec(Pooled):
    """Self-Evolving Curriculum (Chen et al., 2025, arXiv 2505.14970). Its reward, a group's mean
    |Â|, is 2y; here the value of an arm follows y. P(c) ∝ exp(value / T) decides between the
    categories in a pool; the problem is drawn uniformly within its category."""

    needs_column = True
    flags = ("candidates", "column")
    settings = {"rate": 0.5, "temperature": 0.05}  # ours, the temperature as in Softmax
    learned = ("value_C",)

    def __init__(self, context: Context):
        super().__init__(context)
        names_C, self.category = self.problems.column(context.config.column)
        self.value_C = np.zeros(len(names_C))

    def score(self, pool_N_K):
        return self.value_C[self.category[pool_N_K]]

    def choose(self, pool_N_K, utilities_N_K):
        category_N_K = self.category[pool_N_K]
        # The problems of one category share its probability.
        alike_N_K = (category_N_K[:, :, None] == category_N_K[:, None, :]).sum(axis=2)
        T = self.settings["temperature"]
        return boltzmann(utilities_N_K - T * np.log(alike_N_K), T, self.rng)

    def observe(self, groups):
        y_of = {}  # category -> y of its groups
        for group in groups:
            y_of.setdefault(self.category[group.problem], []).append(group.y)
        for c, y_n in y_of.items():
            self.value_C[c] += self.settings["rate"] * (np.mean(y_n) - self.value_C[c])

"""Frontier with another model of p, in which each word of a problem can make a completion fail."""

import numpy as np

from sampler import Context, utility_target
from samplers.frontier import Frontier


class NoisyAnd(Frontier):
    """A completion is right if it gets every word right, so p = ∏ σ(w + b) over the n distinct
    words, where b gives n new words p = 1/2. One word can make a problem dead, which a sum of words
    cannot express. The value of --column, if given, is one more word (docs/frontier.md).

    AdaGrad's sums decay, because the student changes. A problem is worth √(p(1-p)) · (1-p)²."""

    flags = ("candidates", "[column]")
    settings = Frontier.settings | {"rate": 1.0, "decay": 0.9}

    def __init__(self, context: Context):
        super().__init__(context)
        column = context.config.column
        values, self.value = self.problems.column(column) if column else ([], None)
        self.entry_C = [self.entry(f"column {value}") for value in values]

    @staticmethod
    def target(p):
        return utility_target(p) * (1 - p) ** 2

    def words(self, index: int) -> np.ndarray:
        words = super().words(index)
        return np.union1d(words, self.entry_C[self.value[index]]) if self.entry_C else words

    def rates(self, words: np.ndarray) -> np.ndarray:
        """Compute σ(w + b) of each word."""
        even = 0.5 ** (1 / max(1, len(words)))
        return 1 / (1 + np.exp(-self.weight_V[words]) * (1 - even) / even)

    def predict(self, index):
        return self.rates(self.words(index)).prod()

    def gradient(self, words, p, p_hat):
        # (1 - σ) / (1 - p), at most 1, is the share of the failures in which a word fails.
        return (p - p_hat) * (1 - self.rates(words)) / (1 - p + 1e-12)

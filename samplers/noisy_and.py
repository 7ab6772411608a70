"""The best n of all candidates, by a model of p in which any word can make a completion fail."""

import numpy as np

from sampler import Context, utility_target
from samplers.bag_of_words import BagOfWords


class NoisyAnd(BagOfWords):
    """Bag of words with four changes, which docs/noisy_and.md explains:

    - a completion is right if it gets every word right, so p = ∏ σ(w + b) over the m distinct
      words, where b gives m new words p = 1/2;
    - a problem is worth √(p(1-p)) · (1-p)^power;
    - the best n of all n · K candidates, without ε;
    - AdaGrad's sums decay, because the student changes.

    The value of --column, if given, is one more word. `teacher_mae` does not apply: scores do not
    predict y."""

    flags = ("candidates", "[column]")
    settings = {"rate": 1.0, "decay": 0.9, "power": 2.0, "best_of_all": 1}

    def __init__(self, context: Context):
        super().__init__(context)
        column = context.config.column
        values, self.value = self.problems.column(column) if column else ([], None)
        self.entry_C = [self.entry(f"column {value}") for value in values]

    def target(self, p):
        return utility_target(p) * (1 - p) ** self.settings["power"]

    def words(self, index: int) -> np.ndarray:
        words = super().words(index)
        return np.union1d(words, self.entry_C[self.value[index]]) if self.entry_C else words

    def rates(self, words: np.ndarray) -> np.ndarray:
        """Compute σ(w + b) of each word."""
        even = 0.5 ** (1 / len(words))
        return 1 / (1 + np.exp(-self.weight_V[words]) * (1 - even) / even)

    def predict(self, index):
        return self.rates(self.words(index)).prod()

    def gradient(self, words, p, p_hat):
        # (1 - σ) / (1 - p), at most 1, is the share of the failures in which a word fails.
        return (p - p_hat) * (1 - self.rates(words)) / (1 - p + 1e-12)

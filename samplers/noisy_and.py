"""The best n of all candidates, by a model of p in which any word can make a completion fail."""

import numpy as np

from sampler import Context, utility_target
from samplers.bag_of_words import BagOfWords


class NoisyAnd(BagOfWords):
    """Bag of words with four changes:

    - a completion is right if it gets every word right, so p = ∏ σ(w + b) over the m distinct
      words, where b gives m new words p = 1/2;
    - a problem is worth √(p(1-p)) · (1-p)^power;
    - the best n of all n · K candidates, without ε;
    - AdaGrad's sums decay, because the student changes.

    The value of --column, if given, is one more word. `teacher_mae` does not apply: scores do not
    predict y."""

    best_of_all = True

    def __init__(self, context: Context, rate=1.0, decay=0.9, power=2.0):
        super().__init__(context, rate, decay)
        self.power = power
        self._values_C = []
        if context.config.column:
            self._values_C, self._value_of = self.categories()

    def target(self, p):
        return utility_target(p) * (1 - p) ** self.power

    def words(self, index):
        words = super().words(index)
        if self._values_C:
            value = self._values_C[self._value_of[index]]
            words.append(f"column {value}")
        return words

    def rates(self, entry_M_m: np.ndarray) -> np.ndarray:
        """Compute σ(w + b) of each word of problems with m words each: (M, m), or (m,) of one."""
        even = 0.5 ** (1 / entry_M_m.shape[-1])
        odds_of_failure_M_m = np.exp(-self.weight_V[entry_M_m]) * (1 - even) / even
        return 1 / (1 + odds_of_failure_M_m)

    def p(self, entry_M_m):
        return self.rates(entry_M_m).prod(axis=-1)

    def gradient(self, entry_m, p_hat):
        rates_m = self.rates(entry_m)
        p = rates_m.prod()
        # (1 - σ) / (1 - p), at most 1, is the share of the failures in which a word fails.
        return (p - p_hat) * (1 - rates_m) / (1 - p + 1e-12)

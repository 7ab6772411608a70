"""Alg. 1 with a logistic regression on words in place of the teacher: it costs no device."""

import re
import zlib

import numpy as np

from sampler import Context, Outcomes, Pooled, utility_target


class BagOfWords(Pooled):
    """A problem's p is σ(Σ w / √n) over its n distinct words, and its utility √(p(1-p)). AdaGrad
    (Duchi et al., 2011) learns w from the outcomes, each problem once, by the binomial likelihood;
    its sums decay by `decay`. Words are hashed, so that nothing is read before the first step."""

    flags = ("candidates", "epsilon")
    settings = {"rate": 0.5, "decay": 1.0}
    learned = ("weight_V", "square_V")
    target = staticmethod(utility_target)  # of p: what a candidate is scored by

    def __init__(self, context: Context):
        super().__init__(context)
        self.weight_V, self.square_V = np.zeros((2, 2**16))

    def words(self, index: int) -> np.ndarray:
        """Return the entries of w that a problem has."""
        words = re.findall(r"\w+|[^\w\s]", self.problems.question(index).lower())
        return np.unique([self.entry(word) for word in words])

    def entry(self, word: str) -> int:
        """Return the entry of w that a word has."""
        return zlib.crc32(word.encode()) % len(self.weight_V)

    def predict(self, index: int) -> float:
        """Compute p."""
        words = self.words(index)
        return 1 / (1 + np.exp(-self.weight_V[words].sum() / len(words) ** 0.5))

    def score(self, pool_N_K):
        p_M = np.array([self.predict(i) for i in pool_N_K.ravel().tolist()])
        return self.target(p_M).reshape(pool_N_K.shape)

    def gradient(self, words: np.ndarray, p: float, p_hat: float):
        """Compute the gradient in the weights of the words of the mean -log likelihood."""
        return (p - p_hat) / len(words) ** 0.5

    def observe(self, outcomes: Outcomes) -> None:
        rate, decay = self.settings["rate"], self.settings["decay"]
        for i, p_hat in zip(outcomes.index_N.tolist(), outcomes.p_hat_N.tolist(), strict=True):
            words = self.words(i)
            gradient_W = self.gradient(words, self.predict(i), p_hat)
            self.square_V[words] = decay * self.square_V[words] + gradient_W**2
            self.weight_V[words] -= rate * gradient_W / np.sqrt(self.square_V[words] + 1e-12)

"""Alg. 1 with a logistic regression on words in place of the teacher: it costs no device."""

import re
import zlib

import numpy as np

from sampler import Context, Pooled, utility_target


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

    def words(self, index: int) -> list[str]:
        """Split a problem into words."""
        return re.findall(r"\w+|[^\w\s]", self.problems.question(index).lower())

    def entries(self, index: int) -> np.ndarray:
        """Return the entries of w that a problem has: int64 (n,)."""
        return np.unique([zlib.crc32(w.encode()) % len(self.weight_V) for w in self.words(index)])

    def p(self, entry_n: np.ndarray) -> float:
        """Compute p of a problem that has these entries."""
        return 1 / (1 + np.exp(-self.weight_V[entry_n].sum() / len(entry_n) ** 0.5))

    def gradient(self, entry_n: np.ndarray, p_hat: float):
        """Compute the gradient in these entries of the mean -log likelihood."""
        return (self.p(entry_n) - p_hat) / len(entry_n) ** 0.5

    def predict(self, index_M: np.ndarray) -> np.ndarray:
        """Compute p of each problem."""
        return np.array([self.p(self.entries(i)) for i in index_M.tolist()])

    def score(self, pool_N_K):
        return self.target(self.predict(pool_N_K.ravel())).reshape(pool_N_K.shape)

    def observe(self, groups):
        for group in groups:
            entry_n = self.entries(group.problem)
            gradient_n = self.gradient(entry_n, group.p_hat)
            square_n = self.settings["decay"] * self.square_V[entry_n] + gradient_n**2
            self.square_V[entry_n] = square_n
            self.weight_V[entry_n] -= self.settings["rate"] * gradient_n / np.sqrt(square_n + 1e-12)

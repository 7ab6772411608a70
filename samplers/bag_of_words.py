"""Alg. 1 with a logistic regression on words in place of the teacher: it costs no device."""

import re
import zlib

import numpy as np

from sampler import Context, Pooled, utility_target

HASHES = 2**16  # that words may have: the length of w


class BagOfWords(Pooled):
    """A problem's p is σ(Σ w / √n) over its n distinct words, and its utility √(p(1-p)). AdaGrad
    (Duchi et al., 2011) learns w from the outcomes, each problem once, by the binomial likelihood;
    its sums decay by `decay`. Words are hashed, so that nothing is read before the first step.

    The entries of each candidate are kept, because a candidate returns in the next pass: 94 MB
    for 300,000 problems of 50 distinct words."""

    def __init__(self, context: Context, rate=0.5, decay=1.0):
        super().__init__(context)
        self.rate = rate
        self.decay = decay
        self.weight_V = np.zeros(HASHES)
        self.square_V = np.zeros(HASHES)
        self._entries = {}  # by problem

    def target(self, p):
        """Return the score of a candidate with this p."""
        return utility_target(p)

    def words(self, index: int) -> list[str]:
        """Split a problem into words."""
        question = self.problems.question(index)
        text = question.lower()
        return re.findall(r"\w+|[^\w\s]", text)

    def entries(self, index: int) -> np.ndarray:
        """Return the entries of w that a problem has: uint16 (n,)."""
        if index not in self._entries:
            words = self.words(index)
            hashes = [zlib.crc32(word.encode()) for word in words]
            entries = np.unique(np.array(hashes) % HASHES)
            self._entries[index] = entries.astype(np.uint16)  # HASHES are 2^16
        return self._entries[index]

    def p(self, entry_M_n: np.ndarray) -> np.ndarray:
        """Compute p of problems with n entries each, (M,), or of one with entries (n,)."""
        n = entry_M_n.shape[-1]
        sum_of_weights_M = self.weight_V[entry_M_n].sum(axis=-1)
        logit_M = sum_of_weights_M / n**0.5
        return 1 / (1 + np.exp(-logit_M))

    def gradient(self, entry_n: np.ndarray, p_hat: float):
        """Compute the gradient in these entries of the mean -log likelihood."""
        p = self.p(entry_n)
        root = len(entry_n) ** 0.5
        return (p - p_hat) / root

    def predict(self, indices) -> np.ndarray:
        """Compute p of each problem, of all that have the same number of entries at once."""
        entries = [self.entries(index) for index in indices]
        n_M = np.array([len(entry_n) for entry_n in entries])
        p_M = np.empty(len(entries))
        for n in np.unique(n_M):
            (place_m,) = np.nonzero(n_M == n)
            entry_m_n = np.concatenate([entries[place] for place in place_m]).reshape(-1, n)
            p_M[place_m] = self.p(entry_m_n)
        return p_M

    def score(self, pool_P_K):
        p = self.predict(pool_P_K.flat)
        p_P_K = p.reshape(pool_P_K.shape)
        return self.target(p_P_K)

    def observe(self, groups):
        super().observe(groups)
        for group in groups:
            entry_n = self.entries(group.problem)
            gradient_n = self.gradient(entry_n, group.p_hat)
            square_n = self.decay * self.square_V[entry_n]
            square_n += gradient_n**2
            self.square_V[entry_n] = square_n
            scale_n = np.sqrt(square_n + 1e-12)
            step_n = self.rate * gradient_n / scale_n
            self.weight_V[entry_n] -= step_n

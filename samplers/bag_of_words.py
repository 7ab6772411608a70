"""Alg. 1 with a logistic regression on words in place of the teacher: it costs no device."""

import re
import zlib

import numpy as np

from sampler import Pooled, utility_target

V = 2**16  # entries of w


def entry_of(word: str) -> int:
    """Return the entry of w that a word has, by its hash: a few words share theirs."""
    crc32 = zlib.crc32(word.encode())
    return crc32 % V


class BagOfWords(Pooled):
    """A problem's p is σ(Σ w / √n) over its n distinct words, and its utility √(p(1-p)). AdaGrad
    (Duchi et al., 2011) learns w from the outcomes, each problem once, by the binomial likelihood;
    its sums decay by `decay`. Words are hashed, so that nothing is read before the first step."""

    flags = ("candidates", "epsilon")
    settings = {"rate": 0.5, "decay": 1.0}
    learned = {"weight_V": np.zeros(V), "square_V": np.zeros(V)}
    target = staticmethod(utility_target)  # of p: what a candidate is scored by

    def words(self, index: int) -> list[str]:
        """Split a problem into words."""
        question = self.problems.question(index)
        text = question.lower()
        return re.findall(r"\w+|[^\w\s]", text)

    def entries(self, index: int) -> np.ndarray:
        """Return the entries of w that a problem has: int64 (n,)."""
        entries = [entry_of(word) for word in self.words(index)]
        return np.unique(entries)

    def p(self, entry_n) -> float:
        """Compute p of a problem that has these entries."""
        n = len(entry_n)
        weight_n = self.weight_V[entry_n]
        logit = weight_n.sum() / n**0.5
        odds_of_failure = np.exp(-logit)
        return 1 / (1 + odds_of_failure)

    def gradient(self, entry_n, p_hat: float):
        """Compute the gradient in these entries of the mean -log likelihood."""
        n = len(entry_n)
        error = self.p(entry_n) - p_hat
        return error / n**0.5

    def predict(self, indices) -> np.ndarray:
        """Compute p of each problem."""
        p_M = [self.p(self.entries(index)) for index in indices]
        return np.array(p_M)

    def score(self, pool_N_K):
        p_M = self.predict(pool_N_K.flat)
        utility_M = self.target(p_M)
        return utility_M.reshape(pool_N_K.shape)

    def observe(self, groups):
        for group in groups:
            entry_n = self.entries(group.problem)
            gradient_n = self.gradient(entry_n, group.p_hat)
            self.descend(entry_n, gradient_n)

    def descend(self, entry_n, gradient_n) -> None:
        """Take a step of AdaGrad in these entries."""
        rate = self.settings["rate"]
        decay = self.settings["decay"]
        decayed_n = decay * self.square_V[entry_n]
        square_n = decayed_n + gradient_n**2
        scale_n = np.sqrt(square_n + 1e-12)
        step_n = rate * gradient_n / scale_n
        self.square_V[entry_n] = square_n
        self.weight_V[entry_n] -= step_n

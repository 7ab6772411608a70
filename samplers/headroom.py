"""Draws from all candidates with probability ∝ f², where f predicts the accuracy left to gain."""

import numpy as np

from sampler import Goldilocks, deal, epsilon_greedy, utility_target


def headroom(p_hat):
    """√(p̂(1-p̂)) · (1-p̂), in [0, 0.325]: Eq. 2's first factor times the accuracy left to gain."""
    return utility_target(p_hat) * (1 - p_hat)


class Headroom(Goldilocks):
    """Draws n of the n · K candidates without replacement, with probability ∝ f²; with probability
    ε a prompt takes any candidate of its pool. docs/log.md has what it gains. f does not
    predict y, so `teacher_mae` does not apply."""

    target = staticmethod(headroom)

    def propose(self, n):
        candidate_M = self.draw(n * self.K)
        utility_M = self.score(candidate_M[None])[0]
        # Sorting exponential times of rate f² draws ∝ f² without replacement.
        self.time_M = self.rng.exponential(size=n * self.K) / np.maximum(utility_M, 1e-6) ** 2
        self.dealt_N_K = deal(self.time_M, n)
        return self.select(candidate_M[self.dealt_N_K], utility_M[self.dealt_N_K])

    def choose(self, pool_N_K, utilities_N_K):
        return epsilon_greedy(-self.time_M[self.dealt_N_K], self.epsilon, self.rng)

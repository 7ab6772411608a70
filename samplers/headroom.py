"""Draws from all candidates with probability ∝ f², where f predicts the accuracy left to gain."""

import numpy as np

from sampler import Goldilocks, deal, epsilon_greedy, utility_target


class Headroom(Goldilocks):
    """Draws n of the n · K candidates without replacement, with probability ∝ f²; with probability
    ε a prompt takes any candidate of its pool. f does not predict y, so `teacher_mae` does not
    apply."""

    def target(self, p_hat):
        """√(p̂(1-p̂)) · (1-p̂): Eq. 2's first factor times the accuracy left to gain."""
        return utility_target(p_hat) * (1 - p_hat)

    def propose(self, P):
        index_M = self.candidates(P)
        f_M = self.score(index_M)
        # Sorting exponential times of rate f² draws ∝ f² without replacement.
        rate_M = np.maximum(f_M, 1e-6) ** 2
        time_M = self.rng.exponential(size=rate_M.shape) / rate_M
        dealt_P_K = deal(time_M, P)
        choice = epsilon_greedy(-time_M[dealt_P_K], self.epsilon, self.rng)
        return self.select(index_M[dealt_P_K], f_M[dealt_P_K], choice)

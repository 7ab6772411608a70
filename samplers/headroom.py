"""All candidates in one draw, in proportion to f², and f aimed at what is left to gain."""

import numpy as np

from sampler import Goldilocks, Selections, epsilon_greedy, utility_target


def headroom(p_hat):
    """√(p̂(1-p̂)) · (1-p̂), in [0, 0.325]: Eq. 2's first factor times the share still to be won."""
    return utility_target(p_hat) * (1 - p_hat)


class Headroom(Goldilocks):
    """Of the n · K candidates n are drawn one after another, each with probability ∝ f²; with
    probability ε one takes any candidate of its pool. docs/headroom.md derives and measures it.
    What f predicts is not y, so `teacher_mae` does not judge it."""

    target = staticmethod(headroom)

    def propose(self, n: int) -> Selections:
        candidate_M = self.draw(n * self.K)
        utility_M = self.score(candidate_M[None])[0]
        # The order in which clocks of rate f² ring is that of draws ∝ f² without replacement.
        ring_M = self.rng.exponential(size=n * self.K) / np.maximum(utility_M, 1e-6) ** 2
        # The n first are dealt to n pools, as seeded players are, the rest after them.
        dealt = np.argsort(ring_M).reshape(self.K, n).T
        choice = epsilon_greedy(-ring_M[dealt], self.epsilon, self.rng)  # the first to ring
        selections = Selections(candidate_M[dealt], utility_M[dealt], *choice)
        self.take(selections.index_N)
        return selections

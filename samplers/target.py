"""Chooses from each pool the candidate whose predicted utility is nearest to 0.4."""

from sampler import Goldilocks, epsilon_greedy


class Target(Goldilocks):
    def choose(self, pool_P_K, utilities_P_K):
        return epsilon_greedy(-abs(utilities_P_K - 0.4), self.epsilon, self.rng)

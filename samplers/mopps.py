"""Thompson sampling of each problem's pass rate from its own history."""

import numpy as np

from sampler import Context, Pooled, utility_target


class Mopps(Pooled):
    """MoPPS (Qu et al., 2025, arXiv 2507.04632; thu-rllab/MoPPS at a883f51): p ~ Beta(α, β) is
    drawn from each candidate's posterior, and of n · K the n with p nearest to 1/2 are chosen.
    `decay` weighs earlier counts at each visit: theirs is 1 on MATH, 0.5 on other data. They take
    16 candidates a prompt, also from a shuffled pass. A reward between 0 and 1 is a part of
    a success."""

    best_of_all = True

    def __init__(self, context: Context, decay=0.5):
        super().__init__(context)
        self.decay = decay
        n = len(self.problems)
        self.alpha = np.ones(n, dtype=np.float32)
        self.beta = np.ones_like(self.alpha)

    def score(self, pool_P_K):
        alpha_P_K = self.alpha[pool_P_K]
        beta_P_K = self.beta[pool_P_K]
        p_P_K = self.rng.beta(alpha_P_K, beta_P_K)
        return utility_target(p_P_K)

    def observe(self, groups):
        super().observe(groups)
        prior = 1 - self.decay  # so that α and β of a problem without outcomes stay 1
        for group in groups:
            q = group.problem
            right = sum(group.rewards)
            wrong = len(group.completions) - right
            alpha = self.decay * self.alpha[q]
            beta = self.decay * self.beta[q]
            self.alpha[q] = alpha + prior + right
            self.beta[q] = beta + prior + wrong

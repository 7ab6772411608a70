"""Thompson sampling of each problem's pass rate from its own history."""

import numpy as np

from sampler import Context, Outcomes, Pooled, utility_target


class Mopps(Pooled):
    """MoPPS (Qu et al., 2025, arXiv 2507.04632; thu-rllab/MoPPS at a883f51): p ~ Beta(α, β) is
    drawn from each candidate's posterior, and of n · K the n with p nearest to 1/2 are chosen.
    `decay` weighs earlier counts at each visit: theirs is 1 on MATH, 0.5 on other data. They take
    16 candidates a prompt from a shuffled pass; here a problem may return at any time."""

    revisits = True
    settings = {"decay": 0.5, "best_of_all": 1}
    learned = ("alpha", "beta")

    def __init__(self, context: Context):
        super().__init__(context)
        self.alpha, self.beta = np.ones((2, len(self.problems)), dtype=np.float32)

    def score(self, pool_N_K):
        return utility_target(self.rng.beta(self.alpha[pool_N_K], self.beta[pool_N_K]))

    def observe(self, outcomes: Outcomes) -> None:
        decay, index_N, right_N = self.settings["decay"], outcomes.index_N, outcomes.successes_N
        wrong_N = outcomes.completions_N - right_N
        for counted, new_N in ((self.alpha, right_N), (self.beta, wrong_N)):
            counted[index_N] = decay * counted[index_N] + (1 - decay) + new_N

    def metrics(self) -> dict[str, float]:
        """`coverage`: the share of all problems ever tried; there are no `passes`."""
        coverage = float(((self.alpha > 1) | (self.beta > 1)).mean())
        return super().metrics() | {"passes": 0, "coverage": coverage}

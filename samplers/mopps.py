"""Thompson sampling of each problem's pass rate from its own history."""

import numpy as np

from sampler import Context, Pooled, utility_target


class Mopps(Pooled):
    """MoPPS (Qu et al., 2025, arXiv 2507.04632; thu-rllab/MoPPS at a883f51): p ~ Beta(α, β) is
    drawn from each candidate's posterior, and of n · K the n with p nearest to 1/2 are chosen.
    `decay` weighs earlier counts at each visit: theirs is 1 on MATH, 0.5 on other data. They take
    16 candidates a prompt from a shuffled pass; here a problem may return at any time."""

    revisits = True
    best_of_all = True
    settings = {"decay": 0.5}
    learned = ("alpha", "beta")

    def __init__(self, context: Context):
        super().__init__(context)
        self.alpha, self.beta = np.ones((2, len(self.problems)), dtype=np.float32)

    def score(self, pool_N_K):
        return utility_target(self.rng.beta(self.alpha[pool_N_K], self.beta[pool_N_K]))

    def observe(self, groups):
        decay = self.settings["decay"]
        for group in groups:
            right = group.successes
            wrong = len(group.completions) - right
            for counts, new in ((self.alpha, right), (self.beta, wrong)):
                counts[group.problem] = decay * counts[group.problem] + (1 - decay) + new

    def metrics(self) -> dict[str, float]:
        """`coverage`: the share of all problems ever tried; there are no `passes`."""
        coverage = float(((self.alpha > 1) | (self.beta > 1)).mean())
        return super().metrics() | {"passes": 0, "coverage": coverage}

"""History: what is known of p from each problem's own past; of one never tried, nothing."""

import numpy as np

from sampler import Context, Pooled, utility_target


class Thompson(Pooled):
    """p ~ Beta(α, β) of each problem, drawn from its posterior; of each pool the p nearest to 1/2,
    and problems come back: MoPPS (Qu et al., 2025, arXiv 2507.04632)."""

    revisits = True
    # Of what was counted before, at each visit, towards Beta(1, 1); their scripts' value.
    decay = 0.5
    learned = ("alpha", "beta")

    def __init__(self, context: Context):
        super().__init__(context)
        self.alpha, self.beta = np.ones((2, len(self.problems)), dtype=np.float32)

    def score(self, pool_N_K):
        return utility_target(self.rng.beta(self.alpha[pool_N_K], self.beta[pool_N_K]))

    def observe(self, index_N, successes_N, G) -> None:
        for counted, new_N in ((self.alpha, successes_N), (self.beta, G - successes_N)):
            counted[index_N] = self.decay * counted[index_N] + (1 - self.decay) + new_N

    def metrics(self) -> dict[str, float]:
        """`coverage`: the share of all problems ever tried; there are no `passes`."""
        coverage = float(((self.alpha > 1) | (self.beta > 1)).mean())
        return super().metrics() | {"passes": 0, "coverage": coverage}

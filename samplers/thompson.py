"""History: what is known of p from each problem's own past; of one never tried, nothing."""

import numpy as np

from sampler import Context, Pooled, utility_target


class Thompson(Pooled):
    """p ~ Beta(α, β) of each problem, drawn from its posterior; of each pool the p nearest to 1/2,
    and problems come back: MoPPS (Qu et al., 2025, arXiv 2507.04632)."""

    revisits = True
    # Of what was counted before, towards the prior Beta(1, 1), at each visit; their scripts' value.
    decay = 0.5
    learned = ("beta",)

    def __init__(self, context: Context):
        super().__init__(context)
        self.beta = np.ones((len(self.problems), 2), dtype=np.float32)  # α, β

    def score(self, pool_N_K):
        alpha_N_K, beta_N_K = np.moveaxis(self.beta[pool_N_K], -1, 0)
        return utility_target(self.rng.beta(alpha_N_K, beta_N_K))

    def observe(self, index_N, successes_N, G) -> None:
        counted = self.decay * self.beta[index_N] + (1 - self.decay)
        self.beta[index_N] = counted + np.column_stack([successes_N, G - successes_N])

    def metrics(self) -> dict[str, float]:
        """`coverage`: the share of all problems ever tried; there are no `passes`."""
        coverage = float((self.beta > 1).any(axis=1).mean())
        return super().metrics() | {"passes": 0, "coverage": coverage}

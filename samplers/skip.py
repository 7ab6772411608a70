"""Uniform, but problems whose latest groups were dead are often skipped."""

import numpy as np

from sampler import Context, Outcomes, Selections, Uniform


class Skip(Uniform):
    """A problem whose latest z groups were all dead is left out of this pass with probability
    1 - 0.5^z: GRESO (Zheng et al., 2025, arXiv 2506.02177) without its adaptation of the 0.5."""

    flags = ()
    # z counts up to `longest`, so that it takes 0.5^-5 = 32 draws at most on average.
    settings = {"base": 0.5, "longest": 5}
    learned = ("dead",)

    def __init__(self, context: Context):
        super().__init__(context)
        self.dead = np.zeros(len(self.problems), dtype=np.uint8)  # z: dead groups in a row

    def propose(self, n: int) -> Selections:
        index_N = np.empty(0, dtype=np.int64)
        while (wanted := n - len(index_N)) > 0:
            drawn = self.draw(n)[:wanted]  # a draw of n begins a new pass if fewer are left
            self.take(drawn)
            kept = self.rng.random(len(drawn)) < self.settings["base"] ** self.dead[drawn]
            index_N = np.concatenate([index_N, drawn[kept & ~np.isin(drawn, index_N)]])
        return Selections.unscored(index_N)

    def observe(self, outcomes: Outcomes) -> None:
        z_N = np.minimum(self.dead[outcomes.index_N] + 1, self.settings["longest"])
        self.dead[outcomes.index_N] = np.where(outcomes.live_N, 0, z_N)

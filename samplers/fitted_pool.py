"""Goldilocks with pools that grow as live groups become rare."""

import math

from sampler import Context, Goldilocks


class FittedPool(Goldilocks):
    """Alg. 1 with K = `expected` / f, rounded up, at most --candidates: a pool of K random problems
    then holds `expected` live ones on average. f, the share of live groups, is estimated from those
    that explored, which are drawn uniformly: f = (live + 1) / (explored + `prior`), where both
    counts decay by `decay` a step. Before the first outcome K is `expected` · `prior` = 8, the
    paper's."""

    settings = {"expected": 2.0, "prior": 4.0, "decay": 0.98}
    learned = {"live": 0.0, "explored": 0.0}

    def __init__(self, context: Context):
        super().__init__(context)
        self.most = self.K

    def propose(self, n):
        f = (self.live + 1) / (self.explored + self.settings["prior"])
        self.K = min(self.most, math.ceil(self.settings["expected"] / f))
        return super().propose(n)

    def observe(self, groups):
        super().observe(groups)
        explored = [group for group in groups if group.explored]
        decay = self.settings["decay"]
        self.explored = decay * self.explored + len(explored)
        self.live = decay * self.live + sum(group.live for group in explored)

    def metrics(self):
        """Return `candidates`, the size of the latest pools, beside the usual ones."""
        return super().metrics() | {"candidates": self.K}

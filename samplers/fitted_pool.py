"""Goldilocks with pools that grow as live groups become rare."""

import math

from sampler import Context, Goldilocks


class FittedPool(Goldilocks):
    """Alg. 1 with K = `expected` / f, rounded up, at most --candidates: a pool of K random problems
    then holds `expected` live ones on average. f, the share of live groups, is estimated from those
    that explored, which are drawn uniformly: f = (live + 1) / (explored + `prior`), where both
    counts decay by `decay` a step. Before the first outcome K is `expected` · `prior` = 8, the
    paper's."""

    def __init__(self, context: Context, expected=2.0, prior=4.0, decay=0.98):
        super().__init__(context)
        self.expected = expected
        self.prior = prior
        self.decay = decay
        self.most = self.K
        self.live = 0.0
        self.explored = 0.0

    def propose(self, P):
        f = (self.live + 1) / (self.explored + self.prior)
        self.K = min(self.most, math.ceil(self.expected / f))
        return super().propose(P)

    def observe(self, groups):
        super().observe(groups)
        explored = [group for group in groups if group.explored]
        self.explored = self.decay * self.explored + len(explored)
        self.live = self.decay * self.live + sum(group.live for group in explored)

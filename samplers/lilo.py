"""Screens a pool of problems and trains on those with the highest variance."""

from sampler import Context, best
from samplers.speed import Speed


class Lilo(Speed):
    """LILO (Foster et al., 2025, arXiv 2502.12272): of 4n candidates with 8 attempts each, the n
    with the highest p̂(1-p̂), from notes on the paper. No code of the authors was found, and whether
    the attempts are trained on is not known to us: here they are, with the rest of G. Candidates
    that are live and not chosen return within the pass."""

    def __init__(self, context: Context, screen=8, factor=4):
        super().__init__(context, screen, factor)

    def choose(self, groups):
        """Choose the P live groups with the highest variance."""
        return [group for group in best(groups, self.P, lambda group: group.y) if group.live]

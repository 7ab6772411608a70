"""Screens a pool of problems and trains on those with the highest variance."""

import numpy as np

from sampler import Outcomes
from samplers.speed import Speed


class Lilo(Speed):
    """LILO (Foster et al., 2025, arXiv 2502.12272): of 4n candidates with 8 attempts each, the n
    with the highest p̂(1-p̂), from notes on the paper. No code of the authors was found, and whether
    the attempts are trained on is not known to us: here they are, with the rest of G. Candidates
    that are live and not chosen return within the pass."""

    settings = {"screen": 8, "factor": 4}

    def choose(self, screened: Outcomes, n: int) -> np.ndarray:
        """Choose the n live problems with the highest variance."""
        best = np.argsort(-screened.y_N, kind="stable")[:n]
        return np.sort(best[screened.live_N[best]])

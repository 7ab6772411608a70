"""Shares a step's completions out over its problems by their predicted pass rates."""

import numpy as np

from sampler import Uniform
from samplers.bag_of_words import BagOfWords


def allocate(p_N, total: int, least: int, most: int) -> np.ndarray:
    """Choose each problem's number of completions G in [least, most], `total` in all: int64 (N,).

    Maximises Σ (1 - p^G - (1-p)^G) · p(1-p)², the chance of a live group times its value. The terms
    are concave in G, so giving each next completion where it adds most is optimal."""
    q_N = 1 - p_N
    G_N = np.full(len(p_N), least)
    missing = total - G_N.sum()
    room = (most - G_N).sum()
    for _ in range(min(missing, room)):
        # With one more completion 1 - p^G - (1-p)^G grows by p^G (1-p) + (1-p)^G p.
        all_right_N = p_N**G_N
        all_wrong_N = q_N**G_N
        growth_N = all_right_N * q_N + all_wrong_N * p_N
        gain_N = growth_N * p_N * q_N**2
        is_full_N = G_N == most
        gain_N[is_full_N] = -1
        best = gain_N.argmax()
        G_N[best] += 1
    return G_N


class Knapsack(BagOfWords):
    """Knapsack RL (Li et al., 2025, arXiv 2509.25849): uniform problems, groups of unlike sizes.
    Theirs takes p from stored success rates, and gives what other problems cannot use to those with
    p = 0; here p is the bag of words', as problems are visited once, and every completion goes
    where it adds most."""

    flags = ()
    settings = {"least": 2, "most": 64}

    def propose(self, n):
        groups = Uniform.propose(self, n)
        index_N = [group.problem for group in groups]
        p_N = self.predict(index_N)
        total = n * self.G
        least = min(self.settings["least"], self.G)
        most = max(self.settings["most"], self.G)
        G_N = allocate(p_N, total, least, most)
        sizes = G_N.tolist()
        for group, size in zip(groups, sizes, strict=True):
            group.size = size
        return groups

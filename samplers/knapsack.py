"""Shares a step's completions out over its problems by their predicted pass rates."""

import numpy as np

from sampler import Context, Uniform
from samplers.bag_of_words import BagOfWords


def allocate(p_P, total: int, least: int, most: int) -> np.ndarray:
    """Choose each problem's number of completions G in [least, most], `total` in all: int64 (P,).

    Maximises Σ (1 - p^G - (1-p)^G) · p(1-p)², the chance of a live group times its value. The terms
    are concave in G, so giving each next completion where it adds most is optimal."""
    q_P = 1 - p_P
    G_P = np.full(len(p_P), least)
    while G_P.sum() < total:
        # With one more completion 1 - p^G - (1-p)^G grows by p^G (1-p) + (1-p)^G p.
        all_right_P = p_P**G_P
        all_wrong_P = q_P**G_P
        growth_P = all_right_P * q_P + all_wrong_P * p_P
        gain_P = growth_P * p_P * q_P**2
        is_full_P = G_P == most
        gain_P[is_full_P] = -1
        best = gain_P.argmax()
        G_P[best] += 1
    return G_P


class Knapsack(BagOfWords):
    """Knapsack RL (Li et al., 2025, arXiv 2509.25849; liziniu/KnapsackRL at 05eeb92): uniform
    problems, groups of unlike sizes, with the same value of a completion. Theirs takes p from
    stored success rates, gives problems with p = 0 or 1 `least`, and those with p = 0 also what the
    others are estimated not to use; here p is the bag of words', as problems are visited once, and
    every completion goes where it adds most."""

    @classmethod
    def drawn_by_propose(cls, config):
        return config.prompts_per_step

    def __init__(self, context: Context, least=2, most=64):
        super().__init__(context)
        self.least = min(least, self.G)
        self.most = max(most, self.G)

    def propose(self, P):
        groups = Uniform.propose(self, P)
        problem_P = [group.problem for group in groups]
        p_P = self.predict(problem_P)
        total = P * self.G
        G_P = allocate(p_P, total, self.least, self.most)
        for group, G in zip(groups, G_P.tolist(), strict=True):
            group.size = G
        return groups

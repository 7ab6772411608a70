"""Draws bins of problems by the chance that a group of theirs is live."""

import numpy as np

from grpo import zero_variance_probability
from sampler import Context
from samplers.difficulty_pools import Weighted


class LearnabilityBins(Weighted):
    """Marin's learnability sampler (marin-community/MarinSkyRL, skyrl_train/curriculum.py), with
    the weights of the third round of marin-community/marin#8765. The values of --column are bins.
    Each draw takes a pass rate p ~ Beta(1 + right, 1 + wrong) for each bin, from counts that
    `decay` reduces before a round's are added. A bin's weight is 1 - p^G - (1-p)^G, the complement
    of (Eq. 1). A share below `floor` / bins is raised to it, and then all are divided by their sum;
    within a bin the draw is uniform. A reward between 0 and 1 counts as a part of a success.

    Theirs can also add counts at p = 1/2 in each step: off by default, left out here. It redraws
    a problem that is in the step already; here the step's draws use up a small bin's share."""

    def __init__(self, context: Context, decay=0.95, floor=0.05):
        super().__init__(context)
        self.decay = decay
        self.floor = floor
        values_C, self._bin_of = self.categories()  # C: a bin each
        self.right_C = np.zeros(len(values_C))
        self.wrong_C = np.zeros_like(self.right_C)

    def shares(self) -> np.ndarray:
        """Draw the share of each bin: (C,), with sum 1."""
        p_C = self.rng.beta(1 + self.right_C, 1 + self.wrong_C)
        weight_C = 1 - zero_variance_probability(p_C, self.G)
        share_C = weight_C / weight_C.sum()
        least = self.floor / len(share_C)
        share_C = np.maximum(share_C, least)
        return share_C / share_C.sum()

    def weights(self):
        fitting = self._bin_of[self.status != self.OVERLONG]  # the others are never drawn
        size_C = np.bincount(fitting, minlength=len(self.right_C))
        weight_C = self.shares() / np.maximum(size_C, 1)
        return weight_C[self._bin_of]

    def observe(self, groups):
        self.right_C *= self.decay
        self.wrong_C *= self.decay
        for group in groups:
            c = self._bin_of[group.problem]
            right = sum(group.rewards)
            wrong = len(group.completions) - right
            self.right_C[c] += right
            self.wrong_C[c] += wrong

"""Draws easy and hard problems, by their last pass rate, less often than others."""

import numpy as np

from sampler import Context, Uniform


class Weighted(Uniform):
    """Base of samplers whose `weights` give each problem a weight of at least 0. A step draws from
    all problems in proportion to it, so there is a single pass, in which problems may return."""

    def draw(self, k):
        # If each problem arrives at the rate of its weight, the next to arrive is any of the rest
        # with a probability in proportion to its weight.
        rate = np.maximum(self.weights(), 1e-12)
        time = self.rng.exponential(1 / rate)
        time[self.status == self.OVERLONG] = np.inf
        drawn = self.first_fitting(time.argsort(), k)
        if len(drawn) < k:
            return super().draw(k)  # raises InputError: too few problems fit
        self.status[drawn] = self.DRAWN  # for `coverage`
        return np.array(drawn)


class DifficultyPools(Weighted):
    """The difficulty pools of prime-rl (PrimeIntellect-ai/prime-rl at 559b447, class
    DifficultyPoolSampler), with its defaults. A problem whose last group had a pass rate of at most
    `hard` is hard, of at most `normal` normal, else easy. A hard problem has the weight
    `hard_weight`, an easy one `easy_weight`; normal and untried ones have 1.

    Theirs may draw a problem twice in a step."""

    def __init__(self, context: Context, hard=0.25, normal=0.75, hard_weight=0.2, easy_weight=0.2):
        super().__init__(context)
        self.hard = hard
        self.normal = normal
        self.hard_weight = hard_weight
        self.easy_weight = easy_weight
        self.p_hat = np.full(len(self.problems), np.nan, dtype=np.float32)  # of its last group

    def weights(self):
        weight = np.ones(len(self.p_hat))
        weight[self.p_hat <= self.hard] = self.hard_weight
        weight[self.p_hat > self.normal] = self.easy_weight
        return weight

    def observe(self, groups):
        for group in groups:
            self.p_hat[group.problem] = group.p_hat

"""Replaces groups of low variance by problems that had a high one before."""

import numpy as np

from grpo import Group
from sampler import Context, Uniform, best


def variance(group: Group) -> float:
    """Compute a group's variance over the largest that its size allows, in [0, 1]."""
    G = len(group.completions)
    right = group.successes
    wrong = G - right
    largest = (G // 2) * ((G + 1) // 2)
    return right * wrong / largest


class Vcrl(Uniform):
    """VCRL (Jiang et al., 2025, arXiv 2509.19803). Groups whose relative variance is below `early`,
    after `warm` steps `late`, are replaced in a second round by problems from a memory: those that
    passed before, each at most `replays` times, the highest variance first.

    No code of the authors could be read; the constants come from a summary. Their priority in the
    memory has a momentum, here it is the latest variance. The student is trained on the n groups
    with the highest variance."""

    def __init__(self, context: Context, early=0.3, late=0.8, warm=20, replays=2):
        super().__init__(context)
        self.early = early
        self.late = late
        self.warm = warm
        self.replays = replays
        self.step = 0
        self.priority = np.zeros(len(self.problems), dtype=np.float32)
        self.left = np.zeros(len(self.problems), dtype=np.int8)  # replays

    def propose(self, P):
        self.step += 1
        return super().propose(P)

    def observe(self, groups):
        for group in groups:
            self.priority[group.problem] = variance(group)

    def more(self, groups):
        if len(groups) > self.P:  # a second round has been
            return []
        threshold = self.late if self.step > self.warm else self.early
        tried = [group.problem for group in groups]
        passed = [group.problem for group in groups if variance(group) >= threshold]
        self.left[passed] = self.replays
        kept = np.flatnonzero(self.left > 0)
        memory = np.setdiff1d(kept, tried)
        best_first = np.argsort(-self.priority[memory], kind="stable")
        missing = len(tried) - len(passed)
        replayed = memory[best_first[:missing]]
        self.left[replayed] -= 1
        return self.untried(replayed)

    def train_on(self, groups):
        """Train on the P groups with the highest variance."""
        return best(groups, self.P, variance)

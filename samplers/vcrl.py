"""Replaces groups of low variance by problems that had a high one before."""

import numpy as np

from grpo import Group
from sampler import Uniform, best


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

    flags = ()
    settings = {"early": 0.3, "late": 0.8, "warm": 20, "replays": 2}
    learned = {"step": 0}
    per_problem = {"priority": np.float32(0), "left": np.int8(0)}  # left: replays

    def propose(self, n):
        self.step += 1
        self.n = n
        return super().propose(n)

    def observe(self, groups):
        for group in groups:
            self.priority[group.problem] = variance(group)

    def more(self, groups):
        if len(groups) > self.n:  # a second round has been
            return []
        is_warm = self.step > self.settings["warm"]
        threshold = self.settings["late" if is_warm else "early"]
        tried = [group.problem for group in groups]
        passed = [group.problem for group in groups if variance(group) >= threshold]
        self.left[passed] = self.settings["replays"]
        kept = np.flatnonzero(self.left > 0)
        memory = np.setdiff1d(kept, tried)
        best_first = np.argsort(-self.priority[memory], kind="stable")
        missing = len(tried) - len(passed)
        replayed = memory[best_first[:missing]]
        self.left[replayed] -= 1
        return self.untried(replayed)

    @staticmethod
    def train_on(groups, n):
        """Train on the n groups with the highest variance."""
        return best(groups, n, variance)

"""Draws completions of each problem in rounds, until it has both right and wrong ones."""

from grpo import Group
from sampler import Context, Uniform, join


class ReinforceAda(Uniform):
    """Reinforce-Ada, balanced (Xiong et al., 2025, arXiv 2510.04996; RLHFlow/Reinforce-Ada at
    05be605): up to `rounds` rounds of `completions` each; a problem leaves when it has `quota`
    right and `quota` wrong ones, if right is a reward of 1. --group_size has no effect.

    Theirs trains on 2 · `quota` completions of each problem, with the mean of all as baseline
    (`--advantage_std none`); here all of them are trained on."""

    def __init__(self, context: Context, rounds=4, completions=8, quota=2):
        super().__init__(context)
        self.completions = completions
        self.most = rounds * completions
        self.quota = quota

    def propose(self, P):
        return [Group(group.problem, self.completions) for group in super().propose(P)]

    def more(self, groups, rounds):
        continued = []
        for group in join(groups):
            fewer = min(group.successes, group.size - group.successes)
            if fewer < self.quota and group.size < self.most:
                continued.append(Group(group.problem, self.completions))
        return continued

    def train_on(self, groups):
        """Train on all completions of a problem as one group."""
        return join(groups)

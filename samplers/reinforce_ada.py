"""Draws completions of each problem in rounds, until it has both right and wrong ones."""

from sampler import Uniform


class ReinforceAda(Uniform):
    """Reinforce-Ada, balanced (Xiong et al., 2025, arXiv 2510.04996; RLHFlow/Reinforce-Ada at
    05be605): up to `rounds` rounds of `completions` each; a problem leaves when it has `quota`
    right and `quota` wrong ones. --group_size has no effect.

    Theirs trains on 2 · `quota` completions of each problem, with the mean of all as baseline
    (`--advantage_std none`); here all of them are trained on."""

    flags = ()
    settings = {"rounds": 4, "completions": 8, "quota": 2}

    def propose(self, n):
        groups = super().propose(n)
        for group in groups:
            group.size = self.settings["completions"]
        return groups

    def more(self, groups):
        largest = self.settings["rounds"] * self.settings["completions"]
        quota = self.settings["quota"]
        active = []
        for group in groups:
            wrong = len(group.completions) - group.successes
            if min(group.successes, wrong) < quota and group.size < largest:
                group.size += self.settings["completions"]
                active.append(group)
        return active

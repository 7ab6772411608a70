"""Screens many problems with a few completions each, and continues those whose groups are live."""

from grpo import Group
from plumbing.errors import InputError
from sampler import Context, Uniform


class Speed(Uniform):
    """SPEED (Zhang et al., 2025, arXiv 2506.09016; Zanette-Labs/speed-rl at 80e47b5). A first round
    takes `screen` completions of `factor` · n problems; n with right and wrong ones among them get
    the rest of G, and are trained on whole. A group's p̂ is then biased towards 1/2: its first
    completions chose it.

    Theirs screens for the next step beside this one's second round, and keeps surplus groups for
    later steps; here a step is on-policy, and a surplus returns untrained."""

    flags = ()
    settings = {"screen": 4, "factor": 4}

    def __init__(self, context: Context):
        super().__init__(context)
        screen = self.settings["screen"]
        if self.G <= screen:
            raise InputError(
                f"--group_size {self.G}: this sampler needs more than `screen`, {screen}"
            )

    def propose(self, n):
        self.n = n
        index_M = self.draw(n * self.settings["factor"])
        groups = self.untried(index_M)
        for group in groups:
            group.size = self.settings["screen"]
        return groups

    def more(self, groups):
        if any(group.size == self.G for group in groups):
            return []
        chosen = self.choose(groups, self.n)
        used = [group for group in groups if group in chosen or not group.live]
        self.take([group.problem for group in used])
        for group in chosen:
            group.size = self.G
        return chosen

    def choose(self, groups: list[Group], n: int) -> list[Group]:
        """Choose at most n of the screened groups: the first live ones."""
        live = [group for group in groups if group.live]
        return live[:n]

    @staticmethod
    def train_on(groups, n):
        """Train on the groups that were continued; on none if all that were screened are dead."""
        largest = max(group.size for group in groups)
        return [group for group in groups if group.live and group.size == largest]

"""Screens many problems with a few completions each, and continues those whose groups are live."""

from grpo import Group
from plumbing import plugins
from plumbing.errors import InputError
from sampler import Context, Uniform, join


class Speed(Uniform):
    """SPEED (Zhang et al., 2025, arXiv 2506.09016; Zanette-Labs/speed-rl at 80e47b5). A first round
    takes `screen` completions of `factor` · n problems; n with right and wrong ones among them get
    the rest of G, and are trained on whole. A group's p̂ is then biased towards 1/2: its first
    completions chose it.

    Theirs screens for the next step beside this one's second round, and keeps surplus groups for
    later steps; here a step is on-policy, and all that was screened returns in the next pass."""

    @classmethod
    def drawn_by_propose(cls, config):
        settings = plugins.all_settings(cls, config.sampler_args)
        return config.prompts_per_step * settings["factor"]

    def __init__(self, context: Context, screen=4, factor=4):
        super().__init__(context)
        self.screen = screen
        self.factor = factor
        if self.G <= screen:
            raise InputError(f"speed: --group_size must be above its `screen`, {screen}")

    def propose(self, P):
        index_M = self.draw(P * self.factor)
        return [Group(index, self.screen) for index in index_M.tolist()]

    def more(self, groups, rounds):
        if rounds == 2:
            return []
        rest = self.G - self.screen
        live = [group for group in groups if group.live]
        return [Group(group.problem, rest) for group in live[: self.P]]

    def train_on(self, groups):
        """Train on all completions of the problems of the second round, if there was one."""
        return [group for group in join(groups) if group.size == self.G]

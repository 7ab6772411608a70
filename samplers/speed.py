"""Screens many problems with a few completions each, and continues those whose groups are live."""

import numpy as np

from plumbing.errors import InputError
from sampler import Context, Outcomes, Selections, Uniform


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
        if self.G <= self.settings["screen"]:
            least = f"more than `screen`, {self.settings['screen']}"
            raise InputError(f"--group_size {self.G}: this sampler needs {least}")
        self.screened: Outcomes | None = None

    def propose(self, n: int) -> Selections:
        first = self.settings["screen"]
        if self.screened is None:
            index_N = self.draw(n * self.settings["factor"])
            first_N = np.full(len(index_N), first)
            return Selections.unscored(index_N, completions_N=first_N, again=True)
        index_N = self.screened.index_N[self.choose(self.screened, n)]
        self.take(index_N)
        self.take(self.screened.index_N[~self.screened.live_N])
        return Selections.unscored(index_N, completions_N=np.full(len(index_N), self.G - first))

    def observe(self, outcomes: Outcomes) -> None:
        self.screened = outcomes if self.screened is None else None

    def choose(self, screened: Outcomes, n: int) -> np.ndarray:
        """Choose at most n of the screened problems: the first live ones."""
        return np.flatnonzero(screened.live_N)[:n]

    @staticmethod
    def train_on(outcomes: Outcomes, n: int) -> np.ndarray:
        """Train on the groups that were continued; on none if all that were screened are dead."""
        largest_N = outcomes.completions_N == outcomes.completions_N.max()
        return np.flatnonzero(outcomes.live_N & largest_N)

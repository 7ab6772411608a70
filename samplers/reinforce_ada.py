"""Draws completions of each problem in rounds, until it has both right and wrong ones."""

import numpy as np

from sampler import Context, Outcomes, Selections, Uniform


class ReinforceAda(Uniform):
    """Reinforce-Ada, balanced (Xiong et al., 2025, arXiv 2510.04996; RLHFlow/Reinforce-Ada at
    05be605): up to `rounds` rounds of `completions` each; a problem leaves when it has `quota`
    right and `quota` wrong ones. --group_size has no effect.

    Theirs trains on 2 · `quota` completions of each problem, with the mean of all as baseline
    (`--advantage_std none`); here all of them are trained on."""

    flags = ()
    settings = {"rounds": 4, "completions": 8, "quota": 2}

    def __init__(self, context: Context):
        super().__init__(context)
        self.round = 0  # of this step
        self.active_N = self.right_N = self.wrong_N = np.empty(0, dtype=np.int64)

    def propose(self, n: int) -> Selections:
        if self.round == 0:
            self.active_N = self.draw(n)
            self.take(self.active_N)
            self.right_N, self.wrong_N = np.zeros((2, n), dtype=np.int64)
        self.round += 1
        again = len(self.active_N) > 0 and self.round < self.settings["rounds"]
        self.round *= again
        size_N = np.full(len(self.active_N), self.settings["completions"])
        return Selections.unscored(self.active_N, completions_N=size_N, again=again)

    def observe(self, outcomes: Outcomes) -> None:
        right_N = self.right_N + outcomes.successes_N
        wrong_N = self.wrong_N + outcomes.completions_N - outcomes.successes_N
        active_N = np.minimum(right_N, wrong_N) < self.settings["quota"]
        self.right_N, self.wrong_N = right_N[active_N], wrong_N[active_N]
        self.active_N = outcomes.index_N[active_N]

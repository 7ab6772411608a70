"""Replaces groups of low variance by problems that had a high one before."""

import numpy as np

from sampler import Context, Outcomes, Selections, Uniform


def variance(outcomes: Outcomes) -> np.ndarray:
    """Compute each group's variance over the largest that its size allows: (N,) in [0, 1]."""
    G_N, k_N = outcomes.completions_N, outcomes.successes_N
    return k_N * (G_N - k_N) / ((G_N // 2) * ((G_N + 1) // 2))


class Vcrl(Uniform):
    """VCRL (Jiang et al., 2025, arXiv 2509.19803). Groups whose relative variance is below `early`,
    after `warm` steps `late`, are replaced in a second round by problems from a memory: those that
    passed before, each at most `replays` times, the highest variance first.

    No code of the authors could be read; the constants come from a summary. Their priority in the
    memory has a momentum, here it is the latest variance. The student is trained on the n groups
    with the highest variance."""

    flags = ()
    settings = {"early": 0.3, "late": 0.8, "warm": 20, "replays": 2}
    learned = ("priority", "left")

    def __init__(self, context: Context):
        super().__init__(context)
        self.priority = np.zeros(len(self.problems), dtype=np.float32)
        self.left = np.zeros(len(self.problems), dtype=np.int8)  # replays of those in the memory
        self.missing: int | None = None  # groups to replace in a second round

    def propose(self, n: int) -> Selections:
        if self.missing is None:
            self.tried = self.draw(n)
            self.take(self.tried)
            return Selections.unscored(self.tried, again=True)
        memory = np.setdiff1d(np.flatnonzero(self.left > 0), self.tried)
        best = memory[np.argsort(-self.priority[memory], kind="stable")[: self.missing]]
        self.left[best] -= 1
        return Selections.unscored(best)

    def observe(self, outcomes: Outcomes) -> None:
        early = outcomes.step <= self.settings["warm"]
        score_N = variance(outcomes)
        self.priority[outcomes.index_N] = score_N
        if self.missing is None:
            passed_N = score_N >= self.settings["early" if early else "late"]
            self.left[outcomes.index_N[passed_N]] = self.settings["replays"]
            self.missing = int((~passed_N).sum())
        else:
            self.missing = None

    @staticmethod
    def train_on(outcomes: Outcomes, n: int) -> np.ndarray:
        """Train on the n groups with the highest variance."""
        return np.sort(np.argsort(-variance(outcomes), kind="stable")[:n])

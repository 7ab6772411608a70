"""Skips problems whose latest groups were dead, and refills the step with others."""

import numpy as np

from grpo import Group
from sampler import DynamicSampling, Uniform


class Greso(Uniform):
    """GRESO (Zheng et al., 2025, arXiv 2506.02177; Infini-AI-Lab/GRESO at b277843). A problem whose
    latest z groups were all easy (or all hard) is skipped with probability 1 - max(p^z, 0.01). From
    the second pass on, p_easy and p_hard move by 0.01 a step towards shares of easy and hard groups
    of `dead` / 3 and 2/3 · `dead`. A step begins with `first` · n problems and refills until n
    groups are live, at most `rounds` times; a refill that should suffice is the last.

    Theirs counts a format reward, refills with 64 problems or more, and drops dead groups; here
    they fill a short step up to n. The limit on refills is ours."""

    flags = ()
    settings = {"dead": 0.25, "first": 1.5, "refill": 1.25, "rounds": 10}
    learned = {"p_easy": 0.5, "p_hard": 0.5}
    per_problem = {"streak": np.int16(0)}  # z; below 0: of hard groups

    def propose(self, n):
        self.n = n
        self.most = int(self.settings["first"] * n)  # problems of a round
        self.refills_left = self.settings["rounds"]
        self.tried = []
        return self.refill(self.most)

    def refill(self, n: int):
        """Draw problems until n of them are not skipped; fewer if this step has tried all."""
        kept = []
        last_pass = self.passes + 100
        while len(kept) < n and self.passes < last_pass:
            missing = n - len(kept)
            drawn_N = self.draw(n)[:missing]  # a draw of n begins a new pass if fewer are left
            self.take(drawn_N)
            new = [index for index in self.not_skipped(drawn_N) if index not in self.tried]
            kept += new
            self.tried += new
        return self.untried(kept)

    def not_skipped(self, drawn_N: np.ndarray) -> list[int]:
        """Skip problems at random, by their z."""
        z_N = self.streak[drawn_N]
        p_N = np.where(z_N > 0, self.p_easy, self.p_hard)
        keep_N = np.maximum(p_N ** np.abs(z_N), 0.01)  # the probability
        is_kept_N = self.rng.random(len(drawn_N)) < keep_N
        return drawn_N[is_kept_N].tolist()

    def observe(self, groups):
        self.latest = groups
        for group in groups:
            z = self.streak[group.problem]
            if group.live:
                z = 0
            elif group.p_hat == 1:
                z = max(z, 0) + 1
            else:
                z = min(z, 0) - 1
            self.streak[group.problem] = z

    def more(self, groups):
        live = sum(group.live for group in groups)
        refill = []
        if live < self.n and self.refills_left:
            size = self.refill_size(self.n - live)
            refill = self.refill(size)
        if not refill and self.passes > 1:  # the end of a step
            self.move_probabilities(groups)
        return refill

    def refill_size(self, missing: int) -> int:
        """Return how many problems make up for missing live groups, if as many are live as in the
        latest round; at most a round's. Then count down the refills that are left."""
        live = sum(group.live for group in self.latest)
        expected = self.settings["refill"] * missing * len(self.latest) / max(live, 1e-9)
        suffices = expected <= self.most
        self.refills_left = 0 if suffices else self.refills_left - 1
        size = min(expected, self.most)
        return int(np.ceil(size))

    def move_probabilities(self, groups: list[Group]) -> None:
        """Move p_easy and p_hard after a step with these groups."""
        dead = self.settings["dead"]
        easy = np.mean([group.p_hat == 1 for group in groups])
        hard = np.mean([group.p_hat == 0 for group in groups])
        self.p_easy = moved(self.p_easy, up=easy < dead / 3)
        self.p_hard = moved(self.p_hard, up=hard < dead * 2 / 3)

    train_on = staticmethod(DynamicSampling.train_on)

    def metrics(self):
        """Return `p_easy` and `p_hard` beside the usual ones."""
        probabilities = {"p_easy": self.p_easy, "p_hard": self.p_hard}
        return super().metrics() | probabilities


def moved(p: float, up: bool) -> float:
    """Move a probability by 0.01, within [0.05, 0.95]."""
    p += 0.01 if up else -0.01
    return min(max(p, 0.05), 0.95)

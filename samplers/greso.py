"""Skips problems whose latest groups were dead, and refills the step with others."""

import math

import numpy as np

from grpo import Group
from sampler import Context, Uniform


class Greso(Uniform):
    """GRESO (Zheng et al., 2025, arXiv 2506.02177; Infini-AI-Lab/GRESO at b277843). A problem whose
    latest z groups were all easy (or all hard) is skipped with probability 1 - max(p^z, 0.01). From
    the second pass on, p_easy and p_hard move by 0.01 a step towards shares of easy and hard groups
    of `dead` / 3 and 2/3 · `dead`. A step begins with `first` · n problems and refills until n
    groups are live, at most `rounds` times; a refill that should suffice is the last.

    Theirs counts a format reward, refills with 64 problems or more, and drops dead groups; here
    they fill a short step up to n. The limit on refills is ours."""

    def __init__(self, context: Context, dead=0.25, first=1.5, refill=1.25, rounds=10):
        super().__init__(context)
        self.dead = dead
        self.refill_factor = refill
        self.resample_rounds = rounds  # not 0: train_on takes P groups, live ones first
        self.most = int(first * self.P)  # problems of a round
        self.p_easy = 0.5
        self.p_hard = 0.5
        self.streak = np.zeros(len(self.problems), dtype=np.int16)  # z; below 0: of hard groups

    def propose(self, P):
        self.refills_left = self.resample_rounds
        self.tried = []
        return self.refill(self.most)

    def refill(self, n: int) -> list[Group]:
        """Draw problems until n of them are not skipped; fewer if this step has tried all."""
        kept = []
        last_pass = self.passes + 100
        while len(kept) < n and self.passes < last_pass:
            drawn_P = self.draw(n)[: n - len(kept)]  # of n: a pass ends when fewer are left
            self.take(drawn_P)
            new = [index for index in self.not_skipped(drawn_P) if index not in self.tried]
            kept += new
            self.tried += new
        return self.untried(kept)

    def not_skipped(self, drawn_P) -> list[int]:
        """Skip problems at random, by their z; return the others."""
        z_P = self.streak[drawn_P]
        p_P = np.where(z_P > 0, self.p_easy, self.p_hard)
        probability_P = np.maximum(p_P ** np.abs(z_P), 0.01)
        is_kept_P = self.rng.random(len(drawn_P)) < probability_P
        return drawn_P[is_kept_P].tolist()

    def observe(self, groups):
        self._latest = groups
        for group in groups:
            z = self.streak[group.problem]
            sign = int(group.p_hat == 1) - int(group.p_hat == 0)  # 0: live
            self.streak[group.problem] = sign + (z if z * sign > 0 else 0)

    def more(self, groups):
        missing = self.P - sum(group.live for group in groups)
        refill = []
        if missing > 0 and self.refills_left:
            # As many as are needed if as large a share as in the latest round is live.
            live = sum(group.live for group in self._latest)
            size = self.refill_factor * missing * len(self._latest) / max(live, 1e-9)
            self.refills_left = self.refills_left - 1 if size > self.most else 0
            refill = self.refill(math.ceil(min(size, self.most)))
        if not refill and self.passes > 1:  # the end of a step
            p_hat_P = np.array([group.p_hat for group in groups])
            self.p_easy = moved(self.p_easy, np.mean(p_hat_P == 1), self.dead / 3)
            self.p_hard = moved(self.p_hard, np.mean(p_hat_P == 0), self.dead * 2 / 3)
        return refill


def moved(p: float, share: float, target: float) -> float:
    """Raise p by 0.01 if the share is below its target, else lower it, within [0.05, 0.95]."""
    return min(p + 0.01, 0.95) if share < target else max(p - 0.01, 0.05)

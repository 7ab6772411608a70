"""Skips problems whose latest groups were dead, and refills the step with others."""

import math

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
            not_skipped = self.not_skipped(drawn_N)
            new = [index for index in not_skipped if index not in self.tried]
            kept += new
            self.tried += new
        return self.untried(kept)

    def not_skipped(self, drawn_N) -> list[int]:
        """Skip problems at random, by their z; return the others."""
        z_N = self.streak[drawn_N]
        p_N = np.where(z_N > 0, self.p_easy, self.p_hard)
        power_N = p_N ** np.abs(z_N)  # p^z
        probability_N = np.maximum(power_N, 0.01)
        random_N = self.rng.random(len(drawn_N))
        is_kept_N = random_N < probability_N
        kept_N = drawn_N[is_kept_N]
        return kept_N.tolist()

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
        """Return how many problems a refill needs for the missing live groups, if as large a share
        as in the latest round is live, and count down `refills_left`."""
        tried = len(self.latest)
        live = sum(group.live for group in self.latest)
        wanted = self.settings["refill"] * missing
        size = wanted * tried / max(live, 1e-9)
        if size > self.most:
            self.refills_left -= 1
            return self.most
        self.refills_left = 0
        return math.ceil(size)

    def move_probabilities(self, groups: list[Group]) -> None:
        """Move p_easy and p_hard after a step with these groups."""
        p_hat_N = np.array([group.p_hat for group in groups])
        easy = np.mean(p_hat_N == 1)
        hard = np.mean(p_hat_N == 0)
        target_easy = self.settings["dead"] / 3
        target_hard = 2 * target_easy
        self.p_easy = moved(self.p_easy, easy, target_easy)
        self.p_hard = moved(self.p_hard, hard, target_hard)

    train_on = staticmethod(DynamicSampling.train_on)

    def metrics(self):
        """Return `p_easy` and `p_hard` beside the usual ones."""
        probabilities = {"p_easy": self.p_easy, "p_hard": self.p_hard}
        return super().metrics() | probabilities


def moved(p: float, share: float, target: float) -> float:
    """Raise p by 0.01 if the share is below its target, else lower it, within [0.05, 0.95]."""
    if share < target:
        return min(p + 0.01, 0.95)
    return max(p - 0.01, 0.05)

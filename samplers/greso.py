"""Skips problems whose latest groups were dead, and draws others in their place."""

import numpy as np

from sampler import Context, Uniform


class Greso(Uniform):
    """GRESO (Zheng et al., 2025, arXiv 2506.02177; Infini-AI-Lab/GRESO at b277843). A problem whose
    latest z groups were all easy (or all hard) is skipped with probability 1 - max(p^z, 0.01). From
    the second pass on, p_easy and p_hard move by 0.01 a step towards shares of easy and hard groups
    of `dead` / 3 and 2/3 · `dead`. Rounds of n problems follow until n groups are live, at most
    `rounds` more, as with --resample_rounds.

    Theirs begins with 1.5 · n problems, sizes each further round by the share of live groups in the
    one before, counts a format reward, and drops dead groups, which fill a short step up here."""

    def __init__(self, context: Context, dead=0.25, rounds=10):
        super().__init__(context)
        self.dead = dead
        self.resample_rounds = rounds
        self.p_easy = 0.5
        self.p_hard = 0.5
        self.streak = np.zeros(len(self.problems), dtype=np.int16)  # z; below 0: of hard groups

    def propose(self, P):
        kept = []
        while len(kept) < P:
            drawn_P = self.draw(P)[: P - len(kept)]
            self.take(drawn_P)
            new = [index for index in self.not_skipped(drawn_P) if index not in kept]
            kept += new
        return self.untried(kept)

    def not_skipped(self, drawn_P) -> list[int]:
        """Skip problems at random, by their z; return the others."""
        z_P = self.streak[drawn_P]
        p_P = np.where(z_P > 0, self.p_easy, self.p_hard)
        groups_P = np.abs(z_P)
        probability_P = np.maximum(p_P**groups_P, 0.01)
        is_kept_P = self.rng.random(len(drawn_P)) < probability_P
        return drawn_P[is_kept_P].tolist()

    def observe(self, groups):
        for group in groups:
            z = self.streak[group.problem]
            if group.live:
                z = 0
            elif group.p_hat == 1:
                z = max(z, 0) + 1
            else:
                z = min(z, 0) - 1
            self.streak[group.problem] = z

    def train_on(self, groups):
        """Choose groups as by default; adapt p_easy and p_hard, once a step."""
        if self.passes > 1:
            easy = np.mean([group.p_hat == 1 for group in groups])
            hard = np.mean([group.p_hat == 0 for group in groups])
            self.p_easy = moved(self.p_easy, easy, self.dead / 3)
            self.p_hard = moved(self.p_hard, hard, self.dead * 2 / 3)
        return super().train_on(groups)


def moved(p: float, share: float, target: float) -> float:
    """Raise p by 0.01 if the share is below its target, else lower it, within [0.05, 0.95]."""
    step = 0.01 if share < target else -0.01
    return min(max(p + step, 0.05), 0.95)

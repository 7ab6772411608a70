"""Skips problems whose latest groups were dead, and refills the step with others."""

import numpy as np

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
            # A draw of n begins a new pass if fewer are left.
            drawn = self.draw(n)[: n - len(kept)]
            self.take(drawn)
            z = self.streak[drawn]
            p = np.where(z > 0, self.p_easy, self.p_hard) ** np.abs(z)
            is_kept = self.rng.random(len(drawn)) < np.maximum(p, 0.01)
            kept += [i for i in drawn[is_kept].tolist() if i not in (*self.tried, *kept)]
        self.tried += kept
        return self.untried(kept)

    def observe(self, groups):
        self.latest = groups
        for group in groups:
            z = self.streak[group.problem]
            longer = {0: min(z, 0) - 1, 1: max(z, 0) + 1}
            self.streak[group.problem] = longer.get(group.p_hat, 0)

    def more(self, groups):
        missing = self.n - sum(group.live for group in groups)
        refill = []
        if missing > 0 and self.refills_left:
            live = sum(group.live for group in self.latest)
            expected = self.settings["refill"] * missing * len(self.latest) / max(live, 1e-9)
            self.refills_left -= 1
            if expected <= self.most:
                self.refills_left = 0
            refill = self.refill(int(np.ceil(min(expected, self.most))))
        if not refill and self.passes > 1:  # the end of a step
            easy = np.mean([group.p_hat == 1 for group in groups])
            hard = np.mean([group.p_hat == 0 for group in groups])
            self.p_easy += 0.01 if easy < self.settings["dead"] / 3 else -0.01
            self.p_hard += 0.01 if hard < self.settings["dead"] * 2 / 3 else -0.01
            self.p_easy, self.p_hard = np.clip([self.p_easy, self.p_hard], 0.05, 0.95).tolist()
        return refill

    train_on = staticmethod(DynamicSampling.train_on)

    def metrics(self) -> dict[str, float]:
        """`p_easy` and `p_hard`, beside the usual ones."""
        return super().metrics() | {"p_easy": self.p_easy, "p_hard": self.p_hard}

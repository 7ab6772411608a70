"""Skips problems whose latest groups were dead, and refills the step with others."""

import numpy as np

from grpo import Group
from sampler import Context, DynamicSampling, Uniform


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
    learned = ("streak", "p_2")

    def __init__(self, context: Context):
        super().__init__(context)
        # z: how many of a problem's latest groups were easy; below 0, hard.
        self.streak = np.zeros(len(self.problems), dtype=np.int16)
        self.p_2 = np.full(2, 0.5)  # of easy and of hard problems

    def propose(self, n):
        self.n = n
        self.most = int(self.settings["first"] * n)  # problems of a round
        self.round = 0  # of this step
        self.is_last = False
        return self.kept(self.most, tried=[])

    def kept(self, n: int, tried: list[int]) -> list[Group]:
        """Draw problems until n of them are not skipped; fewer if this step has tried all."""
        kept = []
        last_pass = self.passes + 100
        while len(kept) < n and self.passes < last_pass:
            # A draw of n begins a new pass if fewer are left.
            drawn = self.draw(n)[: n - len(kept)]
            self.take(drawn)
            z = self.streak[drawn]
            p = np.maximum(np.where(z > 0, *self.p_2) ** np.abs(z), 0.01)
            keep = (self.rng.random(len(drawn)) < p) & ~np.isin(drawn, [*tried, *kept])
            kept += drawn[keep].tolist()
        return self.untried(kept)

    def observe(self, groups):
        self.latest = groups
        for group in groups:
            z = self.streak[group.problem]
            easier, harder = max(z, 0) + 1, min(z, 0) - 1
            self.streak[group.problem] = {0: harder, 1: easier}.get(group.p_hat, 0)

    def more(self, groups):
        live = sum(group.live for group in self.latest)
        missing = max(0, self.n - sum(group.live for group in groups))
        expected = self.settings["refill"] * missing * len(self.latest) / max(live, 1e-9)
        if self.is_last or missing == 0:
            self.adapt(groups)
            return []
        self.round += 1
        self.is_last = expected <= self.most or self.round == self.settings["rounds"]
        tried = [group.problem for group in groups]
        refill = self.kept(int(np.ceil(min(expected, self.most))), tried)
        if not refill:  # all problems are tried: the step ends here
            self.adapt(groups)
        return refill

    def adapt(self, groups: list[Group]) -> None:
        """Move p_easy and p_hard, at the end of a step."""
        if self.passes > 1:
            p_hat_N = np.array([group.p_hat for group in groups])
            shares_2 = np.array([(p_hat_N == 1).mean(), (p_hat_N == 0).mean()])
            targets_2 = self.settings["dead"] * np.array([1, 2]) / 3
            self.p_2 = np.clip(self.p_2 + np.where(shares_2 < targets_2, 0.01, -0.01), 0.05, 0.95)

    train_on = staticmethod(DynamicSampling.train_on)

    def metrics(self) -> dict[str, float]:
        """`p_easy` and `p_hard`, beside the usual ones."""
        return super().metrics() | dict(zip(("p_easy", "p_hard"), self.p_2.tolist(), strict=True))

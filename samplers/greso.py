"""Skips problems whose latest groups were dead, and refills the step with others."""

import numpy as np

from sampler import Context, DynamicSampling, Outcomes, Selections, Uniform


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
        self.rounds: list[Outcomes] = []  # of this step
        self.again = False

    def propose(self, n: int) -> Selections:
        size = most = int(self.settings["first"] * n)
        if self.rounds:
            live_N = self.rounds[-1].live_N
            missing = n - sum(int(outcomes.live_N.sum()) for outcomes in self.rounds)
            expected = self.settings["refill"] * max(0, missing) * len(live_N)
            size = expected / max(live_N.sum(), 1e-9)
        self.again = not self.rounds or (size > most and len(self.rounds) < self.settings["rounds"])
        index_N = self.kept(int(np.ceil(min(size, most))))
        return Selections.unscored(index_N, again=self.again)

    def kept(self, n: int) -> np.ndarray:
        """Draw problems until n of them are not skipped; fewer if this step has tried all."""
        index_N, last_pass = np.empty(0, dtype=np.int64), self.passes + 100
        earlier = [outcomes.index_N for outcomes in self.rounds]
        while (wanted := n - len(index_N)) > 0 and self.passes < last_pass:
            drawn = self.draw(n)[:wanted]  # a draw of n begins a new pass if fewer are left
            self.take(drawn)
            z = self.streak[drawn]
            p = np.maximum(np.where(z > 0, *self.p_2) ** np.abs(z), 0.01)
            tried = np.concatenate([index_N, *earlier])
            keep = (self.rng.random(len(drawn)) < p) & ~np.isin(drawn, tried)
            index_N = np.concatenate([index_N, drawn[keep]])
        return index_N

    def observe(self, outcomes: Outcomes) -> None:
        z_N, p_hat_N = self.streak[outcomes.index_N], outcomes.p_hat_N
        easier_N, harder_N = np.maximum(z_N, 0) + 1, np.minimum(z_N, 0) - 1
        z_N = np.where(p_hat_N == 1, easier_N, np.where(p_hat_N == 0, harder_N, 0))
        self.streak[outcomes.index_N] = z_N
        self.rounds.append(outcomes)
        if self.again:
            return
        if self.passes > 1:
            p_hat_N = np.concatenate([outcomes.p_hat_N for outcomes in self.rounds])
            shares_2 = np.array([(p_hat_N == 1).mean(), (p_hat_N == 0).mean()])
            targets_2 = self.settings["dead"] * np.array([1, 2]) / 3
            self.p_2 = np.clip(self.p_2 + np.where(shares_2 < targets_2, 0.01, -0.01), 0.05, 0.95)
        self.rounds = []

    train_on = staticmethod(DynamicSampling.train_on)

    def metrics(self) -> dict[str, float]:
        """`p_easy` and `p_hard`, beside the usual ones."""
        return super().metrics() | dict(zip(("p_easy", "p_hard"), self.p_2.tolist(), strict=True))

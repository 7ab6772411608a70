"""Chooses the best of all candidates by words: live, hard, and few of the same word in a step."""

import math
from collections import Counter

import numpy as np
from scipy.special import expit

from grpo import zero_variance_probability
from sampler import Context, check_utilities, deal, epsilon_greedy
from samplers.noisy_and import NoisyAnd


class Frontier(NoisyAnd):
    """A candidate is worth P(live) · (1-p)^power, where p is the noisy AND's and

        P(live) = 1 - p^G - (1-p)^G

    So the best ones are at the frontier of what the student solves: hard, but live.

    Words are those of the text, its length, the value of --column, and each part of a value of two
    columns. At most `share` of a step has the same word, or the word's share of the candidates if
    that is more.

    A prompt takes a candidate uniformly with probability ε or, if that is more, the probability
    that the mean of p predicts outcomes better than the model of p."""

    best_of_all = False  # its choice is the best of all, but with ε

    def __init__(self, context: Context, rate=1.0, decay=0.9, power=1.0, share=0.5):
        super().__init__(context, rate, decay, power)
        self.share = share
        self.evidence = 0.0  # log odds that the model of p predicts better than the mean of p
        self.uniform_groups = 0.0  # groups that were drawn uniformly, and the sum of their p̂
        self.uniform_p_hat = 0.0

    def words(self, index):
        words = super().words(index)
        characters = len(self.problems.question(index))
        words.append(f"length {round(4 * math.log2(characters))}")
        if self._values_C:
            value = self._values_C[self._value_of[index]]
            parts = value.split(", ")
            if len(parts) > 1:
                words += [f"column {part}" for part in enumerate(parts)]
        return words

    def propose(self, P):
        index_M = self.candidates(P)
        p_M = self.predict(index_M)
        live_M = 1 - zero_variance_probability(p_M, self.G)
        value_M = live_M * (1 - p_M) ** self.power
        utility_M = check_utilities("propose", value_M / 2, value_M.shape)
        rank_M = self.ranks(value_M, [self.entries(index) for index in index_M], P)
        dealt_P_K = deal(rank_M, P)
        choice = epsilon_greedy(-rank_M[dealt_P_K], self.uniform_share(), self.rng)
        return self.select(index_M[dealt_P_K], utility_M[dealt_P_K], choice)

    def uniform_share(self) -> float:
        """Return the probability that a prompt takes a candidate uniformly."""
        return max(self.epsilon, float(expit(-self.evidence)))

    def ranks(self, value_M: np.ndarray, entries_M: list[np.ndarray], P: int) -> np.ndarray:
        """Rank candidates from 0: up to P of the highest value that keep to `share`, then the rest,
        by value, too."""
        frequency = Counter(np.concatenate(entries_M).tolist())
        used = Counter()
        chosen = []
        rest = []
        # Rounded, so that values tie that differ only because p is a product of more factors.
        best_first = np.argsort(-value_M.round(6), kind="stable")
        for position in best_first.tolist():
            words = entries_M[position].tolist()
            is_over = any(
                used[word] + 1 > P * max(self.share, frequency[word] / len(value_M))
                for word in words
            )
            if is_over or len(chosen) == P:
                rest.append(position)
            else:
                chosen.append(position)
                used.update(words)
        rank_M = np.empty(len(value_M), dtype=np.int64)
        rank_M[chosen + rest] = np.arange(len(value_M))
        return rank_M

    def observe(self, groups):
        mean = (self.uniform_p_hat + 0.5) / (self.uniform_groups + 1)
        for group in groups:
            p = self.p(self.entries(group.problem))
            self.evidence += log_likelihood(group.p_hat, p) - log_likelihood(group.p_hat, mean)
        self.evidence *= 0.9
        uniform = [group.p_hat for group in groups if group.explored]
        self.uniform_groups = 0.98 * self.uniform_groups + len(uniform)
        self.uniform_p_hat = 0.98 * self.uniform_p_hat + sum(uniform)
        super().observe(groups)

    def metrics(self):
        """Return `uniform_share`, too."""
        return super().metrics() | {"uniform_share": self.uniform_share()}


def log_likelihood(p_hat: float, p: float) -> float:
    """Compute a group's mean log likelihood under p, which is kept in [0.01, 0.99]."""
    p = min(max(p, 0.01), 0.99)
    return p_hat * math.log(p) + (1 - p_hat) * math.log(1 - p)

"""The best n of all candidates that are live, hard and of a kind whose pass rate rises."""

import math
from collections import Counter
from statistics import NormalDist

import numpy as np
from scipy.special import expit

from grpo import zero_variance_probability
from sampler import Context, check_utilities, deal, epsilon_greedy
from samplers.noisy_and import NoisyAnd

GROUPS = 256  # past groups that the regression sees, at most
LEVEL = 0.3  # prior standard deviation of a problem's p in the window
RISE = 0.2  # prior standard deviation of its rise over the window


class LearningProgress(NoisyAnd):
    """A live group has a gradient, but p does not always rise. A candidate is worth

        P(live) · (1-p)^power · P(rise)

    p is the noisy AND's, P(live) = 1 - p^G - (1-p)^G. P(rise) is the probability that p of problems
    with its words has risen by `rise` in the window, the last quarter of all groups, but at least
    GROUPS: see `slopes`. So the rise is signed, its error counts, and groups that share words are
    pooled. rise=0 leaves P(rise) out.

    Words are those of the text, its length, the value of --column, and each part of a value
    of two columns. At most `share` of a step has the same word, or the word's share of the
    candidates if that is more.

    A prompt takes a candidate uniformly with probability ε or, if that is more, the probability
    that the mean of p predicts outcomes better than the model of p. So all kinds of problems are
    tried again; and evidence that p does not rise ends as the window moves on.

    Teacher-Student Curriculum Learning (Matiisen et al., 2017, arXiv 1707.00183) has the slope of
    each task, without sign or error."""

    best_of_all = False  # its choice is the best of all, but with ε

    def __init__(self, context: Context, rate=1.0, decay=0.9, power=1.0, rise=0.05, share=0.5):
        super().__init__(context, rate, decay, power)
        self.rise = rise
        self.share = share
        self.evidence = 0.0  # log odds that the model of p predicts better than the mean of p
        self.uniform_groups = 0.0  # groups that were drawn uniformly, and the sum of their p̂
        self.uniform_p_hat = 0.0
        self.problem_N = []  # all groups so far
        self.p_hat_N = []

    def words(self, index):
        words = super().words(index)
        characters = len(self.problems.question(index))
        words.append(f"length {round(4 * math.log2(characters))}")
        if self._values_C:
            value = self._values_C[self._value_of[index]]
            parts = value.split(", ")
            words += [f"column {part}" for part in enumerate(parts) if len(parts) > 1]
        return words

    def propose(self, P):
        index_M = self.candidates(P)
        entries_M = [self.entries(index) for index in index_M]
        p_M = self.predict(index_M)
        live_M = 1 - zero_variance_probability(p_M, self.G)
        value_M = live_M * (1 - p_M) ** self.power
        if self.rise:
            value_M *= self.probability_of_rise(entries_M)
        utility_M = check_utilities("propose", value_M / 2, value_M.shape)
        rank_M = self.ranks(value_M, entries_M, P)
        dealt_P_K = deal(rank_M, P)
        self._rank_P_K = rank_M[dealt_P_K]
        return self.select(index_M[dealt_P_K], utility_M[dealt_P_K])

    def choose(self, pool_P_K, utilities_P_K):
        return epsilon_greedy(-self._rank_P_K, self.uniform_share(), self.rng)

    def uniform_share(self) -> float:
        """Return the probability that a prompt takes a candidate uniformly."""
        return max(self.epsilon, float(expit(-self.evidence)))

    def ranks(self, value_M: np.ndarray, entries_M: list[np.ndarray], P: int) -> np.ndarray:
        """Rank candidates from 0 by value, but those that exceed `share` after the first P."""
        frequency = Counter(np.concatenate(entries_M).tolist())
        used = Counter()
        chosen = []
        rest = []
        best_first = np.argsort(-value_M.round(6), kind="stable")  # ranks may round differently
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

    def probability_of_rise(self, entries_M: list[np.ndarray]) -> np.ndarray:
        """Compute P(rise) of problems with these words, from groups all over the window: (M,)."""
        N = len(self.problem_N)
        if not N:
            return np.ones(len(entries_M))
        window = max(GROUPS, N // 4)
        seen_W = np.linspace(max(0, N - window), N - 1, min(N, GROUPS)).astype(np.int64)
        mean_M, deviation_M = slopes(
            [self.entries(self.problem_N[n]) for n in seen_W],
            (seen_W - N) / window,
            np.array(self.p_hat_N)[seen_W],
            entries_M,
            self.G,
        )
        score_M = (mean_M - self.rise) / deviation_M
        return np.array([NormalDist().cdf(score) for score in score_M])

    def observe(self, groups):
        mean = (self.uniform_p_hat + 0.5) / (self.uniform_groups + 1)
        for group in groups:
            p = self.p(self.entries(group.problem))
            self.evidence += log_likelihood(group.p_hat, p) - log_likelihood(group.p_hat, mean)
        self.evidence *= 0.9
        uniform = [group.p_hat for group in groups if group.explored]
        self.uniform_groups = 0.98 * self.uniform_groups + len(uniform)
        self.uniform_p_hat = 0.98 * self.uniform_p_hat + sum(uniform)
        self.problem_N += [group.problem for group in groups]
        self.p_hat_N += [group.p_hat for group in groups]
        super().observe(groups)

    def metrics(self):
        """Return `uniform_share`, too."""
        return super().metrics() | {"uniform_share": self.uniform_share()}


def log_likelihood(p_hat: float, p: float) -> float:
    """Compute a group's mean log likelihood under p, which is kept in [0.01, 0.99]."""
    p = min(max(p, 0.01), 0.99)
    return p_hat * math.log(p) + (1 - p_hat) * math.log(1 - p)


def slopes(entries_W, time_W, p_hat_W, entries_M, G: int) -> tuple[np.ndarray, np.ndarray]:
    """Regress p̂ of W groups on a level and a slope in time of their words, by Bayes' rule with
    normal priors and binomial noise. Returns the mean and standard deviation of the slopes of M
    problems, (M,) each."""
    word_U, count_U = np.unique(np.concatenate(entries_W), return_counts=True)
    share_U = count_U / len(entries_W)
    scale_U = np.sqrt(share_U * (1 - share_U))  # a word of all or of few groups tells little
    x_W_U = features(entries_W, word_U, scale_U)
    alike_W_W = x_W_U @ x_W_U.T
    alike_M_W = features(entries_M, word_U, scale_U) @ x_W_U.T
    p_W = (G * p_hat_W + 1) / (G + 2)
    noise_W = p_W * (1 - p_W) / G
    prior_W_W = LEVEL**2 + RISE**2 * np.outer(time_W, time_W)
    slope_M_W = RISE**2 * alike_M_W * time_W  # covariance of slopes and outcomes
    gain_W_M = np.linalg.solve(alike_W_W * prior_W_W + np.diag(noise_W), slope_M_W.T)
    mean_M = (p_hat_W - p_hat_W.mean()) @ gain_W_M
    variance_M = RISE**2 - (slope_M_W * gain_W_M.T).sum(axis=1)
    return mean_M, np.sqrt(np.maximum(variance_M, 1e-9))


def features(entries_M, word_U, scale_U) -> np.ndarray:
    """Return the scales of each problem's words as a vector of length 1, (M, U); 0 without any."""
    row_N = np.repeat(np.arange(len(entries_M)), [len(entry_m) for entry_m in entries_M])
    entry_N = np.concatenate(entries_M)
    column_N = np.searchsorted(word_U, entry_N).clip(max=len(word_U) - 1)
    is_known_N = word_U[column_N] == entry_N
    x_M_U = np.zeros((len(entries_M), len(word_U)))
    x_M_U[row_N[is_known_N], column_N[is_known_N]] = scale_U[column_N[is_known_N]]
    length_M_1 = np.linalg.norm(x_M_U, axis=1, keepdims=True)
    return x_M_U / np.maximum(length_M_1, 1e-9)

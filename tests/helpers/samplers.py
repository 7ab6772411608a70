"""Samplers over made-up problems, with a mock as their teacher."""

from collections import Counter
from types import SimpleNamespace
from unittest.mock import Mock

import numpy as np

import sampler as s


class Numbers:
    """Problems whose question is their index, with a column of values."""

    def __init__(self, n, values=(0.5,)):
        self.n, self.values = n, values

    def __len__(self):
        return self.n

    def question(self, index):
        return str(index)

    def column(self, name):
        values, row = np.unique(np.resize(self.values, self.n), return_inverse=True)
        return [*map(str, values)], row


def build(cls, problems, fits=lambda index: True, settings=None, **config):
    """Build a sampler whose teacher predicts i/1000 for the question "i" and records updates."""
    defaults = {"candidates": 8, "epsilon": 0.0, "seed": 0, "column": "c", "group_size": 16}
    teacher = Mock(predict=lambda questions: np.array([int(q) / 1000 for q in questions]))
    teacher.state_dict.return_value = teacher.metrics.return_value = {}
    config = SimpleNamespace(advantage_std="population", **defaults | config)
    return cls(s.Context(problems, config, fits, teacher, settings or {}))


def outcomes(index, successes, G=16, step=1) -> s.Outcomes:
    """Make outcomes of G completions of each problem, a number or a list, without tokens."""
    columns = index, G, successes, 0, 0
    return s.Outcomes(step, *(np.resize(np.asarray(x, np.int64), len(index)) for x in columns))


def take_step(sampler, n, solve, step=1):
    """Take all rounds of a step, of 16 completions or the sampler's number. solve(index_N, G_N)
    counts the right ones. Returns the rounds' proposals and the step's outcomes."""
    rounds, groups = [], {}
    while not rounds or rounds[-1].again:
        rounds.append(sampler.propose(n))
        counts, index_N = Counter(rounds[-1].rows(16)), rounds[-1].index_N
        G_N = np.array([counts[i] for i in index_N.tolist()], dtype=np.int64)
        right_N = solve(index_N, G_N)
        sampler.observe(outcomes(index_N, right_N, G_N, step))
        for i, group in zip(index_N.tolist(), np.stack([right_N, G_N], 1), strict=True):
            groups[i] = groups.get(i, 0) + group
    return rounds, outcomes([*groups], *np.array([*groups.values()]).T, step)


def same(a: s.Selections, b: s.Selections) -> bool:
    pairs = zip(vars(a).values(), vars(b).values(), strict=True)
    pairs = [(np.asarray(x), np.asarray(y)) for x, y in pairs]
    return all(x.dtype == y.dtype and str(x.tolist()) == str(y.tolist()) for x, y in pairs)

"""Samplers over made-up problems, with a mock as their teacher."""

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
        return values.tolist(), row


def build(cls, problems, fits=lambda index: True, settings=None, **config):
    """Build a sampler whose teacher predicts i/1000 for the question "i" and records updates."""
    config = {"candidates": 8, "epsilon": 0.0, "seed": 0, "column": "c"} | config
    teacher = Mock(predict=lambda questions: np.array([int(q) / 1000 for q in questions]))
    teacher.state_dict.return_value = teacher.metrics.return_value = {}
    return cls(s.Context(problems, SimpleNamespace(**config), fits, teacher, settings or {}))


def outcomes(index, successes, G=16, step=1) -> s.Outcomes:
    """Make outcomes of G completions of each problem, a number or a list, without tokens."""
    columns = index, G, successes, 0, 0
    return s.Outcomes(step, *(np.resize(np.asarray(x, np.int64), len(index)) for x in columns))


def same(a: s.Selections, b: s.Selections) -> bool:
    pairs = zip(vars(a).values(), vars(b).values(), strict=True)
    pairs = [(np.asarray(x), np.asarray(y)) for x, y in pairs]
    return all(x.dtype == y.dtype and str(x.tolist()) == str(y.tolist()) for x, y in pairs)

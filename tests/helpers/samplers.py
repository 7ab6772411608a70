"""Samplers over made-up problems, with a teacher that predicts by a rule."""

from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import NamedTuple

import numpy as np

import sampler
from grpo import Group
from tests.helpers.groups import completion


class Numbers:
    """Problems whose question is their index, with a column of values that repeat."""

    def __init__(self, n, values=(0.5,)):
        self.n = n
        self.values = values

    def __len__(self):
        return self.n

    def question(self, index):
        return str(index)

    def column(self, name):
        values, row = np.unique(np.resize(self.values, self.n), return_inverse=True)
        return [str(value) for value in values], row


class Update(NamedTuple):
    """The arguments of one call of Teacher.update."""

    question: str
    y: float


class RuleTeacher:
    """A teacher that predicts i/1000 for the question "i", and only records what it is taught."""

    def __init__(self):
        self.updates: list[Update] = []

    def predict(self, questions):
        return np.array([int(question) / 1000 for question in questions])

    def update(self, question, y):
        self.updates.append(Update(question, y))

    def metrics(self):
        return {}

    def state_dict(self):
        return {}

    def load_state_dict(self, state): ...


def build(cls, problems, fits=lambda index: True, settings=None, **config):
    """Build a sampler of this class. settings: changes to the class's own; config: to the run's."""
    defaults = {
        "candidates": 8,
        "epsilon": 0.0,
        "seed": 0,
        "column": "c",
        "group_size": 16,
        "advantage_std": "population",
    }
    config = SimpleNamespace(**defaults | config)
    return cls(sampler.Context(problems, config, fits, RuleTeacher(), settings or {}))


@dataclass
class Step:
    """A step of a sampler."""

    rounds: list[dict[int, int]] = field(default_factory=list)  # of each: completions by problem
    groups: list[Group] = field(default_factory=list)  # of the whole step

    def sizes(self) -> list[int]:
        """Count the problems of each round."""
        return [len(drawn) for drawn in self.rounds]


def take_step(sampler, n: int, solve: Callable[[int, int], int]) -> Step:
    """Take all rounds of a step as train_step does. solve(problem, drawn): how many of the
    completions that a round draws for a problem are right."""
    step = Step()
    proposed = sampler.propose(n)
    while proposed:
        drawn = {}
        for group in proposed:
            missing = group.size - len(group.completions)
            right = solve(group.problem, missing)
            group.completions += [completion(reward=i < right) for i in range(missing)]
            drawn[group.problem] = missing
        step.rounds.append(drawn)
        step.groups += [group for group in proposed if group not in step.groups]
        sampler.observe(proposed)
        proposed = sampler.more(step.groups)
    return step

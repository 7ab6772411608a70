"""Samplers over made-up problems, with a teacher that predicts by a rule."""

from collections.abc import Callable
from itertools import chain

import numpy as np

import sampler
from grpo import Group
from plumbing.config import Config
from sampler import check_proposals, check_trained
from tests.helpers.groups import solved


class Numbers:
    """Problems whose question is their index, with a column of values that repeat."""

    def __init__(self, n, values=(0.5,)):
        self.n = n
        self.values = values

    def __len__(self):
        return self.n

    def question(self, index):
        return str(index)

    def categories(self):
        values, row = np.unique(np.resize(self.values, self.n), return_inverse=True)
        return [str(value) for value in values], row


class RuleTeacher:
    """A teacher that predicts i/1000 for the question "i", and only records what it is taught."""

    def __init__(self):
        self.updates: list[tuple[str, float]] = []

    def predict(self, questions):
        return np.array([int(question) / 1000 for question in questions])

    def update(self, question, y):
        self.updates.append((question, y))

    def metrics(self):
        return {}

    def state_dict(self):
        return {}

    def load_state_dict(self, state): ...


def build(cls, problems, fits=lambda index: True, settings=None, **config):
    """Build a sampler of this class. settings: --sampler_args; config: the run's."""
    c = Config(**{"epsilon": 0.0, "column": "c", "prompts_per_step": 2} | config)
    context = sampler.Context(problems, c, fits, RuleTeacher())
    return cls(context, **settings or {})


def take_step(sampler, solve: Callable[[int, int], int]) -> list[list[Group]]:
    """Take a step as train_step does; return the groups of each round. solve(problem, size): how
    many completions of a group are right, the first ones."""
    rounds = []
    proposed = sampler.propose(sampler.P)
    while proposed:
        check_proposals(proposed, len(sampler.problems))
        for group in proposed:
            right = solve(group.problem, group.size)
            group.completions = solved(group.problem, right, of=group.size).completions
        rounds.append(proposed)
        sampler.observe(proposed)
        proposed = sampler.more([*chain(*rounds)], len(rounds))
    return rounds


def train_on(sampler, rounds: list[list[Group]]) -> list[Group]:
    """Return the groups that the sampler chooses to train on, as train_step does."""
    groups = [*chain(*rounds)]
    trained = sampler.train_on(groups)
    check_trained(trained, groups)
    return trained

"""A step's row of metrics.jsonl, as far as it is computed from the step's groups.

docs/run_folder.md explains each key. The update adds the loss and the norm, and the sampler its own
numbers, with its Teacher's.
"""

import math
from collections import Counter, defaultdict
from collections.abc import Container

import numpy as np

import grpo
from grpo import Group
from plumbing.data.problems import Problems

Metrics = dict[str, float | None]  # by key of metrics.jsonl


class History:
    """The groups of all earlier steps: which problems they have tried and, with --column, which of
    its values are flat. The groups of a problem in a step count as one. rows: those steps' of
    selections.jsonl."""

    LEAST = 32  # groups of a value that is judged

    def __init__(self, rows: list[dict], problems: Problems, column: str = ""):
        self.tried: set[int] = set()
        self.column = column
        if column:
            self.names, self.value_of = problems.categories()
        # By name of a value: right and all completions of its first n groups, for n from 0 on.
        self.sums_of = defaultdict(lambda: [(0, 0)])
        right = Counter()
        completions = Counter()
        for row in rows:
            whole = row["step"], row["chosen"]
            right[whole] += row["successes"]
            completions[whole] += row["completions"]
        for step, problem in completions:
            self._add(problem, right[step, problem], completions[step, problem])

    def add(self, groups: list[Group]) -> None:
        """Add the groups of a step, one for each problem."""
        for group in groups:
            self._add(group.problem, group.successes, len(group.completions))

    def _names_of(self, problem: int) -> list[str]:
        """Return the names of the problem's values: of two columns "mod, 3", the pair's, and "mod",
        the first's. None without a column."""
        if not self.column:
            return []
        name = self.names[self.value_of[problem]]
        return [name, name.partition(", ")[0]] if "," in self.column else [name]

    def _add(self, problem: int, right: int, completions: int) -> None:
        self.tried.add(problem)
        for name in self._names_of(problem):
            right_so_far, completions_so_far = self.sums_of[name][-1]
            sums = right_so_far + right, completions_so_far + completions
            self.sums_of[name].append(sums)

    def is_flat(self, problem: int) -> bool:
        """Whether the pass rate of the problem's value has not risen: of its n groups the later
        half's is not above the earlier half's by more than 2 standard errors of the difference,
        those of two shares. A pair with fewer than LEAST groups is judged by the value of the
        first column. False if that has fewer, too."""
        for name in self._names_of(problem):
            sums = self.sums_of[name]
            n = len(sums) - 1
            if n >= self.LEAST:
                right, completions = np.diff([sums[0], sums[n // 2], sums[n]], axis=0).T
                earlier, later = right / completions
                p = right.sum() / completions.sum()
                error = math.sqrt(p * (1 - p) * (1 / completions).sum())
                return bool(later - earlier <= 2 * error)
        return False

    def live_but_flat(self, groups: list[Group]) -> float | None:
        """Return the share of groups that are live but of a flat value; None where no value has
        LEAST groups, as without --column."""
        if not any(len(sums) > self.LEAST for sums in self.sums_of.values()):
            return None
        return _mean([group.live and self.is_flat(group.problem) for group in groups])


def step_metrics(groups: list[Group], trained: list[Group], history: History) -> Metrics:
    """Compute the statistics of a step's groups, one for each problem, of which the student is
    trained on `trained`."""
    return {
        "live_but_flat": history.live_but_flat(groups),
        **reward_metrics(groups),
        "trained_live": _mean([group.live for group in trained]),
        "tried_before": _mean([group.problem in history.tried for group in groups]),
        **teacher_metrics(groups, history.tried),
        **completion_metrics(groups),
    }


def reward_metrics(groups: list[Group]) -> Metrics:
    """(Section 5.3) Compute the rewards' mean and std, and the share of dead groups: easy ones have
    a reward above 1/2, which of 0 and 1 is 1."""
    completions = [completion for group in groups for completion in group.completions]
    batch = Group(0, len(completions), completions=completions)  # all rewards of the step
    dead = [group for group in groups if not group.live]
    easy = [group for group in dead if group.p_hat > 1 / 2]
    return {
        "reward_mean": batch.p_hat,
        "reward_std_group": _mean([group.y for group in groups]),  # mean of the groups' std
        "reward_std_batch": batch.y,  # std of all rewards
        "zero_variance": len(dead) / len(groups),
        "zero_variance_easy": len(easy) / len(groups),
        "zero_variance_hard": (len(dead) - len(easy)) / len(groups),
        "groups": len(groups),
        "completions": len(completions),
    }


def teacher_metrics(groups: list[Group], tried: Container[int]) -> Metrics:
    """(Section 5.4) Compute the mean |f - y| on unseen problems, those that no earlier step has
    tried, f from before the outcome: over all with a prediction, over those that explored, which
    have no selection bias, and over dead ones. They mean nothing where the target is not y.
    teacher_mu and _sigma are over all candidates."""
    unseen = [group for group in groups if group.problem not in tried]
    predicted = [group for group in unseen if not math.isnan(group.utility)]
    explored = [group for group in predicted if group.explored]
    dead = [group for group in predicted if not group.live]
    floors = [grpo.noise_floor(group.binary_p_hat, len(group.completions)) for group in predicted]
    utilities = np.concatenate([group.utilities for group in groups])
    known = utilities[~np.isnan(utilities)]
    return {
        "teacher_mae": _mean_error(predicted),
        "teacher_mae_explore": _mean_error(explored),
        "teacher_mae_dead": _mean_error(dead),
        "teacher_noise_floor": _mean(floors),
        "teacher_mu": _mean(known),
        "teacher_sigma": float(known.std()) if len(known) else None,
    }


def completion_metrics(groups: list[Group]) -> Metrics:
    """Compute shares of a step's completions, and token counts."""
    completions = []
    prompt_tokens = 0
    for group in groups:
        completions += group.completions
        prompt_tokens += len(group.prompt_ids) * len(group.completions)
    B = len(completions)
    completion_tokens = sum(len(each.ids) for each in completions)
    number = Counter(each.status for each in completions)
    failures = number["too_long"] + number["timeout"] + number["memory"] + number["crash"]
    return {
        "truncated": sum(not each.finished for each in completions) / B,
        "no_box": number["no_box"] / B,
        "bad_gold": number["bad_gold"] / B,
        "verify_failures": failures / B,
        "completion_tokens": completion_tokens,
        "total_tokens": prompt_tokens + completion_tokens,
    }


def _mean_error(groups: list[Group]) -> float | None:
    return _mean([abs(group.utility - group.y) for group in groups])


def _mean(values) -> float | None:
    return float(np.mean(values)) if len(values) else None

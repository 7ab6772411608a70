"""Groups whose completions and rewards are given."""

from grpo import Completion, Group


def completion(reward=0.0, ids=(2,), finished=True, status="") -> Completion:
    """Make a completion of the token ids; the generator drew each with log-prob 0."""
    logps = [0.0] * len(ids)
    return Completion(list(ids), logps, finished=finished, status=status, reward=float(reward))


def group(problem, rewards, **proposal) -> Group:
    """Make a graded group with one completion of one token for each reward. proposal: `pool`,
    `utilities` and `explored`."""
    made = Group(problem, size=len(rewards), prompt_ids=[1], **proposal)
    made.completions = [completion(reward) for reward in rewards]
    return made


def solved(problem, right, of=16, **proposal) -> Group:
    """Make a graded group in which `right` of the completions are right, the first ones."""
    return group(problem, [1] * right + [0] * (of - right), **proposal)


def problems_of(groups: list[Group]) -> list[int]:
    """Return the problem of each group."""
    return [each.problem for each in groups]

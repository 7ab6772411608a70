"""The rows of a run's other logs: selections.jsonl, samples.jsonl and evals/."""

from collections.abc import Callable
from pathlib import Path

from grpo import Completion, Group
from plumbing.config import is_due
from plumbing.files import read_lines
from plumbing.run.directory import RunDir

TAIL = 1000  # characters of a completion, its last, that evals/ keeps


def log_groups(run: RunDir, step: int, groups: list[Group], decode: Callable) -> None:
    """Log the groups of a step and, at the first step and at evaluations, the first completion of
    three problems."""
    run.log("selections", [selection(step, group) for group in groups])
    if step == 1 or is_due(step, run.config.eval_every, run.config.steps):
        run.log("samples", [sample(step, group, decode) for group in groups[:3]])


def logged_groups(run: Path, step: int) -> list[dict]:
    """Return the rows of a run's selections.jsonl up to a step."""
    rows = read_lines(run / "selections.jsonl", torn=True)
    return [row for row in rows if row["step"] <= step]


def selection(step: int, group: Group) -> dict:
    """Make a row of selections.jsonl: a group and its outcome."""
    return {
        "step": step,
        "pool": group.pool,
        "utilities": group.utilities,
        "chosen": group.problem,
        "explored": group.explored,
        "completions": len(group.completions),
        "successes": group.successes,
        "p_hat": group.p_hat,
        "y": group.y,
    }


def sample(step: int, group: Group, decode: Callable) -> dict:
    """Make a row of samples.jsonl: the first completion of a group."""
    first = group.completions[0]
    return {
        "step": step,
        "problem": group.problem,
        "status": first.status,
        "prompt": decode(group.prompt_ids),
        "completion": decode(first.ids),
    }


def graded_row(group: Group, decode: Callable) -> dict:
    """Make a row of evals/: a problem with its completion, none if its prompt is too long."""
    none = Completion([], [], finished=False, status="overlong_prompt")
    [answer] = group.completions or [none]
    return {
        "problem": group.problem,
        "reward": answer.reward,
        "status": answer.status,
        "tokens": len(answer.ids),
        "completion": decode(answer.text_ids)[-TAIL:],  # the box is at the end
        "temperature": 0.0,
    }

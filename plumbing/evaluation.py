"""Accuracy on the validation problems, amid a run."""

import time
from pathlib import Path

from plumbing.files import write_lines
from plumbing.show import Stopwatch


def evaluate(student, problems, step: int, folder: Path) -> dict[str, float]:
    """Greedy pass@1 on every problem (Table 5a), spread over the ranks. Verdicts go to evals/.
    Of an evaluation that is asked to stop nothing is kept: {}."""
    c, n, start = student.config, student.layout.n_students, time.perf_counter()
    tokens = [len(student.encode(problems.question(i))) for i in range(len(problems))]
    fits = [i for i, length in enumerate(tokens) if length <= c.max_prompt_tokens]
    overlong = set(range(len(problems))) - set(fits)
    rows = [(i, 0.0, "overlong_prompt", 0) for i in overlong]  # they count as wrong
    # A micro-batch of each rank at a time.
    longest = max((tokens[i] for i in fits), default=0) + c.max_completion_tokens
    at_once = n * max(1, c.max_rollout_tokens // longest)
    for part in (fits[i : i + at_once] for i in range(0, len(fits), at_once)):
        if student.layout.stopping():
            return {}
        order = [i for r in range(n) for i in part[r::n]]  # neighbours are often alike
        graded = student.rollout(problems, order, 0.0, (0, step), Stopwatch())
        lengths = graded.lengths().tolist()
        rows += zip(order, graded.rewards, graded.statuses, lengths, strict=True)
    if student.layout.rank == 0:
        names = ("problem", "reward", "status", "tokens")
        lines = [dict(zip(names, row, strict=True)) for row in sorted(rows)]
        write_lines(folder / "evals" / f"step_{step}.jsonl", lines)
    accuracy = sum(row[1] for row in rows) / len(rows)
    return {"val_accuracy": accuracy, "eval_s": time.perf_counter() - start}

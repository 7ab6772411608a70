"""Make the training sets of this study: the demo's problems in other proportions.

    python -m studies.sparsity.mixtures --out data/sparsity

Writes 60.jsonl, 84.jsonl, …, named after the share of uniform sampling's groups that are dead, for
the demo's base model and validation problems. unnamed/ has a base model, validation problems and a
training set like 98.jsonl whose problems do not name their topic.
"""

import random
from pathlib import Path

from plumbing.files import read_lines, write_lines
from scripts import analysis
from studies import toy_task
from studies.toy_task import MASTERED, OUT, REACH, Task

# Dead groups, % -> rows; shares of them within reach and mastered. The other rows are out of reach.
MIXTURES = {
    "60": (12_000, 0.60, 0.10),
    "84": (30_000, 0.20, 0.10),
    "95": (60_000, 0.066, 0.032),
    "98": (107_000, 0.028, 0.014),
    "99.5": (430_000, 0.007, 0.0035),
}


def mixture(task: Task, base: Path, rows: int, within: float, mastered: float) -> list[dict]:
    """Draw distinct training problems, as toy_task.make_problems, that are not in base/val.jsonl.
    Each share is spread evenly over the topics of its kind."""
    held_out = {row["problem"] for row in read_lines(base / "val.jsonl")}
    counts = {REACH: round(rows * within), MASTERED: round(rows * mastered)}
    counts[OUT] = rows - sum(counts.values())
    topics = toy_task.make_skills(task, seed=0).items()
    problems = []
    # Streams 0 to 2 of the seed are toy_task's: rates, problems, demonstrations.
    for stream, (rates, count) in enumerate(counts.items(), start=10):
        of_kind = zip(topics, task.rates, strict=True)
        skills = dict(topic for topic, of_topic in of_kind if of_topic == rates)
        drawn = toy_task.make_problems(count + len(held_out), task, skills, stream)
        problems += [row for row in drawn if row["problem"] not in held_out][:count]
    random.Random(0).shuffle(problems)
    return problems


def main():
    """Write the files."""
    out = analysis.parser(__doc__, out="data/sparsity").parse_args().out
    for name, shares in MIXTURES.items():
        write_lines(out / f"{name}.jsonl", mixture(Task(), Path("demo"), *shares))
    unnamed = Task(named=False)
    toy_task.make(unnamed, out / "unnamed")
    rows = mixture(unnamed, out / "unnamed", *MIXTURES["98"])
    write_lines(out / "unnamed" / "98.jsonl", rows)


if __name__ == "__main__":
    main()

"""Make the training sets of this study: the demo's problems in other proportions.

    python -m studies.sparsity.mixtures --out data/sparsity

Writes 60.jsonl, 84.jsonl, …, named after the share of uniform sampling's groups that are dead, for
the demo's base model and validation problems. unnamed/ has a base model, validation problems and a
training set like 98.jsonl whose problems do not name their topic.
"""

import argparse
import random
from pathlib import Path

from plumbing.command_line import file_path
from plumbing.files import read_lines, write_lines
from studies import toy_task
from studies.toy_task import MASTERED, REACH, Task

# Dead groups, % -> rows; shares of them within reach and mastered. The other rows are out of reach.
MIXTURES = {
    "60": (12_000, 0.60, 0.10),
    "84": (30_000, 0.20, 0.10),
    "95": (60_000, 0.066, 0.032),
    "98": (107_000, 0.028, 0.014),
    "99.5": (430_000, 0.007, 0.0035),
}
UNNAMED = "98"


def mixture(task: Task, seed: int, rows: int, within: float, mastered: float, held_out: set):
    """Draw distinct training problems, as toy_task.make_problems. Each share is spread evenly over
    the topics of its kind; held_out: texts of validation problems, which are left out."""
    skills = toy_task.make_skills(task, seed)
    by_kind = {"within": [], "mastered": [], "out": []}
    kind_of = {REACH: "within", MASTERED: "mastered"}
    for topic, rates in zip(toy_task.TOPICS, task.rates, strict=True):
        by_kind[kind_of.get(rates, "out")].append(topic)
    counts = {"within": round(rows * within), "mastered": round(rows * mastered)}
    counts["out"] = rows - sum(counts.values())
    problems = []
    for number, (kind, count) in enumerate(counts.items()):
        chosen = {w: skill for w, skill in skills.items() if skill.topic in by_kind[kind]}
        # The seed's other streams are toy_task's: rates, problems, demonstrations.
        drawn = toy_task.make_problems(count + len(held_out), task, chosen, seed + 10 + number)
        problems += [row for row in drawn if row["problem"] not in held_out][:count]
    random.Random(seed).shuffle(problems)
    return problems


def main():
    """Write the files."""
    parser = argparse.ArgumentParser(description="Make the training sets of the study of sparsity.")
    parser.add_argument("--out", type=file_path, default=Path("data/sparsity"))
    out = parser.parse_args().out
    held_out = {row["problem"] for row in read_lines(Path("demo/val.jsonl"))}
    for name, shares in MIXTURES.items():
        write_lines(out / f"{name}.jsonl", mixture(Task(), 0, *shares, held_out))
    unnamed = Task(named=False)
    toy_task.make(unnamed, out / "unnamed", 0)
    held_out = {row["problem"] for row in read_lines(out / "unnamed" / "val.jsonl")}
    rows = mixture(unnamed, 0, *MIXTURES[UNNAMED], held_out)
    write_lines(out / "unnamed" / f"{UNNAMED}.jsonl", rows)


if __name__ == "__main__":
    main()

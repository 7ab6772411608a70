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
from studies.toy_task import MASTERED, OUT, RATES, REACH

# Dead groups, % -> rows; shares of them within reach and mastered. The other rows are out of reach.
MIXTURES = {
    "60": (12_000, 0.60, 0.10),
    "84": (30_000, 0.20, 0.10),
    "95": (60_000, 0.066, 0.032),
    "98": (107_000, 0.028, 0.014),
    "99.5": (430_000, 0.007, 0.0035),
}


def write_mixture(base: Path, name: str, out: Path, named: bool = True) -> None:
    """Write one of MIXTURES: distinct training problems, as of toy_task.make_problems, that are not
    in base/val.jsonl. Each share is spread evenly over the topics of its kind."""
    rows, within, mastered = MIXTURES[name]
    n_within = round(rows * within)
    n_mastered = round(rows * mastered)
    counts = {
        REACH: n_within,
        MASTERED: n_mastered,
        OUT: rows - n_within - n_mastered,
    }
    held_out = {row["problem"] for row in read_lines(base / "val.jsonl")}
    topics = toy_task.make_skills()
    kind_of = dict(zip(topics, RATES, strict=True))
    problems = []
    # Streams 0 to 2 of the seed are toy_task's: rates, problems, demonstrations.
    for stream, (kind, count) in enumerate(counts.items(), start=10):
        skills = {topic: topics[topic] for topic in topics if kind_of[topic] == kind}
        drawn = toy_task.make_problems(count + len(held_out), skills, stream, named)
        problems += [row for row in drawn if row["problem"] not in held_out][:count]
    random.Random(0).shuffle(problems)
    write_lines(out / f"{name}.jsonl", problems)


def main():
    """Write the files."""
    out = analysis.parser(__doc__, out="data/sparsity").parse_args().out
    for name in MIXTURES:
        write_mixture(Path("demo"), name, out)
    unnamed = out / "unnamed"
    toy_task.make(unnamed, named=False)
    write_mixture(unnamed, "98", unnamed, named=False)


if __name__ == "__main__":
    main()

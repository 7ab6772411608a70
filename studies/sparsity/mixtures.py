"""Make the training sets of this study: the demo's problems in other proportions.

    python -m studies.sparsity.mixtures --out data/sparsity

Writes 60.jsonl, 84.jsonl, …, named after the share of dead groups that was expected, for
the demo's base model and validation problems. unnamed/ has a base model, validation problems and a
training set like 98.jsonl whose problems do not name their topic.
"""

import random
from pathlib import Path

from plumbing.files import read_lines, write_lines
from scripts.command import exit_on_error, make_parser
from studies import toy_task
from studies.toy_task import MASTERED, OUT, RATES, REACH

KINDS = (REACH, MASTERED, OUT)  # of topics
MIXTURES = {  # name -> rows of each kind
    "60": (7_200, 1_200, 3_600),
    "84": (6_000, 3_000, 21_000),
    "95": (3_960, 1_920, 54_120),
    "98": (2_996, 1_498, 102_506),
    "99.5": (3_010, 1_505, 425_485),
}


def write_mixture(base: Path, name: str, out: Path, named: bool = True) -> None:
    """Write one of MIXTURES: distinct training problems, as of toy_task.make_problems, that are not
    in base/val.jsonl. Those of a kind are spread evenly over the topics of its kind."""
    held_out = {row["problem"] for row in read_lines(base / "val.jsonl")}
    topics = toy_task.make_skills()
    kind_of = dict(zip(topics, RATES, strict=True))
    problems = []
    # Streams 0 to 2 of the seed are toy_task's: rates, problems, demonstrations.
    for stream, (kind, count) in enumerate(zip(KINDS, MIXTURES[name], strict=True), start=10):
        skills = {topic: topics[topic] for topic in topics if kind_of[topic] == kind}
        drawn = toy_task.make_problems(count + len(held_out), skills, stream, named)
        problems += [row for row in drawn if row["problem"] not in held_out][:count]
    random.Random(0).shuffle(problems)
    write_lines(out / f"{name}.jsonl", problems)


def main():
    """Write the files."""
    with exit_on_error("mixtures"):
        out = make_parser(__doc__, out="data/sparsity").parse_args().out
        for name in MIXTURES:
            write_mixture(Path("demo"), name, out)
        unnamed = out / "unnamed"
        toy_task.make(unnamed, named=False)
        write_mixture(unnamed, "98", unnamed, named=False)


if __name__ == "__main__":
    main()

"""Make two sparser training sets for SmolLM2: more reasoning-gym rows of levels out of reach.

    python -m studies.sparsity.reasoning --out data/reasoning-sparse

Writes 92.jsonl and 97.jsonl, named after the share of dead groups that studies/real_model/base.csv
predicts for the base model of docs/real_model.md. A level is out of reach if the base answered none
of its validation problems in 16 completions each, nor of its problems in a first probe: of these
files with all 17 unanswered levels, where 5.0% and 2.6% of those levels' groups were live. Both
files have the same rows within reach. As in prepare_data, no problem is a validation problem.
"""

import random
from pathlib import Path

import pandas as pd

from plumbing.files import read_lines, write_lines
from scripts import reasoning_tasks
from scripts.command import exit_on_error, make_parser
from scripts.prepare_data import normalise

BASE = Path("studies/real_model/base.csv")
DATA = Path("data/reasoning-gym")
WITHIN = 1500  # rows of the levels within reach; 42% of their groups are live
OUT_OF_REACH = {"92": 6400, "97": 19_500}  # rows
IN_REACH = {  # in the first probe
    "chain_sum, 4",
    "chain_sum, 6",
    "complex_arithmetic, 3",
    "fraction_simplification, 3",
    "leg_counting, 4",
    "products, 2",
}
PER_LEVEL = 2200  # rows drawn for a level; some are repeated


def level(row: dict) -> str:
    """Return a row's task and level, as BASE has them."""
    return f"{row['task']}, {row['level']}"


def main():
    """Write the files."""
    with exit_on_error("reasoning"):
        out = make_parser(__doc__, out="data/reasoning-sparse").parse_args().out
        base = pd.read_csv(BASE)
        unanswered = {*base["task,level"][base.p == 0]}
        hard = unanswered - IN_REACH
        held_out = {normalise(row["problem"]) for row in read_lines(DATA / "val.jsonl")}
        within = [row for row in read_lines(DATA / "train.jsonl") if level(row) not in unanswered]
        rows = reasoning_tasks.rows(seed=1, per_level=PER_LEVEL)
        usable = [row for row in rows if level(row) in hard and row["expected_answer"]]
        distinct = {normalise(row["problem"]): row for row in usable}
        beyond = [distinct[text] for text in distinct if text not in held_out]
        random.Random(0).shuffle(beyond)
        for name, count in OUT_OF_REACH.items():
            mixture = within[:WITHIN] + beyond[:count]
            random.Random(0).shuffle(mixture)
            write_lines(out / f"{name}.jsonl", mixture)


if __name__ == "__main__":
    main()

r"""Make two sparse training sets for a base model: more rows of levels out of its reach.

    python train.py --preset reasoning --model models/cold --learning_rate 0 --steps 40 \
        --eval_every 40 --seed 99 --out runs/base
    python -m studies.sparsity.reasoning runs/base --out data/reasoning-sparse

The rows are of reasoning-gym. The run, whose model does not learn, counts live groups by task and
level. A level is out of reach if none of its completions was right; one that the run has no group
of is left out. Writes 92.jsonl and 97.jsonl, named after the share of the base's groups that should
then be dead, and levels.csv with the counts. Both files have the same rows within reach. As in
prepare_data, no problem is a validation problem.
"""

import random
from pathlib import Path

from plumbing.errors import InputError
from plumbing.files import read_lines, write_lines
from scripts import reasoning_tasks
from scripts.command import exit_on_error, make_parser
from scripts.prepare_data import normalise
from scripts.study.probe import read_groups
from scripts.study.runs import Run

DATA = Path("data/reasoning-gym")
COLUMN = "task,level"
WITHIN = 1500  # rows of the levels within reach
SHARES = [0.92, 0.97]  # of dead groups
PER_LEVEL = 2200  # rows drawn for a level; some are repeated


def level(row: dict) -> str:
    """Return a row's task and level, as the categories of a run have them."""
    return f"{row['task']}, {row['level']}"


def rows_out_of_reach(dead: float, share: float) -> int:
    """Return how many rows whose groups are all dead must join the rows within reach, for a share
    of dead groups in both together. dead: the share within reach."""
    return round(WITHIN * (share - dead) / (1 - share))


def main():
    """Write the files."""
    with exit_on_error("reasoning"):
        parser = make_parser(__doc__, out="data/reasoning-sparse")
        parser.add_argument("run", type=Path, help="the run that counts")
        options = parser.parse_args()
        groups = read_groups(Run.load(options.run), COLUMN)
        levels = groups.assign(live=groups.y > 0).groupby("category")
        levels = levels.agg(groups=("p_hat", "size"), p=("p_hat", "mean"), live=("live", "mean"))
        reached = {*levels.index[levels.p > 0]}
        missed = {*levels.index[levels.p == 0]}
        rows = [row for row in read_lines(DATA / "train.jsonl") if level(row) in reached][:WITHIN]
        dead = 1 - levels.live[[level(row) for row in rows]].mean()
        held_out = {normalise(row["problem"]) for row in read_lines(DATA / "val.jsonl")}
        drawn = reasoning_tasks.rows(seed=1, per_level=PER_LEVEL)
        usable = [row for row in drawn if level(row) in missed and row["expected_answer"]]
        distinct = {normalise(row["problem"]): row for row in usable}
        beyond = [row for text, row in distinct.items() if text not in held_out]
        random.Random(0).shuffle(beyond)
        for share in SHARES:
            needed = rows_out_of_reach(dead, share)
            if not 0 <= needed <= len(beyond):
                raise InputError(
                    f"{share:.0%} dead groups need {needed:,} rows out of reach beside "
                    f"{len(rows):,} within, of which {dead:.0%} are dead; there are {len(beyond):,}"
                )
            mixture = rows + beyond[:needed]
            random.Random(0).shuffle(mixture)
            write_lines(options.out / f"{100 * share:.0f}.jsonl", mixture)
        levels.rename_axis(COLUMN).round(4).to_csv(options.out / "levels.csv")


if __name__ == "__main__":
    main()

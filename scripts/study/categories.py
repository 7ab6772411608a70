"""What runs of each arm did by category: by the values of a column of the data."""

import math
import re
from functools import cache

import pandas as pd

from plumbing.errors import InputError
from scripts.study.page import Table
from scripts.study.runs import Run, read_problems, read_table

HEADER = ["chosen", "live", "live but p̂ < 1/4", "accuracy"]
LEGEND = (
    "By category: share of the groups chosen; of these the live ones, and the live ones with "
    "p̂ < 1/4, perhaps guessed; accuracy before → after training. Means over runs."
)


@cache  # the runs of a study share their data
def read_categories(data: str, crc32: int, column: str) -> pd.Series:
    """Return the category of each problem of a run's data file (`read_problems`). Raises
    InputError."""
    names, value_of = read_problems(data, crc32, column).categories()
    return pd.Series([names[value] for value in value_of])


def of_groups(run: Run, category: pd.Series) -> pd.DataFrame:
    """Return by category the share of a run's groups, `chosen`, and of these the shares `live` and
    `low`: live with p̂ < 1/4. category: of each training problem."""
    groups = read_table(run.folder / "selections.jsonl", "p_hat")
    live = groups.y > 0
    each = pd.DataFrame({"live": live, "low": live & (groups.p_hat < 1 / 4)})
    by_category = each.groupby(groups.chosen.map(category))
    return by_category.mean().assign(chosen=by_category.size() / len(groups))


def of_answers(run: Run, category: pd.Series) -> pd.DataFrame:
    """Return by category the accuracy in percent of a run's first and last evaluation, `before` and
    `after`. category: of each validation problem."""
    steps = run.accuracy.index
    columns = {}
    for name, step in (("before", steps[0]), ("after", steps[-1])):
        answers = read_table(run.folder / f"evals/step_{step}.jsonl", "reward")
        right = 100.0 * (answers.reward == 1)
        columns[name] = right.groupby(answers.problem.map(category)).mean()
    return pd.DataFrame(columns)


def of_runs(runs: list[Run], column: str) -> pd.DataFrame:
    """Return the means over an arm's runs, by category, of what `of_groups` has and, if the
    validation data are as they were and have the column, `of_answers`. Raises InputError."""
    config = runs[0].config
    training = read_categories(config["train_data"], config["train_data_crc32"], column)
    parts = [of_groups(run, training) for run in runs]
    try:
        validation = read_categories(config["val_data"], config["val_data_crc32"], column)
    except InputError:  # no such column there, or changed: accuracy is not known
        answers = pd.DataFrame(columns=["before", "after"], dtype=float)
    else:
        answers = pd.concat([of_answers(run, validation) for run in runs]).groupby(level=0).mean()
    groups = pd.concat(parts)
    # A category that a run never chose has no live groups there, but counts as a share of 0.
    chosen = groups.chosen.groupby(level=0).sum() / len(runs)
    shares = groups[["live", "low"]].groupby(level=0).mean()
    return shares.assign(chosen=chosen).join(answers, how="outer")


def natural_sort_key(text: str) -> list[tuple]:
    """Return a key that sorts texts with numbers in them by these: "sums, 9" before "sums, 10"."""
    parts = re.split(r"((?<!\w)-?\d+(?:\.\d+)?|\d+)", text)
    return [(float(part), "") if i % 2 else (math.inf, part) for i, part in enumerate(parts)]


def percent(share: float) -> str:
    """Format a share, – if it is not known."""
    return "–" if pd.isna(share) else f"{share:.0%}"


def tables(arms: dict[str, list[Run]], column: str, task: str = "") -> list[Table]:
    """Make a table for each arm, categories in the order of their numbers. Raises InputError."""
    made = []
    for arm, runs in arms.items():
        found = of_runs(runs, column)
        lines = []
        for name in sorted(found.index, key=natural_sort_key):
            row = found.loc[name]
            shares = [percent(row[key]) for key in ("chosen", "live", "low")]
            known = pd.notna(row.before)
            accuracy = f"{row.before:.1f} → {row.after:.1f}%" if known else "–"
            lines.append([name, *shares, accuracy])
        title = f"{task}: {arm}, by {column}" if task else f"{arm}, by {column}"
        made.append(Table(title, [column, *HEADER], lines))
    return made

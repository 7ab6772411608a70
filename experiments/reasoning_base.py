r"""What a model can do on the reasoning-gym tasks, from its completions.

    python -m scripts.evaluate models/cold --preset reasoning --bf16 --samples 16 \
        --temperature 0.7 --out base.jsonl
    python -m experiments.reasoning_base base.jsonl --csv base.csv

Prints how many completions show steps before the box, the pass rate p with and without steps, dead
groups, live tasks, and levels without a right answer; the CSV has means by task and level. It also
reads a run's evals/step_24.jsonl, where each problem has one greedy completion.
"""

import sys
from pathlib import Path

import numpy as np
import pandas as pd

import train
from plumbing.command_line import file_path
from plumbing.data.problems import Problems
from scripts import analysis
from scripts.evaluate import read_verdicts

CONFIG = train.parse(["--preset", "reasoning"])


def statistics(rows: pd.DataFrame, by_level: pd.DataFrame, problems: Problems) -> list[list[str]]:
    """Return the table's rows: name, value. rows: verdicts with the lenient score. by_level: their
    `analysis.by_label`."""
    text = rows.completion.str.lstrip()
    is_direct = text.str.startswith(r"\boxed")
    direct = rows.reward[is_direct]
    with_steps = rows.reward[~is_direct]
    shares = {
        "mean p": rows.reward.mean(),
        "mean p, lenient": rows.lenient.mean(),
        "completions with steps": len(with_steps) / len(rows),
        "p with steps": with_steps.mean(),
        "p without": direct.mean(),
    }
    counts = {"levels without a right answer": by_level.p == 0}
    if "live" in by_level:  # it is not, where a problem has one completion
        [live] = analysis.by_label(rows, ["all"] * len(problems)).live
        shares["dead groups"] = 1 - live
        by_task = analysis.by_label(rows, analysis.labels_of(problems, "task"))
        counts["tasks with live groups"] = by_task.live > 0
    cells = [["problems", rows.problem.nunique()]]
    cells += [[name, percent(share)] for name, share in shares.items()]
    for name, is_counted in counts.items():
        n = is_counted.sum()
        cells.append([name, f"{n} of {len(is_counted)}"])
    return cells


def percent(share: float) -> str:
    """Format with one decimal; – if NaN."""
    return "–" if np.isnan(share) else f"{share:.1%}"


def main(argv=None) -> None:
    parser = analysis.parser(__doc__)
    help = "of scripts.evaluate --out, or of a run's evals/"
    parser.add_argument("verdicts", type=file_path, help=help)
    parser.add_argument("--data", default=CONFIG.val_data, help="the problems (%(default)s)")
    parser.add_argument("--csv", type=Path, help="write means by task and level")
    args = parser.parse_args(argv)
    with analysis.one_line("reasoning_base", ValueError):
        problems = Problems(args.data)
        rows = read_verdicts(args.verdicts, problems, CONFIG)
        by_level = analysis.by_label(rows, analysis.labels_of(problems, "task,level"))
        cells = statistics(rows, by_level, problems)
        print(analysis.table(str(args.verdicts), ["", ""], cells), end="")
        if args.csv:
            by_level.round(4).to_csv(args.csv, index_label="task,level")


if __name__ == "__main__":
    sys.exit(main())

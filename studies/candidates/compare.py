"""Compare the three rules: live groups by quarter, and accuracy beside the old rule.

    python -m studies.candidates.compare runs/candidates_short/scores.csv

Under the old one, "returning", unchosen candidates returned in the same pass (until 56f0dc2). The
command takes tables of scores, whose arms are called "SAMPLER, K=…, RULE"; several are put
together, and an arm without a rule is of today's, "passes". The criterion is in docs/log.md,
2026-11-29.
"""

import numpy as np
import pandas as pd

from scripts.command import exit_on_error, make_parser
from scripts.study import scores

BUDGET = 23_040  # completions of a run: 120 steps of 12 groups of 16
STEPS, PROMPTS = 120, 12
AT = BUDGET * np.linspace(8, 12, 5) / 12  # where accuracy is read
OLD = "returning"
TODAY = "passes"


def read(paths: list[str]) -> pd.DataFrame:
    """Put tables of scores of different runs together, and name the rule of each arm."""
    rows = pd.concat([scores.read(path) for path in paths], ignore_index=True)
    has_no_rule = (rows.arm + f", {OLD}").isin(rows.arm)
    return rows.assign(arm=rows.arm.mask(has_no_rule, rows.arm + f", {TODAY}"))


def live_by_quarter(runs: pd.DataFrame) -> list[float]:
    """Return the share of live groups in each quarter of the steps, mean over an arm's runs."""
    live = runs.pivot(index="step", columns="seed", values="live").mean(axis=1)
    ends = [STEPS * quarter // 4 for quarter in range(5)]
    return (np.diff(live[ends]) / (PROMPTS * STEPS / 4)).tolist()


def quarters(rows: pd.DataFrame) -> pd.DataFrame:
    """Tabulate accuracy over the last third and live groups by quarter, of each arm in a task."""
    table = []
    for (task, arm), runs in rows.groupby(["task", "arm"], sort=False):
        levels_S = scores.read_levels(runs, AT)
        row = {"task": task, "arm": arm, "seeds": len(levels_S), "accuracy": levels_S.mean()}
        shares = live_by_quarter(runs)
        table.append(row | {f"live {q}": share for q, share in enumerate(shares, 1)})
    return pd.DataFrame(table)


def against_old(rows: pd.DataFrame) -> pd.DataFrame:
    """Tabulate the difference of accuracy between each rule and the old one, paired by seed, with
    Holm's p over the samplers and tasks of a rule."""
    table = []
    for (task, arm), runs in rows.groupby(["task", "arm"], sort=False):
        sampler, _, rule = arm.rpartition(", ")
        base = rows[(rows.task == task) & (rows.arm == f"{sampler}, {OLD}")]
        paired = runs[runs.seed.isin(base.seed)]
        if rule not in (TODAY, "replacement") or paired.empty:
            continue
        gain = scores.gain(paired, base[base.seed.isin(runs.seed)], AT)
        table.append({"rule": rule, "task": task, "sampler": sampler} | gain)
    table = pd.DataFrame(table)
    table["p Holm"] = table.groupby("rule").p.transform(scores.holm)
    return table[["rule", "task", "sampler", "seeds", "points", "low", "high", "p", "p Holm"]]


def main():
    """Print both tables."""
    parser = make_parser(__doc__)
    parser.add_argument("csv", nargs="+", help="tables of scores")
    with exit_on_error("compare"):
        rows = read(parser.parse_args().csv)
        for table in (quarters(rows), against_old(rows)):
            print(table.to_string(index=False, float_format="{:.3f}".format), end="\n\n")


if __name__ == "__main__":
    main()

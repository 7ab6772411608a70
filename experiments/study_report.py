"""Tables of the study, from its finished runs, and the front page's figure.

`python -m experiments.study_report` draws docs/front.png from docs/study_summary.csv.
"""

from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from experiments import study_plan as plan
from scripts import analysis, plot


def outcomes(out: Path, cell: plan.Cell) -> pd.DataFrame:
    """Numbers of the finished runs by seed, in percent but for live.

    score: the paper's mean of the last five evaluations. equal: the same within LENGTH steps, so at
    equal completions. hardest: the score on the hardest quarter of the problems that were neither
    mastered nor out of reach at the start. live: the share of live groups within LENGTH steps.
    """
    runs, rows = cell.finished(out), {}
    if runs:
        validation = plan.task_folder(out, cell.task) / "val.jsonl"
        bits = pd.read_json(validation, lines=True).difficulty
        within = bits[(bits > 0.1) & (bits < 30)]
    for seed, run in runs.items():
        rows[seed] = {
            "score": run.score,
            "equal": run.accuracy.loc[: plan.LENGTH].tail(5).mean(),
            "hardest": run.verdicts[within[within >= within.quantile(0.75)].index].mean(),
            "live": run.live.loc[1 : plan.LENGTH].mean(),
        }
    return pd.DataFrame.from_dict(rows, orient="index")


def speed_up(base: pd.DataFrame, method: pd.DataFrame, seeds: list[int]) -> float:
    """S: the baseline's steps to an accuracy over the method's, on the mean curves of these seeds
    (accuracy by step, a column for each seed). The accuracy is the lower of the two means of the
    last five evaluations. NaN where that is no gain."""
    means = [curves[seeds].mean(axis=1) for curves in (base, method)]
    level, steps = min(mean.tail(5).mean() for mean in means), []
    if level <= max(mean.iloc[0] for mean in means):
        return np.nan
    for mean in means:
        at = (mean.to_numpy() >= level).argmax()  # the first evaluation that reaches the level
        share = (level - mean.iloc[at - 1]) / (mean.iloc[at] - mean.iloc[at - 1])
        steps.append(mean.index[at - 1] + share * (mean.index[at] - mean.index[at - 1]))
    return steps[0] / steps[1]


def difference(method: pd.Series, base: pd.Series) -> str:
    """In points, paired by seed, with its 95% interval."""
    mean, (low, high), _ = analysis.t_difference(method, base, paired=True)
    return f"{mean:+.1f} ({low:+.1f} to {high:+.1f})"


def compared(out: Path, part: str) -> list[dict]:
    """A row for each comparison of a part whose two cells have at least two seeds in common."""
    rows = []
    for base, method in plan.PARTS[part]:
        a, b = outcomes(out, base), outcomes(out, method)
        if len(common := a.index.intersection(b.index)) < 2:
            continue
        a, b = a.loc[common], b.loc[common]
        row = {"method": method.name, "against": base.name, "seeds": len(common)}
        row |= {"base": analysis.spread(a.score), "own": analysis.spread(b.score)}
        row |= {name: difference(b[name], a[name]) for name in ("score", "equal", "hardest")}
        runs = [{s: cell.finished(out)[s] for s in common} for cell in (base, method)]
        curves = [pd.DataFrame({s: run.accuracy for s, run in each.items()}) for each in runs]
        S, low, high = analysis.ratio_interval(partial(speed_up, *curves), list(common))
        r = b.live.mean() / a.live.mean()
        row |= {"dead": f"{1 - a.live.mean():.0%} → {1 - b.live.mean():.0%}", "r": r}
        row |= {"S": S, "low": low, "high": high, "predicted": r**0.5}
        rows.append(row)
    return rows


def show(rows: list[dict]) -> str:
    """Two Markdown tables of `compared`: results, and S from the number of informative groups."""
    keys = ["method", "against", "seeds", "base", "own", "score", "equal", "hardest"]
    header = ["method", "against", "seeds", "baseline", "method", "compute-matched"]
    header += ["at equal completions", "compute-matched, hardest quarter within reach"]
    title = "Methods against baselines, points (95% t-intervals over seeds)"
    results = analysis.table(title, header, [[row[key] for key in keys] for row in rows])
    speeds = []
    for row in rows:
        numbers = [analysis.number(row[key]) for key in ("r", "predicted")]
        measured = analysis.interval(row["S"], row["low"], row["high"])
        speeds.append([row["method"], row["dead"], *numbers, measured])
    header = ["method", "dead groups", "r", "S predicted for AdamW", "S measured"]
    return f"{results}\n{analysis.table('S from the number of informative groups', header, speeds)}"


def draw_summary(summary: pd.DataFrame) -> Figure:
    """Draw dead groups by method, and the methods' differences from uniform with 95% intervals."""
    figure = Figure(figsize=(9, 2.6), layout="constrained")
    dead, gain = figure.subplots(1, 2, width_ratios=(1, 1.3))
    shares = summary[summary.measure == "dead groups"]
    colours = dict(zip(shares.method, plot.COLOURS, strict=False))
    bars = dead.barh(shares.method, shares["mean"], color=colours.values())
    dead.bar_label(bars, fmt="%.0f%%", padding=3)
    dead.set(title="Dead groups (no gradient)", xlabel="% of groups, steps 1-120", xlim=(0, 100))
    for row in summary.drop(shares.index).itertuples():
        ends = [[row.mean - row.low], [row.high - row.mean]]
        name = f"{row.method}\n{row.measure}"
        gain.errorbar(row.mean, name, xerr=ends, fmt="o", capsize=3, color=colours[row.method])
    gain.axvline(0, color="0.3", linewidth=1)
    gain.set(title="Accuracy gained over uniform", xlabel="points, 95% interval over 12 seeds")
    for axes in (dead, gain):
        axes.margins(y=0.15)
        axes.invert_yaxis()
        axes.tick_params(axis="y", labelsize=8)
    return figure


if __name__ == "__main__":
    docs = plan.ROOT / "docs"
    figure = draw_summary(pd.read_csv(docs / "study_summary.csv", comment="#"))
    figure.savefig(docs / "front.png", dpi=150)
    print(docs / "front.png")

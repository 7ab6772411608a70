"""Tables and figures of the study.

`python -m experiments.study_report` draws docs/front.png from docs/study_summary.csv.
"""

from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from experiments import study_plan as plan
from scripts import analysis, audit, plot


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


def signal(runs: dict[int, analysis.Run]) -> float:
    """x, signal² over noise² of a step's gradient, over all runs together: a cosine is noisy, one
    run's mean is often below 0, and analysis.signal cuts that off."""
    live = {seed: run.live.loc[1 : plan.LENGTH] for seed, run in runs.items()}
    cosines = {seed: run.curve("grad_cosine").loc[1 : plan.LENGTH] for seed, run in runs.items()}
    return analysis.signal(pd.concat(live), pd.concat(cosines))


def curves(out: Path, cell: plan.Cell) -> pd.DataFrame:
    """Accuracy by step, a column for each seed."""
    return pd.DataFrame({seed: run.accuracy for seed, run in cell.finished(out).items()})


def speed_up(base: pd.DataFrame, method: pd.DataFrame) -> float:
    """S: the baseline's steps to an accuracy over the method's, on their mean curves. The accuracy
    is the lower of the two means of the last five evaluations. NaN where that is no gain."""
    means = [curve.mean(axis=1) for curve in (base, method)]
    level, steps = min(mean.tail(5).mean() for mean in means), []
    if level <= max(mean.iloc[0] for mean in means):
        return np.nan
    for mean in means:
        at = (mean.to_numpy() >= level).argmax()  # the first evaluation that reaches the level
        share = (level - mean.iloc[at - 1]) / (mean.iloc[at] - mean.iloc[at - 1])
        steps.append(mean.index[at - 1] + share * (mean.index[at] - mean.index[at - 1]))
    return steps[0] / steps[1]


def speed_interval(base: pd.DataFrame, method: pd.DataFrame) -> tuple[float, float, float]:
    """S and its 95% interval over seeds."""
    seeds = list(base.columns)
    return analysis.ratio_interval(lambda some: speed_up(base[some], method[some]), seeds)


def difference(method: pd.Series, base: pd.Series) -> str:
    """In points, paired by seed, with its 95% interval."""
    mean, (low, high), _ = analysis.t_difference(method, base, paired=True)
    return f"{mean:+.1f} ({low:+.1f} to {high:+.1f})"


def compared(out: Path, part: str) -> pd.DataFrame:
    """A row for each comparison of a part whose two cells have at least two seeds in common."""
    rows = []
    for base, method in plan.PARTS[part]:
        a, b = outcomes(out, base), outcomes(out, method)
        if len(common := a.index.intersection(b.index)) < 2:
            continue
        a, b = a.loc[common], b.loc[common]
        row = {"part": part, "task": base.task, "method": method.name, "against": base.name}
        row |= {"seeds": len(common)}
        row |= {"base": analysis.spread(a.score), "own": analysis.spread(b.score)}
        row |= {name: difference(b[name], a[name]) for name in ("score", "equal", "hardest")}
        S, low, high = speed_interval(curves(out, base)[common], curves(out, method)[common])
        r = b.live.mean() / a.live.mean()
        x = signal({seed: base.finished(out)[seed] for seed in common})
        row |= {"dead": f"{1 - a.live.mean():.0%} → {1 - b.live.mean():.0%}", "r": r, "x": x}
        row |= {"S": S, "low": low, "high": high, "predicted": analysis.predicted_speed(r, x)}
        rows.append(row)
    return pd.DataFrame(rows)


def judged(row: dict) -> str:
    """Whether the predicted S is on the same side of 4/3 as the measured S with its interval."""
    outcome = audit.says(row)
    predicted = "yes" if row["predicted"] > audit.PAYS else "no"
    return "open" if outcome == "open" else "right" if predicted == outcome else "wrong"


def show(frame: pd.DataFrame) -> str:
    """Two Markdown tables of `compared`: results, and S against the number of informative groups."""
    speeds = []
    for row in frame.to_dict("records"):
        measured = analysis.interval(row["S"], row["low"], row["high"])
        numbers = [analysis.number(row[name]) for name in ("r", "x", "predicted")]
        known = row["part"] in plan.ELEVEN_TASKS and not np.isnan(row["predicted"])
        speeds.append(
            [row["method"], row["dead"], *numbers, measured, judged(row) if known else "–"]
        )
    names = ["method", "against", "seeds", "base", "own", "score", "equal", "hardest"]
    header = ["method", "against", "seeds", "baseline", "method", "compute-matched"]
    header += ["at equal completions", "compute-matched, hardest quarter within reach"]
    title = "Methods against baselines, points (95% t-intervals over seeds)"
    results = analysis.table(title, header, frame[names].to_numpy().tolist())
    header = ["method", "dead groups", "r", "x", "S predicted for AdamW", "S measured"]
    header += ["S > 4/3: the prediction is"]
    return f"{results}\n{analysis.table('S from the number of informative groups', header, speeds)}"


def draw(frame: pd.DataFrame) -> Figure:
    """Steps that Goldilocks saves against r, a dot for each of ELEVEN_TASKS' comparisons."""
    figure = Figure(figsize=(7, 4), layout="constrained")
    axes, r = figure.subplots(), np.linspace(1, 5, 50)
    frame = frame.dropna(subset="S")
    ends = (frame.S - frame.low).clip(lower=0), (frame.high - frame.S).clip(lower=0)
    axes.errorbar(frame.r, frame.S, ends, fmt="o", capsize=2, color=plot.COLOURS[1])
    axes.axhline(audit.PAYS, color="0.3", linestyle=":", label="4/3: what a teacher costs")
    axes.plot(r, np.sqrt(r), color="0.3", linewidth=1, label="√r: AdamW, if all is noise")
    for row in frame.itertuples():
        axes.annotate(row.task, (row.r, row.S), xytext=(4, 4), textcoords="offset points")
    axes.set(xlabel="r: live groups ÷ uniform's", ylabel="S: steps saved", xlim=(0.9, 5))
    axes.set_yscale("log", base=2)
    axes.legend(loc="lower right")
    return figure


def draw_summary(summary: pd.DataFrame) -> Figure:
    """The front page's figure from published means: dead groups by method, and the methods'
    differences from uniform with 95% intervals."""
    figure = Figure(figsize=(9, 2.6), layout="constrained")
    dead, gain = figure.subplots(1, 2, width_ratios=(1, 1.3))
    shares = summary[summary.quantity == "dead groups"]
    colours = dict(zip(shares.method, plot.COLOURS, strict=False))
    bars = dead.barh(shares.method, shares["mean"], color=colours.values())
    dead.bar_label(bars, fmt="%.0f%%", padding=3)
    dead.set(title="Dead groups (no gradient)", xlabel="% of groups, steps 1-120", xlim=(0, 100))
    for row in summary.drop(shares.index).itertuples():
        ends = [[row.mean - row.low], [row.high - row.mean]]
        name = f"{row.method}\n{row.quantity}"
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
    print(plot.save(figure, docs / "front.png"))

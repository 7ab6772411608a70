"""The study's tables and its figure, from the runs that are finished."""

from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from experiments.study_plan import CLAIM, HEADROOM, LENGTH, PARTS, RATES, WHERE, Cell, place
from plumbing.files import read_lines
from scripts import analysis, audit, plot
from scripts.analysis import Run, spread, table


def outcomes(out: Path, cell: Cell) -> pd.DataFrame:
    """By seed, of the finished runs. In percent: score, the paper's mean of the last five
    evaluations; equal, that of the last five within LENGTH steps, so after equally many
    completions; hardest, score on the hardest quarter of the problems neither mastered nor out of
    reach at the start. Of those steps: live, the share of live groups in an update."""
    runs, rows = cell.finished(out), {}
    if runs:
        bits = pd.read_json(place(out, cell.world) / "val.jsonl", lines=True).difficulty
        within = bits[(bits > 0.1) & (bits < 30)]
    for seed, run in runs.items():
        rows[seed] = {
            "score": run.score,
            "equal": run.accuracy.loc[:LENGTH].tail(5).mean(),
            "hardest": run.verdicts[within[within >= within.quantile(0.75)].index].mean(),
            "live": run.live.loc[1:LENGTH].mean(),
        }
    return pd.DataFrame.from_dict(rows, orient="index")


def signal(runs: dict[int, Run]) -> float:
    """x, how much of a step's gradient is signal, over all runs: a cosine is noisy, and one run's
    mean is often below 0, which is cut off."""
    live = pd.concat({seed: run.live.loc[1:LENGTH] for seed, run in runs.items()})
    cosines = {seed: run.curve("grad_cosine").loc[1:LENGTH] for seed, run in runs.items()}
    return analysis.signal(live, pd.concat(cosines))


def curves(out: Path, cell: Cell) -> pd.DataFrame:
    """Accuracy by step, a column for each seed."""
    runs = cell.finished(out)
    return pd.DataFrame({seed: run.accuracy for seed, run in runs.items()})


def speed_up(base: pd.DataFrame, method: pd.DataFrame) -> float:
    """S: steps that the baseline needs to an accuracy over those that the method needs, on their
    mean curves. The accuracy is what both come to: the lower mean of the last five evaluations.
    NaN where that is no gain."""
    means = [curve.mean(axis=1) for curve in (base, method)]
    level, steps = min(mean.tail(5).mean() for mean in means), []
    if level <= max(mean.iloc[0] for mean in means):
        return np.nan
    for mean in means:
        at = (mean.to_numpy() >= level).argmax()  # the first that is as good
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
    """A row for each comparison of a part that has at least two seeds in common."""
    rows = []
    for base, method in PARTS[part]:
        a, b = outcomes(out, base), outcomes(out, method)
        if len(common := a.index.intersection(b.index)) < 2:
            continue
        a, b = a.loc[common], b.loc[common]
        row = {"part": part, "world": base.world, "seeds": len(common)}
        row |= {"method": method.name, "against": base.name}
        for what in ("score", "equal", "hardest"):
            row[what] = difference(b[what], a[what])
        S, low, high = speed_interval(curves(out, base)[common], curves(out, method)[common])
        r = b.live.mean() / a.live.mean()
        x = signal({seed: base.finished(out)[seed] for seed in common})
        row |= {"base": spread(a.score), "own": spread(b.score)}
        row |= {"dead": f"{1 - a.live.mean():.0%} → {1 - b.live.mean():.0%}", "r": r, "x": x}
        row |= {"S": S, "low": low, "high": high, "predicted": analysis.predicted_speed(r, x)}
        if part in WHERE and answer_of(out, base.world).exists():
            (row["answer"],) = read_lines(answer_of(out, base.world))
        rows.append(row)
    return pd.DataFrame(rows)


def answer_of(out: Path, world: str) -> Path:
    return Cell(world).folder(out, 0) / "would_a_teacher_pay.jsonl"


def at_best_rate(out: Path, sampler: str) -> pd.DataFrame:
    """By seed, where all three rates have run: the score at the rate that was best for the other
    half of the seeds, and that rate."""
    cells = [Cell("demo", sampler, flags) for flags in ((), *((rate,) for rate in RATES))]
    scores = pd.DataFrame(
        {"".join(c.flags): {s: run.score for s, run in c.finished(out).items()} for c in cells}
    ).dropna()
    odd, found = scores.index % 2 == 1, []
    for half, other in ((scores[odd], scores[~odd]), (scores[~odd], scores[odd])):
        if len(half) and len(other):
            best = other.mean().idxmax()
            found.append(pd.DataFrame({"score": half[best], "rate": best or "the preset's"}))
    return pd.concat(found).sort_index() if found else pd.DataFrame({"score": [], "rate": []})


def show_best_rates(out: Path) -> str:
    """A Markdown table: uniform against Goldilocks, each at its own rate."""
    methods = {name: at_best_rate(out, name) for name in ("uniform", "goldilocks")}
    a, b = (found.score for found in methods.values())
    common = a.index.intersection(b.index)
    if len(common) < 2:
        return ""
    rows = [[name, spread(m.score), ", ".join(sorted({*m.rate}))] for name, m in methods.items()]
    rows += [["difference, 4/3 rule", difference(b[common], a[common]), ""]]
    title = "Each at the rate that is best for the other half of its seeds"
    return table(title, ["", "score", "rates"], rows)


def judged(says: str, row: dict) -> str:
    """What became of an answer: right, wrong, or open where it or the outcome is."""
    came = audit.says(row)
    return "open" if "open" in (says, came) else "right" if says == came else "wrong"


def show(found: pd.DataFrame) -> str:
    """Three Markdown tables: what came out, the rule of quantity, and what a uniform run foretold
    of it."""
    out, rule, answers = [], [], []
    for row in found.to_dict("records"):
        out.append([row[name] for name in ("method", "against", "seeds", "base", "own")])
        out[-1] += [row["score"], row["equal"], row["hardest"]]
        measured = analysis.interval(row["S"], row["low"], row["high"])
        numbers = [analysis.number(row[name]) for name in ("r", "x", "predicted")]
        said = "yes" if row["predicted"] > audit.PAYS else "no"
        known = row["part"] in WHERE and not np.isnan(row["predicted"])
        verdict = judged(said, row) if known else "–"
        rule.append([row["method"], row["dead"], *numbers, measured, verdict])
        if isinstance(answer := row.get("answer"), dict):
            answer = {name: np.nan if value is None else value for name, value in answer.items()}
            S = analysis.interval(answer["S"], answer["low"], answer["high"])
            numbers = analysis.number(answer["r"]), analysis.number(row["r"]), S, answer["says"]
            answers.append([row["world"], *numbers, measured, judged(answer["says"], row)])
    header = ["method", "against", "seeds", "baseline", "method", "at the end (4/3 rule)"]
    header += ["… at equal completions", "… at the end, on the hardest quarter within reach"]
    tables = [table("Methods against baselines, points (95% t-intervals over seeds)", header, out)]
    header = ["method", "dead groups", "r", "x", "S predicted by AdamW's rule", "S measured"]
    tables += [table("Quantity: S from r", [*header, "S > 4/3: the rule is"], rule)]
    header = ["world", "r foretold", "r found", "S foretold", "does it pay?", "S measured"]
    if answers:
        tables += [table("Asked of one uniform run", [*header, "the answer is"], answers)]
    return "\n".join(tables)


def finish_speed(axes, title: str, legend: str) -> None:
    """What the axes of S against r have in common; AdamW's rule among it."""
    r = np.linspace(1, 5, 50)
    axes.plot(r, np.sqrt(r), color="0.3", linewidth=1, label="√r: AdamW's rule where all is noise")
    axes.set(xlabel="r: live groups ÷ the baseline's", ylabel="S", title=title, xlim=(0.9, 5))
    axes.set_yscale("log", base=2)
    axes.set_yticks((0.5, 0.75, 1, 4 / 3, 2, 3, 4, 6), ("½", "¾", "1", "4/3", "2", "3", "4", "6"))
    axes.legend(loc=legend, fontsize=8)


def draw(out: Path, found: pd.DataFrame) -> Figure:
    """Dead groups and accuracy in the demo's world, and over all worlds S against r; found: the
    comparisons of WHERE."""
    figure = Figure(figsize=(14, 3.8), layout="constrained")
    dead, accuracy, speed = figure.subplots(1, 3, width_ratios=(1, 1, 1.5))
    cells = {cell.name.removeprefix("demo, "): cell for cell in (*CLAIM, HEADROOM[0])}
    methods = {name: list(cell.finished(out).values()) for name, cell in cells.items()}
    methods = {name: runs for name, runs in methods.items() if runs}
    for axes, title in ((dead, "Dead groups (zero variance)"), (accuracy, "Validation accuracy")):
        (panel,) = (panel for panel in plot.PANELS if panel[0] == title)
        plot.draw_panel(axes, panel, methods, "steps")
    for name, colour in zip(methods, plot.COLOURS, strict=False):
        accuracy.plot([], [], color=colour, label=f"{name}, {len(methods[name])} runs")
    accuracy.legend(fontsize=8)
    found, bottom, top = found.dropna(subset="S").sort_values("r"), 0.5, 4
    speed.axhline(audit.PAYS, color="0.3", linestyle=":", label="4/3: what a teacher costs")
    ends = (found.S - found.low).clip(lower=0), (found.high - found.S).clip(lower=0)
    speed.errorbar(found.r, found.S, ends, fmt="o", capsize=2, color=plot.COLOURS[1])
    for i, row in enumerate(found.itertuples()):
        near = {"xytext": (4, 4 if i % 2 else -10), "textcoords": "offset points", "fontsize": 7}
        off = row.S > top
        label = f"{row.world}: S = {row.S:.1f}, above this scale" if off else row.world
        speed.annotate(label, (row.r, 0.9 * top if off else max(row.S, bottom)), **near)
    finish_speed(speed, "Steps saved by Goldilocks, a dot for each world", "lower right")
    speed.set_ylim(bottom, top)  # the intervals of worlds in which runs differ much are wider
    return figure


def draw_quantity(found: pd.DataFrame) -> Figure:
    """S against r where golds are taken away and the draws are the same: measured, and predicted
    for AdamW and for SGD."""
    figure = Figure(figsize=(6.6, 4.2), layout="constrained")
    axes = figure.subplots()
    r = np.linspace(1, 5, 50)  # a curve: S has a logarithmic axis
    axes.plot(r, r, color="0.3", linestyle="--", label="r: SGD's rule, dead rows in")
    for method, rows in found.groupby("method", sort=False):
        how = method.partition("uniform")[2].strip(", ") or "AdamW, the preset's rate"
        axes.plot(rows.r, rows.S, "o-", linewidth=1, label=how)
    finish_speed(axes, "Quantity alone: the same draws, r times as many live groups", "lower right")
    return figure

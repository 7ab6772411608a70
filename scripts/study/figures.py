"""Figures of runs and of studies: the paper's panels, accuracy by arm."""

import matplotlib
import numpy as np
import pandas as pd
from cycler import cycler
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import PercentFormatter
from scipy import stats

from scripts.study.runs import AMOUNTS, Run

# Okabe and Ito's colours, with a grey instead of black, which a dark page would hide, and a red and
# an olive instead of yellow.
COLOURS = ["#0072B2", "#E69F00", "#888888", "#56B4E9", "#D55E00", "#009E73", "#CC79A7", "#882255"]
COLOURS += ["#999933"]
GREY = "#808080"  # of all text: readable on light and dark pages, as pictures are transparent
LOOK = {
    "axes.prop_cycle": cycler(linestyle=["-", "--", ":"]) * cycler(color=COLOURS),
    "axes.grid": True,
    "axes.facecolor": "none",
    "axes.edgecolor": GREY,
    "axes.labelcolor": GREY,
    "figure.facecolor": "none",
    "font.size": 11,
    "grid.alpha": 0.25,
    "legend.fontsize": 11,
    "legend.framealpha": 0.0,
    "text.color": GREY,
    "text.parse_math": False,  # a method's name may have dollars
    "xtick.color": GREY,
    "ytick.color": GREY,
}
PANELS = {  # key of metrics.jsonl -> title, y label
    "val_accuracy": ("Validation accuracy", "greedy (band: see the legend)"),
    "reward_mean": ("Training reward", "mean; not comparable between samplers"),
    "reward_std_group": ("Training reward: standard deviation", "mean over groups"),
    "zero_variance": ("Dead groups (zero variance)", "share of groups"),
    "grad_norm": ("Gradient norm", "norm before clipping"),
    "teacher_mae": ("Prediction error on unseen problems", "mean |predicted − outcome|"),
    "teacher_mae_dead": ("Prediction error on dead groups", "mean |predicted − outcome|"),
    "teacher_mu": ("Predicted utility", "mean over candidates"),
    "teacher_sigma": ("Predicted utility: deviation", "standard deviation over candidates"),
}


def fill_gaps(curves: pd.DataFrame) -> pd.DataFrame:
    """Interpolate curves, one a column, at the places where another is known."""
    return curves.sort_index().interpolate("index", limit_area="inside")


def draw_mean(axes, name: str, curves: pd.DataFrame) -> Line2D:
    """Draw curves, one a column, thin, and their mean where all are known, in the next colour;
    without a curve, skip the colour."""
    between = fill_gaps(curves)
    mean = between.dropna().mean(axis=1)
    [line] = axes.plot(mean, label=name, linewidth=1.8)
    look = {"color": line.get_color(), "linestyle": line.get_linestyle(), "alpha": 0.35, "lw": 0.7}
    for _, curve in between.items():
        axes.plot(curve.dropna(), **look)
    return line


def half_width(curves: pd.DataFrame, problems: int) -> pd.Series:
    """Compute half of the 95% interval of the mean accuracy, where all curves are known: of several
    over seeds, t · s / √n; of one over so many problems, 1.96 · √(p(1-p) / problems), NaN if their
    number is not known (0)."""
    known = fill_gaps(curves).dropna()
    n = known.shape[1]
    if n > 1:
        return stats.t.ppf(0.975, n - 1) * known.std(axis=1) / n**0.5
    p = known.iloc[:, 0]
    return 1.96 * np.sqrt(p * (1 - p) / (problems or np.nan))


def describe_band(runs: list[Run]) -> str:
    """Return what the legend says of a method's runs and of the band around its accuracy."""
    if len(runs) > 1:
        return f"{len(runs)} runs, band: 95% over seeds"
    problems = runs[0].problems
    return f"1 run, band: 95% over {problems:,} problems" if problems else "1 run"


def draw_panel(axes, key: str, methods: dict[str, list[Run]], amount: str) -> None:
    """Draw one of PANELS against one of AMOUNTS."""
    title, label = PANELS[key]
    axes.set(title=title, ylabel=label, xlabel=AMOUNTS[amount])
    for name, runs in methods.items():
        curves = [run.curve(key, amount) for run in runs]
        if key != "val_accuracy":
            # s_0 = x_0 and s_t = 0.9 s_(t-1) + 0.1 x_t (paper, Experiments)
            curves = [curve.ewm(alpha=0.1, adjust=False).mean() for curve in curves]
        curves = pd.concat(curves, axis=1)
        line = draw_mean(axes, f"{name} ({describe_band(runs)})", curves)
        if key == "val_accuracy":
            spent, mean = line.get_data()
            half = half_width(curves, runs[0].problems)
            axes.fill_between(spent, mean - half, mean + half, color=line.get_color(), alpha=0.1)
            axes.yaxis.set_major_formatter(PercentFormatter(1))


@matplotlib.rc_context(LOOK)
def draw(methods: dict[str, list[Run]], amount: str = "steps", keys=PANELS) -> Figure:
    """Draw those of the panels that have data, three in a row."""
    metrics = [run.metrics for runs in methods.values() for run in runs]
    known = pd.concat(metrics).count()
    keys = [key for key in keys if known.get(key)]
    rows = -(-len(keys) // 3)
    height = 3.4 * rows + 0.2 * len(methods)
    figure = Figure(figsize=(13.2, height), layout="constrained")
    for place, key in enumerate(keys, 1):
        axes = figure.add_subplot(rows, 3, place)
        draw_panel(axes, key, methods, amount)
    legend = figure.axes[0].get_legend_handles_labels()
    figure.legend(*legend, loc="outside upper center")
    return figure


@matplotlib.rc_context(LOOK)
def draw_study(rows: pd.DataFrame) -> Figure:
    """Draw the accuracy of a study's arms by completions, a panel a task, two in a row, from its
    scores."""
    tasks = rows.groupby("task", sort=False)
    arms = rows.arm.unique()
    columns = min(2, len(tasks))
    lines = -(-len(tasks) // columns)
    legend_columns = 1 + columns
    legend_lines = -(-len(arms) // legend_columns)
    width, height = (8, 5) if columns == 1 else (12, 4.2)
    size = width, height * lines + 0.25 * legend_lines
    figure = Figure(figsize=size, layout="constrained")
    for place, (task, of_task) in enumerate(tasks, 1):
        axes = figure.add_subplot(lines, columns, place)
        for arm in arms:
            runs = of_task[of_task.arm == arm]
            curves = runs.pivot(index="completions", columns="seed", values="accuracy")
            draw_mean(axes, arm, curves)
        axes.set(title=task, xlabel="completions", ylabel="accuracy, %")
    legend = axes.get_legend_handles_labels()
    figure.legend(*legend, loc="outside lower center", ncols=legend_columns)
    return figure

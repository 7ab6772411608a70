"""Draw README's figure from a leaderboard's scores: docs/demo_light.svg and docs/demo_dark.svg.

    python -m experiments.demo_figure

Left: validation accuracy against completions, mean and 95% interval over seeds (t). Right: the
share of dead groups, a point for each seed. Columns: see `score` in experiments/leaderboard.py.
"""

from pathlib import Path

import matplotlib
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from scipy import stats

DOCS = Path(__file__).resolve().parent.parent / "docs"
NAMES = {
    "uniform": "uniform",
    "Goldilocks": "Goldilocks",
    "noisy AND, text": "noisy_and, no Teacher",
}
CHARGED = 23_040 * 3 / 4  # completions of a run whose Teacher takes 2 of 8 devices
THEMES = {"light": ("#1f2328", ["#57606a", "#0969da", "#bc4c00"])}
THEMES |= {"dark": ("#e6edf3", ["#9da7b3", "#58a6ff", "#f0883e"])}


def curves(rows: pd.DataFrame) -> pd.DataFrame:
    """Return accuracies in percent: a row for each number of completions, a column for each seed.
    `curve` is a text of pairs completions:accuracy."""
    pairs = rows.set_index("seed").curve.str.split().explode().str.split(":", expand=True)
    pairs = pairs.astype(float).set_index(0, append=True)[1]
    return pairs.unstack("seed").dropna()


def style(ink: str) -> dict:
    """Return matplotlib's settings of the figure: text and axes in one colour."""
    inked = ("text.color", "axes.edgecolor", "axes.labelcolor", "xtick.color", "ytick.color")
    return dict.fromkeys(inked, ink) | {
        "font.family": "sans-serif",
        "font.size": 11,
        "axes.spines.top": False,
        "axes.spines.right": False,
    }


def draw_accuracy(axes: Axes, rows: pd.DataFrame, colour: str, label: str) -> None:
    """Draw a sampler's mean accuracy over seeds and its 95% interval."""
    curve = curves(rows)
    thousands = curve.index / 1000
    mean = curve.mean(axis=1)
    half = stats.t.ppf(0.975, len(rows) - 1) * curve.sem(axis=1)
    axes.plot(thousands, mean, color=colour, label=label)
    axes.fill_between(thousands, mean - half, mean + half, color=colour, alpha=0.25, lw=0)


def draw_dead(axes: Axes, rows: pd.DataFrame, height: int, colour: str) -> None:
    """Draw a sampler's share of dead groups: a point for each seed, a bar for their mean."""
    share = 100 * (1 - rows.live)
    axes.plot(share, np.full(len(rows), height), "o", color=colour, alpha=0.4, ms=5)
    axes.plot(share.mean(), height, "|", color=colour, ms=22, mew=2)


def draw(scores: pd.DataFrame, ink: str, colours: list[str]) -> Figure:
    """Draw both panels on a transparent ground."""
    with matplotlib.rc_context(style(ink)):
        figure = Figure(figsize=(7.4, 3.5), layout="constrained")
        accuracy, dead = figure.subplots(1, 2, width_ratios=(3, 2))
        for i, (sampler, label) in enumerate(NAMES.items()):
            rows = scores[scores.sampler == sampler]
            draw_accuracy(accuracy, rows, colours[i], label)
            draw_dead(dead, rows, i, colours[i])
        accuracy.axvline(CHARGED / 1000, color=ink, ls=":", lw=1)
        accuracy.set(xlabel="thousand completions", ylabel="validation accuracy, %")
        dead.set(xlabel="dead groups, %", xlim=(0, 100), ylim=(2.6, -0.6), yticks=[])
        dead.spines.left.set_visible(False)
        figure.legend(loc="outside upper center", ncols=3, frameon=False)
    return figure


def main() -> None:
    scores = pd.read_csv(DOCS / "leaderboard.csv", dtype={"right": str})
    scores = scores[scores.task == "demo"]
    matplotlib.rcParams["svg.hashsalt"] = "demo"  # the same file every time
    for theme, (ink, colours) in THEMES.items():
        figure = draw(scores, ink, colours)
        file = DOCS / f"demo_{theme}.svg"
        with matplotlib.rc_context({"svg.fonttype": "none"}):
            figure.savefig(file, transparent=True, metadata={"Date": None})
        print(file)
        print(scores[scores.sampler.isin(NAMES)].groupby("sampler").size().to_dict())


if __name__ == "__main__":
    main()

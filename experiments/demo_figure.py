"""Draw README's figure from a leaderboard's scores: docs/demo_light.svg and docs/demo_dark.svg.

    python -m experiments.demo_figure

Left: validation accuracy against completions, mean and 95% interval over seeds (t). Right: the
share of dead groups, a point for each seed. Columns: see `score` in experiments/leaderboard.py.
"""

from pathlib import Path

import matplotlib
import numpy as np
import pandas as pd
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


def draw(scores: pd.DataFrame, ink: str, colours: list[str]) -> Figure:
    """Draw both panels on a transparent ground."""
    colour_of = ("text.color", "axes.edgecolor", "axes.labelcolor", "xtick.color", "ytick.color")
    look = dict.fromkeys(colour_of, ink) | {"font.size": 11, "svg.fonttype": "none"}
    look |= {"font.family": "sans-serif", "axes.spines.top": False, "axes.spines.right": False}
    with matplotlib.rc_context(look):
        figure = Figure(figsize=(7.4, 3.5), layout="constrained")
        accuracy, dead = figure.subplots(1, 2, width_ratios=(3, 2))
        for i, (sampler, name) in enumerate(NAMES.items()):
            rows = scores[scores.sampler == sampler]
            curve = curves(rows)
            half = stats.t.ppf(0.975, len(rows) - 1) * curve.sem(axis=1)
            mean = curve.mean(axis=1)
            accuracy.plot(curve.index / 1000, mean, color=colours[i], label=name)
            ends = mean - half, mean + half
            accuracy.fill_between(curve.index / 1000, *ends, color=colours[i], alpha=0.25, lw=0)
            share = 100 * (1 - rows.live)
            dead.plot(share, np.full(len(rows), i), "o", color=colours[i], alpha=0.4, ms=5)
            dead.plot(share.mean(), i, "|", color=colours[i], ms=22, mew=2)
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

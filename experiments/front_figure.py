"""Draw README's figure: docs/front_light.svg and docs/front_dark.svg.

    python -m experiments.front_figure

Above: the demo, from docs/leaderboard.csv. Below: the pretrained model, from docs/real_model.csv.
Left: validation accuracy against completions, mean over seeds with its 95% interval (t). Right: the
share of dead groups, a point for each seed.
"""

from pathlib import Path

import matplotlib
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from scipy import stats

from plumbing.command_line import file_path
from scripts import analysis

DOCS = Path(__file__).resolve().parent.parent / "docs"
DEMO = {
    "uniform": "uniform",
    "Goldilocks": "Goldilocks",
    "noisy AND, text": "noisy_and, no Teacher",
}
REAL = {
    "uniform": "uniform",
    "Goldilocks": "Goldilocks",
    "learnability bins": "learnability_bins, no Teacher",
}
CHARGED = 23_040 * 3 / 4  # completions of a run whose Teacher takes 2 of 8 devices
THEMES = {"light": ("#1f2328", ["#57606a", "#0969da", "#bc4c00"])}
THEMES |= {"dark": ("#e6edf3", ["#9da7b3", "#58a6ff", "#f0883e"])}


def demo_curve(rows: pd.DataFrame) -> pd.DataFrame:
    """Return accuracies in percent: a row for each number of completions, a column for each seed.
    rows: of a sampler; `curve` is a text of pairs completions:accuracy."""
    pairs = rows.set_index("seed").curve.str.split().explode().str.split(":", expand=True)
    pairs = pairs.astype(float).set_index(0, append=True)[1]
    return pairs.unstack("seed").dropna()


def real_curve(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the same from the rows of an arm, one for each evaluation of a seed."""
    return rows.pivot(index="completions", columns="seed", values="strict")


def style(ink: str) -> dict:
    """Return matplotlib's settings of the figure: text and axes in one colour."""
    inked = ("text.color", "axes.edgecolor", "axes.labelcolor", "xtick.color", "ytick.color")
    return dict.fromkeys(inked, ink) | {
        "font.family": "sans-serif",
        "font.size": 11,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "svg.fonttype": "none",
    }


def draw_accuracy(axes: Axes, curve: pd.DataFrame, colour: str, label: str) -> None:
    """Draw a sampler's mean accuracy over seeds, with a 95% interval."""
    thousands = curve.index / 1000
    mean = curve.mean(axis=1)
    axes.plot(thousands, mean, color=colour, lw=2, label=label)
    half = stats.t.ppf(0.975, curve.shape[1] - 1) * curve.sem(axis=1)
    axes.fill_between(thousands, mean - half, mean + half, color=colour, alpha=0.25, lw=0)


def draw_dead(axes: Axes, shares: pd.Series, height: int, colour: str) -> None:
    """Draw a sampler's percentages of dead groups: a point for each seed, a bar for their mean."""
    axes.plot(shares, np.full(len(shares), height), "o", color=colour, alpha=0.4, ms=5)
    axes.plot(shares.mean(), height, "|", color=colour, ms=22, mew=2)


def draw_row(axes: tuple[Axes, Axes], curves: dict, dead: dict, colours: list[str]) -> None:
    """Draw both panels of a task. curves, dead: by the sampler's name in the legend."""
    accuracy, share = axes
    for i, (label, curve) in enumerate(curves.items()):
        draw_accuracy(accuracy, curve, colours[i], label)
        draw_dead(share, dead[label], i, colours[i])
    accuracy.set_ylabel("validation accuracy, %")
    accuracy.legend(loc="upper left", frameon=False, fontsize=9)
    accuracy.set_ylim(top=accuracy.get_ylim()[1] * 1.25)  # room for the legend
    share.set(xlim=(0, 100), ylim=(len(curves) - 0.4, -0.6), yticks=[])
    share.spines.left.set_visible(False)


def draw(demo: pd.DataFrame, real: pd.DataFrame, ink: str, colours: list[str]) -> Figure:
    """Draw all panels. The caller sets the `style`, which also holds while the figure is saved."""
    demo_rows = {label: demo[demo.sampler == name] for name, label in DEMO.items()}
    real_rows = {label: real[real.arm == name] for name, label in REAL.items()}
    figure = Figure(figsize=(7.4, 5.8), layout="constrained")
    above, below = figure.subplots(2, 2, width_ratios=(3, 2))
    draw_row(
        above,
        {label: demo_curve(rows) for label, rows in demo_rows.items()},
        {label: 100 * (1 - rows.live) for label, rows in demo_rows.items()},
        colours,
    )
    draw_row(
        below,
        {label: real_curve(rows) for label, rows in real_rows.items()},
        {label: 100 * rows.groupby("seed").dead.mean() for label, rows in real_rows.items()},
        colours,
    )
    above[0].axvline(CHARGED / 1000, color=ink, ls=":", lw=1)
    above[0].set_title("the demo", loc="left", fontsize=11)
    below[0].set_title("SmolLM2-135M on reasoning-gym", loc="left", fontsize=11)
    below[0].set_xlabel("thousand completions")
    below[1].set_xlabel("dead groups, %")
    return figure


def main(argv: list[str] | None = None) -> None:
    parser = analysis.parser(__doc__)
    help = "directory of the SVG files [docs/]"
    parser.add_argument("--out", type=file_path, default=DOCS, help=help)
    args = parser.parse_args(argv)
    matplotlib.rcParams["svg.hashsalt"] = "front"  # the same file every time
    with analysis.one_line("front_figure"):
        demo = pd.read_csv(DOCS / "leaderboard.csv", dtype={"right": str})
        demo = demo[demo.task == "demo"]
        real = pd.read_csv(DOCS / "real_model.csv")
        for theme, (ink, colours) in THEMES.items():
            file = args.out / f"front_{theme}.svg"
            with matplotlib.rc_context(style(ink)):
                figure = draw(demo, real, ink, colours)
                figure.savefig(file, transparent=True, metadata={"Date": None})
            print(file)


if __name__ == "__main__":
    main()

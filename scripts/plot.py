"""Draw the paper's figures, training curves by what was spent, from run folders.

    python -m scripts.plot runs/demo-* --out figures
    python -m scripts.plot runs/a runs/b --x device_hours

training_by_<x>.png: validation accuracy (Figures 2 and 6; by `--x seconds` and `tokens` those of
App. F), reward and its standard deviation (3), gradient norm and dead groups (4), the teacher's
error and predictions (5), and whether predictions can be trusted.

As in the paper, validation accuracy is drawn as it was measured and everything else smoothed by an
exponential moving average (0.9) over the steps. Runs whose settings differ in nothing but the seed
are one method: its mean is drawn thick, over the range that all of them cover, and each run thin
(where a panel has several quantities, of the first).
"""

from collections.abc import Callable
from functools import partial
from io import StringIO
from pathlib import Path

import matplotlib
import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from scipy import stats

from plumbing.errors import InputError
from scripts import analysis
from scripts.analysis import AMOUNTS, Run

# Okabe and Ito's, in an order that keeps the first ones apart in a black-and-white print too.
COLOURS = ["#0072B2", "#E69F00", "#000000", "#56B4E9", "#D55E00", "#009E73", "#CC79A7"]
STYLES = ("-", "--", ":")
LOOK = {"axes.grid": True, "grid.alpha": 0.25, "legend.fontsize": 8}
SVG_FACTS = ("Creator", "Date", "Format", "Type")  # what matplotlib would say of itself in an SVG
ERRORS = {"teacher_mae": "all groups", "teacher_mae_dead": "dead groups"}
ERRORS |= {"teacher_noise_floor": "a perfect teacher (sampling noise)"}
SPREAD = {"teacher_mu": "mean", "teacher_sigma": "standard deviation"}
PANELS = [  # title, axis, {key: its name in the panel's legend}
    ("Validation accuracy", "greedy pass@1", {"val_accuracy": ""}),
    ("Training reward", "mean reward of a completion", {"reward_mean": ""}),
    ("Training reward: standard deviation", "mean over groups", {"reward_std_group": ""}),
    ("Dead groups (zero variance)", "share of groups", {"zero_variance": ""}),
    ("Gradient norm", "norm before clipping", {"grad_norm": ""}),
    ("Teacher error on unseen problems", "mean |predicted − outcome|", ERRORS),
    ("Teacher's predictions", "predicted utility, candidates", SPREAD),
]


def smooth(curve: pd.Series) -> pd.Series:
    """s_0 = x_0 and s_t = 0.9 s_(t-1) + 0.1 x_t (paper, Experiments)."""
    return curve.ewm(alpha=0.1, adjust=False).mean()


def together(curves: list[pd.Series]) -> pd.DataFrame:
    """A column for each curve, at every x in the range that all cover; linear in between."""
    every = pd.concat(curves, axis=1).sort_index()
    return every.interpolate("index", limit_area="inside").dropna()


def calibration(selections: pd.DataFrame) -> pd.DataFrame:
    """Outcomes by prediction, in tenths of [0, 0.5] (the last includes 0.5) with at least ten of
    them: predicted and y (means), error (half of a 95% interval of y's mean), count."""
    known = selections.dropna(subset="predicted")
    bins = known.groupby(np.digitize(known.predicted, np.linspace(0, 0.5, 11)[1:-1]))
    error = bins.y.sem() * stats.norm.ppf(0.975)
    found = bins[["predicted", "y"]].mean().assign(error=error, count=bins.size())
    return found[found["count"] >= 10]


def draw_panel(axes, panel, methods: dict[str, list[Run]], amount: str) -> None:
    """One of PANELS, by what was spent."""
    title, label, names = panel
    for (key, name), style in zip(names.items(), STYLES, strict=False):
        for runs, colour in zip(methods.values(), COLOURS, strict=False):
            curves = [run.curve(key, amount) for run in runs]
            curves = [c if key == "val_accuracy" else smooth(c) for c in curves if len(c)]
            if curves:
                mean = together(curves).mean(axis=1)
                axes.plot(mean, style, color=colour, linewidth=1.8)
            for curve in curves if style == "-" else []:
                axes.plot(curve, color=colour, alpha=0.35, linewidth=0.7)
        # What the line styles mean, in grey: the colours are the figure's legend.
        axes.plot([], [], style, color="0.3", label=name)
    if len(names) > 1:
        axes.legend()
    axes.set(title=title, ylabel=label, xlabel=AMOUNTS[amount])


def draw_reliability(axes, methods: dict[str, list[Run]]) -> None:
    """Mean outcome by bin of prediction."""
    axes.plot([0, 0.5], [0, 0.5], ":", color="0.3", linewidth=1)
    for runs, colour in zip(methods.values(), COLOURS, strict=False):
        b = calibration(pd.concat([run.selections for run in runs]))
        axes.errorbar(b.predicted, b.y, b.error, fmt="o-", color=colour, capsize=2)
    axes.set(title="Reliability (95% intervals)", xlabel="predicted utility", ylabel="outcome y")


def painters(methods: dict[str, list[Run]], amount: str) -> list[Callable]:
    """What draws each panel that has something to show, on axes given to it: the training curves by
    what was spent, and the reliability of predictions. Raises InputError at too many methods."""
    if len(methods) > len(COLOURS):
        most = f"only {len(COLOURS)} colours can be told apart"
        raise InputError(f"{len(methods)} methods, but {most}; draw fewer at a time")
    runs = [run for runs in methods.values() for run in runs]
    panels = [p for p in PANELS if any(len(run.curve(next(iter(p[2])))) for run in runs)]
    how = {"methods": methods, "amount": amount}
    found = [partial(draw_panel, panel=panel, **how) for panel in panels]
    if any(run.selections.predicted.notna().any() for run in runs):
        found.append(partial(draw_reliability, methods=methods))
    return found


@matplotlib.rc_context(LOOK)
def draw(methods: dict[str, list[Run]], amount: str = "steps") -> Figure:
    """All panels in one figure, the methods' colours above them."""
    every = painters(methods, amount)
    rows = -(-len(every) // 3)
    figure = Figure(figsize=(13.2, 3.4 * rows + 0.4), layout="constrained")
    for i, paint in enumerate(every, 1):
        paint(figure.add_subplot(rows, 3, i))
    lines = [Line2D([], [], color=colour, linewidth=2) for colour in COLOURS[: len(methods)]]
    labels = [f"{name} (runs: {len(runs)})" for name, runs in methods.items()]
    figure.legend(lines, labels, loc="outside upper center", ncols=3)
    return figure


@matplotlib.rc_context(LOOK | {"svg.fonttype": "none", "svg.hashsalt": "panels"})
def draw_each(methods: dict[str, list[Run]], amount: str = "steps") -> list[str]:
    """Each panel as an <svg> element of its own, for a page that says what the colours are."""
    found = []
    for paint in painters(methods, amount):
        figure, text = Figure(figsize=(4.4, 3.2), layout="constrained"), StringIO()
        paint(figure.add_subplot())
        figure.savefig(text, format="svg", metadata=dict.fromkeys(SVG_FACTS))
        found.append(text.getvalue()[text.getvalue().index("<svg") :])
    return found


def save(figure: Figure, path: Path) -> Path:
    """Writes the picture; returns its path."""
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150)
    return path


def main(argv=None) -> None:
    """The command line of `plot`."""
    parser = analysis.parser(__doc__, runs=True)
    parser.add_argument("--out", type=Path, default="figures", help="a folder (%(default)s)")
    what = "horizontal axis of the curves (%(default)s)"
    parser.add_argument("--x", choices=AMOUNTS, default="steps", help=what)
    args = parser.parse_args(argv)
    with analysis.one_line("plot"):
        figure = draw(analysis.load_methods(args.runs), args.x)
        print(save(figure, args.out / f"training_by_{args.x}.png"))


if __name__ == "__main__":
    main()

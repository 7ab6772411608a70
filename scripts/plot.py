"""Draw the paper's figures, training curves by what was spent, from run directories.

    python -m scripts.plot runs/demo-* --x device_hours     # figures/training_by_device_hours.png

Validation accuracy is drawn as measured; all else is smoothed over the steps (moving average, 0.9),
as in the paper. Runs that differ only in their seed are one method: its mean is thick, over the
range that all its runs cover, and each run thin (of several quantities only the first).
"""

import matplotlib
import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from scipy import stats

from plumbing.command_line import file_path
from plumbing.errors import InputError
from scripts import analysis
from scripts.analysis import AMOUNTS, Run

# Okabe and Ito's colours, with a grey instead of black, which a dark page would hide.
COLOURS = ["#0072B2", "#E69F00", "#888888", "#56B4E9", "#D55E00", "#009E73", "#CC79A7"]
STYLES = ("-", "--", ":")
GREY = "#808080"  # of all text: readable on light and dark pages, as pictures are transparent
LOOK = {"axes.grid": True, "grid.alpha": 0.25, "legend.fontsize": 8, "figure.facecolor": "none"}
LOOK |= {"axes.facecolor": "none", "legend.framealpha": 0.0, "axes.edgecolor": GREY}
LOOK |= dict.fromkeys(("text.color", "axes.labelcolor", "xtick.color", "ytick.color"), GREY)
ERRORS = {"teacher_mae": "all groups", "teacher_mae_dead": "dead groups"}
ERRORS |= {"teacher_noise_floor": "a teacher that knows p (sampling noise)"}
MOMENTS = {"teacher_mu": "mean", "teacher_sigma": "standard deviation"}
PANELS = [  # title, y label, {key of metrics.jsonl: its name in the panel's legend}
    ("Validation accuracy", "greedy, % (band: 95%, of this many problems)", {"val_accuracy": ""}),
    ("Training reward", "mean; not comparable between samplers", {"reward_mean": ""}),
    ("Training reward: standard deviation", "mean over groups", {"reward_std_group": ""}),
    ("Dead groups (zero variance)", "share of groups", {"zero_variance": ""}),
    ("Gradient norm", "norm before clipping", {"grad_norm": ""}),
    ("Teacher error on unseen problems", "mean |predicted − outcome|", ERRORS),
    ("Teacher's predictions", "predicted utility, candidates", MOMENTS),
]


def smooth(curve: pd.Series) -> pd.Series:
    """Smooth: s_0 = x_0 and s_t = 0.9 s_(t-1) + 0.1 x_t (paper, Experiments)."""
    return curve.ewm(alpha=0.1, adjust=False).mean()


def together(curves: list[pd.Series]) -> pd.DataFrame:
    """Interpolate curves, one a column, at every x in the range that all of them cover."""
    every = pd.concat(curves, axis=1).sort_index()
    return every.interpolate("index", limit_area="inside").dropna()


def calibration(selections: pd.DataFrame) -> pd.DataFrame:
    """Group selections by prediction, in tenths of [0, 0.5]. A row for each tenth that has at least
    ten: predicted and y (means), error (half of the 95% interval of y's mean), count."""
    known = selections.dropna(subset="predicted")
    bins = known.groupby(np.digitize(known.predicted, np.linspace(0, 0.5, 11)[1:-1]))
    error = bins.y.sem() * stats.norm.ppf(0.975)
    rows = bins[["predicted", "y"]].mean().assign(error=error, count=bins.size())
    return rows[rows["count"] >= 10]


def has_data(panel, methods: dict[str, list[Run]]) -> bool:
    """Whether any run has measured the first quantity of one of PANELS."""
    _, _, names = panel
    key = next(iter(names))
    return any(len(run.curve(key)) for runs in methods.values() for run in runs)


def escape(text: str) -> str:
    """Show a text as it is: matplotlib would set what is between dollars as a formula."""
    return text.replace("$", r"\$")


def draw_panel(axes, panel, methods: dict[str, list[Run]], amount: str) -> None:
    """Draw one of PANELS against one of AMOUNTS."""
    title, label, names = panel
    for (key, name), style in zip(names.items(), STYLES, strict=False):
        for runs, colour in zip(methods.values(), COLOURS, strict=False):
            curves = [run.curve(key, amount) for run in runs]
            if key == "val_accuracy":
                curves = [100 * curve for curve in curves if len(curve)]
            else:
                curves = [smooth(curve) for curve in curves if len(curve)]
            if not curves:
                continue
            mean = together(curves).mean(axis=1)
            axes.plot(mean, style, color=colour, linewidth=1.8)
            if key == "val_accuracy" and runs[0].problems:
                error = 1.96 * np.sqrt(mean * (100 - mean) / runs[0].problems)
                axes.fill_between(mean.index, mean - error, mean + error, color=colour, alpha=0.1)
            for curve in curves if style == "-" else []:
                axes.plot(curve, color=colour, alpha=0.35, linewidth=0.7)
        # The legend explains the line styles, in grey: the figure's legend explains the colours.
        axes.plot([], [], style, color=GREY, label=name)
    if len(names) > 1:
        axes.legend()
    axes.set(title=title, ylabel=label, xlabel=AMOUNTS[amount])


def draw_reliability(axes, methods: dict[str, list[Run]]) -> None:
    """Draw the mean outcome by tenth of the predictions."""
    axes.plot([0, 0.5], [0, 0.5], ":", color=GREY, linewidth=1)
    for runs, colour in zip(methods.values(), COLOURS, strict=False):
        b = calibration(pd.concat([run.selections for run in runs]))
        axes.errorbar(b.predicted, b.y, b.error, fmt="o-", color=colour, capsize=2)
    axes.set(title="Reliability (95% intervals)", xlabel="predicted utility", ylabel="outcome y")


@matplotlib.rc_context(LOOK)
def draw(
    methods: dict[str, list[Run]],
    amount: str = "steps",
    panels=PANELS,
    columns: int = 3,
    reliability: bool = True,
) -> Figure:
    """Draw those of the panels that have data, and reliability if there are predictions."""
    if len(methods) > len(COLOURS):
        limit = f"only {len(COLOURS)} colours can be told apart"
        raise InputError(f"{len(methods)} methods, but {limit}; draw fewer at a time")
    runs = [run for runs in methods.values() for run in runs]
    panels = [panel for panel in panels if has_data(panel, methods)]
    predicted = reliability and any(run.selections.predicted.notna().any() for run in runs)
    rows = -(-(len(panels) + predicted) // columns)
    figure = Figure(figsize=(4.4 * columns, 3.4 * rows + 0.4), layout="constrained")
    for i, panel in enumerate(panels, 1):
        draw_panel(figure.add_subplot(rows, columns, i), panel, methods, amount)
    if predicted:
        draw_reliability(figure.add_subplot(rows, columns, len(panels) + 1), methods)
    lines = [Line2D([], [], color=colour, linewidth=2) for colour in COLOURS[: len(methods)]]
    labels = [escape(f"{name} (runs: {len(runs)})") for name, runs in methods.items()]
    columns = 3 if max(map(len, labels)) < 65 else 1
    figure.legend(lines, labels, loc="outside upper center", ncols=columns)
    return figure


@matplotlib.rc_context(LOOK)
def draw_study(rows: pd.DataFrame, summary: pd.DataFrame, baseline: str) -> Figure:
    """Draw, for each task of a study, the gain of each arm with its interval, the accuracy of the
    first arms by completions, and their speed-up by the baseline's share of dead groups."""
    tasks = [*summary.task.unique()]
    arms = [*summary.arm.unique()]
    colours = dict(zip(arms, COLOURS, strict=False))
    figure = Figure(figsize=(4.4 * len(tasks), 3 + 3 + 0.25 * len(arms)), layout="constrained")
    above, below = figure.subplots(2, len(tasks), squeeze=False)
    for column, task in enumerate(tasks):
        of_task = summary[summary.task == task]
        axes = above[column]
        for row in of_task[of_task.gain.notna()].itertuples():
            half = np.nan_to_num((row.gain.high - row.gain.low) / 2)
            axes.errorbar(row.gain.points, escape(row.arm), xerr=half, fmt="o", color=COLOURS[0])
        axes.axvline(0, color=GREY, linewidth=1)
        axes.invert_yaxis()
        axes.set(title=escape(task), xlabel=f"points over {escape(baseline)}, 95% interval")
        axes = below[column]
        for arm, colour in colours.items():
            runs = rows[(rows.task == task) & (rows.arm == arm)].dropna(subset="accuracy")
            curves = [run.set_index("completions").accuracy for _, run in runs.groupby("seed")]
            if curves:
                axes.plot(together(curves).mean(axis=1), color=colour, label=escape(arm))
        axes.set(xlabel="completions", ylabel="accuracy, %")
        axes.legend()
    return figure


@matplotlib.rc_context(LOOK)
def draw_speed(summary: pd.DataFrame) -> Figure:
    """Draw speed-ups against the share of the baseline's groups that are dead, a line an arm."""
    figure = Figure(figsize=(6, 4.5), layout="constrained")
    axes = figure.subplots()
    known = summary[summary.speed_up.notna()].sort_values("base_dead")
    for number, (arm, part) in enumerate(known.groupby("arm", sort=False)):
        values = [each.value or np.nan for each in part.speed_up]
        style = STYLES[number // len(COLOURS) % len(STYLES)]
        colour = COLOURS[number % len(COLOURS)]
        axes.plot(100 * part.base_dead, values, f"o{style}", color=colour, label=escape(arm))
    axes.axhline(1, color=GREY, linewidth=1)
    axes.axhline(4 / 3, color=GREY, linewidth=1, linestyle=":", label="a Teacher on 2 of 8 devices")
    axes.set(xlabel="dead groups of the baseline, %", ylabel="speed-up", yscale="log")
    axes.legend()
    return figure


def main(argv=None) -> None:
    parser = analysis.parser(__doc__, runs=True)
    parser.add_argument("--out", type=file_path, default="figures", help="directory (%(default)s)")
    help = "horizontal axis of the curves (%(default)s)"
    parser.add_argument("--x", choices=AMOUNTS, default="steps", help=help)
    args = parser.parse_args(argv)
    with analysis.one_line("plot"):
        figure = draw(analysis.load_methods(args.runs), args.x)
        args.out.mkdir(parents=True, exist_ok=True)
        figure.savefig(path := args.out / f"training_by_{args.x}.png", dpi=150)
        print(path)


if __name__ == "__main__":
    main()

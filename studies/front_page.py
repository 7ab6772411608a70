"""Draw README's figures and print the tables of docs/results.md, from committed scores.

    python -m studies.front_page

Writes docs/gains.png (gains against the share of dead groups) and docs/demo.png (the demo's
accuracy), and prints two tables of docs/results.md, and an excerpt of the demo's console for
README. The whole console was recorded by

    OMP_NUM_THREADS=1 torchrun --nproc_per_node 4 train.py --preset demo 2>&1 |
        tr '\\r' '\\n' > studies/demo_console.txt

tests/scripts/test_front_page.py compares all of it with the pages.
"""

import matplotlib
import numpy as np
import pandas as pd
from cycler import cycler
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

from plumbing.config import ROOT
from scripts.command import exit_on_error, make_parser
from scripts.study import figures, scores
from scripts.study.plan import Plan

SPARSITY = ROOT / "studies/sparsity"
DEMO = ROOT / "studies/leaderboard/demo.csv"
DEMO_BUDGET = Plan.read(DEMO.with_suffix(".toml")).budget  # completions. Uniform's runs go on
SPEED_UPS = ROOT / "studies/speed_ups.csv"  # also has the dead groups before training
CONSOLE = ROOT / "studies/demo_console.txt"
TODAY = "curve.toml", "curve.csv"  # the plan and its scores, under today's rule of candidates
OLDER = "plan.toml", "scores.csv"  # under the older rule
TASKS = ["60", "84", "95", "98", "99.5"]  # of the plan, by share of dead groups
ARMS = {  # of README: arm of the plan -> its name on the pages
    "Goldilocks, K=8": "Goldilocks, K=8 (the paper's)",
    "Goldilocks, K=auto": "Goldilocks, `--candidates auto`",
    "words, K=64": "`bag_of_words`, K=64",
    "bins": "`learnability_bins` by topic and length",
}
ALL_ARMS = ARMS | {  # of docs/results.md, in its table of the older rule of candidates
    "Goldilocks, K=64": "Goldilocks, K=64",
    "Goldilocks, K=64, cheap": "Goldilocks, K=64, few updates",
    "words, K=8": "`bag_of_words`, K=8",
    "embedded, K=8": "`embedded`, K=8",
    "embedded, K=64": "`embedded`, K=64",
    "SEC": "`sec` by topic",
    "SPEED": "`speed`",
    "DAPO": "DAPO",
}
WITH_TEACHER = [arm for arm in ALL_ARMS if arm.startswith("Goldilocks")]
BLOCKS = [  # of a table of docs/results.md: title, columns of scores.summarize, arms
    ("at equal completions", "gain", ALL_ARMS),
    ("compute-matched, where that is another comparison", "matched", WITH_TEACHER),
    ("at equal CPU seconds, where they are known", "cpu_seconds", ALL_ARMS),
]
FONT = {"font.size": 13, "axes.spines.top": False, "axes.spines.right": False}
COLOURS = {  # by arm of README
    "Goldilocks, K=8": "#0072B2",
    "Goldilocks, K=auto": "#56B4E9",
    "words, K=64": "#E69F00",
    "bins": "#009E73",
}


def summarize(plan_name: str, scores_name: str) -> pd.DataFrame:
    """Compare the arms of a study of the five shares with uniform: a row for each task and arm.
    `untrained` is the share of dead groups before training; `dead` is the arm's in training."""
    plan = Plan.read(SPARSITY / plan_name)
    rows = scores.read(SPARSITY / scores_name)
    rows = rows[rows.task.isin(TASKS)]
    summary = scores.summarize(rows, plan.baseline, plan.budget, plan.devices, plan.places)
    measured = pd.read_csv(SPEED_UPS, comment="#").query("model == 'a toy task'")
    return summary.assign(untrained=summary.task.map(measured.groupby("task").untrained.first()))


def percent(share: float) -> str:
    """Format a share; above 99% with a decimal."""
    return f"{share:.1%}" if share > 0.99 else f"{share:.0%}"


def signed(points: float) -> str:
    """Format points with a sign, the true minus; a dash where they are not known."""
    return "–" if np.isnan(points) else f"{points:+.1f}".replace("-", "−")


def table(summary: pd.DataFrame) -> str:
    """Format a table of docs/results.md in Markdown: for each task, below its share of dead groups
    before training, uniform's accuracy and dead groups in training, and all gains, in BLOCKS."""
    uniform = summary[summary.arm == "uniform"].set_index("task").loc[TASKS]
    rows = [
        ["points over uniform", *(f"{percent(dead)} dead" for dead in uniform.untrained)],
        ["---"] * (1 + len(TASKS)),
        ["*uniform's accuracy*", *(f"{accuracy:.1f}%" for accuracy in uniform.accuracy)],
        ["*its dead groups in training*", *map(percent, uniform.dead)],
    ]
    for title, prefix, arms in BLOCKS:
        rows.append([f"*{title}*", *[""] * len(TASKS)])
        points = summary.pivot(index="arm", columns="task", values=f"{prefix}_points")
        known = points.reindex(index=[*arms], columns=TASKS).dropna(how="all")
        for arm, gains in known.iterrows():
            rows.append([ALL_ARMS[arm], *map(signed, gains)])
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def console() -> str:
    """Return the first and the last three lines that the demo printed, as a Markdown block."""
    lines = CONSOLE.read_text("utf-8").splitlines()
    return "\n".join(f"    {line}" for line in [*lines[:3], "…", *lines[-3:]])


@matplotlib.rc_context(figures.LOOK | FONT)
def draw_gains(summary: pd.DataFrame) -> Figure:
    """Draw the gains of README's ARMS, compute-matched, with their intervals."""
    figure = Figure(figsize=(6.4, 4.6), layout="constrained")
    axes = figure.subplots()
    ends = []
    for number, (arm, name) in enumerate(ARMS.items()):
        gains = summary[summary.arm == arm].set_index("task").loc[TASKS]
        points = gains.matched_points
        bars = [points - gains.matched_low, gains.matched_high - points]
        places = np.arange(len(TASKS)) + 0.07 * (number - 1.5)  # side by side
        axes.errorbar(places, points, bars, marker="o", color=COLOURS[arm], linewidth=1.8)
        label = name.replace("`", "").replace(", ", ",\n").replace(" by ", "\nby ")
        ends.append((points.iloc[-1], label, COLOURS[arm]))
    height = -np.inf
    for points, label, colour in sorted(ends):
        height = max(points, height + 1.25)  # labels of two lines must not overlap
        axes.text(len(TASKS) - 0.7, height, label, color=colour, va="center", fontsize=12)
    axes.axhline(0, color=figures.GREY, linewidth=1)
    dead = summary[summary.arm == "uniform"].set_index("task").untrained[TASKS]
    axes.set(
        xticks=range(len(TASKS)),
        xticklabels=map(percent, dead),
        xlim=(-0.3, len(TASKS) + 1.1),
        xlabel="dead groups before training (places evenly spaced)",
        ylabel="points over uniform",
    )
    axes.yaxis.set_major_formatter(FuncFormatter(lambda y, _: signed(y)[:-2] if y else "0"))
    axes.grid(visible=False, axis="x")
    return figure


@matplotlib.rc_context(figures.LOOK | FONT | {"axes.prop_cycle": cycler(color=figures.COLOURS)})
def draw_demo(rows: pd.DataFrame) -> Figure:
    """Draw the demo's accuracy by completions, Goldilocks beside uniform."""
    figure = Figure(figsize=(6.4, 3.8), layout="constrained")
    axes = figure.subplots()
    for arm, side in (("Goldilocks", "bottom"), ("uniform", "top")):
        runs = rows[(rows.arm == arm) & (rows.completions <= DEMO_BUDGET)]
        curves = runs.pivot(index="completions", columns="seed", values="accuracy")
        line = figures.draw_mean(axes, arm, curves)
        end = curves.mean(axis=1).iloc[-1]
        label = f" {arm}\n {end:.1f}%"
        axes.text(curves.index[-1], end, label, color=line.get_color(), va=side)
    axes.set(
        xlim=(0, 1.27 * curves.index[-1]),
        xticks=range(0, 20_001, 5000),
        xlabel="completions",
        ylabel="accuracy, %",
        title=f"The demo, {curves.shape[1]} seeds (thin) and their mean",
    )
    axes.xaxis.set_major_formatter("{x:,.0f}")
    return figure


def main(argv=None) -> None:
    with exit_on_error("front_page"):
        make_parser(__doc__).parse_args(argv)
        summary = summarize(*TODAY)
        draw_gains(summary).savefig(ROOT / "docs/gains.png", dpi=150)
        draw_demo(scores.read(DEMO)).savefig(ROOT / "docs/demo.png", dpi=150)
        older = table(summarize(*OLDER))
        print(table(summary), older, console(), sep="\n\n")


if __name__ == "__main__":
    main()

"""Remake README's figures, and the tables of README and docs/results.md, from committed scores.

    python -m studies.front_page
    python -m studies.front_page --record      # first runs README's demo, and keeps what it prints

Writes docs/gains.png (gains against the share of dead groups, from studies/sparsity/scores.csv) and
docs/demo.png (the demo's accuracy, from studies/leaderboard/scores.csv), and prints the tables and
the demo's console (studies/demo_console.txt). tests/scripts/test_front_page.py compares them with
the pages.
"""

import re
import subprocess
import sys

import matplotlib
import numpy as np
import pandas as pd
from cycler import cycler
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

from plumbing.config import ROOT
from plumbing.errors import InputError
from plumbing.files import write_atomic
from scripts.command import exit_on_error, make_parser
from scripts.study import figures as plot
from scripts.study import scores
from scripts.study.plan import Plan

SPARSITY = ROOT / "studies/sparsity"
GAINS = SPARSITY / "scores.csv"
DEMO = ROOT / "studies/leaderboard"
# Arm of the plan -> its name on the page, and in the figure, where it has less room.
SHOWN = {
    "Goldilocks, K=8": ("Goldilocks, K=8 (the paper's)", "Goldilocks, K=8"),
    "Goldilocks, K=auto": ("Goldilocks, `--candidates auto`", "Goldilocks, K fitted"),
    "words, K=64": ("`bag_of_words`, K=64", "bag_of_words"),
    "bins": ("`learnability_bins` by topic and length", "learnability_bins"),
}
# The other arms of docs/results.md -> their names there.
OTHERS = {
    "Goldilocks, K=64": "Goldilocks, K=64",
    "Goldilocks, K=64, cheap": "Goldilocks, K=64, few updates",
    "words, K=8": "`bag_of_words`, K=8",
    "embedded, K=8": "`embedded`, K=8",
    "embedded, K=64": "`embedded`, K=64",
    "SEC": "`sec` by topic",
    "SPEED": "`speed`",
    "DAPO": "DAPO",
}
NAMES = {arm: name for arm, (name, _) in SHOWN.items()} | OTHERS
SHARES = ("60", "95", "99.5")  # the tasks of README's table
TASKS = ("60", "84", "95", "98", "99.5")
COSTS = {  # a block of the table of docs/results.md -> prefix of the columns of `compare`
    "at equal completions": "equal",
    "compute-matched, where that is another comparison": "matched",
    "at equal CPU seconds, where they are known": "cpu",
}
CONSOLE = ROOT / "studies/demo_console.txt"
COMMAND = re.compile(r"torchrun --nproc_per_node 4 train.py --preset demo")
FONT = {"font.size": 13}  # read on phones, too
COLOURS = {"axes.prop_cycle": cycler(color=plot.COLOURS)}


def percent(share: float) -> str:
    """Format a share; above 99% with a decimal."""
    return f"{share:.1%}" if share > 0.99 else f"{share:.0%}"


def signed(points: float) -> str:
    """Format points with a sign, the true minus."""
    return f"{points:+.1f}".replace("-", "−")


def table_row(cells: list[str]) -> str:
    """Format a row of a Markdown table."""
    return f"| {' | '.join(cells)} |"


def compare(rows: pd.DataFrame, plan: Plan) -> pd.DataFrame:
    """Compare each of NAMES with uniform in TASKS. Returns a row for each pair: task, arm,
    uniform's share of `dead` groups and late `accuracy` in percent, and what scores.gain returns at
    the plan's budget (`equal_…`), compute-matched (`matched_…`) and at equal CPU seconds (`cpu_…`;
    NaN where they are not known)."""
    at_A = plan.budget * np.linspace(8, 12, plan.places) / 12
    lines = []
    for task in TASKS:
        of_task = rows[rows.task == task]
        base = of_task[of_task.arm == plan.baseline]
        dead = scores.mean_dead(base, plan.budget)
        accuracy = scores.read_levels(base, at_A).mean()
        for arm in NAMES:
            own = of_task[of_task.arm == arm]
            if own.empty:  # the arm did not run on this task
                continue
            paired = base[base.seed.isin(own.seed)]
            ratio = plan.devices[arm] / plan.devices[plan.baseline]
            line = {"task": task, "arm": arm, "dead": dead, "accuracy": accuracy, "ratio": ratio}
            line["equal"] = scores.gain(own, paired, at_A)
            line["matched"] = scores.gain(own, paired, at_A, ratio=ratio)
            both = pd.concat([own, paired])
            if both.cpu_seconds.notna().all():
                # The most that all runs of both arms spent
                spent = both.groupby(scores.RUN).cpu_seconds.max().min()
                cpu_A = spent * at_A / plan.budget
                line["cpu"] = scores.gain(own, paired, cpu_A, cost="cpu_seconds")
            lines.append(line)
    return pd.json_normalize(lines, sep="_")


def heads(gains: pd.DataFrame, tasks: tuple) -> list[str]:
    """Format the three first rows of a table: shares of dead groups, the rule, uniform's
    accuracy."""
    by_task = gains.drop_duplicates("task").set_index("task").loc[[*tasks]]
    return [
        table_row(["points over uniform", *(f"{percent(dead)} dead" for dead in by_task.dead)]),
        table_row(["---"] * (1 + len(tasks))),
        table_row(["*uniform's accuracy*", *(f"{each:.1f}%" for each in by_task.accuracy)]),
    ]


def short_table(gains: pd.DataFrame) -> str:
    """Format README's table: compute-matched gains of SHOWN, with intervals and seeds."""
    lines = heads(gains, SHARES)
    cells = gains.set_index(["arm", "task"])
    for arm in SHOWN:
        line = [NAMES[arm]]
        for task in SHARES:
            cell = cells.loc[arm, task]
            interval = f"{signed(cell.matched_low)} to {signed(cell.matched_high)}"
            line.append(f"{signed(cell.matched_points)} ({interval}; {cell.matched_seeds:.0f})")
        lines.append(table_row(line))
    return "\n".join(lines)


def long_table(gains: pd.DataFrame) -> str:
    """Format the table of docs/results.md: all gains, a block for each cost."""
    lines = heads(gains, TASKS)
    for title, cost in COSTS.items():
        lines.append(table_row([f"*{title}*", *[""] * len(TASKS)]))
        compared = gains[gains.ratio > 1] if cost == "matched" else gains
        points = compared.pivot(index="arm", columns="task", values=f"{cost}_points")
        points = points.reindex(columns=TASKS)
        for arm in NAMES:
            if arm in points.index and points.loc[arm].notna().any():
                texts = ["–" if np.isnan(cell) else signed(cell) for cell in points.loc[arm]]
                lines.append(table_row([NAMES[arm], *texts]))
    return "\n".join(lines)


def console(lines: list[str]) -> str:
    """Shorten what the demo printed, for README: its first lines and its last."""
    return "\n".join(f"    {line}".rstrip() for line in [*lines[:5], "…", *lines[-2:]])


def style(axes) -> None:
    """Leave the two axes that are read."""
    axes.spines[["top", "right"]].set_visible(False)


def label_ends(axes, ends: list[tuple[float, float, str, str]], gap: float) -> None:
    """Write each line's label beside its end (x, y, label, colour), at least a gap in y apart."""
    below = -np.inf
    for x, y, label, colour in sorted(ends, key=lambda end: end[1]):
        below = max(y, below + gap)
        axes.annotate(
            label, (x, below), (8, 0), textcoords="offset points", va="center", color=colour
        )


@matplotlib.rc_context(plot.LOOK | FONT)
def draw_gains(gains: pd.DataFrame) -> Figure:
    """Draw the compute-matched gains of SHOWN with their intervals against the share of dead
    groups."""
    figure = Figure(figsize=(6.4, 4.6), layout="constrained")
    axes = figure.subplots()
    ends = []
    for number, (arm, (_, label)) in enumerate(SHOWN.items()):
        rows = gains[gains.arm == arm]
        # Side by side, so that bars do not overlap: the places are not in proportion to shares.
        places = np.arange(len(rows)) + 0.07 * (number - 1.5)
        points = rows.matched_points
        bars = [points - rows.matched_low, rows.matched_high - points]
        colour = plot.COLOURS[[0, 3, 1, 5][number]]
        axes.errorbar(places, points, bars, marker="o", color=colour, linewidth=1.8)
        ends.append((places[-1], points.iloc[-1], label, colour))
    label_ends(axes, ends, 0.75)
    axes.axhline(0, color=plot.GREY, linewidth=1)
    axes.set(
        xticks=range(len(TASKS)),
        xticklabels=[percent(dead) for dead in gains.dead.unique()],
        xlim=(-0.3, len(TASKS) + 1.05),
        xlabel="dead groups under uniform (places evenly spaced)",
        ylabel="points over uniform",
    )
    axes.yaxis.set_major_formatter(FuncFormatter(lambda y, _: signed(y)[:-2] if y else "0"))
    axes.grid(visible=False, axis="x")
    style(axes)
    return figure


@matplotlib.rc_context(plot.LOOK | FONT | COLOURS)
def draw_demo(rows: pd.DataFrame) -> Figure:
    """Draw the demo's accuracy by completions, Goldilocks beside uniform: seeds thin, means
    thick."""
    figure = Figure(figsize=(6.4, 3.8), layout="constrained")
    axes = figure.subplots()
    ends = []
    for arm in ("Goldilocks", "uniform"):
        runs = rows[(rows.task == "demo") & (rows.arm == arm)]
        curves = runs.pivot(index="completions", columns="seed", values="accuracy")
        line = plot.draw_mean(axes, arm, curves)
        label = f"{arm}\n{curves.mean(axis=1).iloc[-1]:.1f}%"
        ends.append((curves.index[-1], curves.mean(axis=1).iloc[-1], label, line.get_color()))
    label_ends(axes, ends, 1.9)
    axes.set(
        xlim=(0, 1.24 * curves.index[-1]),
        xticks=range(0, 20_001, 5000),
        xlabel="completions",
        ylabel="accuracy, %",
        title=f"The demo, {curves.shape[1]} seeds (thin) and their mean",
    )
    axes.xaxis.set_major_formatter("{x:,.0f}")
    style(axes)
    return figure


def read_gains() -> pd.DataFrame:
    """Compare the arms in the committed scores."""
    plan = Plan.read(SPARSITY / "plan.toml")
    return compare(scores.read(GAINS), plan)


def record() -> None:
    """Run README's demo and write what it prints to CONSOLE. Raises InputError if its directory is
    there: a run that goes on prints less. Raises CalledProcessError if it fails."""
    [command] = {*COMMAND.findall((ROOT / "README.md").read_text("utf-8"))}
    folder = ROOT / "runs/demo-goldilocks-seed0"
    if folder.exists():
        raise InputError(f"{folder} is there: move it away, so that the demo starts from step 0")
    done = subprocess.run(
        command.split(), cwd=ROOT, check=True, text=True, stdout=-1, stderr=subprocess.STDOUT
    )
    write_atomic(CONSOLE, done.stdout.replace("\r", "\n"))


def main(argv=None) -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--record", action="store_true", help="run the demo first")
    args = parser.parse_args(argv)
    with exit_on_error("front_page"):
        if args.record:
            record()
        gains = read_gains()
        draw_gains(gains).savefig(ROOT / "docs/gains.png", dpi=150)
        draw_demo(scores.read(DEMO / "scores.csv")).savefig(ROOT / "docs/demo.png", dpi=150)
        print(short_table(gains), long_table(gains), sep="\n\n")
        print("", console(CONSOLE.read_text("utf-8").splitlines()), sep="\n")


if __name__ == "__main__":
    sys.exit(main())

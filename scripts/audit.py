#!/usr/bin/env python
"""What training curves cannot separate: Markdown tables and one figure, from run folders.

    python scripts/audit.py runs/goldilocks_* runs/uniform_* --out figures > audit.md

Values are mean ± sample standard deviation over runs; samplers that predict nothing lack what is about predictions.

Predictions are those that a problem was selected with, outcomes y = √(p̂(1-p̂)) of its G completions. Exploring picks
uniformly (the uniform sampler always does): it judges the teacher without bias, and its mean outcome is the pool's.
Greedy takes the largest of K predictions, so on average it overrates (the winner's curse: predicted above outcome). At
the *same* prediction (and step) both expect the same outcome, for the choice sees nothing else: reliability curves
should coincide, and the curse is how much more often greedy sits where they run below the diagonal. Lift: how far
greedy lies above its pool, predicted (utility less the pool's mean) and in outcomes (greedy less exploring). Spearman:
all explored selections of a block. Noise floor: a perfect teacher's error, from sampling G only; a low estimate, and
errors add up only roughly.

Gradient norm: a dead group adds nothing to the sum but counts in the denominator, so fewer of them raise the norm with
no group's gradient changed. ÷ live share undoes it: `--dead_rows out` does just that to the loss (not to KL and entropy
terms, and such a run then goes its own way). But a mean over fewer live groups is also noisier: where the groups'
gradients add up like noise, the norm goes like √(live share), and ÷ √(live share) is what stays level.

Accuracy at equal amounts is interpolated between evaluations, at half and at all of what every run has reached. Time
leaves evaluations out and presumes equal hardware.
"""

import math
from dataclasses import dataclass

import numpy as np
from plot import (
    COLOURS,
    RunError,
    arguments,
    count_shares,
    curve,
    draw_panel,
    draw_reliability,
    load_groups,
    load_selections,
    plt,
    save,
    x_values,
)

COMPARED = {
    "steps": "steps",
    "samples": "thousand completions",
    "tokens": "million tokens",
    "seconds": "hours",
}
LOGGED = {  # key in the metrics -> row of the table
    "zero_variance": "dead groups",
    "norm_in": "gradient norm, dead rows in the denominators",
    "norm_out": "gradient norm, dead rows out: ÷ live share",
    "norm_root": "gradient norm ÷ √(live share)",
    "teacher_mae": "teacher MAE",
    "teacher_mae_explore": "teacher MAE, exploring",
    "teacher_noise_floor": "noise floor of G",
    "excess": "teacher MAE − noise floor",
}


@dataclass
class Run:
    """Metrics by step; load_selections' array; accuracy by amount of each."""

    G: int
    rows: list[dict]
    selections: np.ndarray
    accuracy: dict[str, tuple[np.ndarray, np.ndarray]]


def load(folder, config: dict, rows: list[dict]) -> Run:
    """The run, and added to its metrics the norm by treatment of dead rows and the teacher's error above the floor."""
    selections = load_selections(folder)
    try:
        P, dead_out = config["prompts_per_step"], config["dead_rows"] == "out"
        for row in (row for row in rows if row.get("grad_norm") is not None):
            # Resampling (DAPO) rolls out more groups than the P that the loss takes, the live ones first.
            live = max(1, min(P, round(row["groups"] * (1 - row["zero_variance"])))) / P
            row["norm_in"] = row["grad_norm"] * (live if dead_out else 1)
            row["norm_out"], row["norm_root"] = (
                row["norm_in"] / live,
                row["norm_in"] / math.sqrt(live),
            )
            if row.get("teacher_mae") is not None:
                row["excess"] = row["teacher_mae"] - row["teacher_noise_floor"]
        accuracy = {x: curve(rows, x_values(config, rows, x), "val_accuracy") for x in COMPARED}
        return Run(config["group_size"], rows, selections, accuracy)
    except (KeyError, ValueError, TypeError, AttributeError) as error:
        what = f"lacks {error}" if isinstance(error, KeyError) else error
        raise RunError(f"{folder}: cannot be audited: {what}") from error


def spearman(x, y) -> float:
    """Rank correlation, tied values sharing their mean rank; NaN where x or y is constant."""
    ranks = []
    for values in (x, y):
        unique, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
        if len(unique) < 2:
            return math.nan
        ranks.append((np.cumsum(counts) - (counts - 1) / 2)[inverse])
    return float(np.corrcoef(*ranks)[0, 1])


def measures(run: Run, first: int, last: int) -> dict:
    """The table's numbers for one run's steps first..last; what is not known there is left out."""
    s, G, q = run.selections, run.G, run.G // 4
    s = s[(s["step"] >= first) & (s["step"] <= last)]
    greedy, exploring = s[~s["explored"]], s[s["explored"]]

    def logged(key):
        values = [
            row[key]
            for row in run.rows
            if first <= row["step"] <= last and row.get(key) is not None
        ]
        return np.mean(values) if values else math.nan

    found = {name: logged(key) for key, name in LOGGED.items()}
    scored, known = (branch[np.isfinite(branch["predicted"])] for branch in (greedy, exploring))
    found["Spearman, exploring"] = spearman(known["predicted"], known["y"])
    for name, branch, predicted in (("greedy", greedy, scored), ("exploring", exploring, known)):
        if len(branch):
            found[f"predicted, {name}"] = (
                predicted["predicted"].mean() if len(predicted) else math.nan
            )
            found[f"outcome y, {name}"] = branch["y"].mean()
            counts = f"%, 0 · 1–{q} · {q + 1}–{G - q - 1} · {G - q}–{G - 1} · {G} of {G} right"
            found[f"{name}, {counts}"] = count_shares(branch["successes"], G)
    if len(scored):
        found["lift, predicted"] = scored["predicted"].mean() - scored["pool"].mean()
    if len(greedy) and len(exploring):
        found["lift, outcome"] = greedy["y"].mean() - exploring["y"].mean()
        found["outcome y, greedy / exploring"] = greedy["y"].mean() / (
            exploring["y"].mean() or math.nan
        )
    return {key: value for key, value in found.items() if np.isfinite(value).all()}


def by_block(kinds: dict[str, list[Run]], n: int) -> tuple[list[str], dict]:
    """n parts of the longest run's steps, as labels, and measures[kind][run][part]."""
    longest = max(run.rows[-1]["step"] for runs in kinds.values() for run in runs)
    width = max(1, math.ceil(longest / n))
    blocks = [(first, min(first + width - 1, longest)) for first in range(1, longest + 1, width)]
    found = {
        name: [[measures(run, *block) for block in blocks] for run in runs]
        for name, runs in kinds.items()
    }
    return [f"{a}–{b}" for a, b in blocks], found


def by_amount(kinds: dict[str, list[Run]]) -> tuple[list[str], dict]:
    """Equal amounts, as labels, and {"validation accuracy": …}[kind][run][amount]; empty where a run has none."""
    runs = [run for runs in kinds.values() for run in runs]
    if any(len(run.accuracy["steps"][0]) == 0 for run in runs):
        return [], {}
    reached = {x: min(run.accuracy[x][0][-1] for run in runs) for x in COMPARED}
    amounts = [(x, amount) for x in COMPARED for amount in (reached[x] / 2, reached[x])] + [
        ("steps", math.inf)
    ]
    labels = [
        f"{amount:{',.0f' if amount >= 100 else '.3g'}} {COMPARED[x]}" for x, amount in amounts[:-1]
    ]
    found = {
        name: [
            [{"validation accuracy": np.interp(at, *run.accuracy[x])} for x, at in amounts]
            for run in runs
        ]
        for name, runs in kinds.items()
    }
    return [*labels, "its own end"], found


def markdown(title: str, columns: list[str], found: dict) -> str:
    """One row for each kind and measure: mean ± sample standard deviation over runs; of shares the mean percentages."""

    def cell(values):
        if not values or np.ndim(values[0]):
            return (
                " · ".join(f"{100 * share:.0f}" for share in np.mean(values, axis=0))
                if values
                else "–"
            )
        return f"{np.mean(values):.3f}" + (
            f" ± {np.std(values, ddof=1):.3f}" if len(values) > 1 else ""
        )

    lines = [f"| {title} | {' | '.join(columns)} |", "|---" * (len(columns) + 1) + "|"]
    for kind, runs in found.items():
        for key in dict.fromkeys(key for run in runs for part in run for key in part):
            cells = [
                cell([run[i][key] for run in runs if key in run[i]]) for i in range(len(columns))
            ]
            lines.append(f"| {kind}: {key} | {' | '.join(cells)} |")
    return "\n".join(lines)


def draw_points(axes, columns: list[str], found: dict, keys) -> None:
    """Values by column: runs as faint dots, their mean in the kind's colour; keys are (key, line style, name)."""
    for k, (colour, runs) in enumerate(zip(COLOURS, found.values(), strict=False)):
        for key, line, _ in keys:
            points = [
                (i + 0.12 * k, [run[i][key] for run in runs if key in run[i]])
                for i in range(len(columns))
            ]
            points = [(at, values) for at, values in points if values]
            for at, values in points:
                fill = "none" if line == "--" else "full"
                axes.plot(
                    [at] * len(values),
                    values,
                    "o",
                    color=colour,
                    alpha=0.5,
                    markersize=4,
                    fillstyle=fill,
                )
            means = [np.mean(values) for _, values in points]
            axes.plot(
                [at for at, _ in points], means, line, color=colour, linewidth=1.8, markersize=14
            )
    if keys[0][2]:
        handles = [
            plt.Line2D([], [], linestyle=line, color="0.3", label=name) for _, line, name in keys
        ]
        axes.legend(handles=handles, fontsize=8, frameon=False)
    axes.set_ylim(bottom=min(0, axes.get_ylim()[0]))
    axes.set_xticks(range(len(columns)), columns, fontsize=8)


def draw_counts(axes, blocks: list[str], found: dict) -> None:
    """Stacked shares of success counts, a bar for every block, a cluster of them for every kind and branch."""
    at, ticks, hatches, shades = (
        0.0,
        {},
        ["//", "", "", "", "//"],
        plt.get_cmap("cividis")(np.linspace(0, 1, 5)),
    )
    for kind, runs in found.items():
        for branch in ("greedy", "exploring"):
            start = at
            for i, block in enumerate(blocks):
                shares = [
                    v for run in runs for key, v in run[i].items() if key.startswith(f"{branch}, %")
                ]
                if shares:
                    tops = np.cumsum(np.mean(shares, axis=0))
                    for low, top, shade, hatch in zip(
                        [0, *tops], tops, shades, hatches, strict=False
                    ):
                        axes.bar(
                            at,
                            top - low,
                            0.85,
                            low,
                            color=shade,
                            hatch=hatch,
                            edgecolor="0.6",
                            linewidth=0.4,
                        )
                    ticks[at] = block
                    at += 1
            if at > start:
                axes.text((start + at - 1) / 2, 1.02, f"{kind}, {branch}", ha="center", fontsize=8)
                at += 0.8
    for name, shade, hatch in zip(
        ["0", "to G/4", "between", "from 3G/4", "G"], shades, hatches, strict=True
    ):
        axes.bar(0, 0, color=shade, hatch=hatch, edgecolor="0.6", label=name)
    axes.set_xticks(list(ticks), ticks.values(), fontsize=8)
    axes.set_ylim(0, 1)
    axes.legend(fontsize=8, frameon=False, ncols=5, loc="upper center", bbox_to_anchor=(0.5, -0.16))


def audit(folders, out, n_blocks: int = 4, group_by: tuple[str, ...] = ()):
    """Draw the figure; returns its path and the tables as Markdown."""
    kinds = {
        name: [load(*run) for run in runs] for name, runs in load_groups(folders, group_by).items()
    }
    (blocks, found), (amounts, accuracy) = by_block(kinds, n_blocks), by_amount(kinds)
    curves = {
        k: [(run.rows, x_values({}, run.rows, "steps")) for run in runs]
        for k, runs in kinds.items()
    }
    predicts = any(
        np.isfinite(run.selections["predicted"]).any() for runs in kinds.values() for run in runs
    )
    top = (
        [["reliable", "rank", "lift"], ["counts", "counts", "excess"]]
        if predicts
        else [["counts"] * 3]
    )
    layout = [*top, ["norm", "dead", "equal" if amounts else "."]]
    figure, panels = plt.subplot_mosaic(
        layout, figsize=(13.2, 3.6 * len(layout) + 0.4), layout="constrained"
    )
    norms = [
        ("norm_in", "-", "dead rows in the denominators"),
        ("norm_out", "--", "dead rows out: ÷ live share"),
    ]
    draw_panel(panels["norm"], ("Gradient norm", "norm before clipping", norms), curves, "steps")
    draw_panel(
        panels["dead"],
        ("Dead groups", "share of groups", [("zero_variance", "-", None)]),
        curves,
        "steps",
    )
    draw_counts(panels["counts"], blocks, found)
    if predicts:
        panel = (
            "Teacher error above the noise floor",
            "MAE − noise floor",
            [("excess", "-", None)],
        )
        draw_panel(panels["excess"], panel, curves, "steps")
        draw_reliability(
            panels["reliable"], {k: [run.selections for run in runs] for k, runs in kinds.items()}
        )
        draw_points(panels["rank"], blocks, found, [("Spearman, exploring", "-", None)])
        lifts = [("lift, predicted", "--", "predicted"), ("lift, outcome", "-", "in outcomes")]
        draw_points(panels["lift"], blocks, found, lifts)
    if amounts:
        ends = {name: [run[1::2] + run[-1:] for run in runs] for name, runs in accuracy.items()}
        labels = [label.replace(" ", "\n") for label in amounts[1::2] + amounts[-1:]]
        draw_points(panels["equal"], labels, ends, [("validation accuracy", "_", None)])
    for name, title, x, y in (
        (
            "rank",
            "Prediction against outcome, exploring",
            "training steps",
            "Spearman rank correlation",
        ),
        ("lift", "Lift of the greedy choice over its pool", "training steps", "utility"),
        (
            "counts",
            "How many of G completions were right, by training steps (hatched: dead)\n",
            "",
            "share of groups",
        ),
        ("equal", "Validation accuracy at equal amounts", "", "greedy pass@1"),
    ):
        if name in panels:
            panels[name].set(title=title, xlabel=x, ylabel=y, axisbelow=True)
            panels[name].grid(axis="y", alpha=0.25, linewidth=0.6)
            panels[name].spines[["top", "right"]].set_visible(False)
    tables = [markdown("steps", blocks, found)] + [markdown("at", amounts, accuracy)] * bool(
        amounts
    )
    return save(figure, kinds, out, "audit.png"), "\n\n".join(tables)


def main(argv=None) -> None:
    """The command line of `audit`."""
    parser = arguments(__doc__)
    parser.add_argument(
        "--blocks", type=int, default=4, help="parts that the steps are divided into (%(default)s)"
    )
    args = parser.parse_args(argv)
    try:
        path, tables = audit(args.runs, args.out, max(1, args.blocks), tuple(args.group_by))
    except (RunError, OSError) as error:
        parser.exit(2, f"audit: {error}\n")
    print(f"{tables}\n\nFigure: {path}")


if __name__ == "__main__":
    main()

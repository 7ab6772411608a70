#!/usr/bin/env python
"""Draw training curves from run folders: one figure, one colour per method.

    python scripts/plot.py runs/goldilocks_* runs/uniform_* --out figures
    python scripts/plot.py runs/a runs/b --x device_hours --out compare.png

As in the paper, validation accuracy is drawn as it was measured and everything else smoothed by an
exponential moving average (0.9) over the steps, with the raw curve faint behind it. Runs of the same method
(seeds) share a colour: a thin line each and a thick one for their mean over the range that all of them cover.
"""

import argparse
import json
import sys
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np

EMA = 0.9  # (paper, Experiments)
# Okabe and Ito's, in an order that keeps the first ones apart in a black-and-white print too.
COLOURS = ["#0072B2", "#E69F00", "#000000", "#56B4E9", "#D55E00", "#009E73", "#CC79A7"]
X_AXES = {  # name -> (label, unit in which the running total is drawn)
    "steps": ("training step", 1),
    "samples": ("sampled completions (thousands)", 1e3),
    "seconds": ("training time, evaluation not counted (hours)", 3600),
    "tokens": ("generated tokens (millions)", 1e6),
    "device_hours": ("device-hours, evaluation not counted", 3600),
}
OWN_TO_A_RUN = {"seed", "out"}  # settings in which runs that are averaged may differ
PANELS = [  # title, axis, then (key, line style, name in the panel's legend); the first key gets the raw curve
    ("Validation accuracy", "greedy pass@1", [("val_accuracy", "-", None)]),
    ("Training reward", "mean reward of a completion", [("reward_mean", "-", None)]),
    ("Dead groups (zero variance)", "share of groups", [("zero_variance", "-", None)]),
    ("Gradient norm", "norm before clipping", [("grad_norm", "-", None)]),
    (
        "Teacher error on unseen problems",
        "mean |predicted − observed utility|",
        [
            ("teacher_mae", "-", "all groups"),
            ("teacher_mae_dead", "--", "dead groups"),
            ("teacher_noise_floor", ":", "a perfect teacher (sampling noise)"),
        ],
    ),
    (
        "Teacher's predictions",
        "predicted utility of the candidates",
        [("teacher_mu", "-", "mean"), ("teacher_sigma", "--", "standard deviation")],
    ),
]


class RunError(ValueError):
    """A run folder that cannot be drawn; one line that says why."""


def ema(values, keep: float = EMA) -> np.ndarray:
    """s_0 = x_0 and s_t = keep * s_(t-1) + (1 - keep) * x_t."""
    smooth = np.array(values, dtype=float)
    for t in range(1, len(smooth)):
        smooth[t] = keep * smooth[t - 1] + (1 - keep) * smooth[t]
    return smooth


def read_rows(path: Path) -> list[dict]:
    """The objects with a step in a .jsonl file, without the line that a run still going is writing."""
    rows = []
    for number, line in enumerate(path.read_text(encoding="utf-8", errors="replace").splitlines(keepends=True), 1):
        if not line.endswith("\n"):
            break
        try:
            rows.append(json.loads(line))
            rows[-1]["step"] + 0
        except (ValueError, KeyError, TypeError) as error:
            raise RunError(f"{path}, line {number}: not a JSON object with a step") from error
    return rows


def load_run(folder) -> tuple[dict, list[dict]]:
    """A run's settings and its metrics in the order of the steps (of a step repeated after a resume, the last)."""
    folder = Path(folder)
    if not folder.is_dir():
        raise RunError(f"{folder}: no such run folder")
    try:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8", errors="replace"))
        rows = {row["step"]: row for row in read_rows(folder / "metrics.jsonl")}
    except OSError as error:
        raise RunError(f"{folder}: not a run folder, {Path(error.filename).name}: {error.strerror}") from error
    except json.JSONDecodeError as error:
        raise RunError(f"{folder}: config.json is not JSON ({error})") from error
    if not isinstance(config, dict):
        raise RunError(f"{folder}: config.json is not a JSON object")
    if not rows:
        raise RunError(f"{folder}: metrics.jsonl has no step yet")
    return config, [rows[step] for step in sorted(rows)]


def load_groups(folders, group_by: tuple[str, ...]) -> dict[str, list[tuple[Path, dict, list[dict]]]]:
    """(folder, settings, metrics) of the runs, under the values that each has in the settings `group_by`."""
    groups = {}
    for folder in folders:
        config, rows = load_run(folder)
        try:
            name = ", ".join(str(config[key]) for key in group_by)
        except KeyError as error:
            raise RunError(f"{folder}: no {error} in config.json") from error
        runs = groups.setdefault(name, [])
        runs.append((Path(folder), config, rows))
        other = runs[0][1]
        differing = {key for key in config | other if config.get(key) != other.get(key)} - OWN_TO_A_RUN
        if differing:  # a mean over an ablation and the main runs would be a quiet mistake
            note = f"differs from other runs of {name!r} in {', '.join(sorted(differing))}; see --group_by"
            print(f"note: {folder} {note}", file=sys.stderr)
    if len(groups) > len(COLOURS):
        raise RunError(f"{len(groups)} groups of runs, but only {len(COLOURS)} colours can be told apart")
    return groups


def x_values(config: dict, rows: list[dict], x: str) -> np.ndarray:
    """The running total of samples, time, tokens or device-hours at each row, or its step; in the unit of X_AXES."""
    if x == "steps":
        return np.array([row["step"] for row in rows], dtype=float)
    key = {"samples": "groups", "tokens": "completion_tokens"}.get(x, "seconds")
    missing = [row["step"] for row in rows if row.get(key) is None and row["step"] > 0]  # step 0 only evaluates
    if missing:
        raise RunError(f"no {key} at step {missing[0]}, so --x {x} cannot be drawn")
    times = {"samples": "group_size", "device_hours": "world_size"}.get(x)
    if times and not config.get(times):
        raise RunError(f"no {times} in config.json, so --x {x} cannot be drawn")
    return np.cumsum([row.get(key) or 0.0 for row in rows]) * (config[times] if times else 1) / X_AXES[x][1]


def curve(rows: list[dict], x: np.ndarray, key: str) -> tuple[np.ndarray, np.ndarray]:
    """(x, value) at the rows that have a finite value: the teacher's and accuracy are not there at each."""
    points = [(at, row[key]) for at, row in zip(x, rows, strict=True) if row.get(key) is not None]
    points = [(at, value) for at, value in points if np.isfinite(value)]
    return np.array([at for at, _ in points]), np.array([value for _, value in points], dtype=float)


def mean_curve(curves: list[tuple[np.ndarray, np.ndarray]]) -> tuple[np.ndarray, np.ndarray]:
    """Mean of several curves, interpolated at all of their points within the range that every one covers."""
    low, high = max(x[0] for x, _ in curves), min(x[-1] for x, _ in curves)
    grid = np.unique(np.concatenate([x for x, _ in curves]))
    grid = grid[(grid >= low) & (grid <= high)]
    return grid, np.mean([np.interp(grid, x, y) for x, y in curves], axis=0)


def draw_panel(axes, panel, groups, x_axis: str) -> None:
    """One panel: for every group of runs each run thin and raw values fainter, and their mean thick."""
    title, label, keys = panel
    measured = keys[0][0] == "val_accuracy"
    for colour, runs in zip(COLOURS, groups.values(), strict=False):
        for key, style, _ in keys:
            curves = [curve(rows, x, key) for rows, x in runs]
            curves = [(x, y) for x, y in curves if len(x)]
            if not curves:
                continue
            shown = [(x, y if measured else ema(y)) for x, y in curves]
            if not measured and key == keys[0][0]:
                for x, y in curves:
                    axes.plot(x, y, color=colour, alpha=0.5 / (2 + len(curves)), linewidth=0.6)
            for x, y in shown if len(shown) > 1 or measured else []:
                marker = "o" if measured else None
                axes.plot(x, y, style, color=colour, alpha=0.4, linewidth=0.8, marker=marker, markersize=3)
            axes.plot(*mean_curve(shown), style, color=colour, linewidth=1.8)
    if keys[0][2]:  # what the line styles mean, in grey: the colours are the figure's legend
        for _, style, name in keys:
            axes.plot([], [], style, color="0.3", label=name)
        axes.legend(fontsize=8, frameon=False)
    axes.set(title=title, ylabel=label, xlabel=X_AXES[x_axis][0])
    axes.grid(alpha=0.25, linewidth=0.6)
    axes.spines[["top", "right"]].set_visible(False)


def plot(folders, out, x: str = "steps", group_by: tuple[str, ...] = ("sampler",)) -> Path:
    """Draw the runs and return the picture's path: `out` itself, or training_by_<x>.png in the folder `out`."""
    groups = {}
    for name, runs in load_groups(folders, group_by).items():
        for folder, config, rows in runs:
            try:
                groups.setdefault(name, []).append((rows, x_values(config, rows, x)))
            except RunError as error:
                raise RunError(f"{folder}: {error}") from error
    rows = [row for runs in groups.values() for rows, _ in runs for row in rows]
    present = {key for row in rows for key, value in row.items() if value is not None}
    panels = [panel for panel in PANELS if panel[2][0][0] in present]
    if not panels:
        raise RunError("none of these runs has a metric to draw")
    columns = min(3, len(panels)) if len(panels) != 4 else 2
    lines = -(-len(panels) // columns)
    figure, grid = plt.subplots(
        lines, columns, figsize=(4.4 * columns, 3.3 * lines + 0.4), squeeze=False, layout="constrained"
    )
    for axes, panel in zip(grid.flat, panels, strict=False):
        draw_panel(axes, panel, groups, x)
    for axes in grid.flat[len(panels) :]:
        axes.set_visible(False)
    return save(figure, groups, out, f"training_by_{x}.png")


def save(figure, groups: dict[str, list], out, name: str) -> Path:
    """The figure with its legend of groups, as the file `out`, or as `name` in the folder `out`; returns the path."""
    handles = [plt.Line2D([], [], color=colour, linewidth=2) for colour, _ in zip(COLOURS, groups, strict=False)]
    names = [f"{key} ({len(runs)} run{'s' * (len(runs) > 1)})" for key, runs in groups.items()]
    figure.legend(handles, names, loc="outside upper center", ncols=len(names), frameon=False)
    path = Path(out)
    path = path if path.suffix in (".png", ".pdf", ".svg") else path / name
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150)
    plt.close(figure)
    return path


def arguments(doc: str) -> argparse.ArgumentParser:
    """The command line that scripts reading run folders have in common."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", metavar="RUN", help="run folders, as train.py makes them")
    parser.add_argument("--out", default="figures", help="a folder, or a .png, .pdf or .svg file (%(default)s)")
    parser.add_argument(
        "--group_by", nargs="+", default=["sampler"], metavar="KEY",
        help="settings of config.json whose runs share a colour, e.g. sampler loss (%(default)s)",
    )  # fmt: skip
    return parser


def main(argv=None) -> None:
    """The command line of `plot`."""
    parser = arguments(__doc__)
    parser.add_argument("--x", choices=X_AXES, default="steps", help="horizontal axis (%(default)s)")
    args = parser.parse_args(argv)
    try:
        print(plot(args.runs, args.out, args.x, tuple(args.group_by)))
    except (RunError, OSError) as error:
        sys.exit(f"plot: {error}")


if __name__ == "__main__":
    main()

#!/usr/bin/env python
"""Draw the paper's figures from run folders: training curves, and what was selected. One colour for each method.

    python scripts/plot.py runs/goldilocks_* runs/uniform_* --out figures
    python scripts/plot.py runs/a runs/b --x device_hours --out compare.png

training_by_<x>: validation accuracy (Figures 2 and 6; by `--x seconds` and `tokens` those of App. F), reward and its
standard deviation (3), gradient norm and dead groups (4), the teacher's error and predictions (5), the selection's
lift. Of ablations (App. G) and other models (App. H) the same. selections: how difficult the chosen problems were, by
step, and whether predictions can be trusted.

As in the paper, validation accuracy is drawn as it was measured and everything else smoothed by an
exponential moving average (0.9) over the steps. Runs whose settings differ in nothing but the seed are one method.
One or two of them are drawn thin, with the unsmoothed curve fainter, and their mean thick over the range that all of
them cover; three or more as their mean and, of the panel's first quantity, its 95% interval (t) over them.
"""

import argparse
import json
import sys
import zlib
from itertools import pairwise
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
from intervals import bootstrap, t_quantile

EMA = 0.9  # (paper, Experiments)
# Okabe and Ito's, in an order that keeps the first ones apart in a black-and-white print too.
COLOURS = ["#0072B2", "#E69F00", "#000000", "#56B4E9", "#D55E00", "#009E73", "#CC79A7"]
MARKERS = "os^Dv*P"
X_AXES = {  # name -> (label, unit in which the running total is drawn)
    "steps": ("training step", 1),
    "samples": ("sampled completions (thousands)", 1e3),
    "seconds": ("training time, evaluation not counted (hours)", 3600),
    "tokens": ("generated tokens (millions)", 1e6),
    "device_hours": ("device-hours, evaluation not counted", 3600),
    "student_work": ("step × ranks / student ranks (App. D)", 1),
    "forwarded": ("tokens forwarded by student and teacher (millions)", 1e6),
}
# Settings in which runs that are averaged may differ.
OWN_TO_A_RUN = {"seed", "out", "checkpoint_every", "keep", "verify_workers", "timeout_minutes"}
SHARES = {"val_accuracy", "reward_mean", "zero_variance"}
LEAST = 10  # bins of the reliability diagram with fewer outcomes are not drawn
SELECTION = [("step", int), ("chosen", int), ("explored", bool), ("successes", int), ("y", float)]
SELECTION += [("predicted", float), ("pool", float)]
PANELS = [  # title, axis, then (key, line style, name in the panel's legend); the first key gets the raw curve
    ("Validation accuracy", "greedy pass@1", [("val_accuracy", "-", None)]),
    ("Training reward", "mean reward of a completion", [("reward_mean", "-", None)]),
    ("Training reward: standard deviation", "mean over groups", [("reward_std_group", "-", None)]),
    ("Dead groups (zero variance)", "share of groups", [("zero_variance", "-", None)]),
    ("Gradient norm", "norm before clipping", [("grad_norm", "-", None)]),
    (
        "Teacher error on unseen problems",
        "mean |predicted − outcome|",
        [
            ("teacher_mae", "-", "all groups"),
            ("teacher_mae_dead", "--", "dead groups"),
            ("teacher_noise_floor", ":", "a perfect teacher (sampling noise)"),
        ],
    ),
    (
        "Teacher's predictions",
        "predicted utility, candidates",
        [("teacher_mu", "-", "mean"), ("teacher_sigma", "--", "standard deviation")],
    ),
    (
        "Selection lift",
        "outcome y = √(p̂(1-p̂))",
        [("y_greedy", "-", "greedy choices"), ("y_explored", "--", "explored: the pool's mean")],
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


def read_rows(path: Path, key: str = "step") -> list[dict]:
    """The objects with a number `key` in a .jsonl file, without the line that a run still going is writing."""
    rows = []
    for number, line in enumerate(
        path.read_text(encoding="utf-8", errors="replace").splitlines(keepends=True), 1
    ):
        if not line.endswith("\n"):
            break
        try:
            rows.append(json.loads(line))
            rows[-1][key] + 0
        except (ValueError, KeyError, TypeError) as error:
            raise RunError(f"{path}, line {number}: not a JSON object with a {key}") from error
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
        raise RunError(
            f"{folder}: not a run folder, {Path(error.filename).name}: {error.strerror}"
        ) from error
    except json.JSONDecodeError as error:
        raise RunError(f"{folder}: config.json is not JSON ({error})") from error
    if not isinstance(config, dict):
        raise RunError(f"{folder}: config.json is not a JSON object")
    if not rows:
        raise RunError(f"{folder}: metrics.jsonl has no step yet")
    return config, [rows[step] for step in sorted(rows)]


def load_selections(folder: Path) -> np.ndarray:
    """selections.jsonl as an array of SELECTION; `predicted`: of the chosen, `pool`: the pool's mean; NaN if none."""
    try:
        lines, selections = read_rows(folder / "selections.jsonl"), []
    except OSError as error:
        raise RunError(f"{folder}: not a run folder, selections.jsonl: {error.strerror}") from error
    if not lines:
        raise RunError(f"{folder}: selections.jsonl has no selection yet")
    try:
        for s in lines:
            predicted = s["utilities"][s["pool"].index(s["chosen"])]
            known = [utility for utility in s["utilities"] if utility is not None]
            numbers = (
                np.nan if predicted is None else predicted,
                np.mean(known) if known else np.nan,
            )
            selections.append(
                (s["step"], s["chosen"], s["explored"], s["successes"], s["y"], *numbers)
            )
        return np.array(selections, dtype=SELECTION)
    except (KeyError, ValueError, TypeError, AttributeError) as error:
        what = f"lacks {error}" if isinstance(error, KeyError) else error
        raise RunError(f"{folder}: selections.jsonl cannot be read: {what}") from error


def differing(one: dict, other: dict) -> list[str]:
    """The settings in which two runs are not seeds of one method."""
    return sorted({key for key in one | other if one.get(key) != other.get(key)} - OWN_TO_A_RUN)


def load_groups(
    folders, group_by: tuple[str, ...] = ()
) -> dict[str, list[tuple[Path, dict, list[dict]]]]:
    """(folder, settings, metrics) of the runs, under the name of their method.

    That is the sampler, with whatever sets the method apart from others that have it; given `group_by`, the values
    of these settings only. Other settings that differ are then noted.
    """
    runs, groups = [(Path(folder), *load_run(folder)) for folder in folders], {}
    for folder, config, rows in runs:
        same = [
            other
            for _, other, _ in runs
            if all(other.get(k) == config.get(k) for k in ("preset", "sampler"))
        ]
        keys = group_by or [
            "sampler",
            *sorted({key for other in same for key in differing(config, other)}),
        ]
        if not group_by and len({other.get("preset") for _, other, _ in runs}) > 1:
            keys.insert(0, "preset")
        try:
            name = ", ".join(
                f"{config[k]}" if k in ("preset", "sampler", *group_by) else f"{k} {config.get(k)}"
                for k in keys
            )
        except KeyError as error:
            raise RunError(f"{folder}: no {error} in config.json") from error
        group = groups.setdefault(name, [])
        group.append((folder, config, rows))
        if unlike := differing(
            config, group[0][1]
        ):  # a mean over an ablation and the main runs: a quiet mistake
            note = f"differs from other runs of {name!r} in {', '.join(unlike)}; see --group_by"
            print(f"note: {folder} {note}", file=sys.stderr)
    return groups


def forwarded(config: dict, rows: list[dict]) -> np.ndarray:
    """Tokens forwarded up to each row, (3, rows): to generate, to train the student, and by the teacher.

    A group's prompt is read once. Training forwards the rows that have a gradient, taken as long as the mean row, for
    each update, and for a KL term's reference once. The teacher scores K questions a prompt and learns from its buffer
    for E epochs after each M-th outcome (Alg. 2); a question is taken as long as a prompt, so this is an upper bound.
    Backward passes, about two forwards each, are not counted.
    """
    tokens, outcomes = np.zeros((3, len(rows))), 0
    try:
        passes = config["update_iterations"] + bool(config["kl_coef"])
        for i, row in enumerate(rows):
            if row["step"] == 0:  # only evaluates
                continue
            B = row["groups"] * config["group_size"]
            prompt = (row["total_tokens"] - row["completion_tokens"]) / B
            tokens[0, i] = row["groups"] * prompt + row["completion_tokens"]
            tokens[1, i] = row["forwarded_rows"] * row["total_tokens"] / B * passes
            if "teacher_updates" in row:
                M, N, E = (
                    config[k] for k in ("teacher_update_every", "replay_capacity", "teacher_epochs")
                )
                triggers = np.arange(outcomes // M + 1, (outcomes + row["groups"]) // M + 1) * M
                outcomes += row["groups"]
                learned = (
                    E * triggers.clip(max=N).sum() * (config["teacher_mode"] != "frozen")
                )  # kept embeddings
                tokens[2, i] = (row["groups"] * config["candidates"] + learned) * prompt
    except (KeyError, TypeError) as error:
        raise RunError(
            f"{error} is not in the run's files, so the tokens forwarded cannot be counted"
        ) from error
    return tokens.cumsum(axis=1)


def x_values(config: dict, rows: list[dict], x: str) -> np.ndarray:
    """The running total of an amount in X_AXES at each row, or its step; in the unit given there."""
    if x == "steps":
        return np.array([row["step"] for row in rows], dtype=float)
    if x == "forwarded":
        return forwarded(config, rows).sum(axis=0) / X_AXES[x][1]
    if x == "student_work":
        if not (config.get("world_size") and config.get("student_ranks")):
            raise RunError(
                f"no world_size and student_ranks in config.json, so --x {x} cannot be drawn"
            )
        return np.array(
            [row["step"] * config["world_size"] / config["student_ranks"] for row in rows]
        )
    key = {"samples": "groups", "tokens": "completion_tokens"}.get(x, "seconds")
    missing = [
        row["step"] for row in rows if row.get(key) is None and row["step"] > 0
    ]  # step 0 only evaluates
    if missing:
        raise RunError(f"no {key} at step {missing[0]}, so --x {x} cannot be drawn")
    times = {"samples": "group_size", "device_hours": "world_size"}.get(x)
    if times and not config.get(times):
        raise RunError(f"no {times} in config.json, so --x {x} cannot be drawn")
    return (
        np.cumsum([row.get(key) or 0.0 for row in rows])
        * (config[times] if times else 1)
        / X_AXES[x][1]
    )


def curve(rows: list[dict], x: np.ndarray, key: str) -> tuple[np.ndarray, np.ndarray]:
    """(x, value) at the rows that have a finite value: the teacher's and accuracy are not there at each."""
    points = [(at, row[key]) for at, row in zip(x, rows, strict=True) if row.get(key) is not None]
    points = [(at, value) for at, value in points if np.isfinite(value)]
    return np.array([at for at, _ in points]), np.array([value for _, value in points], dtype=float)


def together(curves: list[tuple[np.ndarray, np.ndarray]]) -> tuple[np.ndarray, np.ndarray]:
    """x at all points of the curves within the range that every one covers, and their values there (curves, x)."""
    low, high = max(x[0] for x, _ in curves), min(x[-1] for x, _ in curves)
    grid = np.unique(np.concatenate([x for x, _ in curves]))
    grid = grid[(grid >= low) & (grid <= high)]
    return grid, np.array([np.interp(grid, x, y) for x, y in curves])


def draw_panel(axes, panel, groups, x_axis: str) -> None:
    """One panel. groups: for each method the (metrics, x) of its runs."""
    title, label, keys = panel
    measured = keys[0][0] == "val_accuracy"
    for colour, marker, runs in zip(COLOURS, MARKERS, groups.values(), strict=False):
        for key, style, _ in keys:
            curves = [curve(rows, x, key) for rows, x in runs]
            curves = [(x, y) for x, y in curves if len(x)]
            if not curves:
                continue
            shown = [(x, y if measured else ema(y)) for x, y in curves]
            grid, values = together(shown)
            if len(shown) > 2 and key == keys[0][0]:
                half = t_quantile(len(shown) - 1) * values.std(axis=0, ddof=1) / len(shown) ** 0.5
                low = (values.mean(axis=0) - half).clip(0)  # nothing drawn here is ever negative
                high = (values.mean(axis=0) + half).clip(max=1 if key in SHARES else None)
                axes.fill_between(grid, low, high, color=colour, alpha=0.2, linewidth=0)
            elif len(shown) < 3:
                if not measured and key == keys[0][0]:
                    for x, y in curves:
                        axes.plot(x, y, color=colour, alpha=0.5 / (2 + len(curves)), linewidth=0.6)
                for x, y in shown if len(shown) > 1 else []:
                    axes.plot(x, y, style, color=colour, alpha=0.4, linewidth=0.8)
            marks = {"marker": marker, "markersize": 4, "markevery": 1 if measured else 0.12}
            axes.plot(grid, values.mean(axis=0), style, color=colour, linewidth=1.8, **marks)
    if keys[0][2]:  # what the line styles mean, in grey: the colours are the figure's legend
        for _, style, name in keys:
            axes.plot([], [], style, color="0.3", label=name)
        axes.legend(fontsize=8, frameon=False)
    axes.set(title=title, ylabel=label, xlabel=X_AXES[x_axis][0])
    axes.grid(alpha=0.25, linewidth=0.6)
    axes.spines[["top", "right"]].set_visible(False)


def plot(groups, selections: dict[Path, np.ndarray], out, x: str = "steps") -> Path:
    """Draw the training curves and return the picture's path: `out` itself, or training_by_<x>.png in the folder.

    groups: as load_groups returns them. selections: of the runs that have any.
    """
    drawn = {}
    for name, runs in groups.items():
        for folder, config, rows in runs:
            if folder in selections:
                add_lift(rows, selections[folder])
            try:
                drawn.setdefault(name, []).append((rows, x_values(config, rows, x)))
            except RunError as error:
                raise RunError(f"{folder}: {error}") from error
    present = {
        k
        for runs in drawn.values()
        for rows, _ in runs
        for row in rows
        for k in row
        if row[k] is not None
    }
    panels = [panel for panel in PANELS if panel[2][0][0] in present]
    if not panels:
        raise RunError("none of these runs has a metric to draw")
    columns = 2 if len(panels) in (2, 4) else min(3, len(panels))
    lines = -(-len(panels) // columns)
    figure, grid = plt.subplots(
        lines,
        columns,
        figsize=(4.4 * columns, 3.3 * lines + 0.4),
        squeeze=False,
        layout="constrained",
    )
    for axes, panel in zip(grid.flat, panels, strict=False):
        draw_panel(axes, panel, drawn, x)
    for axes in grid.flat[len(panels) :]:
        axes.set_visible(False)
    return save(figure, groups, out, f"training_by_{x}.png")


def add_lift(rows: list[dict], selections: np.ndarray) -> None:
    """To each step's metrics the mean outcome y of its greedy and of its explored choices, where it has some."""
    for row in rows:
        s = selections[slice(*np.searchsorted(selections["step"], [row["step"], row["step"] + 1]))]
        for key, branch in (("y_greedy", s[~s["explored"]]), ("y_explored", s[s["explored"]])):
            if len(branch):
                row[key] = float(branch["y"].mean())


def calibration(predicted, y) -> np.ndarray:
    """Bins of predictions, ten over [0, 0.5] but none empty: mean prediction and outcome, its 95% interval, number."""
    which, points = np.digitize(predicted, np.linspace(0, 0.5, 11)[1:-1]), []
    for inside in (which == b for b in np.unique(which)):
        points.append(
            [predicted[inside].mean(), y[inside].mean(), *bootstrap(y[inside], 2000), inside.sum()]
        )
    return np.reshape(points, (-1, 5))


def count_shares(successes, G: int) -> np.ndarray:
    """Shares of the groups with 0, 1 to G/4, in between, 3G/4 to G-1, and all G right."""
    which = np.digitize(successes, [0, 1, G // 4 + 1, G - G // 4, G]) - 1
    return np.bincount(which, minlength=5) / len(successes)


def draw_reliability(axes, groups: dict[str, list[np.ndarray]]) -> None:
    """Mean outcome by bin of prediction; exploring filled, greedy open. groups: each method's runs' selections."""
    axes.plot([0, 0.5], [0, 0.5], ":", color="0.3", linewidth=1)
    for explored, line, fill, name in (
        (True, "o-", None, "exploring"),
        (False, "o--", "w", "greedy"),
    ):
        axes.plot([], [], line, color="0.3", markerfacecolor=fill, label=name, markersize=5)
        for colour, runs in zip(COLOURS, groups.values(), strict=False):
            s = np.concatenate(runs)
            s = s[(s["explored"] == explored) & np.isfinite(s["predicted"])]
            points = calibration(s["predicted"], s["y"])
            x, y, low, high, _ = points[points[:, 4] >= LEAST].T
            style = {
                "fmt": line,
                "markersize": 5,
                "markerfacecolor": fill,
                "elinewidth": 0.9,
                "capsize": 2,
            }
            axes.errorbar(x, y, [y - low, high - y], color=colour, linewidth=1.3, **style)
    axes.legend(fontsize=8, frameon=False)
    title = "Reliability (95% intervals)"
    axes.set(title=title, xlabel="predicted utility", ylabel="outcome y", axisbelow=True)


def difficulty_levels(config: dict, column: str) -> tuple[np.ndarray, list[str]]:
    """For each training problem its level in a column of the file, and the levels' names.

    Values are levels where there are at most 12; else they are numbers, and levels tenths of the problems.
    """
    sys.path.insert(
        0, str(Path(__file__).resolve().parent.parent)
    )  # the core files lie beside this folder
    import datasets

    from sampler import Problems

    datasets.disable_progress_bars()
    if not config.get("train_data"):
        raise RunError(f"no train_data in config.json, so {column!r} is not known")
    path = Path(config["train_data"])
    try:
        values, which = Problems(path).column(column)
    except (ValueError, OSError) as error:
        raise RunError(str(error)) from error
    if config.get("train_data_crc32") not in (None, zlib.crc32(np.memmap(path, np.uint8, "r"))):
        raise RunError(f"{path} is not the file that the run was trained on")
    if len(values) <= 12:
        order = sorted(range(len(values)), key=lambda i: (values[i] is None, values[i]))
        return np.argsort(order)[which], [str(values[i]) for i in order]
    try:
        numbers = np.array([float(value) for value in values])[which]
    except (ValueError, TypeError) as error:
        raise RunError(
            f"{path}: {column!r} has {len(values)} different values that are not all numbers"
        ) from error
    edges = np.unique(np.quantile(numbers, np.linspace(0, 1, 11)))
    names = [f"{low:.3g} – {high:.3g}" for low, high in pairwise(edges)]
    return np.searchsorted(edges[1:-1], numbers, side="right"), names


def draw_difficulty(axes, runs: list[np.ndarray], G: int, levels=None, blocks: int = 20):
    """A heat map of one method: of the problems chosen in a block of steps, the share of each level. Returns the image.

    levels: as difficulty_levels returns them. Without them a level is how many of G completions were right.
    """
    chosen, shares = np.concatenate(runs), []
    edges = np.unique(
        np.linspace(0, chosen["step"].max(), blocks + 1).round()
    )  # a block: steps edge + 1 to next edge
    q = G // 4
    names = (
        levels[1] if levels else ["0", f"1–{q}", f"{q + 1}–{G - q - 1}", f"{G - q}–{G - 1}", f"{G}"]
    )
    for low, high in pairwise(edges):
        s = chosen[(chosen["step"] > low) & (chosen["step"] <= high)]
        shares.append(count_shares(s["successes"], G))
        if levels:
            shares[-1] = np.bincount(levels[0][s["chosen"]], minlength=len(names)) / len(s)
    image = axes.pcolormesh(
        edges, np.arange(len(names) + 1), np.transpose(shares), cmap="cividis", vmin=0
    )
    axes.set_yticks(np.arange(len(names)) + 0.5, names, fontsize=8)
    axes.set(xlabel="training step")
    return image


def plot_selections(
    groups, selections: dict[Path, np.ndarray], out, column: str, levels: dict
) -> Path:
    """Heat maps of what was chosen, one for each method, and the reliability of the predictions; returns the path.

    levels: each method's difficulty_levels of the column, or nothing.
    """
    runs = {
        name: [selections[folder] for folder, _, _ in members] for name, members in groups.items()
    }
    predicts = {k: v for k, v in runs.items() if any(np.isfinite(s["predicted"]).any() for s in v)}
    n = len(groups) + bool(predicts)
    columns, lines = min(3, n), -(-n // 3)
    size = (4.6 * columns, 3.5 * lines + 0.4)
    figure, grid = plt.subplots(lines, columns, figsize=size, squeeze=False, layout="constrained")
    images = []
    for axes, (name, members) in zip(grid.flat, groups.items(), strict=False):
        G = members[0][1]["group_size"]
        images.append(draw_difficulty(axes, runs[name], G, levels.get(name)))
        axes.set(
            title=f"Chosen problems: {name}",
            ylabel=column if levels else f"completions right, of {G}",
        )
    for image in images:
        image.set_clim(0, max(other.get_array().max() for other in images))
        figure.colorbar(image, ax=image.axes, label="share of a block's choices", pad=0.02)
    if predicts:
        draw_reliability(grid.flat[len(groups)], runs)
    for axes in grid.flat[n:]:
        axes.set_visible(False)
    return save(figure, groups, out, "selections.png")


def save(figure, groups: dict[str, list], out, name: str) -> Path:
    """The figure with its legend of groups, as the file `out`, or as `name` in the folder `out`; returns the path."""
    if len(groups) > len(COLOURS):
        raise RunError(
            f"{len(groups)} groups of runs, but only {len(COLOURS)} colours can be told apart"
        )
    looks = list(zip(COLOURS, MARKERS, strict=True))[: len(groups)]
    lines = [
        plt.Line2D([], [], color=colour, linewidth=2, marker=marker) for colour, marker in looks
    ]
    names = [f"{key} ({len(runs)} run{'s' * (len(runs) > 1)})" for key, runs in groups.items()]
    figure.legend(lines, names, loc="outside upper center", ncols=min(4, len(names)), frameon=False)
    path = Path(out)
    path = path if path.suffix in (".png", ".pdf", ".svg") else path / name
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150)
    plt.close(figure)
    return path


def arguments(doc: str, out: bool = True) -> argparse.ArgumentParser:
    """The command line that scripts reading run folders have in common."""
    parser = argparse.ArgumentParser(
        description=doc, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "runs", nargs="+", metavar="RUN", help="run folders, as train.py makes them"
    )
    if out:
        parser.add_argument(
            "--out", default="figures", help="a folder, or a .png, .pdf or .svg file (%(default)s)"
        )
    parser.add_argument(
        "--group_by", nargs="+", default=(), metavar="KEY",
        help="settings of config.json whose runs are one method, e.g. sampler loss (all but seed and out)",
    )  # fmt: skip
    return parser


def main(argv=None) -> None:
    """The command line of `plot` and `plot_selections`."""
    parser = arguments(__doc__)
    parser.add_argument(
        "--x", choices=X_AXES, default="steps", help="horizontal axis of the curves (%(default)s)"
    )
    parser.add_argument(
        "--column", help="of the training file: the heat map's vertical axis (difficulty, if there)"
    )
    args = parser.parse_args(argv)
    try:
        groups = load_groups(args.runs, tuple(args.group_by))
        configs = {folder: config for runs in groups.values() for folder, config, _ in runs}
        lacking = [folder for folder in configs if not (folder / "selections.jsonl").exists()]
        selections = {
            folder: load_selections(folder) for folder in configs if folder not in lacking
        }
        print(plot(groups, selections, args.out, args.x))
        if lacking:
            print(
                f"note: {lacking[0]} has no selections.jsonl: no figure of selections",
                file=sys.stderr,
            )
            return
        column, levels = args.column or "difficulty", {}
        try:
            levels = {name: difficulty_levels(runs[0][1], column) for name, runs in groups.items()}
        except RunError as error:
            if args.column:
                raise
            print(f"note: {error}: drawn by success instead", file=sys.stderr)
        out = Path(args.out)
        out = out.with_stem(f"{out.stem}_selections") if out.suffix else out
        print(plot_selections(groups, selections, out, column, levels))
    except (RunError, OSError) as error:
        parser.exit(2, f"plot: {error}\n")


if __name__ == "__main__":
    main()

"""plot: the numbers that are drawn, by hand."""

import numpy as np
import pytest

from scripts import plot
from scripts.study import figures
from scripts.study.runs import load_methods
from tests.helpers.runs import GOLDILOCKS, make_run


def test_means_over_two_runs(tmp_path):
    """Accuracy as measured; reward smoothed, its mean over the steps of both; then each run."""
    runs = []
    for seed, rewards in enumerate([(1, 2, 0), (1, 4)]):
        rows = [{"step": t, "reward_mean": value} for t, value in enumerate(rewards, 1)]
        rows = [{"step": 0, "val_accuracy": 0.1 + 0.2 * seed}, *rows]
        runs.append(make_run(tmp_path / str(seed), rows, seed=seed, steps=3))
    accuracy, reward, *_ = [
        [line.get_ydata().round(2).tolist() for line in axes.lines]
        for axes in figures.draw(load_methods(runs)).axes
    ]
    assert accuracy == [[0.2], [0.1], [0.3]]
    # 0.9 * 1 + 0.1 * 2 and 0.9 * 1.1; 0.9 * 1 + 0.1 * 4
    assert reward == [[1.0, 1.2], [1.0, 1.1, 0.99], [1.0, 1.3]]


def bands(runs) -> dict[str, list]:
    """Draw the accuracy of runs. Returns the lower and upper ends of each band by legend entry."""
    [axes, *_] = figures.draw(load_methods(runs)).axes
    names = axes.get_legend_handles_labels()[1]
    shapes = [shape.get_datalim(axes.transData).intervaly for shape in axes.collections]
    return dict(zip(names, shapes, strict=True))


def test_the_band_of_three_runs_is_over_their_seeds(tmp_path):
    """Accuracies 0.2, 0.3 and 0.4: mean 0.3, s = 0.1, and t is 4.3027 with two degrees of
    freedom. One run alone, 1 of 4 problems right: 1.96 · √(1/4 · 3/4 / 4)."""
    runs = []
    for seed in range(3):
        rows = [{"step": 0, "val_accuracy": 0.2 + 0.1 * seed}]
        runs.append(make_run(tmp_path / str(seed), rows, seed=seed, **GOLDILOCKS))
    one = make_run(tmp_path / "one", verdicts=[[1, 0, 0, 0]])
    half = 4.3027 * 0.1 / np.sqrt(3)
    of_one = 1.96 * np.sqrt(3 / 16 / 4)
    drawn = bands([*runs, one])
    over_seeds = drawn["goldilocks (3 runs, band: 95% over seeds)"]
    over_problems = drawn["uniform (1 run, band: 95% over 4 problems)"]
    assert over_seeds == pytest.approx([0.3 - half, 0.3 + half], abs=1e-4)
    assert over_problems == pytest.approx([0.25 - of_one, 0.25 + of_one])


def test_a_picture_is_written_and_dollars_in_settings_are_no_formula(tmp_path):
    """Runs that differ in a prompt with LaTeX."""
    out = tmp_path / "new/picture.png"
    for footer in ("$boxed{}$", "box"):
        make_run(tmp_path / footer, verdicts=[[0], [1]], prompt_footer=footer)
    runs = [str(tmp_path / "$boxed{}$"), str(tmp_path / "box")]
    plot.main([*runs, "--out", str(out), "--x", "device_hours"])
    assert out.read_bytes().startswith(b"\x89PNG")

"""plot: the numbers that are drawn, by hand."""

import math

import pytest

from scripts import plot
from scripts.analysis import Run, load_methods
from tests.helpers.runs import make_run, selection

NONE = [selection(1, True, [None], 0)]  # nothing was predicted


def drawn(*folders):
    """The axes of the runs' figure by title."""
    return {axes.get_title(): axes for axes in plot.draw(load_methods(folders)).axes}


def rewards(folder, *values, accuracy, seed=0):
    rows = [{"step": 0, "val_accuracy": accuracy}]
    rows += [{"step": t, "reward_mean": value} for t, value in enumerate(values, 1)]
    return make_run(folder, rows, [selection(1, True, [None], 0)], seed=seed, steps=3)


def test_means_over_two_runs(tmp_path):
    """Accuracy as measured, reward smoothed, mean over common steps, each run; no empty panel."""
    first = rewards(tmp_path / "0", 1, 2, 0, accuracy=0.1)
    panels = drawn(first, rewards(tmp_path / "1", 1, 4, accuracy=0.3, seed=1))
    accuracy = [line.get_ydata().tolist() for line in panels["Validation accuracy"].lines]
    assert accuracy[:3] == [pytest.approx([20]), pytest.approx([10]), pytest.approx([30])]
    mean, first, second = [line.get_ydata() for line in panels["Training reward"].lines][:3]
    assert first.tolist() == pytest.approx([1.0, 1.1, 0.99])  # 0.9 * 1 + 0.1 * 2, 0.9 * 1.1
    assert second.tolist() == pytest.approx([1.0, 1.3])
    assert mean.tolist() == pytest.approx([1.0, 1.2])
    assert not any("Teacher" in title or "Reliability" in title for title in panels)


def test_calibration_by_hand(tmp_path):
    """900 outcomes, half 0 and half 1/2: the standard error of their mean is 1/4 / √899."""
    rows = [selection(t, True, [0.2], 8 * (t % 2)) for t in range(900)]
    rows += [selection(1000 + t, True, [(0.46, 0.5)[t % 2]], 8) for t in range(10)]
    few_or_unknown = [0.01] * 9 + [None] * 9
    rows += [selection(2000 + t, True, [u], 8) for t, u in enumerate(few_or_unknown)]
    s = Run.load(make_run(tmp_path / "run", [{"step": 1}], rows)).selections
    first, last = plot.calibration(s).to_numpy()
    assert first == pytest.approx([0.2, 0.25, 1.96 * 0.25 / math.sqrt(899), 900], rel=1e-4)
    assert last == pytest.approx([0.48, 0.5, 0, 10])  # 0.5 belongs to the last bin


def test_picture_with_a_teachers_reliability(tmp_path):
    """Ten predictions of 0.2 come out as 1/2."""
    run = make_run(
        tmp_path / "run", [{"step": 1}], [selection(t, True, [0.2], 8) for t in range(10)]
    )
    lines = drawn(run)["Reliability (95% intervals)"].lines
    assert [[pytest.approx(0.2), 0.5]] in [line.get_xydata().tolist() for line in lines]
    plot.main([str(run), "--out", str(tmp_path), "--x", "device_hours"])
    assert (tmp_path / "training_by_device_hours.png").read_bytes().startswith(b"\x89PNG")


def test_the_band_of_an_accuracy_is_binomial(tmp_path):
    """2 of 4 right: 50 ± 1.96 · 100 · √(1/2 · 1/2 / 4)."""
    run = make_run(tmp_path / "run", verdicts=[[0, 0, 1, 1]] * 2, selections=NONE)
    [band] = drawn(run)["Validation accuracy"].collections
    edges = band.get_paths()[0].vertices[:, 1]
    assert (min(edges), max(edges)) == (pytest.approx(1), pytest.approx(99))


def test_dollars_in_settings_are_no_formula(tmp_path):
    """Runs that differ in a prompt with LaTeX."""
    runs = []
    for i, footer in enumerate((r"in $\boxed{}$:", "in a box:")):
        folder = tmp_path / str(i)
        runs.append(make_run(folder, verdicts=[[0], [1]], selections=NONE, prompt_footer=footer))
    plot.main([*map(str, runs), "--out", str(tmp_path)])
    assert (tmp_path / "training_by_steps.png").exists()

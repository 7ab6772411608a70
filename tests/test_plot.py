"""plot: the numbers that are drawn, by hand."""

import pandas as pd
import pytest
from made_up import GOLDILOCKS, make_run, selection

from scripts import plot
from scripts.report import load_methods


def test_mean_over_the_common_range():
    """It is 1..3, where the first reads 1, 2, 3 and the second 5, 6, 7."""
    first = pd.Series([0.0, 2, 4], index=[0.0, 2, 4])
    table = plot.together([first, pd.Series([5.0, 7], index=[1.0, 3])])
    assert table.index.tolist() == [1, 2, 3]
    assert table.to_numpy().tolist() == [[1, 5], [2, 6], [3, 7]]


def drawn(*folders):
    """The axes of the runs' figure by title."""
    return {axes.get_title(): axes for axes in plot.draw(load_methods(folders)).axes}


def rewards(folder, *values, accuracy, seed=0):
    rows = [{"step": 0, "val_accuracy": accuracy}]
    rows += [{"step": t, "reward_mean": value} for t, value in enumerate(values, 1)]
    return make_run(folder, rows, [selection(1, True, [None], 0)], seed=seed)


def test_one_run_and_two(tmp_path):
    """Accuracy as measured and its mean; reward smoothed, of one run over the raw one; no empty
    panel."""
    every = enumerate((0.1, 0.3))
    runs = [rewards(tmp_path / str(i), 1, 2, 0, accuracy=a, seed=i) for i, a in every]
    one, two = drawn(runs[0]), drawn(*runs)
    accuracy = [line.get_ydata().tolist() for line in two["Validation accuracy"].lines]
    assert accuracy[:3] == [[0.1], [0.3], [pytest.approx(0.2)]]
    raw, mean = one["Training reward"].lines
    assert raw.get_ydata().tolist() == [1, 2, 0]
    # 1; 0.9 * 1 + 0.1 * 2; 0.9 * 1.1 + 0.1 * 0
    assert mean.get_ydata().tolist() == pytest.approx([1.0, 1.1, 0.99])
    assert not any("Teacher" in title or "Reliability" in title for title in two)


def test_band_over_three_seeds(tmp_path):
    """Rewards 0.4, 0.5, 0.6: mean 0.5, s 0.1, so the band is 4.303 · 0.1 / √3 either side."""
    values = enumerate((0.4, 0.5, 0.6))
    runs = [rewards(tmp_path / str(i), r, r, accuracy=0.5, seed=i) for i, r in values]
    axes = drawn(*runs)
    band = axes["Training reward"].collections[0].get_paths()[0].vertices[:, 1]
    assert (band.min(), band.max()) == pytest.approx((0.5 - 0.24843, 0.5 + 0.24843), abs=1e-4)
    assert len(axes["Training reward"].lines) == 1  # no thin ones


def test_reliability(tmp_path):
    """Ten predictions of 0.2 are right half of the time."""
    rows = [selection(2, True, [0.2], 8)] * 10
    axes = drawn(make_run(tmp_path / "run", [{"step": 1}], rows, **GOLDILOCKS))
    points = [line.get_xydata().tolist() for line in axes["Reliability (95% intervals)"].lines]
    assert [[pytest.approx(0.2), 0.5]] in points


def test_whole_command(tmp_path, capsys):
    run = str(rewards(tmp_path / "run", 1, 2, accuracy=0.1))
    plot.main([run, "--out", str(tmp_path / "figures"), "--x", "device_hours"])
    picture = tmp_path / "figures" / "training_by_device_hours.png"
    assert capsys.readouterr().out == f"{picture}\n"
    assert picture.read_bytes().startswith(b"\x89PNG")
    rows = [selection(1, True, [None], 0)]
    every = [make_run(tmp_path / str(i), [{"step": 1}], rows, epsilon=i) for i in range(8)]
    with pytest.raises(SystemExit) as stop:
        plot.main([str(folder) for folder in every])
    assert stop.value.code == 2
    assert capsys.readouterr().err.startswith("plot: 8 methods, but only 7 colours")

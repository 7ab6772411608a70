"""plot: the numbers that are drawn, by hand."""

from scripts import plot
from scripts.analysis import load_methods
from tests.helpers.runs import make_run


def rewards(folder, *values, accuracy, seed=0):
    rows = [{"step": 0, "val_accuracy": accuracy}]
    rows += [{"step": t, "reward_mean": value} for t, value in enumerate(values, 1)]
    return make_run(folder, rows, seed=seed, steps=3)


def test_means_over_two_runs(tmp_path):
    """Accuracy as measured, reward smoothed, mean over common steps, each run; no empty panel."""
    first = rewards(tmp_path / "0", 1, 2, 0, accuracy=0.1)
    second = rewards(tmp_path / "1", 1, 4, accuracy=0.3, seed=1)
    panels = plot.draw(load_methods([first, second])).axes
    accuracy, reward, *_ = [
        [line.get_ydata().round(2).tolist() for line in axes.lines] for axes in panels
    ]
    assert accuracy == [[0.2], [0.1], [0.3]]
    # 0.9 * 1 + 0.1 * 2 and 0.9 * 1.1; 0.9 * 1 + 0.1 * 4
    assert reward == [[1.0, 1.2], [1.0, 1.1, 0.99], [1.0, 1.3]]
    assert not any("Teacher" in axes.get_title() for axes in panels)


def test_a_picture_is_written_and_dollars_in_settings_are_no_formula(tmp_path):
    """Runs that differ in a prompt with LaTeX."""
    out = tmp_path / "new/picture.png"
    for footer in ("$boxed{}$", "box"):
        make_run(tmp_path / footer, verdicts=[[0], [1]], prompt_footer=footer)
    runs = [str(tmp_path / "$boxed{}$"), str(tmp_path / "box")]
    plot.main([*runs, "--out", str(out), "--x", "device_hours"])
    assert out.read_bytes().startswith(b"\x89PNG")

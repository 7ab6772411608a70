"""plot: the numbers that are drawn, by hand."""

from scripts import plot
from scripts.analysis import load_methods
from tests.helpers.runs import make_run


def test_means_over_two_runs(tmp_path):
    """Accuracy as measured; reward smoothed, its mean over the steps of both; then each run."""
    runs = []
    for seed, rewards in enumerate([(1, 2, 0), (1, 4)]):
        rows = [{"step": t, "reward_mean": value} for t, value in enumerate(rewards, 1)]
        rows = [{"step": 0, "val_accuracy": 0.1 + 0.2 * seed}, *rows]
        runs.append(make_run(tmp_path / str(seed), rows, seed=seed, steps=3))
    accuracy, reward, *_ = [
        [line.get_ydata().round(2).tolist() for line in axes.lines]
        for axes in plot.draw(load_methods(runs)).axes
    ]
    assert accuracy == [[0.2], [0.1], [0.3]]
    # 0.9 * 1 + 0.1 * 2 and 0.9 * 1.1; 0.9 * 1 + 0.1 * 4
    assert reward == [[1.0, 1.2], [1.0, 1.1, 0.99], [1.0, 1.3]]


def test_a_picture_is_written_and_dollars_in_settings_are_no_formula(tmp_path):
    """Runs that differ in a prompt with LaTeX."""
    out = tmp_path / "new/picture.png"
    for footer in ("$boxed{}$", "box"):
        make_run(tmp_path / footer, verdicts=[[0], [1]], prompt_footer=footer)
    runs = [str(tmp_path / "$boxed{}$"), str(tmp_path / "box")]
    plot.main([*runs, "--out", str(out), "--x", "device_hours"])
    assert out.read_bytes().startswith(b"\x89PNG")

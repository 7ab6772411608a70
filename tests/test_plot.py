"""plot: smoothing, axes and means by hand, and what happens to folders that are no runs."""

import json
import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "scripts"))
import plot
from plot import RunError, curve, ema, load_run, mean_curve, x_values

ROWS = [  # step 0 only evaluates
    {"step": 0, "val_accuracy": 0.1},
    {
        "step": 1,
        "reward_mean": 0.0,
        "seconds": 1800.0,
        "groups": 100,
        "completion_tokens": 1_000_000,
        "teacher_mae": None,
    },
    {
        "step": 2,
        "reward_mean": 1.0,
        "seconds": 3600.0,
        "groups": 300,
        "completion_tokens": 3_000_000,
        "teacher_mae": 0.2,
    },
    {
        "step": 3,
        "reward_mean": float("nan"),
        "seconds": 1800.0,
        "groups": 100,
        "completion_tokens": 0,
        "val_accuracy": 0.3,
    },
]


def make_run(folder, rows=ROWS, **config):
    folder.mkdir(parents=True)
    settings = {"sampler": "uniform", "seed": 0, "world_size": 8} | config
    (folder / "config.json").write_text(json.dumps(settings))
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


def test_ema_by_hand():
    # 1; 0.9 * 1 + 0.1 * 2 = 1.1; 0.9 * 1.1 + 0.1 * 0 = 0.99
    assert ema([1, 2, 0]) == pytest.approx([1.0, 1.1, 0.99])
    assert ema([]).size == 0


@pytest.mark.parametrize(
    ("x", "expected"),
    [
        ("steps", [0, 1, 2, 3]),
        ("samples", [0, 1, 4, 5]),  # running thousands, 10 a group
        ("seconds", [0, 0.5, 1.5, 2.0]),  # running hours
        ("tokens", [0, 1, 4, 4]),  # running millions
        ("device_hours", [0, 4, 12, 16]),  # 8 devices
    ],
)
def test_x_axes_are_running_totals(x, expected):
    assert x_values({"world_size": 8, "group_size": 10}, ROWS, x) == pytest.approx(expected)


def test_x_axes_that_cannot_be_known():
    with pytest.raises(RunError, match="no completion_tokens at step 1"):
        x_values({}, [{"step": 0}, {"step": 1}], "tokens")
    with pytest.raises(RunError, match=r"no world_size in config\.json"):
        x_values({}, ROWS, "device_hours")
    with pytest.raises(RunError, match=r"no group_size in config\.json"):
        x_values({}, ROWS, "samples")


def test_curves_have_only_the_steps_that_were_measured():
    steps = x_values({}, ROWS, "steps")
    assert [list(part) for part in curve(ROWS, steps, "val_accuracy")] == [[0, 3], [0.1, 0.3]]
    assert [list(part) for part in curve(ROWS, steps, "teacher_mae")] == [[2], [0.2]]  # null is left out
    assert [list(part) for part in curve(ROWS, steps, "reward_mean")] == [[1, 2], [0, 1]]  # NaN is left out


def test_mean_over_the_common_range():
    first = np.array([0.0, 2.0, 4.0]), np.array([0.0, 2.0, 4.0])
    second = np.array([1.0, 3.0]), np.array([5.0, 7.0])
    # common range 1..3; the first reads 1, 2, 3 there and the second 5, 6, 7
    x, y = mean_curve([first, second])
    assert (list(x), list(y)) == ([1, 2, 3], [3, 4, 5])
    x, y = mean_curve([first, (np.array([9.0]), np.array([1.0]))])  # nothing in common: no mean
    assert len(x) == len(y) == 0


def test_a_run_that_was_resumed_or_is_still_going(tmp_path):
    folder = make_run(tmp_path / "run", [{"step": 1, "loss": 1}, {"step": 2, "loss": 2}, {"step": 2, "loss": 3}])
    with (folder / "metrics.jsonl").open("a") as file:
        file.write('{"step": 3, "lo')
    assert [row["loss"] for row in load_run(folder)[1]] == [1, 3]


def test_pictures(tmp_path, capsys):
    for name, seed in (("uniform", 0), ("uniform", 1), ("goldilocks", 0)):
        make_run(tmp_path / f"{name}{seed}", sampler=name, seed=seed)
    runs = [str(path) for path in sorted(tmp_path.iterdir())]
    plot.main([*runs, "--out", str(tmp_path / "figures")])
    plot.main([*runs[:1], "--out", str(tmp_path / "one.pdf"), "--x", "device_hours"])
    printed = capsys.readouterr()
    assert printed.out.split() == [str(tmp_path / "figures/training_by_steps.png"), str(tmp_path / "one.pdf")]
    assert (tmp_path / "figures/training_by_steps.png").read_bytes().startswith(b"\x89PNG")
    assert (tmp_path / "one.pdf").read_bytes().startswith(b"%PDF")
    assert printed.err == ""  # seeds may differ without a word


def test_drawn_numbers(tmp_path, monkeypatch):
    """Two seeds: accuracy as measured and its mean; reward smoothed; no panel where every value is null."""
    rows = [{"step": t, "reward_mean": r, "teacher_mae": None} for t, r in ((1, 1.0), (2, 2.0), (3, 0.0))]
    make_run(tmp_path / "a", [{"step": 0, "val_accuracy": 0.1}, *rows], seed=0)
    make_run(tmp_path / "b", [{"step": 0, "val_accuracy": 0.3}, *rows], seed=1)
    figures = []
    monkeypatch.setattr(plot.plt, "close", figures.append)
    plot.plot([tmp_path / "a", tmp_path / "b"], tmp_path / "picture.png")
    accuracy, reward = figures[0].axes
    monkeypatch.undo()
    plot.plt.close(figures[0])
    assert accuracy.get_title() == "Validation accuracy"
    assert [list(drawn.get_ydata()) for drawn in accuracy.lines] == [[0.1], [0.3], [pytest.approx(0.2)]]
    assert list(reward.lines[-1].get_ydata()) == pytest.approx([1.0, 1.1, 0.99])
    assert list(reward.lines[0].get_ydata()) == [1.0, 2.0, 0.0]  # raw, faint, behind


def test_unlike_runs_are_noted_and_can_be_separated(tmp_path, capsys):
    runs = [make_run(tmp_path / name, loss=name) for name in ("grpo", "dapo")]
    plot.plot(runs, tmp_path / "one.png")
    assert "dapo differs from other runs of 'uniform' in loss" in capsys.readouterr().err
    plot.plot(runs, tmp_path / "two.png", group_by=("sampler", "loss"))
    assert capsys.readouterr().err == ""


def test_folders_that_are_no_runs_get_one_line(tmp_path):
    (tmp_path / "bare").mkdir()
    make_run(tmp_path / "empty", [])
    (make_run(tmp_path / "broken") / "metrics.jsonl").write_text('{"step": 1}\noops\n')
    (make_run(tmp_path / "odd") / "config.json").write_text("[]")
    (make_run(tmp_path / "nameless") / "config.json").write_text("{}")
    make_run(tmp_path / "nothing", [{"step": 1}])
    for name, message in {
        "missing": "no such run folder",
        "bare": "not a run folder, config.json",
        "empty": "no step yet",
        "broken": "metrics.jsonl, line 2: not a JSON object with a step",
        "odd": "config.json is not a JSON object",
        "nameless": "no 'sampler' in config.json",
        "nothing": "none of these runs has a metric to draw",
    }.items():
        with pytest.raises(SystemExit) as stop:
            plot.main([str(tmp_path / name), "--out", str(tmp_path / "figures")])
        assert message in stop.value.code
        assert "\n" not in stop.value.code
    assert not (tmp_path / "figures").exists()

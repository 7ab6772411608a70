"""plot: smoothing, axes and means by hand, and what happens to folders that are no runs."""

import json
import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "scripts"))
import plot
from plot import RunError, curve, ema, forwarded, load_groups, load_run, together, x_values

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
        (
            "student_work",
            [0, 4 / 3, 8 / 3, 4],
        ),  # App. D: step n of 6 students of 8 ranks is step 8n/6 of 8
    ],
)
def test_x_axes_are_running_totals(x, expected):
    config = {"world_size": 8, "student_ranks": 6, "group_size": 10}
    assert x_values(config, ROWS, x) == pytest.approx(expected)


def test_tokens_forwarded_by_hand():
    """2 prompts of 10 tokens, 4 completions each, 100 tokens in all: 20 + 100 - 0 to generate, read once a group."""
    config = {"group_size": 4, "update_iterations": 1, "kl_coef": 0.0}
    row = {"groups": 2, "completion_tokens": 100, "total_tokens": 180, "forwarded_rows": 4}
    rows = [{"step": 0, "val_accuracy": 0.1}, {"step": 1} | row, {"step": 2} | row]
    # the mean row has 22.5 tokens, half of the 8 rows are trained on
    assert forwarded(config, rows).tolist() == [[0, 120, 240], [0, 90, 180], [0, 0, 0]]
    assert x_values(config, rows, "forwarded")[-1] == pytest.approx(420e-6)
    assert forwarded(config | {"kl_coef": 0.1, "update_iterations": 2}, rows)[1, -1] == 3 * 180
    teacher = {
        "candidates": 8,
        "teacher_update_every": 2,
        "replay_capacity": 3,
        "teacher_epochs": 4,
    }
    rows = rows[:1] + [row | {"teacher_updates": 0} for row in rows[1:]]
    # A step scores 16 questions of 10 tokens. After 2 outcomes 4 epochs over 2 of them, after 4 over the last 3.
    full = forwarded(config | teacher | {"teacher_mode": "full"}, rows)[2]
    assert full.tolist() == [0, 10 * (16 + 4 * 2), 10 * (32 + 4 * 2 + 4 * 3)]
    assert forwarded(config | teacher | {"teacher_mode": "frozen"}, rows)[2].tolist() == [
        0,
        160,
        320,
    ]
    with pytest.raises(RunError, match="'teacher_mode' is not in the run's files"):
        forwarded(config | teacher, rows)


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
    assert [list(part) for part in curve(ROWS, steps, "teacher_mae")] == [
        [2],
        [0.2],
    ]  # null is left out
    assert [list(part) for part in curve(ROWS, steps, "reward_mean")] == [
        [1, 2],
        [0, 1],
    ]  # NaN is left out


def test_mean_over_the_common_range():
    first = np.array([0.0, 2.0, 4.0]), np.array([0.0, 2.0, 4.0])
    second = np.array([1.0, 3.0]), np.array([5.0, 7.0])
    # common range 1..3; the first reads 1, 2, 3 there and the second 5, 6, 7
    x, values = together([first, second])
    assert (list(x), values.tolist()) == ([1, 2, 3], [[1, 2, 3], [5, 6, 7]])
    x, values = together([first, (np.array([9.0]), np.array([1.0]))])  # nothing in common: no mean
    assert (len(x), values.shape) == (0, (2, 0))


def test_a_run_that_was_resumed_or_is_still_going(tmp_path):
    folder = make_run(
        tmp_path / "run", [{"step": 1, "loss": 1}, {"step": 2, "loss": 2}, {"step": 2, "loss": 3}]
    )
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
    assert printed.out.split() == [
        str(tmp_path / "figures/training_by_steps.png"),
        str(tmp_path / "one.pdf"),
    ]
    assert (tmp_path / "figures/training_by_steps.png").read_bytes().startswith(b"\x89PNG")
    assert (tmp_path / "one.pdf").read_bytes().startswith(b"%PDF")
    # seeds may differ without a word
    assert printed.err == f"note: {runs[0]} has no selections.jsonl: no figure of selections\n" * 2


def test_drawn_numbers(tmp_path, monkeypatch):
    """Two seeds: accuracy as measured and its mean; reward smoothed; no panel where every value is null."""
    rows = [
        {"step": t, "reward_mean": r, "teacher_mae": None}
        for t, r in ((1, 1.0), (2, 2.0), (3, 0.0))
    ]
    make_run(tmp_path / "a", [{"step": 0, "val_accuracy": 0.1}, *rows], seed=0)
    make_run(tmp_path / "b", [{"step": 0, "val_accuracy": 0.3}, *rows], seed=1)
    figures = []
    monkeypatch.setattr(plot.plt, "close", figures.append)
    plot.plot(load_groups([tmp_path / "a", tmp_path / "b"]), {}, tmp_path / "picture.png")
    accuracy, reward = figures[0].axes
    monkeypatch.undo()
    plot.plt.close(figures[0])
    assert accuracy.get_title() == "Validation accuracy"
    assert [list(drawn.get_ydata()) for drawn in accuracy.lines] == [
        [0.1],
        [0.3],
        [pytest.approx(0.2)],
    ]
    assert list(reward.lines[-1].get_ydata()) == pytest.approx([1.0, 1.1, 0.99])
    assert list(reward.lines[0].get_ydata()) == [1.0, 2.0, 0.0]  # raw, faint, behind


def test_runs_are_one_method_if_they_differ_in_nothing_but_the_seed(tmp_path, capsys):
    runs = [
        make_run(tmp_path / f"{loss}{seed}", loss=loss, seed=seed)
        for loss in ("grpo", "dapo")
        for seed in (0, 1)
    ]
    runs.append(make_run(tmp_path / "other", sampler="goldilocks", loss="grpo", epsilon=0.2))
    groups = load_groups(runs)
    assert {name: len(members) for name, members in groups.items()} == {
        "uniform, loss grpo": 2, "uniform, loss dapo": 2, "goldilocks": 1,
    }  # fmt: skip
    assert capsys.readouterr().err == ""
    assert list(load_groups(runs, ("sampler",))) == ["uniform", "goldilocks"]
    assert "dapo0 differs from other runs of 'uniform' in loss" in capsys.readouterr().err
    presets = [make_run(tmp_path / p, preset=p, model=f"a/{p}") for p in ("small", "large")]
    assert list(load_groups(presets)) == [
        "small, uniform",
        "large, uniform",
    ]  # not told apart by the model as well


def test_folders_that_are_no_runs_get_one_line(tmp_path, capsys):
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
        line = capsys.readouterr().err.splitlines()[-1]
        assert message in line
        assert (stop.value.code, line.startswith("plot: ")) == (2, True)
    assert not (tmp_path / "figures").exists()


def choice(step, explored, successes, chosen=0, utility=0.2):
    p = successes / 16
    return {
        "step": step, "pool": [chosen], "utilities": [utility], "chosen": chosen, "explored": explored,
        "successes": successes, "y": (p * (1 - p)) ** 0.5,
    }  # fmt: skip


CHOICES = [
    choice(1, False, 8, 0),
    choice(1, True, 16, 1),
    choice(1, False, 0, 2),
    choice(2, True, 8, 3, None),
]


def with_choices(folder, **config):
    make_run(folder, group_size=16, **config)
    (folder / "selections.jsonl").write_text("".join(json.dumps(s) + "\n" for s in CHOICES))
    return folder


def test_lift_by_step(tmp_path):
    rows = [{"step": 0}, {"step": 1}, {"step": 2}]
    plot.add_lift(rows, plot.load_selections(with_choices(tmp_path / "run")))
    assert rows == [
        {"step": 0},
        {"step": 1, "y_greedy": 0.25, "y_explored": 0.0},
        {"step": 2, "y_explored": 0.5},
    ]


def test_band_over_three_seeds(tmp_path, monkeypatch):
    """Rewards 0.4, 0.5, 0.6: mean 0.5, s 0.1, so the band is 4.303 · 0.1 / √3 either side; a share stays in [0, 1]."""
    for seed, reward in enumerate((0.4, 0.5, 0.6)):
        make_run(
            tmp_path / str(seed), [{"step": t, "reward_mean": reward} for t in (1, 2)], seed=seed
        )
    figures = []
    monkeypatch.setattr(plot.plt, "close", figures.append)
    plot.plot(load_groups(sorted(tmp_path.iterdir())), {}, tmp_path / "picture.png")
    monkeypatch.undo()
    reward = figures[0].axes[0]
    band = reward.collections[0].get_paths()[0].vertices[:, 1]
    assert (band.min(), band.max()) == pytest.approx((0.5 - 0.24843, 0.5 + 0.24843), abs=1e-4)
    assert [list(line.get_ydata()) for line in reward.lines] == [
        pytest.approx([0.5, 0.5])
    ]  # no thin ones
    plot.plt.close(figures[0])


def test_heat_map(tmp_path):
    """Step 1 chose problems 0, 1, 2 (levels 3, 1, 3), step 2 problem 3 (level 1)."""
    data = tmp_path / "train.jsonl"
    rows = [
        {"problem": str(i), "expected_answer": "1", "level": level}
        for i, level in enumerate([3, 1, 3, 1])
    ]
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    figure, axes = plot.plt.subplots()
    levels = plot.difficulty_levels({"train_data": str(data)}, "level")
    chosen = [plot.load_selections(with_choices(tmp_path / "run"))]
    image = plot.draw_difficulty(axes, chosen, 16, levels)
    assert np.asarray(image.get_array()).T.ravel() == pytest.approx([1 / 3, 2 / 3, 1, 0])
    assert [tick.get_text() for tick in axes.get_yticklabels()] == ["1", "3"]
    axes.clear()
    image = plot.draw_difficulty(axes, chosen, 16)  # by success: 0, 8 and 16 of 16, then 8
    assert np.asarray(image.get_array()).T.tolist()[1] == [0, 0, 1, 0, 0]
    assert np.asarray(image.get_array()).T[0] == pytest.approx([1 / 3, 0, 1 / 3, 0, 1 / 3])
    plot.plt.close(figure)


def test_levels_of_many_numbers_are_tenths_of_the_problems(tmp_path):
    data = tmp_path / "train.jsonl"
    rows = [
        {"problem": str(i), "expected_answer": "1", "bits": i / 2, "word": f"w{i}"}
        for i in range(100)
    ]
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    level, names = plot.difficulty_levels({"train_data": str(data)}, "bits")
    assert list(np.bincount(level)) == [10] * 10
    assert (names[0], names[-1], level[0], level[-1]) == ("0 – 4.95", "44.6 – 49.5", 0, 9)
    with pytest.raises(RunError, match="100 different values that are not all numbers"):
        plot.difficulty_levels({"train_data": str(data)}, "word")
    with pytest.raises(RunError, match="is not the file that the run was trained on"):
        plot.difficulty_levels({"train_data": str(data), "train_data_crc32": 1}, "bits")


def test_figure_of_selections(tmp_path, capsys):
    runs = [
        str(with_choices(tmp_path / "a")),
        str(with_choices(tmp_path / "b", sampler="goldilocks")),
    ]
    plot.main([*runs, "--out", str(tmp_path / "curves.png")])
    printed = capsys.readouterr()
    assert printed.out.split() == [
        str(tmp_path / "curves.png"),
        str(tmp_path / "curves_selections.png"),
    ]
    assert (
        printed.err
        == "note: no train_data in config.json, so 'difficulty' is not known: drawn by success instead\n"
    )
    with pytest.raises(SystemExit) as stop:
        plot.main([*runs, "--out", str(tmp_path / "again.png"), "--column", "bits"])
    assert stop.value.code == 2
    assert capsys.readouterr().err == "plot: no train_data in config.json, so 'bits' is not known\n"

"""audit: every number of its tables by hand on small runs, and what happens to folders that cannot be audited."""

import json
import math
import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "scripts"))
import audit
import plot
from plot import RunError

CONFIG = {
    "sampler": "goldilocks",
    "seed": 0,
    "prompts_per_step": 4,
    "group_size": 16,
    "dead_rows": "in",
}


def metrics(step, norm=0.1, dead=0.75, **more):
    return {
        "step": step, "grad_norm": norm, "zero_variance": dead, "groups": 4, "completion_tokens": 1_000_000,
        "seconds": 360.0,
    } | more  # fmt: skip


def selection(step, explored, utilities, chosen, successes):
    p = successes / 16
    return {
        "step": step, "pool": [10, 11], "utilities": utilities, "chosen": 10 + chosen, "explored": explored,
        "successes": successes, "y": math.sqrt(p * (1 - p)),
    }  # fmt: skip


ROWS = [
    {"step": 0, "val_accuracy": 0.1},
    metrics(1, teacher_mae=0.3, teacher_mae_explore=None, teacher_noise_floor=0.1),
    metrics(
        2,
        0.3,
        1.0,
        teacher_mae=0.2,
        teacher_mae_explore=0.25,
        teacher_noise_floor=0.1,
        val_accuracy=0.5,
    ),
]
SELECTIONS = [
    selection(1, False, [0.4, 0.2], 0, 8),  # y = 1/2
    selection(1, False, [0.1, 0.3], 1, 16),  # y = 0
    selection(1, True, [0.4, 0.2], 1, 0),
    selection(1, True, [0.0, 0.3], 1, 8),
    selection(2, True, [0.1, 0.3], 0, 0),
]


def make_run(folder, rows=ROWS, selections=SELECTIONS, **config):
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(CONFIG | config))
    for name, lines in (("metrics", rows), ("selections", selections)):
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder


def load(folder, rows=ROWS, selections=SELECTIONS, **config):
    path = make_run(folder, rows, selections, **config)
    return audit.load(
        *audit.load_groups([path], ("sampler",))[config.get("sampler", "goldilocks")][0]
    )


def test_spearman_by_hand():
    assert audit.spearman([1, 5, 9], [2, 3, 100]) == pytest.approx(1)
    assert audit.spearman([1, 2, 3], [3, 2, 1]) == pytest.approx(-1)
    # ranks 1, 2.5, 2.5, 4 and 1, 2, 3, 4: deviations (-1.5, 0, 0, 1.5), (-1.5, -.5, .5, 1.5); 4.5 / sqrt(4.5 * 5)
    assert audit.spearman([0, 7, 7, 8], [1, 2, 3, 4]) == pytest.approx(4.5 / math.sqrt(22.5))
    assert math.isnan(audit.spearman([1, 1, 1], [1, 2, 3]))
    assert math.isnan(audit.spearman([], []))
    assert math.isnan(
        audit.spearman([math.nan, math.nan], [0, 1])
    )  # a sampler that predicts nothing


def test_calibration_by_hand():
    predicted = np.array([0.01, 0.03, 0.42, 0.44, 0.5, 0.5])
    y = np.array([0.0, 0.5, 0.2, 0.2, 0.1, 0.3])
    first, ninth, last = plot.calibration(predicted, y)
    assert first[[0, 1, 4]] == pytest.approx([0.02, 0.25, 2])
    assert first[2:4] == pytest.approx(
        [0, 0.5]
    )  # the mean of two draws from {0, 1/2} is 0 in a quarter of cases
    assert ninth == pytest.approx([0.43, 0.2, 0.2, 0.2, 2])  # outcomes all alike
    assert last[[0, 1, 4]] == pytest.approx([0.5, 0.2, 2])  # 0.5 belongs to the last bin
    assert plot.calibration(np.array([]), np.array([])).shape == (0, 5)


def test_bootstrap_interval_is_the_known_one():
    """900 outcomes, 0 or 1/2 alike often: the mean's standard deviation is 1/4 / 30, times 1.96 either side."""
    _, mean, low, high, n = plot.calibration(np.full(900, 0.2), np.tile([0.0, 0.5], 450))[0]
    assert (mean, n) == (0.25, 900)
    assert [mean - low, high - mean] == pytest.approx([1.96 * 0.25 / 30] * 2, rel=0.1)


def test_count_shares():
    assert list(plot.count_shares([0, 0, 1, 4, 5, 11, 12, 15, 16, 16], 16)) == pytest.approx(
        [0.2] * 5
    )
    assert list(plot.count_shares([0, 1, 2, 2], 2)) == [0.25, 0, 0.25, 0, 0.5]  # G/4 is none of 2


def test_measures_by_hand(tmp_path):
    run = load(tmp_path / "run")
    found = audit.measures(run, 1, 2)
    greedy, exploring = (key for key in found if "·" in key)
    assert (list(found.pop(greedy)), list(found.pop(exploring))) == (
        [0, 0, 0.5, 0, 0.5],
        [2 / 3, 0, 1 / 3, 0, 0],
    )
    assert greedy == "greedy, %, 0 · 1–4 · 5–11 · 12–15 · 16 of 16 right"
    assert found == pytest.approx(
        {
            "dead groups": 0.875,
            "gradient norm, dead rows in the denominators": 0.2,
            # step 1 has 1 live group of 4; step 2 none, where the divisor is 1 of 4 as in training
            "gradient norm, dead rows out: ÷ live share": (0.4 + 1.2) / 2,
            "gradient norm ÷ √(live share)": (0.2 + 0.6) / 2,
            "teacher MAE": 0.25,
            "teacher MAE, exploring": 0.25,  # none at step 1
            "noise floor of G": 0.1,
            "teacher MAE − noise floor": 0.15,
            # predictions 0.2, 0.3, 0.1 have ranks 2, 3, 1; outcomes 0, 1/2, 0 have 1.5, 3, 1.5
            "Spearman, exploring": 1.5 / math.sqrt(2 * 1.5),
            "predicted, greedy": 0.35,
            "outcome y, greedy": 0.25,
            "predicted, exploring": 0.2,
            "outcome y, exploring": 1 / 6,
            "lift, predicted": 0.35 - (0.3 + 0.2) / 2,
            "lift, outcome": 0.25 - 1 / 6,
            "outcome y, greedy / exploring": 1.5,
        }
    )
    second = audit.measures(run, 2, 2)
    assert "Spearman, exploring" not in second  # a single selection
    assert "lift, predicted" not in second  # no greedy one
    assert audit.measures(run, 3, 4) == {}


def test_predictions_of_some_problems_only(tmp_path):
    """A sampler that knows only what it has seen: means are over the known ones, outcomes over all."""
    some = [
        selection(1, False, [0.4, None], 0, 8),
        selection(1, True, [None, 0.1], 0, 8),
        *(selection(1, True, [f, None], 0, k) for f, k in ((0.1, 0), (0.3, 1), (0.2, 0))),
    ]
    found = audit.measures(load(tmp_path / "run", selections=some), 1, 1)
    assert (found["lift, predicted"], found["predicted, exploring"]) == (0, pytest.approx(0.2))
    assert found["outcome y, exploring"] == pytest.approx((0.5 + math.sqrt(15) / 16) / 4)
    # predictions 0.1, 0.3, 0.2 have ranks 1, 3, 2; their outcomes 1.5, 3, 1.5
    assert found["Spearman, exploring"] == pytest.approx(1.5 / math.sqrt(2 * 1.5))


def test_dead_rows_already_out_and_resampling(tmp_path):
    """A run with --dead_rows out logs the divided norm; of DAPO's groups only P are in the loss."""
    name = "gradient norm, dead rows "
    out = audit.measures(load(tmp_path / "out", dead_rows="out"), 1, 1)
    assert (out[name + "in the denominators"], out[name + "out: ÷ live share"]) == pytest.approx(
        (0.025, 0.1)
    )
    rows = [
        metrics(1, 0.1, 0.5, groups=12),
        metrics(2, 0.1, 0.75, groups=12),
    ]  # 6 and 3 live: 4 and 3 of 4 in the loss
    both = audit.measures(load(tmp_path / "dapo", rows), 1, 2)
    assert both[name + "out: ÷ live share"] == pytest.approx((0.1 + 0.1 / 0.75) / 2)


def test_accuracy_at_equal_amounts(tmp_path):
    """Run b samples three times as much a step and is evaluated later: equal samples are not equal steps."""
    slow = load(
        tmp_path / "a"
    )  # accuracy 0.1 to 0.5 over 2 steps, 128 completions, 2M tokens, 0.2 hours
    rows = [{"step": 0, "val_accuracy": 0.1}]
    rows += [metrics(t, groups=12, completion_tokens=500_000, seconds=180.0) for t in (1, 2, 3)]
    fast = load(tmp_path / "b", [*rows, metrics(4, groups=12, val_accuracy=0.9)], sampler="uniform")
    labels, found = audit.by_amount({"a": [slow], "b": [fast]})
    assert labels == [
        "1 steps", "2 steps", "0.064 thousand completions", "0.128 thousand completions", "1 million tokens",
        "2 million tokens", "0.1 hours", "0.2 hours", "its own end",
    ]  # fmt: skip
    a, b = ([part["validation accuracy"] for part in found[name][0]] for name in "ab")
    assert a == pytest.approx([0.3, 0.5, 0.3, 0.5, 0.3, 0.5, 0.3, 0.5, 0.5])
    # b reaches 0.9 at 4 steps, 768 completions, 2.5M tokens, 0.25 hours
    share = np.array(
        [1 / 4, 2 / 4, 64 / 768, 128 / 768, 1 / 2.5, 2 / 2.5, 0.1 / 0.25, 0.2 / 0.25, 1]
    )
    assert b == pytest.approx(list(0.1 + 0.8 * share))
    assert audit.by_amount({"a": [slow], "c": [load(tmp_path / "c", [metrics(1)])]}) == (
        [],
        {},
    )  # never evaluated


def test_blocks_are_the_same_steps_for_all(tmp_path):
    short, long = load(tmp_path / "a"), load(tmp_path / "b", [metrics(t) for t in range(1, 8)])
    labels, found = audit.by_block({"a": [short], "b": [long]}, 3)
    assert labels == ["1–3", "4–6", "7–7"]
    assert [bool(part) for part in found["a"][0]] == [True, False, False]


def test_table_over_runs():
    """Mean ± sample standard deviation; one run has no spread; what one kind lacks is no row of it."""
    runs = [
        [{"x": 0.1, "s": np.array([0.5, 0.5])}, {}],
        [{"x": 0.3, "s": np.array([1.0, 0.0])}, {"x": 1.0}],
    ]
    assert audit.markdown("steps", ["1", "2"], {"a": runs, "b": [[{}, {"x": 2.0}]]}).split(
        "\n"
    ) == [
        "| steps | 1 | 2 |",
        "|---|---|---|",
        "| a: x | 0.200 ± 0.141 | 1.000 |",
        "| a: s | 75 · 25 | – |",
        "| b: x | – | 2.000 |",
    ]


def test_whole_command(tmp_path, capsys):
    plain = [selection(1, True, [None, None], 0, 8)]
    make_run(tmp_path / "g")
    make_run(
        tmp_path / "u",
        [{"step": 0, "val_accuracy": 0.1}, metrics(1, val_accuracy=0.2)],
        plain,
        sampler="uniform",
    )
    audit.main([str(tmp_path / "g"), str(tmp_path / "u"), "--out", str(tmp_path / "figures")])
    audit.main([str(tmp_path / "u"), "--out", str(tmp_path / "one.pdf")])
    printed = capsys.readouterr()
    assert "| goldilocks: lift, outcome |" in printed.out
    assert "| uniform: outcome y, exploring | 0.500 |" in printed.out
    uniform = "".join(line for line in printed.out.splitlines() if line.startswith("| uniform"))
    assert not any(word in uniform for word in ("predicted", "lift", "MAE", "Spearman", "greedy"))
    assert f"Figure: {tmp_path / 'one.pdf'}" in printed.out
    assert (tmp_path / "figures/audit.png").read_bytes().startswith(b"\x89PNG")
    assert printed.err == ""


def test_bars_stand_over_their_steps(tmp_path):
    figure, axes = audit.plt.subplots()
    blocks, found = audit.by_block({"g": [load(tmp_path / "run")]}, 2)
    audit.draw_counts(axes, blocks, found)
    assert list(axes.get_xticks()) == pytest.approx(
        [0, 1.8, 2.8]
    )  # greedy at step 1 alone, exploring at both
    assert [tick.get_text() for tick in axes.get_xticklabels()] == ["1–1", "1–1", "2–2"]
    heights = [
        bar.get_height()
        for bar in axes.patches
        if abs(bar.get_x() + bar.get_width() / 2 - 1.8) < 1e-9
    ]
    assert heights == pytest.approx([0.5, 0, 0.5, 0, 0])
    audit.plt.close(figure)


def test_folders_that_cannot_be_audited_get_one_line(tmp_path, capsys):
    (make_run(tmp_path / "bare") / "selections.jsonl").unlink()
    make_run(tmp_path / "empty", selections=[])
    make_run(tmp_path / "not_begun", rows=[])
    (make_run(tmp_path / "broken") / "selections.jsonl").write_text('{"step": 1}\n')
    (make_run(tmp_path / "torn") / "selections.jsonl").write_text('{"step": 1}\noops\n')
    make_run(tmp_path / "elsewhere", selections=[selection(1, True, [0.1, 0.2], 7, 0)])
    make_run(tmp_path / "timeless", rows=[{"step": 1, "zero_variance": 0.0}])
    make_run(tmp_path / "sizeless", group_size=None)
    for name, message in {
        "missing": "no such run folder",
        "bare": "not a run folder, selections.jsonl: No such file",
        "empty": "selections.jsonl has no selection yet",
        "not_begun": "metrics.jsonl has no step yet",
        "broken": "selections.jsonl cannot be read: lacks 'utilities'",
        "torn": "selections.jsonl, line 2: not a JSON object with a step",
        "elsewhere": "17 is not in list",
        "timeless": "no groups at step 1, so --x samples",
        "sizeless": "no group_size in config.json",
    }.items():
        with pytest.raises(SystemExit) as stop:
            audit.main([str(tmp_path / name), "--out", str(tmp_path / "figures")])
        line = capsys.readouterr().err
        assert message in line
        assert name in line
        assert (stop.value.code, line.count("\n")) == (2, 1)
    assert not (tmp_path / "figures").exists()
    assert issubclass(RunError, ValueError)


def test_selections_of_a_run_still_going(tmp_path):
    folder = make_run(tmp_path / "run")
    with (folder / "selections.jsonl").open("a") as file:
        file.write('{"step": 3, "po')
    assert len(
        audit.load(*audit.load_groups([folder], ("sampler",))["goldilocks"][0]).selections
    ) == len(SELECTIONS)

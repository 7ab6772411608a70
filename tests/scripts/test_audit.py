"""audit: the numbers of its tables by hand on small runs."""

import math

import pytest

from plumbing.files import digest, write_lines
from scripts import audit
from scripts.analysis import Run, load_methods
from tests.helpers.runs import GOLDILOCKS, make_run, selection

CONFIG = GOLDILOCKS | {"group_size": 16, "prompts_per_step": 4}
ROWS = [
    {"step": 1, "zero_variance": 0.75, "trained_live": 0.25, "teacher_mae": 0.3},
    {
        "step": 2,
        "zero_variance": 1.0,
        "trained_live": 0.0,
        "teacher_mae": 0.2,
        "teacher_mae_explore": 0.25,
    },
]
ROWS = [row | {"teacher_noise_floor": 0.1, "groups": 4, "grad_norm": 0.1} for row in ROWS]
SELECTIONS = [
    selection(1, False, [0.4, 0.2, None], 8, chosen=0),  # y = 1/2
    selection(1, False, [0.1, 0.3], 16, chosen=1),  # y = 0
    selection(1, True, [0.2, 0.4], 0, chosen=0, first=20),
    selection(1, True, [0.3, 0.0], 8, chosen=0, first=30),
    selection(2, True, [0.1], 0, chosen=0),
    selection(2, True, [None, 0.9], 0, chosen=0, first=20),  # of unknown prediction
]


def load(folder, rows=ROWS, selections=SELECTIONS, **config):
    return Run.load(make_run(folder, rows, selections, **CONFIG | config))


def test_measures_by_hand(tmp_path):
    measured = audit.measures(run := load(tmp_path / "run"), 1, 2)
    assert measured == pytest.approx(
        {
            "dead groups": 0.875,
            "gradient norm, dead rows in the denominators": 0.1,
            # step 1 has 1 live group of 4; step 2 none, where the divisor is 1 of 4 as in training
            "gradient norm, dead rows out: ÷ live share": (0.4 + 0.4) / 2,
            "teacher MAE": 0.25,
            "teacher MAE, exploring": 0.25,  # none at step 1
            "noise floor of G": 0.1,
            # predictions 0.2, 0.3, 0.1 have ranks 2, 3, 1; outcomes 0, 1/2, 0 have 1.5, 3, 1.5
            "Spearman, exploring": 1.5 / math.sqrt(2 * 1.5),
            "predicted, greedy": 0.35,
            "outcome y, greedy": 0.25,
            "predicted, exploring": 0.2,
            "outcome y, exploring": 1 / 8,
            "lift, predicted": 0.35 - (0.3 + 0.2) / 2,
            "lift, outcome": 0.25 - 1 / 8,
        }
    )
    assert all(math.isnan(value) for value in audit.measures(run, 3, 4).values())


def test_gradient_norm_where_the_update_leaves_out_groups(tmp_path):
    """Of 12 groups of DAPO 4 are in the loss, of which 4 and 3 are live."""
    rows = [{"step": 1, "groups": 12, "trained_live": 1.0}]
    rows += [{"step": 2, "groups": 12, "trained_live": 0.75}]
    dapo = audit.measures(load(tmp_path / "dapo", rows, resample_rounds=2), 1, 2)
    norm = dapo["gradient norm, dead rows out: ÷ live share"]
    assert norm == pytest.approx((0.1 + 0.1 / 0.75) / 2)


def test_each_quarter_has_the_same_steps_for_all_runs(tmp_path):
    """One run of 7 steps, and one of 2 with 0.875 dead groups."""
    load(tmp_path / "a", steps=7)  # still going
    load(tmp_path / "b", [{"step": t, "zero_variance": 0.5} for t in range(1, 8)], seed=1)
    lines = audit.audit(load_methods([tmp_path / "a", tmp_path / "b"])).splitlines()
    titles = [line for line in lines if line.startswith("## ")]
    assert titles == [f"## Steps {t}" for t in ("1 to 2", "3 to 4", "5 to 6", "7 to 7")]
    dead = [line.split(" | ")[1] for line in lines if "dead groups" in line]
    assert dead == ["0.688 ± 0.265 |", "0.500 |", "0.500 |", "0.500 |"]


def uniform_run(folder, **config):
    """Twenty steps of four problems, of which the first is live."""
    each = [
        selection(t, True, [None], 8 * (i == 0), first=i) for t in range(1, 21) for i in range(4)
    ]
    config = {"sampler": "uniform", "candidates": 2, "epsilon": 0.2} | config
    return load(folder, [{"step": t} for t in range(1, 21)], each, **config)


def test_predicted_gain_by_hand(tmp_path):
    """A perfect teacher finds the live one in 3 of 6 pools, so 0.2 / 4 + 0.8 / 2 are live."""
    run = uniform_run(tmp_path / "run")
    assert audit.predicted_gain(run) == pytest.approx(0.45 / 0.25)
    worst = audit.predicted_gain(run, -(run.selections.y > 0).astype(float))
    assert worst == pytest.approx(0.2)
    run.selections["y"] = 0.0
    assert math.isnan(audit.predicted_gain(run))


def test_a_teacher_learns_from_a_uniform_run(tmp_path, tiny_model, capsys):
    """It predicts before it has learned from the step, and from the step before."""
    data = tmp_path / "train.jsonl"
    write_lines(data, [{"problem": f"{i} + 1", "expected_answer": "1"} for i in range(20)])
    config = {"train_data": str(data), "train_data_crc32": digest(data)[1]}
    run = uniform_run(tmp_path / "run", **config, epsilon=0.4, teacher_learning_rate=0.01)
    predicted_N = audit.read_by_teacher(run, str(tiny_model)).reshape(20, 4)
    assert (predicted_N[:2] == 0.25).all()
    assert (predicted_N[2:] != 0.25).all()
    audit.main([str(tmp_path / "run"), "--teacher", str(tiny_model)])
    printed = capsys.readouterr().out
    assert "| run | a perfect one | 75% | 1.60 |" in printed

"""analysis: amounts and methods of runs by hand."""

import pytest

from scripts import analysis
from scripts.analysis import Run, load_methods
from tests.helpers.runs import GOLDILOCKS, make_run


def test_what_was_spent_is_a_running_total(tmp_path):
    rows = [{"step": 0, "val_accuracy": 0.1}]
    rows += [{"step": 1, "completions": 1000, "completion_tokens": 1_000_000, "seconds": 1800.0}]
    rows += [{"step": 2, "completions": 3000, "completion_tokens": 3_000_000, "seconds": 3600.0}]
    run = Run.load(make_run(tmp_path / "run", rows, **GOLDILOCKS))
    expected = {
        "steps": [0, 1, 2],
        "student_work": [0, 8 / 6, 16 / 6],  # App. D: step n of 6 students of 8 is 8n/6 of 8
        "seconds": [0, 0.5, 1.5],  # hours
        "device_hours": [0, 4, 12],  # 8 devices
        "tokens": [0, 1, 4],  # millions
        "samples": [0, 1, 4],  # thousands
    }
    assert list(expected) == list(analysis.AMOUNTS)
    for amount, totals in expected.items():
        assert run.spent[amount].tolist() == pytest.approx(totals)


def test_runs_that_differ_only_in_their_seed_are_one_method(tmp_path):
    runs = []
    for i, loss in enumerate(("grpo", "grpo", "dapo")):
        runs.append(make_run(tmp_path / str(i), [{"step": 1}], seed=1 - i % 2, loss=loss))
    runs.append(make_run(tmp_path / "g", [{"step": 1}], epsilon=0.2, **GOLDILOCKS))
    names = {"uniform, loss grpo": [0, 1], "uniform, loss dapo": [1], "goldilocks": [0]}
    methods = load_methods(runs).items()
    assert {name: [run.config["seed"] for run in runs] for name, runs in methods} == names
    runs = [make_run(tmp_path / p, [{"step": 1}], preset=p, model=f"a/{p}") for p in ("s", "l")]
    assert list(load_methods(runs)) == ["s, uniform", "l, uniform"]

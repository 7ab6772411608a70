"""study: its runs are what it says they are, an interrupted study goes on, a cell's numbers by
hand."""

import json
from pathlib import Path

import pytest
from filelock import FileLock
from made_up import make_run

import train
from scripts import study
from scripts.report import t_difference


def test_every_run_is_a_command_that_train_takes(tmp_path):
    """148 runs: each parses, has a folder of its own, 4/3 the steps without a teacher, and its
    flags."""
    folders = set()
    for cell in study.CELLS:
        for seed in cell.seeds:
            config = train.parse(cell.command(tmp_path, seed)[2:])
            folders.add(config.out)
            assert (config.sampler, config.seed) == (cell.sampler, seed)
            assert config.steps == cell.length * (4 / 3 if cell.sampler == "uniform" else 1)
            assert all(getattr(config, name) == value for name, value in cell.flags)
    assert len(folders) == sum(len(cell.seeds) for cell in study.CELLS) == 148
    names = {"main-goldilocks", "main-uniform-small", "rare-uniform", "main-uniform-loss_dapo"}
    names |= {"hard-uniform-learning_rate_0.0004-36_steps", "main-goldilocks-teacher_mode_frozen"}
    assert names <= {cell.name for cell in study.CELLS}


def test_problems_of_a_setting_are_longer_and_none_is_in_validation(tmp_path):
    study.make_problems(tmp_path, count=200)
    validation = (tmp_path / "problems/val.jsonl").read_text().splitlines()
    validation = {json.loads(line)["problem"] for line in validation}
    assert len(validation) == 360
    for name, s in study.SKEWS.items():
        lines = (tmp_path / "problems" / name / "train.jsonl").read_text().splitlines()
        rows = [json.loads(line) for line in lines]
        assert not validation & {row["problem"] for row in rows}
        # A chain of n words is skew^n as frequent: Σ n·skew^n / Σ skew^n over 1..10
        mean = sum(n * s**n for n in range(1, 11)) / sum(s**n for n in range(1, 11))
        assert sum(row["length"] for row in rows) / len(rows) == pytest.approx(mean, abs=0.6)


def fake_run(out, cell, seed, accuracies, dead=0.5):
    rows = [{"step": t, "val_accuracy": a, "zero_variance": dead} for t, a in accuracies.items()]
    make_run(cell.folder(out, seed), rows, seed=seed, sampler=cell.sampler)


def test_numbers_of_a_cell_by_hand(tmp_path):
    """Uniform gains a point a step: its last five of 48 steps are 36 to 48, of the first 36 they
    are 24 to 36. Goldilocks is 10 and 12 points above it."""
    uniform, goldilocks = study.pair("main", length=36)
    for seed in (0, 1):
        every = {step: step / 100 for step in range(0, 49, 3)}
        fake_run(tmp_path, uniform, seed, every, dead=0.8)
        above = {step: (step + 10 + 2 * seed) / 100 for step in range(0, 37, 3)}
        fake_run(tmp_path, goldilocks, seed, above)
    fake_run(tmp_path, goldilocks, 2, {0: 0.9, 3: 0.9})  # not finished: does not count
    a, b = (study.outcomes(tmp_path, cell) for cell in (uniform, goldilocks))
    numbers = {"score": 42, "equal": 30, "mean": 25.5, "dead": 80}
    assert a.to_dict("index") == {seed: pytest.approx(numbers) for seed in (0, 1)}
    assert b.score.to_dict() == b.equal.to_dict() == pytest.approx({0: 40, 1: 42})
    found = study.difference(b, a, "equal")
    assert found == t_difference([40, 42], [30, 30], True) and found[0] == pytest.approx(11)
    assert study.difference(b[:1], a, "equal") is None


def test_an_interrupted_study_goes_on(tmp_path, monkeypatch, capsys):
    """Finished runs are not run again, a failure is counted and shown, seeds go in turn, no run
    starts too late."""
    cells = [study.Cell(setting, "uniform", seeds=(0, 1)) for setting in ("main", "easy")]
    asked = []

    def call(command, log):
        out = Path(command[command.index("--out") + 1])
        asked.append(f"{out.parent.name}/{out.name}")
        log.parent.mkdir(exist_ok=True)
        log.write_text("error: no room\n")
        if len(asked) == 2:
            return 2
        make_run(out, [{"step": 96, "val_accuracy": 0.5}])
        return 0

    monkeypatch.setattr(study, "call", call)
    assert study.run_all(tmp_path, cells, jobs=1, minutes=1) == 1
    names = ["main-uniform/seed0", "easy-uniform/seed0", "main-uniform/seed1", "easy-uniform/seed1"]
    assert asked == names
    assert "FAILED easy-uniform seed 0: error: no room" in capsys.readouterr().out
    assert study.run_all(tmp_path, cells, jobs=1, minutes=0) == 0 and len(asked) == 4
    assert "1 runs left" in capsys.readouterr().out
    assert study.run_all(tmp_path, cells, jobs=1, minutes=1) == 0
    assert asked[4:] == ["easy-uniform/seed0"]


def test_a_second_study_in_the_same_folder_is_refused(tmp_path, capsys):
    with FileLock(tmp_path / "study.lock"), pytest.raises(SystemExit) as stop:
        study.main(["--out", str(tmp_path)])
    assert stop.value.code == 2
    assert "study.lock' could not be acquired" in capsys.readouterr().err


def test_a_report_of_nothing_has_every_table(tmp_path):
    """And no figure, as there is no run."""
    found = {"wrong": 0.75, "right": 0.0, "live": 0.25, "p": 0.06}
    (tmp_path / "statistics.json").write_text(json.dumps({"main": found}))
    text = study.write_report(tmp_path)
    assert "| main | 75.0% | 0.0% | 25.0% | 6.0% |" in text
    assert all(f"## {title}\n" in text for title in study.SECTIONS)
    assert "| main | 75% | 0 | – | – | – | – | – | – | – |" in text
    assert not (tmp_path / "figures").exists()

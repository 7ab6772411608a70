"""study: its runs are what it says, an interrupted study goes on, a cell's numbers by hand."""

from types import SimpleNamespace

import pytest
from filelock import FileLock
from made_up import make_run

import train
from plumbing.files import read_lines
from scripts import study
from scripts.report import t_difference


def test_every_run_is_a_command_that_train_takes(tmp_path):
    """148 runs: each parses, has its own folder, 4/3 the steps without a teacher, and its flags."""
    folders = set()
    for cell in study.CELLS:
        for seed in cell.seeds:
            config = train.parse(cell.command(tmp_path, seed)[2:])
            folders.add(config.out)
            assert (config.sampler, config.seed) == (cell.sampler, seed)
            assert config.steps == cell.length * (4 / 3 if cell.sampler == "uniform" else 1)
            for flag in cell.flags:
                name, value = flag.split("=")
                assert str(getattr(config, name)) == value
    assert len(folders) == sum(len(cell.seeds) for cell in study.CELLS) == 148


def test_problems_of_a_setting_are_longer_and_none_is_in_validation(tmp_path):
    study.make_problems(tmp_path, count=200)
    validation = {row["problem"] for row in read_lines(tmp_path / "problems/val.jsonl")}
    assert len(validation) == 360
    for name, s in study.SKEWS.items():
        rows = read_lines(tmp_path / "problems" / name / "train.jsonl")
        assert not validation & {row["problem"] for row in rows}
        # A chain of n words is skew^n as frequent: Σ n·skew^n / Σ skew^n over 1..10
        mean = sum(n * s**n for n in range(1, 11)) / sum(s**n for n in range(1, 11))
        assert sum(row["length"] for row in rows) / len(rows) == pytest.approx(mean, abs=0.6)


def fake_run(folder, accuracies, finished=True):
    rows = [{"step": t, "val_accuracy": a, "zero_variance": 0.8} for t, a in accuracies.items()]
    make_run(folder, rows)
    if finished:
        (folder / "student").mkdir()


def test_numbers_of_a_cell_by_hand(tmp_path):
    """Uniform gains a point a step: its last five of 48 steps are 36 to 48, of the first 36 they
    are 24 to 36. Goldilocks is 10 and 12 points above it."""
    uniform, goldilocks = study.pair("main", length=36)
    for seed in (0, 1):
        every = {step: step / 100 for step in range(0, 49, 3)}
        fake_run(uniform.folder(tmp_path, seed), every)
        above = {step: (step + 10 + 2 * seed) / 100 for step in range(0, 37, 3)}
        fake_run(goldilocks.folder(tmp_path, seed), above)
    fake_run(goldilocks.folder(tmp_path, 2), {0: 0.9, 3: 0.9}, finished=False)  # does not count
    found = {cell: study.outcomes(tmp_path, cell) for cell in (uniform, goldilocks)}
    numbers = {"score": 42, "equal": 30, "dead": 80}
    rows = found[uniform].to_dict("index")
    assert rows == {seed: pytest.approx(numbers) for seed in (0, 1)}
    gain = study.gain(found, uniform, goldilocks, "equal")
    assert gain == t_difference([40, 42], [30, 30], True) and gain[0] == pytest.approx(11)
    found[goldilocks] = found[goldilocks][:1]
    assert study.gain(found, uniform, goldilocks, "equal") is None


def test_an_interrupted_study_goes_on(tmp_path, monkeypatch, capsys):
    """Finished runs are not run again, a failure is counted and shown, seeds go in turn, no run
    starts too late."""
    cells = [study.Cell(setting, "uniform", seeds=(0, 1)) for setting in ("main", "easy")]
    folders = [cell.folder(tmp_path, seed) for seed in (0, 1) for cell in cells]
    asked = []

    def run(command, **_):
        asked.append(next(folder for folder in folders if f"--out={folder}" in command))
        if len(asked) != 2:
            fake_run(asked[-1], {96: 0.5})
        return SimpleNamespace(returncode=int(len(asked) == 2))

    monkeypatch.setattr(study.subprocess, "run", run)
    assert study.run_all(tmp_path, cells, jobs=1, minutes=1) == 1 and asked == folders
    assert f"FAILED, see {tmp_path}/easy-uniform-base-72-seed0.log" in capsys.readouterr().out
    assert study.run_all(tmp_path, cells, jobs=1, minutes=0) == 0 and len(asked) == 4
    assert "1 runs left" in capsys.readouterr().out
    assert study.run_all(tmp_path, cells, jobs=1, minutes=1) == 0 and asked[4:] == folders[1:2]


def test_a_second_study_in_the_same_folder_is_refused(tmp_path, capsys):
    with FileLock(tmp_path / "study.lock"), pytest.raises(SystemExit) as stop:
        study.main(["--out", str(tmp_path)])
    assert stop.value.code == 2
    assert "study.lock' could not be acquired" in capsys.readouterr().err

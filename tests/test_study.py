"""study.py: its runs are what it says they are, an interrupted study goes on, the report's numbers by hand."""

import json
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "scripts"))
import study

import train


def test_every_run_is_a_command_that_train_takes(tmp_path):
    """Each parses, has a folder of its own, 4/3 the steps without a teacher, and differs from its baseline as named."""
    folders = []
    for cell in study.CELLS:
        for seed in cell.seeds:
            config = train.parse(cell.command(tmp_path, seed)[2:])
            folders.append(config.out)
            assert (config.sampler, config.seed) == (cell.sampler, seed)
            assert config.steps == cell.length * (4 / 3 if cell.sampler == "uniform" else 1)
            assert all(getattr(config, name) == value for name, value in cell.flags)
    assert len(set(folders)) == len(folders) == sum(len(cell.seeds) for cell in study.CELLS)


def test_pairs_differ_in_the_sampler_alone():
    cells = [
        *study.SWEEP,
        *study.SLOW,
        *study.FIRST,
        *study.RARE,
        *study.SMALL,
        *study.ENTROPY,
        *study.DEAD_OUT,
    ]
    for a, b in zip(cells[::2], cells[1::2], strict=True):
        assert (a.sampler, b.sampler) == ("uniform", "goldilocks")
        assert (a.setting, a.flags, a.seeds, a.base, a.length) == (
            b.setting,
            b.flags,
            b.seeds,
            b.base,
            b.length,
        )


def test_problems_of_a_setting_are_longer_and_none_is_in_validation(tmp_path):
    study.make_problems(tmp_path, count=200)
    rows = {
        p.parent.name: [json.loads(x) for x in p.open()]
        for p in (tmp_path / "problems").glob("*/train.jsonl")
    }
    lengths = {name: sum(row["length"] for row in r) / len(r) for name, r in rows.items()}
    # A chain of n words is skew^n as frequent: Σ n·skew^n / Σ skew^n over 1..10
    wanted = {
        name: sum(n * s**n for n in range(1, 11)) / sum(s**n for n in range(1, 11))
        for name, s in study.SKEWS.items()
    }
    assert lengths == pytest.approx(wanted, abs=0.6) and wanted["even"] == 5.5
    validation = {
        json.loads(line)["problem"] for line in (tmp_path / "problems" / "val.jsonl").open()
    }
    assert len(validation) == 360 and not validation & {
        row["problem"] for r in rows.values() for row in r
    }


def fake_run(folder: Path, accuracies: dict, dead: float = 0.5):
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    rows = [
        {"step": step, "val_accuracy": a, "zero_variance": dead} for step, a in accuracies.items()
    ]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def test_numbers_of_a_cell_by_hand(tmp_path):
    """Uniform gains a point a step: its last five of 48 steps are 36 to 48, of the first 36 they are 24 to 36."""
    uniform, goldilocks = (
        study.Cell("main", sampler, seeds=(0, 1, 2), length=36) for sampler in study.PAIR
    )
    for seed in (0, 1):
        fake_run(uniform.folder(tmp_path, seed), {s: s / 100 for s in range(0, 49, 3)}, dead=0.8)
        fake_run(
            goldilocks.folder(tmp_path, seed),
            {s: (s + 10 + 2 * seed) / 100 for s in range(0, 37, 3)},
        )
    fake_run(goldilocks.folder(tmp_path, 2), {0: 0.9, 3: 0.9})  # not finished: does not count
    a, b = study.Result(tmp_path, uniform), study.Result(tmp_path, goldilocks)
    assert a.at("score") == pytest.approx({0: 42, 1: 42}) and a.at("equal") == pytest.approx(
        {0: 30, 1: 30}
    )
    assert a.at("mean") == pytest.approx({0: 25.5, 1: 25.5}) and a.at("dead") == pytest.approx(
        {0: 80, 1: 80}
    )
    assert b.at("score") == b.at("equal") == pytest.approx({0: 40, 1: 42})
    mean, (low, high), p = study.difference(b, a, "equal")  # 10 and 12: 11 ± 12.706 · 1, t = 11
    assert (mean, low, high) == pytest.approx((11, 11 - 12.706, 11 + 12.706), abs=1e-3)
    assert p == pytest.approx(0.0577, abs=1e-3)
    assert (
        study.difference(b, study.Result(tmp_path, study.Cell("easy", "uniform")), "equal") is None
    )


def test_an_interrupted_study_goes_on(tmp_path, monkeypatch, capsys):
    """Finished runs are not run again, a failure is counted and shown, seeds go in turn, no run starts too late."""
    cells, asked = (
        [study.Cell("main", "uniform", seeds=(0, 1)), study.Cell("easy", "uniform", seeds=(0, 1))],
        [],
    )

    def call(command, log):
        out = Path(command[command.index("--out") + 1])
        asked.append(f"{out.parent.name}/{out.name}")
        log.parent.mkdir(exist_ok=True)
        log.write_text("error: no room\n")
        if len(asked) == 2:
            return 2
        fake_run(out, {96: 0.5})
        return 0

    monkeypatch.setattr(study, "call", call)
    assert study.run_all(tmp_path, cells, jobs=1, minutes=1) == 1
    assert asked == [
        "main-uniform/seed0",
        "easy-uniform/seed0",
        "main-uniform/seed1",
        "easy-uniform/seed1",
    ]
    assert "FAILED" in (said := capsys.readouterr().out) and "error: no room" in said
    assert study.run_all(tmp_path, cells, jobs=1, minutes=0) == 0 and len(asked) == 4
    assert "1 runs left" in capsys.readouterr().out
    assert study.run_all(tmp_path, cells, jobs=1, minutes=1) == 0 and asked[4:] == [
        "easy-uniform/seed0"
    ]

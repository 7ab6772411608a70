"""study: its runs are what it says, an interrupted study goes on, a cell's numbers by hand."""

import math
from types import SimpleNamespace

import pandas as pd
import pytest

import train
from experiments import study, study_plan, study_report, toy_task
from plumbing.files import read_lines, write_lines
from scripts import analysis
from tests.helpers.runs import make_run

CELLS = {cell for pairs in study_plan.PARTS.values() for pair in pairs for cell in pair}


def test_every_run_is_a_command_that_train_takes(tmp_path):
    """Each parses, has its own folder, 4/3 the steps without a teacher, and its flags."""
    folders = set()
    for cell in CELLS:
        config = train.parse(cell.command(tmp_path, 3)[2:])
        folders.add(config.out)
        assert (config.sampler, config.seed) == (cell.sampler, 3)
        assert config.steps == 120 * (1 if config.teacher_model else 4 / 3)
        for flag in cell.flags:
            name, value = flag.split("=")
            assert type(getattr(config, name))(value) == getattr(config, name)
    assert len(folders) == len({cell.name for cell in CELLS})


def test_worlds_differ_in_what_they_say(tmp_path):
    shares = {}
    for name, world in study_plan.WORLDS.items():
        rows = toy_task.make_problems(300, world, toy_task.make_skills(world, 0), 0)
        shares[name] = sum(row["difficulty"] > 30 for row in rows) / 300
        said = [row["problem"].startswith(f"{row['book']}: ") for row in rows]
        right = world.named * (1 - 0.9 * world.misnamed)  # a random name may be right
        assert sum(said) / 300 == pytest.approx(right, abs=0.1)
    assert shares["9 within reach"] == shares["climbing"] == 0
    assert shares["6 within reach"] == pytest.approx(0.3, abs=0.1)
    assert shares["1 within reach"] == pytest.approx(0.8, abs=0.1)


def test_thinning_leaves_a_share_of_the_golds(tmp_path):
    row = {"expected_answer": "123"}
    write_lines(tmp_path / "train.jsonl", [{"problem": f"q{i}", **row} for i in range(1000)])
    study.thin(tmp_path, 0.25)
    rows = read_lines(tmp_path / "live0.25.jsonl")
    assert [row["problem"] for row in rows] == [f"q{i}" for i in range(1000)]
    assert sum(row["expected_answer"] == "123" for row in rows) == pytest.approx(250, abs=40)
    assert {row["expected_answer"] for row in rows} == {"123", "0"}


def test_speed_by_hand():
    """The method gains 2 points in 10 steps, up to 5, the baseline 1: 5 points take it 30 steps, as
    it is evaluated every 10, and the baseline 50."""
    base = pd.DataFrame(
        {seed: pd.Series({t: t / 10 for t in range(0, 161, 10)}) for seed in (0, 1)}
    )
    method = pd.DataFrame({0: pd.Series({t: min(t / 5, 5.0) for t in range(0, 121, 10)})})
    method[1] = method[0]
    assert study_report.speed_up(base, method) == pytest.approx(50 / 30)
    assert study_report.speed_interval(base, method) == pytest.approx((50 / 30, 50 / 30, 50 / 30))
    # 3 points: the mean of 1 to 5.
    assert study_report.speed_up(base[:6], method) == pytest.approx(30 / 15)


def test_no_speed_without_a_gain():
    """A method that ends where it began, or below, reaches nothing that is worth a ratio."""
    gains = pd.DataFrame({0: pd.Series({t: 10 + t / 10 for t in range(0, 161, 10)})})
    for end in (10, 5):
        curve = {t: 10 + (end - 10) * t / 120 for t in range(0, 121, 10)}
        falls = pd.DataFrame({0: pd.Series(curve)})
        both = study_report.speed_up(gains, falls), study_report.speed_up(falls, gains)
        assert all(map(math.isnan, both))


def test_predicted_speed_by_hand():
    """All noise: √r. As much signal as noise: √(4 · 2 / 5). All signal: 1."""
    assert analysis.predicted_speed(4, 0) == 2
    assert analysis.predicted_speed(4, 1) == pytest.approx((8 / 5) ** 0.5)
    assert analysis.predicted_speed(4, 1e6) == pytest.approx(1)


def fake_run(folder, accuracies, zero_variance=0.8, finished=True):
    rows = [
        {"step": t, "val_accuracy": a, "zero_variance": zero_variance, "grad_cosine": 0.1}
        for t, a in accuracies.items()
    ]
    make_run(folder, [row | {"groups": 10} for row in rows], prompts_per_step=10)
    for step in accuracies:
        write_lines(folder / "evals" / f"step_{step}.jsonl", [{"reward": 0.0}] * 600)
    if finished:
        (folder / "student").mkdir()


def test_numbers_of_a_comparison_by_hand(tmp_path, monkeypatch):
    """Uniform gains a point in ten steps: its last five of 160 steps have 14 on average, of 120
    steps 10. Goldilocks is 1 and 3 points above that, with twice as many live groups."""
    uniform, goldilocks = study_plan.pair("demo", seeds=3)
    for seed in (0, 1):
        every = {step: step / 1000 for step in range(0, 161, 10)}
        fake_run(uniform.folder(tmp_path, seed), every)
        above = {step: step / 1000 + 0.05 + 0.02 * seed for step in range(0, 121, 10)}
        fake_run(goldilocks.folder(tmp_path, seed), above, 0.6)
    fake_run(goldilocks.folder(tmp_path, 2), {0: 0.9, 120: 0.9}, finished=False)  # does not count
    monkeypatch.setattr(study_report, "PARTS", {"claim": [(uniform, goldilocks)]})
    (row,) = study_report.compared(tmp_path, "claim").to_dict("records")
    assert row["seeds"] == 2 and row["base"] == "14.0 ± 0.0%" and row["own"] == "16.0 ± 1.4%"
    assert row["score"].startswith("+2.0 (") and row["equal"].startswith("+6.0 (")
    assert row["dead"] == "80% → 60%" and row["r"] == pytest.approx(2)
    assert row["x"] == pytest.approx(0.2 / 0.9)
    assert row["predicted"] == pytest.approx(analysis.predicted_speed(2, 0.2 / 0.9))
    answer = {"live": 0.2, "r": 3.0, "x": 0.0, "S": 1.7, "low": 1.5, "high": 1.9}
    answer["says"] = "yes"
    write_lines(study_report.answer_of(tmp_path, "demo"), [answer])
    found = study_report.compared(tmp_path, "claim")
    text = study_report.show(found)
    assert "80% → 60% | 2.00 | 0.22 | 1.30" in text
    assert "| demo | 3.00 | 2.00 | 1.70 (1.50 to 1.90) | yes |" in text
    speed = study_report.draw(tmp_path, found).axes[2]
    assert [text.get_text() for text in speed.texts] == ["demo"]
    assert len(study_report.draw_quantity(found).axes[0].lines) == 3  # two predictions, and this


def test_each_seed_runs_at_the_rate_that_is_best_for_the_others(tmp_path):
    """Even seeds gain most at the preset's rate, odd ones at twice that: so each half gets the
    other's rate, where it has less. Of half the rate one seed is lacking, so it is left out."""
    scores = {(): (0.4, 0.2), study_plan.RATES[1:]: (0.3, 0.3), study_plan.RATES[:1]: (0.1, 0.1)}
    for sampler, more in (("uniform", (0, 0)), ("goldilocks", (0.05, 0.07))):
        for flags, (even, odd) in scores.items():
            cell = study_plan.Cell("demo", sampler, flags)
            for seed in range(4 if flags == study_plan.RATES[:1] else 5):
                score = (even, odd)[seed % 2] + more[seed % 2]
                fake_run(cell.folder(tmp_path, seed), {0: 0.1, 120: score})
    found = study_report.at_best_rate(tmp_path, "uniform")
    assert found.score.tolist() == pytest.approx([30, 20, 30, 20])
    assert found.rate.tolist() == ["learning_rate=0.0004", "the preset's"] * 2
    assert "| +6.0 (" in study_report.show_best_rates(tmp_path)
    assert study_report.show_best_rates(tmp_path / "none") == ""


def test_an_answer_is_right_wrong_or_open():
    """Of measured S: above 4/3, below it, and neither."""
    above, below, about = ({"low": low, "high": low + 0.2} for low in (1.4, 1.0, 1.2))
    found = [
        [study_report.judged(says, row) for row in (above, below, about)] for says in ("yes", "no")
    ]
    assert found == [["right", "wrong", "open"], ["wrong", "right", "open"]]
    assert study_report.judged("open", above) == "open"


def test_an_interrupted_study_goes_on(tmp_path, monkeypatch, capsys):
    """Finished runs are not run again, a failure is counted and shown, seeds go in turn, no run
    starts too late."""
    cells = [study_plan.Cell(world, seeds=2) for world in ("demo", "climbing")]
    folders = [cell.folder(tmp_path, seed) for seed in (0, 1) for cell in cells]
    asked = []

    def run(command, **_):
        asked.append(next(folder for folder in folders if f"--out={folder}" in command))
        if len(asked) != 2:
            fake_run(asked[-1], {96: 0.5})
        return SimpleNamespace(returncode=int(len(asked) == 2))

    monkeypatch.setattr(study.subprocess, "run", run)
    assert study.run_all(tmp_path, cells, jobs=1, minutes=1) == 1 and asked == folders
    assert f"FAILED, see {tmp_path}/climbing, uniform-seed0.log" in capsys.readouterr().out
    assert study.run_all(tmp_path, cells, jobs=1, minutes=0) == 0 and len(asked) == 4
    assert "1 runs left" in capsys.readouterr().out
    assert study.run_all(tmp_path, cells, jobs=1, minutes=1) == 0 and asked[4:] == folders[1:2]

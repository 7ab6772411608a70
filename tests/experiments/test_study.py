"""The study: its runs are what the plan says, a stopped study continues, its numbers by hand."""

import math
from types import SimpleNamespace

import pandas as pd
import pytest

import train
from experiments import study, study_plan, study_report, toy_task
from plumbing.files import read_lines, write_lines
from tests.helpers.runs import make_run

CELLS = {cell for pairs in study_plan.PARTS.values() for pair in pairs for cell in pair}


def test_every_run_is_a_valid_command_with_its_own_folder(tmp_path):
    folders = set()
    for cell in CELLS:
        config = train.parse(cell.command(tmp_path, 3)[2:])
        folders.add(config.out)
        assert (config.sampler, config.seed) == (cell.sampler, 3)
        assert config.steps == 120 * (1 if config.teacher_model else 4 / 3)
    assert len(folders) == len({cell.name for cell in CELLS})


def test_tasks_differ_in_what_is_named_and_within_reach():
    shares = {}
    for name, task in study_plan.TASKS.items():
        rows = toy_task.make_problems(300, task, toy_task.make_skills(task, 0), 0)
        shares[name] = sum(row["difficulty"] > 30 for row in rows) / 300
        named = sum(row["problem"].startswith(f"{row['topic']}: ") for row in rows) / 300
        expected = task.named * (1 - 0.9 * task.misnamed)  # a random name may be right
        assert named == pytest.approx(expected, abs=0.1)
    assert shares["9 within reach"] == shares["climbing"] == 0
    assert shares["6 within reach"] == pytest.approx(0.3, abs=0.1)
    assert shares["1 within reach"] == pytest.approx(0.8, abs=0.1)


def test_thinning_keeps_a_share_of_the_reference_answers(tmp_path):
    row = {"expected_answer": "123"}
    write_lines(tmp_path / "train.jsonl", [{"problem": f"q{i}", **row} for i in range(1000)])
    study.thin(tmp_path, 0.25)
    rows = read_lines(tmp_path / "live0.25.jsonl")
    assert [row["problem"] for row in rows] == [f"q{i}" for i in range(1000)]
    assert sum(row["expected_answer"] == "123" for row in rows) == pytest.approx(250, abs=40)
    assert {row["expected_answer"] for row in rows} == {"123", "0"}


def test_speed_up_by_hand():
    """The method gains 2 points in 10 steps, up to 5, the baseline 1: 5 points take it 30 steps, as
    it is evaluated every 10, and the baseline 50."""
    base = pd.DataFrame({0: {t: t / 10 for t in range(0, 161, 10)}})
    method = pd.DataFrame({0: {t: min(t / 5, 5.0) for t in range(0, 121, 10)}})
    assert study_report.speed_up(base, method, [0]) == pytest.approx(50 / 30)
    # 3 points: the mean of 1 to 5.
    assert study_report.speed_up(base[:6], method, [0]) == pytest.approx(30 / 15)
    # A method that ends where it began, or below, reaches nothing that is worth a ratio.
    for slope in (0, -0.05):
        falls = pd.DataFrame({0: {t: slope * t for t in range(0, 121, 10)}})
        assert math.isnan(study_report.speed_up(base, falls, [0]))
        assert math.isnan(study_report.speed_up(falls, base, [0]))


def fake_run(folder, accuracies, zero_variance=0.8, finished=True):
    same = {"zero_variance": zero_variance, "groups": 10}
    rows = [{"step": t, "val_accuracy": a} | same for t, a in accuracies.items()]
    make_run(folder, rows, prompts_per_step=10)
    for step in accuracies:
        write_lines(folder / "evals" / f"step_{step}.jsonl", [{"reward": 0.0}] * 600)
    if finished:
        (folder / "student").mkdir()


def test_a_comparison_by_hand(tmp_path, monkeypatch):
    """Uniform gains a point in ten steps: its last five of 160 steps have 14 on average, of 120
    steps 10. Goldilocks is 1 and 3 points above that, with twice as many live groups."""
    uniform, goldilocks = study_plan.pair("demo", seeds=3)
    for seed in (0, 1):
        every = {step: step / 1000 for step in range(0, 161, 10)}
        fake_run(uniform.folder(tmp_path, seed), every)
        above = {step: step / 1000 + 0.05 + 0.02 * seed for step in range(0, 121, 10)}
        fake_run(goldilocks.folder(tmp_path, seed), above, 0.6)
    fake_run(goldilocks.folder(tmp_path, 2), {0: 0.9, 120: 0.9}, finished=False)  # does not count
    monkeypatch.setitem(study_plan.PARTS, "claim", [(uniform, goldilocks)])
    (row,) = study_report.compared(tmp_path, "claim")
    assert row["seeds"] == 2 and row["base"] == "14.0 ± 0.0%" and row["own"] == "16.0 ± 1.4%"
    assert row["score"].startswith("+2.0 (") and row["equal"].startswith("+6.0 (")
    assert row["r"] == pytest.approx(2)
    assert "80% → 60% | 2.00 | 1.41" in study_report.show([row])


def test_the_front_figure_shows_the_published_means():
    summary = pd.read_csv(study_plan.ROOT / "docs/study_summary.csv", comment="#")
    dead, gain = study_report.draw_summary(summary).axes
    assert [bar.get_width() for bar in dead.patches] == [84.2, 53.5, 44.1]
    ends = [line.get_segments()[0][:, 0].tolist() for line in gain.collections]
    assert ends == [[1.5, 2.7], [0.4, 1.6], [2.0, 2.9], [0.8, 1.8]]


def test_a_stopped_study_continues(tmp_path, monkeypatch, capsys):
    """Finished runs are not repeated, a failure is counted and printed, runs go seed by seed, and
    none starts after the time is up."""
    cells = [study_plan.Cell(task, seeds=2) for task in ("demo", "climbing")]
    folders = [cell.folder(tmp_path, seed) for seed in (0, 1) for cell in cells]
    ran = []

    def run(command, **_):
        ran.append(next(folder for folder in folders if f"--out={folder}" in command))
        if len(ran) != 2:
            fake_run(ran[-1], {96: 0.5})
        return SimpleNamespace(returncode=int(len(ran) == 2))

    monkeypatch.setattr(study.subprocess, "run", run)
    assert study.run_all(tmp_path, cells, jobs=1, minutes=1) == 1 and ran == folders
    assert f"FAILED, see {tmp_path}/climbing, uniform-seed0.log" in capsys.readouterr().out
    assert study.run_all(tmp_path, cells, jobs=1, minutes=0) == 0 and len(ran) == 4
    assert "1 runs left" in capsys.readouterr().out
    assert study.run_all(tmp_path, cells, jobs=1, minutes=1) == 0 and ran[4:] == folders[1:2]

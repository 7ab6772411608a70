"""The sampler lab: what it shows, at a small scale."""

import functools

import pytest

from experiments import sampler_lab as lab


@functools.cache
def simulated(name, n, visibility=0.9):
    return lab.simulate(name, n, visibility, steps=120, seed=0)


def dead_groups(name, n) -> float:
    return simulated(name, n)["dead groups"]


MANY_PASSES = 300  # problems: 7 passes
ONE_PASS = 100_000  # 0.02 of a pass


def test_a_samplers_history_of_problems_pays_in_many_passes():
    """The paper's introduction on methods that track a problem's history, with numbers."""
    assert dead_groups("mopps", MANY_PASSES) < dead_groups("uniform", MANY_PASSES) - 0.05


def test_a_samplers_history_of_problems_does_not_pay_in_one_pass():
    uniform = dead_groups("uniform", ONE_PASS)
    assert dead_groups("mopps", ONE_PASS) == pytest.approx(uniform, abs=0.03)


def test_a_teacher_that_sees_the_difficulty_pays_in_one_pass():
    goldilocks = dead_groups("goldilocks", ONE_PASS)
    assert goldilocks < dead_groups("uniform", ONE_PASS) - 0.1
    assert goldilocks > 0.05


def test_an_oracle_finds_hardly_any_dead_group():
    assert dead_groups("oracle", ONE_PASS) < 0.05


def test_a_teacher_that_sees_nothing_chooses_as_uniform_does():
    blind = simulated("goldilocks", ONE_PASS, visibility=0.0)
    uniform = simulated("uniform", ONE_PASS)
    assert blind["utility selected"] == pytest.approx(uniform["utility selected"], abs=0.02)


def test_the_table_has_every_sampler_and_a_custom_one(tmp_path, capsys):
    (tmp_path / "mine.py").write_text("from sampler import Uniform\nclass Mine(Uniform): ...\n")
    flags = "--problems 500 --visibility 0 0.9 --steps 3 --seeds 1 --samplers"
    lab.main([*flags.split(), *lab.LAB, f"{tmp_path}/mine.py:Mine"])
    rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    samplers = {row[1] for row in rows if row[:1] == ["500"]}
    assert samplers == {*lab.LAB, "mine.py:Mine"}


def test_a_custom_sampler_that_reads_questions_runs_at_every_visibility(tmp_path):
    text = "from samplers.bag_of_words import BagOfWords\nclass Mine(BagOfWords): ...\n"
    (tmp_path / "mine.py").write_text(text)
    mine = f"{tmp_path}/mine.py:Mine"
    runs = lab.sweep([mine, "uniform"], [500], [0.0, 0.9], steps=3, seeds=1)
    assert [*runs.visibility] == ["0", "", "0.9"]

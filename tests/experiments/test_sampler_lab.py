"""The sampler lab: what it shows, at a small scale."""

import pytest

from experiments import sampler_lab as lab


def test_history_needs_many_passes_and_a_teacher_does_not():
    """The paper's introduction on methods that track a problem's history, with numbers."""

    def run(name, n, visibility=0.9):
        return lab.simulate(name, n, visibility, steps=120, seed=0)

    names = ("uniform", "mopps", "goldilocks", "oracle")
    many, few = ({name: run(name, n)["dead groups"] for name in names} for n in (300, 100_000))
    assert many["mopps"] < many["uniform"] - 0.05  # 7 passes
    assert few["mopps"] == pytest.approx(few["uniform"], abs=0.03)  # 0.02 of one
    assert few["oracle"] < 0.05 < few["goldilocks"] < few["uniform"] - 0.1
    blind, uniform = run("goldilocks", 100_000, 0.0), run("uniform", 100_000)
    assert blind["utility selected"] == pytest.approx(uniform["utility selected"], abs=0.02)


def test_the_table_has_every_sampler_and_a_custom_one(tmp_path, capsys):
    (tmp_path / "mine.py").write_text("from sampler import Uniform\nclass Mine(Uniform): ...\n")
    flags = "--problems 500 --visibility 0 0.9 --steps 3 --seeds 1 --samplers"
    lab.main([*flags.split(), *lab.LAB, f"{tmp_path}/mine.py:Mine"])
    rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert {row[1] for row in rows if row[:1] == ["500"]} == {*lab.LAB, "mine.py:Mine"}

"""sampler_lab: the simulated student and teacher by hand, and what the lab is there to show, at small sizes."""

import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "scripts"))
import sampler_lab as lab

from sampler import SAMPLERS, Goldilocks


def problems(skill, difficulty):
    return SimpleNamespace(skill=np.array(skill), difficulty=np.array(difficulty))


def run(name, n, readability=0.9, steps=120, seed=0):
    return lab.simulate(name, n, readability, steps, seed)


def test_the_student_by_hand():
    bank = problems([0, 0, 1], [0.0, np.log(3), 0.0])
    student = lab.Student(np.zeros(lab.SKILLS))
    assert student.p(bank, np.arange(3)) == pytest.approx([0.5, 0.25, 0.5])
    student.learn(bank, np.array([0, 2]), np.array([8, 16]))  # y = 0.5, and a dead group
    assert student.ability_S == pytest.approx([0.005] + [0.0005] * 7)
    student.learn(bank, np.array([1]), np.array([0]))
    assert student.ability_S == pytest.approx([0.005] + [0.0005] * 7)
    student.learn(
        bank, np.array([0, 2]), np.array([8, 8])
    )  # 0.005 of one's own and a tenth of the other's
    assert student.ability_S == pytest.approx([0.0105, 0.006] + [0.0015] * 6)


def test_best_of_by_hand():
    assert lab.best_of(np.array([0.3, 0.1]), 2) == pytest.approx(
        0.25
    )  # both are 0.1 in one draw of four
    assert lab.best_of(np.array([0.1, 0.2, 0.3]), 1) == pytest.approx(0.2)
    assert lab.best_of(np.array([0.1, 0.5]), 50) == pytest.approx(0.5)


@pytest.mark.parametrize("r", [0.0, 0.5, 1.0])
def test_readability_is_the_share_that_can_be_read(r):
    bank = lab.Bank(40_000, r, np.zeros(lab.SKILLS), np.random.default_rng(0))
    assert np.corrcoef(bank.seen_difficulty, bank.difficulty)[0, 1] ** 2 == pytest.approx(
        r, abs=0.02
    )
    assert (bank.seen_skill == bank.skill).mean() == pytest.approx(r + (1 - r) / 8, abs=0.02)
    assert bank.difficulty.std() == pytest.approx(3, abs=0.05)
    values, row = bank.column(
        "pass_rate"
    )  # of a model at ability 0 + 1: a half where the difficulty is 1
    at_one = np.abs(bank.difficulty - 1) < 0.1
    assert np.array(values)[row[at_one]].mean() == pytest.approx(0.5, abs=0.02)


def test_the_reader_learns_at_every_fourth_outcome_and_what_it_is_told():
    bank = problems([0, 0], [0.0, 0.0])
    bank.seen_skill, bank.seen_difficulty = np.array([2, 5]), np.array([-1.1, 1.7])
    reader = lab.Reader(bank)
    for i in range(3):
        reader.update(i % 2, 8 * (i % 2), 16)
    assert reader.predict([0, 1]).tolist() == [0.25, 0.25]
    for i in range(3, 203):
        reader.update(i % 2, 8 * (i % 2), 16)  # 0 is dead, 1 is at p = 1/2
    assert reader.predict([0, 1]) == pytest.approx([0, 0.5], abs=0.05)
    for _ in range(200):
        reader.update(1, 4, 16, target=lambda p_hat: p_hat / 2)
    assert reader.predict([1]) == pytest.approx([0.125], abs=0.01)


def test_every_sampler_of_the_table_runs_and_a_seed_repeats():
    assert set(SAMPLERS) < set(lab.LAB)
    for name in lab.LAB:
        first, again, other = (run(name, 400, steps=15, seed=seed) for seed in (1, 1, 2))
        del first["seconds"], again["seconds"]
        assert first == again and first["utility"] != other["utility"]


def test_the_oracle_has_no_regret_and_everyone_else_some():
    results = {name: run(name, 2000) for name in lab.LAB}
    assert results.pop("oracle")["regret"] == pytest.approx(0, abs=0.01)
    assert min(m["regret"] for m in results.values()) > 0.02


def test_history_needs_many_passes_and_a_teacher_does_not():
    """What the paper's introduction says of methods that track a problem's past, with numbers."""
    many, few = (
        {name: run(name, n) for name in ("uniform", "thompson", "skip", "goldilocks")}
        for n in (300, 100_000)
    )
    for name in ("thompson", "skip"):  # 7 passes, then 0.02 of one
        assert many[name]["dead"] < many["uniform"]["dead"] - 0.05
        assert few[name]["dead"] == pytest.approx(few["uniform"]["dead"], abs=0.03)
    assert few["goldilocks"]["dead"] < few["uniform"]["dead"] - 0.1
    assert many["thompson"]["gained"] > many["goldilocks"]["gained"] + 0.02
    assert few["goldilocks"]["gained"] > few["thompson"]["gained"] + 0.02


def test_a_teacher_that_can_read_nothing_is_uniform():
    blind, uniform = run("goldilocks", 100_000, readability=0.0), run("uniform", 100_000)
    assert blind["utility"] == pytest.approx(uniform["utility"], abs=0.02)


def test_who_must_take_every_problem_of_a_pass_can_only_order_them():
    """120 steps of 18 are 2160: one pass, whose leftovers Goldilocks has to train on at the end."""
    whole, free = run("goldilocks", 2160), run("revisiting", 2160)
    assert whole["coverage"] > 0.9 > free["coverage"]
    assert free["utility"] > whole["utility"] + 0.03


def test_a_new_sampler_is_in_the_table_and_the_picture(tmp_path, capsys, monkeypatch):
    class Target(Goldilocks):
        def score(self, pool_N_K):
            return 0.5 - abs(super().score(pool_N_K) - 0.4)

    monkeypatch.setitem(lab.LAB, "target", (Target, ""))
    lab.main(
        f"--problems 500 --readability 0 0.9 --samplers uniform target --steps 3 --seeds 2 --out {tmp_path}".split()
    )
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(" | ")[2:4] for line in lines[2:5]] == [
        ["uniform", ""],
        ["target", "0"],
        ["target", "0.9"],
    ]
    assert lines[2].startswith("| 500 | 0.11 |")  # 54 of 500
    assert (tmp_path / "sampler_lab.png").stat().st_size > 10_000


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ("--problems 100", "--problems 100: a step draws 144"),
        ("--readability 2", "--readability in [0, 1]"),
        ("--samplers best", "invalid choice: 'best'"),
    ],
)
def test_bad_flags(flags, message, capsys):
    with pytest.raises(SystemExit) as stopped:
        lab.main(flags.split())
    assert stopped.value.code == 2 and message in capsys.readouterr().err

"""The simulation of a whole run: its Student and Teacher by hand, and what a run must not do."""

import numpy as np
import pandas as pd
import pytest

from grpo import expected_factor
from sampler import utility_target
from studies import full_length
from tests.helpers.checks import rejected
from tests.helpers.groups import solved

SHORT = "--problems 1200 --steps 120 --prompts_per_step 12 --parts 4"


def simulate(flags: str) -> pd.DataFrame:
    """Run the simulation over 1.2 times its 1,200 problems; return the rows of its quarters."""
    config, settings = full_length.parse(f"{SHORT} {flags}".split())
    return pd.DataFrame(full_length.simulate(config, settings))


def settings_of(flags: str):
    """The settings of train.py and of the simulation."""
    return full_length.parse(f"--problems 3 {flags}".split())


def make_student(flags="") -> full_length.Student:
    """Make a Student of three problems, with the words 0; 0 and 1; 1. σ(θ) is 1/2 and 3/4."""
    words = np.array([[0, 2, 2], [0, 1, 2], [1, 2, 2]])
    logits = np.array([0.0, np.log(3), full_length.KNOWN])
    return full_length.Student(words, logits, *settings_of(flags))


@pytest.fixture(scope="module")
def uniform():
    return simulate("--sampler uniform")


def test_goldilocks_has_in_each_quarter_as_many_live_groups_as_uniform(uniform):
    goldilocks = simulate("--sampler goldilocks")
    assert (goldilocks.live >= uniform.live).all()


def test_uniform_uses_each_problem_once_before_any_returns(uniform):
    """A quarter has 360 groups, so 1,200 problems last for three and a third."""
    assert uniform.distinct.tolist() == [360, 720, 1080, 1200]
    assert uniform.again.tolist() == pytest.approx([0, 0, 0, 240 / 360], abs=1e-4)
    assert uniform.passes.tolist() == [1, 1, 1, 2]
    assert uniform.live.between(0.5, 0.75).all()


def test_rounds_are_played():
    """SPEED trains on the groups that were live after 4 completions, DAPO draws up to 3 rounds."""
    speed = simulate("--sampler speed --steps 40 --parts 2")
    assert (speed.trained == 1).all()
    assert (speed.completions > 12 * 4 * 4).all()
    dapo = simulate("--sampler uniform --resample_rounds 2 --steps 40 --parts 2")
    assert (dapo.trained > dapo.live).all()
    assert dapo.completions.between(2 * 192, 3 * 192).all()


def test_p_is_the_product_of_the_rates_of_a_problems_words():
    student = make_student()
    assert student.p([0, 1, 2]) == pytest.approx([1 / 2, 3 / 8, 3 / 4])


def test_learning_by_hand():
    """A live group with p̂ = 1/2, of the words 0 and 1, and a dead one, of 0 alone. Eq. 2's factor
    is 1/2, ∂ logit(p)/∂θ is (1/2, 1/4) / (5/8), and the mean over two groups halves the step."""
    student = make_student("--learning 0.1")
    before = student.logit_V
    student.update([solved(1, right=8), solved(0, right=16)])
    step = 0.1 / 2 * 1 / 2 * np.array([4 / 5, 2 / 5, 0])
    assert student.logit_V - before == pytest.approx(step)


class Texts(list):
    """Problems whose questions are these texts."""

    question = list.__getitem__


def test_the_teacher_predicts_what_its_target_was_on_average_a_delay_ago():
    """Two steps late: it knows the Student of the first of three states."""
    flags = "--noise 0 --delay 2"
    student = make_student(flags)
    teacher = full_length.StandInTeacher(student, Texts("abc"), *settings_of(flags))
    teacher.aim_at(utility_target)
    for right in (8, 8):
        student.update([solved(1, right)])
    expected = [expected_factor(p, 16) for p in (3 / 4, 1 / 2)]
    assert teacher.predict(["c", "a"]) == pytest.approx(expected, abs=1e-5)
    student.update([])
    assert teacher.predict(["c"]) < expected[0] - 1e-4  # p has grown from 3/4


def test_the_error_of_the_teacher_has_the_given_std():
    flags = "--noise 0.1"
    student = make_student(flags)
    student.word_N_3 = np.zeros((20_000, 3), dtype=int)
    texts = Texts(map(str, range(20_000)))
    teacher = full_length.StandInTeacher(student, texts, *settings_of(flags))
    teacher.aim_at(lambda p_hat: 0.25)
    predicted = teacher.predict(texts)
    assert predicted.mean() == pytest.approx(0.25, abs=0.005)
    assert predicted.std() == pytest.approx(0.1, rel=0.05)  # 0.25 ± 2.5 std are within [0, 0.5]
    assert (predicted == teacher.predict(texts)).all()


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ("--sampler speed --resample_rounds 1", "has `more` or `train_on` of its own"),
        ("--parts 121", "--parts 121: must be at most --steps, 120"),
    ],
)
def test_bad_flags_are_rejected(flags, message):
    with rejected(message):
        simulate(flags)

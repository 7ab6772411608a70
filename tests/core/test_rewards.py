"""rewards/: the verdict of reasoning-gym's scorers; answer and format of the composite example."""

import json

import pytest

from plumbing import plugins
from tests.helpers.models import ROOT
from tests.helpers.optional import need_reasoning_gym

FILE = ROOT / "rewards" / "reasoning_gym_score.py"
COUNTDOWN = {"source_dataset": "countdown", "numbers": [6, 61, 94, 4], "target": 309}
NESTED = {"source_dataset": "countdown", "metadata": COUNTDOWN}
FORMS = {"flat": COUNTDOWN, "nested": NESTED, "JSON text": json.dumps(COUNTDOWN)}


STEPS = "### Step-by-Step Reasoning\n3 + 4 is 7.\n\n"
COMPOSITE = {
    STEPS + "### Final Answer\n\\boxed{7}\n": 1,
    STEPS + "\\boxed{7}": 0.9,
    STEPS + "### Final Answer\n\\boxed{8}": 0.1,
    STEPS + "### Final Answer\n\\boxed{7} or so": 0.9,
    "7": 0,
}


@pytest.mark.parametrize("completion", COMPOSITE)
def test_the_composite_example_adds_the_answer_and_app_ms_format(completion):
    file = ROOT / "rewards" / "format_and_answer.py"
    score = plugins.load(str(file), "--reward", "compute_score")
    assert score("", completion, "7") == pytest.approx(COMPOSITE[completion])


@pytest.fixture(scope="module")
def compute_score():
    need_reasoning_gym()
    return plugins.load(str(FILE), "--reward", "compute_score")


@pytest.mark.parametrize("form", FORMS)
def test_another_right_answer_than_the_reference_earns_1(form, compute_score):
    completion = r"94*4 is 376. \boxed{4*94 - 6 - 61}"
    assert compute_score("", completion, "94*4 - 61 - 6", FORMS[form]) == 1


def test_partial_credit_earns_0(compute_score):
    """The scorer gives 0.01 or more for an expression of another value."""
    assert compute_score("", r"\boxed{94 + 4 + 6 + 61}", "94*4 - 61 - 6", COUNTDOWN) == 0


@pytest.mark.parametrize("answer", ["NaN", "1+nani"])
def test_nan_is_no_complex_number(answer, compute_score):
    info = {"source_dataset": "complex_arithmetic", "result": [4.0, 1.0]}
    assert compute_score("", rf"\boxed{{{answer}}}", "4.0 + 1.0i", info) == 0


def test_a_word_may_contain_nan(compute_score):
    info = {"source_dataset": "spell_backward", "word": "banana"}
    assert compute_score("", r"\boxed{ananab}", "ananab", info) == 1

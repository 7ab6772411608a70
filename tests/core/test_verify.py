"""verify.py: which answers earn 1, which golds can be verified, custom rewards."""

import random
import time

import pytest

import verify
from plumbing.errors import InputError
from plumbing.files import read_lines
from tests.helpers.models import ROOT
from verify import Verdict, Verifier, extract_boxed

# Rows with gold, verdict, why, source, and an answer or a completion.
ANSWERS = read_lines(ROOT / "tests/grading/answers.jsonl")
BOXES = read_lines(ROOT / "tests/grading/boxes.jsonl")
CORRECT, WRONG_ANSWER = Verdict(1.0, "correct"), Verdict(0.0, "wrong")


def box(answer: str) -> str:
    return rf"We compute and find \boxed{{{answer}}}."


@pytest.fixture(scope="module")
def verifier():
    with Verifier(workers=2) as running:
        yield running


def test_extract_boxed_returns_the_last_box_if_it_is_closed():
    boxes = {
        r"\boxed{1} then \boxed{2}": "2",
        r"\boxed{3 \boxed{4}}": "4",
        r"\boxed {5}": "5",
        r"\boxed{\frac{1}{2}}": r"\frac{1}{2}",
        r"\boxed{\{1\}}": r"\{1\}",
        r"\boxed{5} in a \boxed": "5",
        "{" * 100_000 + r"\boxed{7}" + "}" * 100_000: "7",
        "5": None,
        r"\boxed{}": None,
        r"\boxed{ }": None,
        r"\boxed{1\}": None,
        r"\boxed 5": None,
        r"\boxed" * 20_000: None,
        r"\boxed{1} and \boxed{2": None,
    }
    assert {text: extract_boxed(text) for text in boxes} == boxes


def wrongly_graded(verifier: Verifier, rows: list[dict]) -> list[dict]:
    """Return the rows with another verdict. In a random order, as workers cache what they parse."""
    rows = random.Random(0).sample(rows, len(rows))
    completions = [row.get("completion") or box(row["answer"]) for row in rows]
    verdicts = verifier.grade(completions, [row["gold"] for row in rows])
    pairs = zip(rows, verdicts, strict=True)
    return [row for row, verdict in pairs if verdict.reward != row["verdict"]]


def test_right_answers_earn_1_and_wrong_ones_0(verifier):
    assert wrongly_graded(verifier, ANSWERS) == []


def test_each_part_may_have_a_box_and_a_box_inside_thinking_does_not_count(verifier):
    assert wrongly_graded(verifier, BOXES) == []


def test_an_answer_has_at_most_12_boxes():
    boxes = [rf"\boxed{{{i}}}" for i in range(13)]
    assert verify.read_answers(", ".join(boxes[1:])) == ["1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12"]
    assert verify.read_answers(", ".join(boxes)) == ["12"]


def test_boxes_of_one_answer_are_less_than_60_characters_apart():
    """The brace that closes the first and the comma are two of them."""
    near, far = (rf"\boxed{{1}},{' ' * n}\boxed{{2}}" for n in (57, 58))
    assert verify.read_answers(near) == ["1, 2"]
    assert verify.read_answers(far) == ["2"]


def test_golds_and_answers_of_more_than_2000_characters_are_too_long(verifier):
    longest, longer = "7" * 2000, "7" * 2001
    verdicts = verifier.grade([box(longest), box("7"), box(longer)], [longest, longer, "7"])
    assert [v.status for v in verdicts] == ["correct", "too_long", "too_long"]


def test_a_text_instead_of_a_list_of_texts_is_a_type_error(verifier):
    """Its characters would be graded, each for a completion."""
    with pytest.raises(TypeError, match="'3': must be a list of str"):
        verifier.grade("3", ["3"])
    with pytest.raises(TypeError, match=r"\[3\]: must be a list of str"):
        verifier.grade(["3"], [3])


def test_a_gold_is_valid_if_it_is_understood_and_equivalent_to_itself(verifier):
    good = [row["gold"] for row in ANSWERS if row["verdict"]]
    bad = ["", " ", r"\frac{1}{", "1+", "}", r"\frac{1}{0}", "?", "5" * 3000]
    assert verifier.check_golds(good) == [True] * len(good)
    assert verifier.check_golds(bad) == [False] * len(bad)
    assert verify.check_gold("7") is True


HOSTILE = [
    "9^{9^{99}}",
    "(99999)!",
    r"\binom{99999}{49999}",
    "(x+1)^{99999}",
    "7+8x^{-kt}",
    "x^" * 100 + "x",
    "|x|" * 100 + "x",
    "x^2+" * 100 + "x",
    "(" * 12 + "x" + ")" * 12,
    "{" * 12 + "x" + "}" * 12,
    r"\sin(" * 12 + "x" + ")" * 12,
    "{a_" * 600,
    "a=" * 700 + "{" * 500,
    "Ω" * 1900,
    "^(" * 900,
    r"\text{a" * 300,
    "5 ft " * 400,
]


@pytest.mark.parametrize("answer", HOSTILE)
def test_hostile_answers_are_wrong_before_they_take_long(answer):
    start = time.process_time()
    assert not verify.compare("x+7", answer)
    assert time.process_time() - start < 1.5


CUSTOM = """
def compute_score(data_source, solution_str, ground_truth, extra_info=None):
    arguments = dict(locals())
    exec(ground_truth, arguments)
    return arguments["score"]
"""


@pytest.fixture(scope="module")
def reward(tmp_path_factory) -> str:
    """A custom reward: the `score` that the code in a reference answer computes."""
    path = tmp_path_factory.mktemp("reward") / "custom.py"
    path.write_text(CUSTOM)
    return f"{path}:compute_score"


@pytest.fixture(scope="module")
def custom(reward):
    with Verifier(workers=1, reward=reward) as running:
        yield running


def test_a_custom_reward_gets_what_verl_passes_and_needs_no_box(custom):
    gold = "score = (solution_str, data_source, extra_info) == ('5', 'a', {'unit': 'km'})"
    extras = [{"data_source": "a", "extra_info": {"unit": unit}} for unit in ("km", "km", "m")]
    verdicts = custom.grade(["5", "6", "5"], [gold] * 3, extras)
    assert verdicts == [CORRECT, WRONG_ANSWER, WRONG_ANSWER]
    assert custom.grade(["5"], ["score = (data_source, extra_info) == ('', None)"]) == [CORRECT]


def test_the_workers_do_not_import_torch(custom):
    gold = "import sys; score = 'torch' not in sys.modules"
    assert custom.grade([""], [gold]) == [CORRECT]


def test_a_custom_reward_may_exceed_its_limits(reward):
    golds = ["while True: pass", "bytearray(2**28)", "score = 1"]
    with Verifier(workers=1, reward=reward, cpu_seconds=0.3, memory_bytes=2**27) as verifier:
        verdicts = verifier.grade([""] * 3, golds)
    assert [verdict.status for verdict in verdicts] == ["timeout", "memory", "correct"]


def test_the_workers_get_the_limits():
    pool = Verifier(workers=5, cpu_seconds=0.3, wall_seconds=7, memory_bytes=99).pool
    assert pool.size == 5
    assert pool.wall_seconds == 7
    assert pool.command[-3:] == ["0.3", "99", ""]  # no custom reward


SCORES = {  # the code of a custom reward -> the verdict
    "score = 0.25": Verdict(0.25, "partial"),
    "score = {'score': 0.9, 'other': 0.5}": Verdict(0.9, "partial"),
    "score = 0.1 + 0.2": Verdict(0.3, "partial"),  # 0.30000000000000004
    "score = 0.7 + 0.2 + 0.1": CORRECT,  # 0.9999999999999999
    "import numpy; score = numpy.float32(0.25)": Verdict(0.25, "partial"),
    "score = 1e-9": WRONG_ANSWER,
}


def test_a_custom_reward_between_0_and_1_is_partial_and_has_six_decimals(custom):
    assert custom.grade([""] * len(SCORES), [*SCORES]) == [*SCORES.values()]


FAILURES = {
    "score = 1.5": r"returned 1.5, and must return a number in \[0, 1\]",
    "score = -0.1": r"returned -0.1, and must return a number in \[0, 1\]",
    "score = float('nan')": r"returned nan, and must return a number in \[0, 1\]",
    "score = '1'": r"returned '1', and must return a number in \[0, 1\]",
    "score = {'reward': 1}": r"returned {'reward': 1}, and must return a number in \[0, 1\]",
    r"raise ValueError('two\nlines')": "raised ValueError: two lines",
    "raise SystemExit(3)": "raised SystemExit: 3",
}


@pytest.mark.parametrize(("code", "problem"), FAILURES.items())
def test_a_custom_reward_that_fails_is_an_error_of_one_line(code, problem, reward, custom):
    with pytest.raises(InputError, match=rf"\A--reward {reward}: it {problem}.*\Z"):
        custom.grade([""], [code])


def test_a_custom_reward_that_gives_0_to_each_of_16_golds_is_an_error(custom):
    """A problem whose reference answer earns more than 0 can be rewarded."""
    bad, good = "score = 0", "score = 0.5"
    assert custom.check_golds([bad] * 15, dataset="train") == [False] * 15
    assert custom.check_golds([good, *[bad] * 64], dataset="val")[0]
    with pytest.raises(InputError, match=r"boxed{score = 0} earns 0"):
        custom.check_golds([bad], dataset="train")

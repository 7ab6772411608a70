"""The shipped demo is what studies/toy_task.py says it is, and in the paper's regime."""

import itertools
import json
import math
import re
from functools import reduce

import pytest

from plumbing.files import read_lines
from studies import toy_task
from tests.helpers.models import ROOT

DEMO = ROOT / "demo"
SKILLS = toy_task.make_skills()
TRAIN = read_lines(DEMO / "train.jsonl")
VAL = read_lines(DEMO / "val.jsonl")


def test_demo_data_are_the_seeds_to_the_byte():
    assert (len(VAL), len(TRAIN)) == (600, 12_000)
    rows = toy_task.make_problems(12_600, SKILLS)
    text = "".join(json.dumps(row) + "\n" for row in rows)
    assert text == (DEMO / "val.jsonl").read_text() + (DEMO / "train.jsonl").read_text()


def test_rules_by_hand():
    """Digits move, or each grows, counting 9, 1, 2 past nine."""
    states = [toy_task.apply_rule("479", rule) for rule in ("roll", "flip", "rise", "ends")]
    assert states == ["794", "974", "581", "176"]


def test_only_the_right_reading_of_a_problem_gives_its_answer():
    """Answers have three digits other than 0: equal numbers are equal texts for the verifier. So a
    problem is solved with the product of its words' rates."""
    for row in TRAIN + VAL:
        topic, state, words = re.fullmatch(
            r"(\w+): Start at (\d+)\. Apply (.+)\.", row["problem"]
        ).groups()
        skills = [SKILLS[topic][word] for word in words.split()]
        # All 2^n choices of rule or habit, the right one first.
        choices = itertools.product(*((skill.rule, skill.habit) for skill in skills))
        right, *wrong = [reduce(toy_task.apply_rule, rules, state) for rules in choices]
        assert right == row["expected_answer"]
        assert right not in wrong
        assert re.fullmatch("[1-9]{3}", right)
        p = math.prod(skill.rate for skill in skills)
        assert 2 ** -row["difficulty"] == pytest.approx(p, rel=0.01)

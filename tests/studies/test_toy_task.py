"""The shipped demo is what studies/toy_task.py says it is, and in the paper's regime."""

import json

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

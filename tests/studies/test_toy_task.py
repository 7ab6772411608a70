"""The shipped demo is what studies/toy_task.py makes."""

import json

from studies import toy_task
from tests.helpers.ranks import DEMO


def test_demo_data_are_the_seeds_to_the_byte():
    rows = toy_task.make_problems(12_600, toy_task.make_skills())
    lines = [json.dumps(row) + "\n" for row in rows]
    assert (DEMO.parent / "val.jsonl").read_text() == "".join(lines[:600])
    assert (DEMO.parent / "train.jsonl").read_text() == "".join(lines[600:])


def test_rules_by_hand():
    """Digits move, or each grows, counting 9, 1, 2 past nine."""
    states = [toy_task.apply_rule("479", rule) for rule in ("roll", "flip", "rise", "ends")]
    assert states == ["794", "974", "581", "176"]

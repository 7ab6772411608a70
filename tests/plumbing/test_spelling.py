"""plumbing/grading/spelling.py: the examples of its rules."""

import re

import pytest

from plumbing.grading.spelling import AFTER_UNITS, BEFORE_UNITS


@pytest.mark.parametrize(("example", "rule"), (BEFORE_UNITS | AFTER_UNITS).items())
def test_each_rule_does_what_its_example_says(example, rule):
    before, after = example.split(" -> ")
    assert re.sub(*rule, before) == after != before

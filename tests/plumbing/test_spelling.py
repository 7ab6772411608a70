"""plumbing/grading/spelling.py: the examples of its rules; units and their powers."""

import re

import pytest

from plumbing.grading.spelling import AFTER_UNITS, BEFORE_UNITS, UNITS, canonicalize


@pytest.mark.parametrize(("example", "rule"), (BEFORE_UNITS | AFTER_UNITS).items())
def test_each_rule_does_what_its_example_says(example, rule):
    before, after = example.split(" -> ")
    assert re.sub(*rule, before) == after != before


def test_units_of_a_number_are_removed_and_returned():
    """tests/core/test_verify.py has what follows for answers."""
    assert canonicalize("5 square meters") == ("5", {(UNITS["m"], "2")})
    assert canonicalize(r"\$1,234.50") == ("1234.50", {(UNITS["$"], "1")})
    assert canonicalize("two cm") == ("twocm", set())  # no number before it

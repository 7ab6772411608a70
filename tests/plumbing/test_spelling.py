"""plumbing/grading/spelling.py: examples of its rules; canonical texts, units and their powers."""

import re

import pytest

from plumbing.grading.spelling import AFTER_UNITS, BEFORE_UNITS, UNITS, canonicalize


@pytest.mark.parametrize(("example", "rule"), (BEFORE_UNITS | AFTER_UNITS).items())
def test_each_rule_does_what_its_example_says(example, rule):
    before, after = example.split(" -> ")
    assert re.sub(*rule, before) == after != before


@pytest.mark.parametrize(
    ("text", "canonical", "units"),
    [
        (r"\left[ \dfrac12 , +\infty \right)", r"[\frac{1}{2},∞)", {}),
        ("5 square meters", "5", {"m": "2"}),
        (r"36 \text{ km}/\text{h}^{2}", "36", {"km": "1", "h": "2"}),
        (r"\$1,234.50", "1234.50", {"$": "1"}),
        ("7 apples", "7", {}),  # units without a known size are not compared
        ("7 million", "7million", {}),  # a word that changes the value
        ("two cm", "twocm", {}),  # no number before the unit
        ("4\0002", "4?2", {}),  # an invisible character does not join digits
    ],
)
def test_canonical_text_and_units(text, canonical, units):
    assert canonicalize(text) == (canonical, {(UNITS[name], units[name]) for name in units})

"""grading/: the examples of the spelling rules; exact and approximate values."""

import re

import pytest
from sympy import Rational, sqrt

from grading.spelling import AFTER_UNITS, BEFORE_UNITS
from grading.values import equal_values, is_rounded, values


@pytest.mark.parametrize(("example", "rule"), (BEFORE_UNITS | AFTER_UNITS).items())
def test_each_rule_does_what_its_example_says(example, rule):
    before, after = example.split(" -> ")
    assert re.sub(*rule, before) == after != before


def test_values_are_exact_or_have_more_than_60_digits():
    assert values("1e-5") == [Rational(1, 100_000)]
    assert values("0.1+0.2") == [Rational(3, 10)]
    assert values("7(8)") == [56]  # not the mixed number 15
    [root] = values(r"\sqrt{2}")
    assert equal_values(root, sqrt(2).evalf(80)) and not equal_values(root, sqrt(2).evalf(50))


def test_a_rounded_decimal_shows_enough_places_and_digits():
    decimals = ("0.666667", "0.666666", "0.66667")  # rounded, cut off, five places
    rounded = [is_rounded(r"\frac{2}{3}", decimal, min_places=6) for decimal in decimals]
    assert rounded == [True, False, False]
    assert not is_rounded("1/3000000", "0.0000003", min_places=6)  # one digit

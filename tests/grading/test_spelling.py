"""grading/: the examples of the spelling rules; units; exact and approximate values."""

import re
import time

import pytest
from sympy import Rational, sqrt

from grading.spelling import AFTER_UNITS, BEFORE_UNITS, CHARACTER_RULES, canonicalize
from grading.units import compatible, read_unit
from grading.values import equal_values, is_rounded, values


@pytest.mark.parametrize(
    ("example", "rule"), (CHARACTER_RULES | BEFORE_UNITS | AFTER_UNITS).items()
)
def test_each_rule_does_what_its_example_says(example, rule):
    before, after = example.split(" -> ")
    assert re.sub(*rule, before) == after != before


UNITS = {
    r"\text{ meters per second squared}": {("m", 1), ("s", -2)},
    r"\text{kg} * \text{m}/\text{s}^2": {("kg", 1), ("m", 1), ("s", -2)},
    "square feet": {("ft", 2)},
    "km/h": {("km", 1), ("h", -1)},
    r"/\text{day}": {("day", -1)},
    "Boxes": {("box", 1)},
    "MW": {("MW", 1)},
    "厘米": {("cm", 1)},
}


@pytest.mark.parametrize(("phrase", "unit"), UNITS.items())
def test_a_phrase_is_read_as_names_of_units_with_powers(phrase, unit):
    assert read_unit(phrase) == unit


def test_units_are_returned_by_part_of_the_answer():
    spelling = canonicalize(r"3 \text{ apples}, 5\text{ km/h}, 40\%, 7")
    assert spelling.text == "3,5,40%,7"
    assert [dict(unit) for unit in spelling.units] == [
        {"apple": 1},
        {"km": 1, "h": -1},
        {"%": 1},
        {},
    ]


def test_a_unit_may_be_left_out_but_neither_replaced_nor_cut():
    assert compatible(read_unit("m/s"), frozenset())
    assert compatible(read_unit("dollars per hour"), read_unit("dollars"))
    assert not compatible(read_unit("m/s"), read_unit("m"))
    assert not compatible(read_unit("tons"), read_unit("kg"))
    assert not compatible(read_unit("red apples"), read_unit("green apples"))


LONG = [
    "{a_" * 600,
    "a=" * 700 + "{" * 500,
    "Ω" * 1900,
    "^(" * 900,
    r"\text{a" * 300,
    "5 ft " * 400,
]


@pytest.mark.parametrize("text", LONG)
def test_a_long_answer_is_spelled_in_a_second(text):
    start = time.process_time()
    canonicalize(text)
    assert time.process_time() - start < 1


def test_values_are_exact_or_have_more_than_60_digits():
    assert values("1e-5") == [Rational(1, 100_000)]
    assert values("0.1+0.2") == [Rational(3, 10)]
    assert values("7(8)") == [56]  # not the mixed number 15
    [root] = values(r"\sqrt{2}")
    assert equal_values(root, sqrt(2).evalf(80))
    assert not equal_values(root, sqrt(2).evalf(50))


def test_a_rounded_decimal_shows_enough_places_and_digits():
    decimals = ("0.666667", "0.666666", "0.66667")  # rounded, cut off, five places
    rounded = [is_rounded(r"\frac{2}{3}", decimal, min_places=6) for decimal in decimals]
    assert rounded == [True, False, False]
    assert not is_rounded("1/3000000", "0.0000003", min_places=6)  # one digit

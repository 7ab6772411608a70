r"""grading/: the examples of the spelling rules, structures, units, values.

Which answers earn 1 is in answers.jsonl, which tests/core/test_verify.py grades."""

import re

import pytest
from sympy import Rational

from grading.spelling import BEFORE_COMMANDS, RULES
from grading.structure import structure_of
from grading.units import split_unit
from grading.values import is_arithmetic, is_evaluated, number


@pytest.mark.parametrize(("example", "rule"), (BEFORE_COMMANDS | RULES).items())
def test_each_rule_does_what_its_example_says(example, rule):
    before, after = example.split(" -> ")
    assert re.sub(*rule, before) == after != before


STRUCTURES = {
    "k=(1,2)": ("()", ["1", "2"], "k"),
    "3>x≥1": ("[)", ["1", "3"], "x"),
    "x≥P(a<b)": ("[)", ["P(a<b)", "∞"], "x"),
    "x<1∨x>4": ("∪", ["(-∞,1)", "(4,∞)"], "x"),
    "x=2∨x=3": ("or", ["x=2", "x=3"], ""),
    "x=2∨y=3": ("∨", ["x=2", "y=3"], ""),
    "x+y=3": ("=", ["x+y", "3"], ""),
    "⦃1,2⦄": ("set", ["1", "2"], ""),
    "⦃5⦄": ("value", ["5"], ""),
    "⦃⦃5⦄⦄": ("set", ["⦃5⦄"], ""),
    "⦃⦄": ("set", [], ""),
    "-x>-1": ("()", ["-∞", "1"], "x"),
    "|x|=3": ("=", ["|x|", "3"], ""),
    "1±2": ("list", ["1+2", "1-2"], ""),
    r"\begin{matrix}1&2\\3&4\end{matrix}": ("matrix 2 2", ["1", "2", "3", "4"], ""),
}


@pytest.mark.parametrize(("text", "structure"), STRUCTURES.items())
def test_an_answer_is_split_into_its_parts(text, structure):
    assert structure_of(text)[:3] == structure


UNITS = {
    r"5\text{sq meters}": ("5", "m 2"),
    r"5\text{meters}/\text{s}^{2}": ("5", "m / s 2"),
    r"5\text{red apples}": ("5", "red apple"),
    r"5\text{million}": (r"5\text{million}", ""),
    r"5\text{xyzt}": (r"5\text{xyzt}", ""),
    r"5\text{mnop}": (r"5\text{mnop}", ""),
    r"5\text{yrs}": ("5", "year"),
    r"5\text{k}": (r"5\text{k}", ""),
    r"\text{red}": (r"\text{red}", ""),
}


@pytest.mark.parametrize(("text", "parts"), UNITS.items())
def test_only_words_that_do_not_change_the_number_are_a_unit(text, parts):
    assert split_unit(text) == parts


def test_plain_numbers_are_exact():
    assert number("1e-5") == Rational(1, 100_000)
    assert number(r"\frac{2}{6}") == Rational(1, 3)
    assert number("2x") is None


EVALUATED = (
    r"7 -7 (7) .5 7. 1e-5 1.2*10^{5} 10^{-5} \frac{3}{4} -\frac{-3}{4} 3/4 (3)/(4) 1/10^{5} 50%"
)
OPERATIONS = (
    r"1+2 2*3 2÷1 --7 -(-7) |7| 3! 2^{3} 12*10 \sqrt{9} \frac{1+1}{2} 10^{2}*10 1*2/3 25%+25% x"
)


def test_numbers_without_an_operation_to_carry_out():
    assert [text for text in EVALUATED.split() if not is_evaluated(text)] == []
    assert [text for text in OPERATIONS.split() if is_evaluated(text)] == []


MISREAD = ["5_6", "x1", "5!2", "2^-3", "x^2^3", r"\ln x*y", "2024-05-01", r"\gcd(4,6)", "red"]


@pytest.mark.parametrize("text", MISREAD)
def test_what_the_parser_would_misread_is_no_arithmetic(text):
    assert not is_arithmetic(text)

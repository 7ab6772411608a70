"""scripts/grade.py: the status of one completion, and the first difference that a guard finds."""

import os
import sys

import pytest

from grading.difference import difference
from scripts.grade import main

DIFFERENCES = {
    ("72", "48+24"): "an operation to carry out, where the reference answer is a number",
    ("72", "(72, 1)"): "structure: '()', the reference answer's is 'value'",
    (r"5\text{ cm}", r"5\text{ m}"): "unit: 'm' is not 'cm'",
    ("x=5", "y=5"): "name: 'y' is not 'x'",
    ("(1,2)", "(2,1)"): "parts",
    ("red", "blue"): "text: the reference answer is no arithmetic, so the texts must be the same",
    ("x^2", "y^2"): "letters: ['y'] are not ['x']",
    ("72", "73"): "value",
}


@pytest.mark.parametrize(("answers", "expected"), DIFFERENCES.items())
def test_the_first_difference_is_named(answers, expected):
    assert difference(*answers) == expected


def test_the_status_and_the_difference_are_printed(capsys):
    main([r"So \boxed{48+24}.", "72"])
    assert capsys.readouterr().out.splitlines() == [
        "wrong, reward 0",
        "reference answer: 72",
        "answer: 48+24",
        "difference: an operation to carry out, where the reference answer is a number",
    ]
    main(["72", "72"])
    assert capsys.readouterr().out.splitlines() == ["no_box, reward 0", "reference answer: 72"]


def test_output_that_nobody_reads_is_no_fault(monkeypatch):
    """Of `| head -0`."""
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "w") as stream:
        monkeypatch.setattr(sys, "stdout", stream)
        main(["72", "72"])

"""scripts/grade.py: the status of one completion, and both answers."""

import os
import sys

from scripts.grade import main


def test_the_status_and_both_answers_are_printed(capsys):
    main([r"So \boxed{48+24}.", "72"])
    assert capsys.readouterr().out.splitlines() == [
        "wrong, reward 0",
        "reference answer: 72",
        "answer: 48+24",
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

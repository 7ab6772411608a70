"""scripts/grade.py: the status of one completion, and both answers."""

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

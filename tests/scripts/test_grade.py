"""scripts/grade.py: the status of one completion, and the answers that were compared."""

from scripts.grade import main


def test_the_status_and_both_answers_are_printed(capsys):
    main([r"So \boxed{48+24}.", "72"])
    assert capsys.readouterr().out.splitlines() == [
        "wrong, reward 0",
        "reference answer: 72",
        "answer: 48+24",
    ]


def test_boxes_side_by_side_are_compared_as_the_last_alone_and_as_one_answer(capsys):
    main([r"$\boxed{1}$ $\boxed{2}$", "1,2"])
    lines = capsys.readouterr().out.splitlines()
    assert lines == ["correct, reward 1", "reference answer: 1,2", "answer: 2", "answer: 1,2"]

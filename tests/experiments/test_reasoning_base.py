"""Statistics of a base: two tasks, three levels, and completions counted by hand."""

import pandas as pd
import pytest

import train
from experiments import reasoning_base
from plumbing.files import write_lines

PROBLEMS = [("sums", 1), ("sums", 2), ("letters", 1), ("letters", 1)]
STEPS = " 1 + 1 = 2. \\boxed{2}"
UNBOXED = " 1 + 1 = 2"
DIRECT = " \\boxed{2}"
# Of problem 0 one completion with steps is right; of 2 both are, without steps; of 1 one would be,
# if its missing box were forgiven; of 3 none.
VERDICTS = [
    (0, 1, STEPS),
    (0, 0, STEPS),
    (1, 0, UNBOXED),
    (1, 0, DIRECT),
    (2, 1, DIRECT),
    (2, 1, DIRECT),
    (3, 0, DIRECT),
    (3, 0, DIRECT),
]


@pytest.fixture
def files(tmp_path, monkeypatch):
    """Return a function from verdicts to the command line that reads them. The reward is the
    demo's, which needs no reasoning-gym."""
    monkeypatch.setattr(reasoning_base, "CONFIG", train.parse(["--preset", "demo"]))
    data = tmp_path / "val.jsonl"
    fields = [{"task": task, "level": level} for task, level in PROBLEMS]
    write_lines(data, [{"problem": "1 + 1 =", "expected_answer": "2"} | more for more in fields])

    def write(verdicts):
        keys = ("problem", "reward", "status", "tokens", "completion")
        rows = [
            (problem, float(reward), "no_box" if text == UNBOXED else "", 3, text)
            for problem, reward, text in verdicts
        ]
        path = tmp_path / "base.jsonl"
        write_lines(path, [dict(zip(keys, row, strict=True)) for row in rows])
        return [str(path), "--data", str(data)]

    return write


def printed(capsys) -> dict[str, str]:
    """Return the printed table by name."""
    lines = capsys.readouterr().out.splitlines()
    rows = lines[lines.index("| --- | --- |") + 1 :]
    return dict(row.strip("| ").split(" | ") for row in rows)


def test_statistics_by_hand(files, capsys):
    reasoning_base.main(files(VERDICTS))
    assert printed(capsys) == {
        "problems": "4",
        "mean p": "37.5%",
        "mean p, lenient": "50.0%",
        "completions with steps": "37.5%",
        "p with steps": "33.3%",
        "p without": "40.0%",
        "dead groups": "75.0%",
        "tasks with live groups": "1 of 2",
        "levels without a right answer": "1 of 3",
    }


def test_greedy_verdicts_have_no_groups(files, capsys):
    reasoning_base.main(files(VERDICTS[::2]))
    names = {*printed(capsys)}
    assert "dead groups" not in names
    assert "p with steps" in names


def test_the_csv_has_a_row_for_each_level(files, tmp_path):
    csv = tmp_path / "base.csv"
    reasoning_base.main([*files(VERDICTS), "--csv", str(csv)])
    table = pd.read_csv(csv, index_col="task,level")
    assert table.p.to_dict() == {"sums, 1": 0.5, "sums, 2": 0, "letters, 1": 0.5}


def test_verdicts_of_other_problems_get_one_line(files, capsys):
    with pytest.raises(SystemExit, match="2"):
        reasoning_base.main(files([(4, 1, STEPS)]))
    assert "has problem 4, and" in capsys.readouterr().err

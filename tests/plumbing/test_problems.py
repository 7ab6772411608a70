"""Problem files: their columns, what a check reads, and data that is missing."""

from pathlib import Path

import numpy as np
import pytest

from plumbing.errors import InputError
from plumbing.problems import Problems, check_data, prepare_missing
from tests.helpers.files import write
from tests.helpers.models import ROOT
from tests.helpers.ranks import parse

GOOD = {"problem": "q", "expected_answer": "1"}


def check(train, val):
    check_data(parse("--preset", "demo", "--train_data", train, "--val_data", val), needed=1)


@pytest.mark.parametrize("ending", ["jsonl", "parquet"])
def test_rows_and_the_extras_for_rewards(ending, tmp_path):
    info = {"index": 7, "split": "train"}
    first = {"problem": "é\n", "data_source": "gsm8k", "extra_info": info}
    second = GOOD | {"data_source": None, "extra_info": None}
    problems = Problems(write(tmp_path / f"a.{ending}", [GOOD | first, second]))
    assert len(problems) == 2 and problems.question(np.int64(0)) == "é\n"
    extras = [{"data_source": "", "extra_info": None}, {"data_source": "gsm8k", "extra_info": info}]
    assert problems.golds([np.int64(1), 0]) == (["1", "1"], extras)
    numbers = [GOOD | {"expected_answer": x} for x in (2, 0.5)]
    plain = Problems(write(tmp_path / f"b.{ending}", numbers))
    assert plain.golds([0, 1]) == (["2", "0.5"], extras[:1] * 2)


def test_a_column_by_its_distinct_values(tmp_path):
    levels = [["hard"], ["easy"], None, ["hard"]]
    problems = Problems(write(tmp_path / "[a].jsonl", [GOOD | {"level": x} for x in levels]))
    values, row = problems.column("level")
    assert [values[i] for i in row] == list(map(str, levels)) and len(values) == 3


def test_problems_in_both_files_are_counted_in_one_note(tmp_path, capsys):
    texts = ["What is 1+1?", "what  is\n1+1?", "Half?", "A third?"]
    train = write(tmp_path / "a.jsonl", [GOOD | {"problem": text} for text in texts])
    shared = write(tmp_path / "b.parquet", [GOOD | {"problem": p} for p in ["WHAT is 1+1?", "x"]])
    check(train, write(tmp_path / "c.jsonl", [GOOD | {"problem": "What is 1+2?"}]))
    check(ROOT / "demo/train.jsonl", ROOT / "demo/val.jsonl")
    numbers = write(tmp_path / "d.jsonl", [GOOD | {"problem": 7}])
    check(numbers, write(tmp_path / "e.jsonl", [GOOD | {"problem": "8"}]))
    assert capsys.readouterr().out == ""
    check(train, shared)
    note = capsys.readouterr().out
    assert note.startswith(f"note: 1 of the 2 problems of {shared} are training data too; to ")
    assert note.endswith(f"--source own --copy {train} --val_copy {shared}\n")
    assert note.count("\n") == 1


COMMAND = """
import pathlib, sys
if sys.argv[2] != "good":
    sys.exit("error: no hub")
pathlib.Path("data/good").mkdir(parents=True)
for name in ("train.jsonl", "val.jsonl"):
    pathlib.Path("data/good", name).write_text("made")
"""


def test_missing_default_data_are_prepared_once_or_end_the_run(tmp_path, monkeypatch, capfd):
    """In the working directory, whose own prepare_data is not run; its error comes first."""
    for folder, code in {"repository": COMMAND, "work": "raise SystemExit('wrong')"}.items():
        (tmp_path / folder / "scripts").mkdir(parents=True)
        (tmp_path / folder / "scripts/__init__.py").touch()
        (tmp_path / folder / "scripts/prepare_data.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path / "repository")
    monkeypatch.chdir(tmp_path / "work")
    paths = ["data/good/train.jsonl", "data/good/val.jsonl", "data/good/x.jsonl", "val.jsonl"]
    prepare_missing(paths)
    command = "python -m scripts.prepare_data --source good"
    assert capfd.readouterr() == (f"{paths[0]} is missing: running {command}\n", "")
    assert [Path(path).exists() for path in paths] == [True, True, False, False]
    Path(paths[0]).write_text("mine")
    prepare_missing(paths)
    assert Path(paths[0]).read_text() == "mine" and capfd.readouterr().out == ""
    message = "no such data file, and python -m scripts.prepare_data --source offline failed$"
    with pytest.raises(InputError, match=f"^data/offline/val.jsonl: {message}"):
        prepare_missing(["data/offline/val.jsonl"])
    assert capfd.readouterr().err == "error: no hub\n"

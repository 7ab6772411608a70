"""Problem files: what their rows are, which are rejected, and data that is missing."""

import json
import math
from decimal import Decimal
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from plumbing.data.problems import Problems, check_data, prepare_missing
from plumbing.errors import InputError
from plumbing.files import digest
from tests.helpers.checks import rejected
from tests.helpers.files import write
from tests.helpers.models import ROOT
from tests.helpers.ranks import parse

GOOD = {"problem": "q", "expected_answer": "1"}


def check(train, val, *flags):
    check_data(parse("--preset", "demo", "--train_data", train, "--val_data", val, *flags), 1)


@pytest.mark.parametrize("ending", ["jsonl", "json", "parquet"])
def test_rows_and_the_extras_for_rewards(ending, tmp_path):
    info = {"index": 7, "split": "train"}
    first = {"problem": "é\n", "data_source": "gsm8k", "extra_info": info}
    second = GOOD | {"data_source": None, "extra_info": None}
    path = write(tmp_path / f"a[1].{ending}", [GOOD | first, second])
    problems = Problems(path)
    assert len(problems) == 2
    assert problems.question(np.int64(0)) == "é\n"
    extras = [{"data_source": "", "extra_info": None}, {"data_source": "gsm8k", "extra_info": info}]
    assert problems.golds([np.int64(1), 0]) == (["1", "1"], extras)
    assert problems.crc32 == digest(path)[1]


ANSWERS = {  # the text in a JSON file, the answer
    '"007"': "007",
    r'"a\u0000b"': "a\0b",
    "12345678901234567890123": "12345678901234567890123",
    "0.30000000000000004": "0.30000000000000004",
    "5.0": "5",
    "1e-7": "0.0000001",
}


def test_texts_and_numbers_of_json_keep_their_digits(tmp_path):
    path = tmp_path / "t.jsonl"
    lines = [f'{{"u": [null], "problem": "q", "expected_answer": {text}}}\n' for text in ANSWERS]
    path.write_bytes(b"\xef\xbb\xbf" + "\r\n".join(lines).encode())
    assert Problems(path).golds(range(len(ANSWERS)))[0] == [*ANSWERS.values()]


COLUMNS = [
    (pa.array([2**64 - 1, 1], pa.uint64()), ["18446744073709551615", "1"]),
    (pa.array([Decimal("1.50"), Decimal("100.00")]), ["1.50", "100.00"]),
    (pa.array(["a", "a"]).dictionary_encode(), ["a", "a"]),
]


@pytest.mark.parametrize(("column", "answers"), COLUMNS, ids=lambda x: str(getattr(x, "type", "")))
def test_parquet_columns_of_any_type_of_text_or_exact_number(column, answers, tmp_path):
    pq.write_table(
        pa.table({"problem": ["p", "q"], "expected_answer": column}), tmp_path / "t.parquet"
    )
    assert Problems(tmp_path / "t.parquet").golds([0, 1])[0] == answers


def line(problem="q", answer="1"):
    return json.dumps({"problem": problem, "expected_answer": answer}) + "\n"


BAD = {  # what follows one good line; the error
    "a line cut short": ("\n" + line()[:-9], "line 3: damaged ("),
    "no object": ("[1]\n", "line 2: a list, no object"),
    "a missing answer": ('{"problem": "q"}', "line 2: no field 'expected_answer' (it has: problem"),
    "a blank": (line("\u00a0\t"), "line 2: field 'problem' is blank"),
    "half a surrogate pair": (line("\ud800"), "line 2: field 'problem': 'utf-8' codec can't"),
    "a bool": (line(answer=True), "line 2: field 'expected_answer': True, a bool, no text"),
    "no number": (line(answer=math.nan), "nan, a float, no text or exact number"),
    "a float that may be rounded": (line(answer=2.0**53), "9007199254740992.0, a float, no text"),
}


@pytest.mark.parametrize("case", BAD)
def test_a_bad_data_file_is_rejected_with_its_first_bad_line(case, tmp_path):
    text, message = BAD[case]
    path = tmp_path / "bad.jsonl"
    path.write_text(line() + text)
    with rejected(f"{path}, {message}" if message.startswith("line") else message):
        Problems(path)


def test_files_that_are_no_tables_are_rejected(tmp_path):
    for name, data, message in (
        ("a.jsonl", b"\n\n", ": has no rows"),
        ("a.csv", b"problem,expected_answer\nq,1\n", ", line 1: damaged ("),
        ("a.parquet", line().encode(), ": Parquet magic bytes not found"),
    ):
        (tmp_path / name).write_bytes(data)
        with rejected(f"{tmp_path / name}{message}"):
            Problems(tmp_path / name)
    with rejected("no field 'problem' (it has: question)"):
        Problems(write(tmp_path / "b.parquet", [{"question": "q"}]))


def test_an_answer_in_float32_is_rejected(tmp_path):
    """Its 0.1 is 0.10000000149."""
    table = pa.table({"problem": ["p"], "expected_answer": pa.array([0.1], pa.float32())})
    pq.write_table(table, tmp_path / "t.parquet")
    with rejected("t.parquet: 'expected_answer' is float: make it text"):
        Problems(tmp_path / "t.parquet")


# Columns


def test_two_columns_by_their_distinct_pairs(tmp_path):
    rows = [GOOD | {"task": task, "level": level} for task, level in ("a1", "a2", "b1", "a2")]
    values, row = Problems(write(tmp_path / "t.jsonl", rows)).column("task,level")
    assert values == ["a, 1", "a, 2", "b, 1"]
    assert row.tolist() == [0, 1, 2, 1]


def test_a_missing_one_of_two_columns_is_named_before_the_first_step(tmp_path):
    data = write(tmp_path / "t.jsonl", [GOOD | {"task": "a"}])
    with rejected("line 1, --column: no field 'level' (it has: problem, expected_answer, task)"):
        check(data, data, "--sampler", "sec", "--column", "task,level")


# Notes


def test_problems_in_both_files_are_counted_in_one_note(tmp_path, capsys):
    texts = ["What is 1+1?", "what  is\n1+1?", "Half?", "A third?"]
    train = write(tmp_path / "a.jsonl", [GOOD | {"problem": text} for text in texts])
    shared = write(tmp_path / "b.parquet", [GOOD | {"problem": p} for p in ["WHAT is 1+1?", "x"]])
    check(train, write(tmp_path / "c.jsonl", [GOOD | {"problem": "What is 1+2?"}]))
    check(ROOT / "demo/train.jsonl", ROOT / "demo/val.jsonl")
    assert capsys.readouterr().out == ""
    check(train, shared)
    note = capsys.readouterr().out
    assert note.startswith(f"note: 1 of the 2 problems of {shared} are training data too; to ")


@pytest.mark.parametrize("answer", ["#### 72", "The answer is 72.", r"\boxed{72}", "Answer: 72"])
def test_answers_in_words_are_counted_in_a_note(answer, tmp_path, capsys):
    """But not where a custom reward reads them in its own way."""
    val = write(tmp_path / "b.jsonl", [GOOD | {"expected_answer": r"\text{the east}"}])
    train = write(tmp_path / "a.jsonl", [{"problem": "p", "expected_answer": answer}])
    check(train, val, "--reward", "mine.py")
    assert capsys.readouterr().out == ""
    check(train, val)
    assert capsys.readouterr().out.startswith(f"note: 1 reference answers of {train} have words")


# Missing data

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
    message = "no such data file, and python -m scripts.prepare_data --source offline failed$"
    with pytest.raises(InputError, match=f"^data/offline/val.jsonl: {message}"):
        prepare_missing(["data/offline/val.jsonl"])
    assert capfd.readouterr().err == "error: no hub\n"

"""Problem files: what their rows are, and which are rejected."""

import json
import math
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from plumbing.data.problems import Problems
from plumbing.files import file_crc32
from tests.helpers.checks import rejected
from tests.helpers.files import write

GOOD = {"problem": "q", "expected_answer": "1"}


@pytest.mark.parametrize("ending", ["jsonl", "parquet"])
def test_rows_and_the_extras_for_rewards(ending, tmp_path):
    info = {"index": 7, "split": "train"}
    first = {"problem": "é\n", "data_source": "gsm8k", "extra_info": info}
    second = GOOD | {"data_source": None, "extra_info": None}
    path = write(tmp_path / f"a[1].{ending}", [GOOD | first, second])
    problems = Problems(path)
    assert len(problems) == 2
    assert problems.question(np.int64(0)) == "é\n"
    extras = {"data_source": "gsm8k", "extra_info": info}
    assert problems.golds([np.int64(1), 0]) == (["1", "1"], [{}, extras])
    assert problems.crc32 == file_crc32(path)


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


@pytest.mark.parametrize(("column", "answers"), COLUMNS)
def test_parquet_columns_of_any_type_of_text_or_exact_number(column, answers, tmp_path):
    pq.write_table(
        pa.table({"problem": ["p", "q"], "expected_answer": column}), tmp_path / "t.parquet"
    )
    assert Problems(tmp_path / "t.parquet").golds([0, 1])[0] == answers


def line(problem="q", answer="1"):
    return json.dumps({"problem": problem, "expected_answer": answer}) + "\n"


BAD = {  # what follows one good line; the error
    "a line cut short": ("\n" + line()[:-9], "line 3: damaged ("),
    "no object": ("[1]\n", "line 2: damaged (a list, no object)"),
    "a missing answer": ('{"problem": "q"}', "line 2: no field 'expected_answer'"),
    "a blank": (line("\u00a0\t"), "line 2: field 'problem': blank"),
    "half a surrogate pair": (line("\ud800"), "line 2: field 'problem': 'utf-8' codec can't"),
    "a bool": (line(answer=True), "line 2: field 'expected_answer': True, a bool, no text"),
    "no number": (line(answer=math.nan), "nan, a float, no text or exact number"),
    "lists 20,000 deep": (
        f'{{"problem": "q", "expected_answer": "1", "u": {"[" * 20_000}{"]" * 20_000}}}',
        "line 2: damaged (nested too deeply)",
    ),
    "a field twice": (
        '{"problem": "q", "expected_answer": "1", "expected_answer": "2"}',
        "line 2: damaged (field 'expected_answer' is there twice)",
    ),
    "a float that may be rounded": (line(answer=2.0**53), "9007199254740992.0, a float, no text"),
}


@pytest.mark.parametrize("case", BAD)
def test_a_bad_data_file_is_rejected_with_its_first_bad_line(case, tmp_path):
    text, message = BAD[case]
    path = tmp_path / "bad.jsonl"
    path.write_text(line() + text)
    with rejected(f"{path}, {message}" if message.startswith("line") else message):
        Problems(path)


NAMES = ["problem", "expected_answer", "expected_answer"]
BAD_TABLES = {
    "a missing problem": (pa.table({"expected_answer": ["1"]}), "row 1: no field 'problem'"),
    "a column twice": (  # the last would win
        pa.table([["p"], ["1"], ["2"]], names=NAMES),
        "two columns are called 'expected_answer'",
    ),
    "an answer in float32": (  # 0.1 is 0.10000000149
        pa.table({"problem": ["p"], "expected_answer": pa.array([0.1], pa.float32())}),
        "'expected_answer' is float: make it text",
    ),
}


@pytest.mark.parametrize("case", BAD_TABLES)
def test_a_bad_parquet_file_is_rejected(case, tmp_path):
    table, message = BAD_TABLES[case]
    pq.write_table(table, tmp_path / "t.parquet")
    with rejected(message):
        Problems(tmp_path / "t.parquet")


# Columns


def test_two_columns_by_their_distinct_pairs(tmp_path):
    rows = [GOOD | {"task": task, "level": level} for task, level in ("a1", "a2", "b1", "a2")]
    values, row = Problems(write(tmp_path / "t.jsonl", rows), "task,level").categories()
    assert values == ["a, 1", "a, 2", "b, 1"]
    assert row.tolist() == [0, 1, 2, 1]

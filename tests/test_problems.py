"""plumbing/problems.py: the columns of a data file, what a check costs, and bad files by line."""

import json
from pathlib import Path

import datasets
import numpy as np
import pytest

from plumbing.errors import InputError
from plumbing.problems import Problems

GOOD = {"problem": "q", "expected_answer": "1"}


def write(path, lines):
    rows = (line if isinstance(line, str) else json.dumps(line) for line in lines)
    path.write_text("\n".join(rows) + "\n")
    return path


def test_jsonl_and_parquet_agree(tmp_path):
    rows = [{"problem": f"q{i} é\n", "expected_answer": str(i), "extra": i} for i in range(5)]
    write(tmp_path / "a.jsonl", rows)
    datasets.Dataset.from_list(rows).to_parquet(tmp_path / "a.parquet")
    for name in ("a.jsonl", "a.parquet"):
        problems = Problems(tmp_path / name)
        assert len(problems) == 5
        assert problems.question(np.int64(3)) == "q3 é\n" and problems.answer(3) == "3"


def test_numeric_answers_become_text(tmp_path):
    problems = Problems(write(tmp_path / "a.jsonl", [GOOD | {"expected_answer": 2}]))
    assert problems.answer(0) == "2"


def test_a_check_maps_no_rows_and_copies_none(tmp_path):
    """3 million problems on 8 ranks must not be 8 copies: what is checked is let go of."""
    text = "x" * 2_000  # 40 MB in all
    rows = [{"problem": f"{i} {text}", "expected_answer": str(i)} for i in range(20_000)]
    path = write(tmp_path / "a.jsonl", rows)
    Problems(path)  # converts the file

    def resident(name):
        lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
        return sum(int(line.split()[1]) for line in lines if line.startswith(name)) / 1024  # MiB

    before = resident("Rss:"), resident("Pss_Anon:")
    problems = Problems(path)
    assert problems.answer(19_999) == "19999"
    assert resident("Rss:") - before[0] < 20 and resident("Pss_Anon:") - before[1] < 20


def test_another_column_by_value(tmp_path):
    rows = [GOOD | {"level": level} for level in ("hard", "easy", None, "hard")]
    path = write(tmp_path / "a.jsonl", rows)
    values, row = Problems(path).column("level")
    assert [values[i] for i in row] == ["hard", "easy", None, "hard"]
    with pytest.raises(InputError, match=r"a.jsonl: has no column 'lvl' .* it has 'level'"):
        Problems(path).column("lvl")
    with pytest.raises(InputError, match="it has none"):
        Problems(write(tmp_path / "b.jsonl", [GOOD])).column("problem")


@pytest.mark.parametrize("encode", [dict, json.dumps])
@pytest.mark.parametrize("kind", ["jsonl", "parquet"])
def test_what_a_reward_is_told_of_a_row(encode, kind, tmp_path):
    info = {"index": 7, "split": "train"}
    rows = [
        GOOD | {"data_source": "gsm8k", "extra_info": encode(info)},
        GOOD | {"data_source": None, "extra_info": None},
    ]
    path = tmp_path / f"a.{kind}"
    write(path, rows) if kind == "jsonl" else datasets.Dataset.from_list(rows).to_parquet(path)
    problems = Problems(path)
    assert problems.extra(np.int64(0)) == {"data_source": "gsm8k", "extra_info": info}
    assert problems.extra(1) == {"data_source": "", "extra_info": None}


def test_a_reward_is_told_nothing_where_there_is_nothing(tmp_path):
    nothing = {"data_source": "", "extra_info": None}
    assert Problems(write(tmp_path / "a.jsonl", [GOOD])).extra(0) == nothing
    for i, odd in enumerate(["{cut", "[1]", 3]):
        path = write(tmp_path / f"odd{i}.jsonl", [GOOD | {"extra_info": odd}])
        with pytest.raises(InputError, match="the extra_info of problem 0 is no JSON object"):
            Problems(path).extra(0)


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ([GOOD, "{not json"], "line 2: not JSON"),
        ([GOOD, "", {"problem": "q"}], "line 3: lacks the field 'expected_answer'"),
        ([{"question": "q", "expected_answer": "1"}], "line 1: lacks the field 'problem'"),
        ([GOOD, GOOD | {"problem": " "}], "line 2: lacks the field 'problem'"),
        ([GOOD, GOOD | {"expected_answer": None}], "line 2: lacks the field 'expected_answer'"),
        ([GOOD, "[1, 2]"], "line 2: lacks the field 'problem', as text or a number"),
        ([GOOD, GOOD | {"problem": "\u00a0\t"}], "line 2: lacks the field 'problem'"),
        ([GOOD | {"expected_answer": ["1"]}], "line 1: .* 'expected_answer', as text or a number"),
        ([GOOD, GOOD | {"expected_answer": 2}], "'expected_answer' must be text in every row"),
        ([GOOD | {"expected_answer": "2024-01-01"}], "no date"),  # how Arrow reads it
        ([""], "holds no problem|cannot be read"),
    ],
)
def test_bad_rows_name_file_and_line(tmp_path, lines, message):
    with pytest.raises(InputError, match=message) as error:
        Problems(write(tmp_path / "bad.jsonl", lines))
    assert "bad.jsonl" in str(error.value) and "\n" not in str(error.value)


def test_missing_empty_and_unknown_files(tmp_path):
    with pytest.raises(FileNotFoundError, match="no such data file"):
        Problems(tmp_path / "none.jsonl")
    (tmp_path / "empty.jsonl").touch()
    with pytest.raises(InputError, match="the file is empty"):
        Problems(tmp_path / "empty.jsonl")
    with pytest.raises(InputError, match=r"expected a .jsonl or .parquet file"):
        Problems(write(tmp_path / "a.csv", ["problem,expected_answer"]))

"""Problem files: their columns, what a check reads, and data that is missing."""

import datetime
import math
import multiprocessing
import os
from decimal import Decimal
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from plumbing.data import problems as problem_files
from plumbing.data import shared
from plumbing.data.answers import unmatched_note
from plumbing.data.problems import Problems, check_data, prepare_missing
from plumbing.errors import InputError
from plumbing.files import digest, read_lines
from tests.helpers.files import write
from tests.helpers.models import ROOT
from tests.helpers.ranks import parse, run
from verify import Verifier

GOOD = {"problem": "q", "expected_answer": "1"}


def check(train, val):
    check_data(parse("--preset", "demo", "--train_data", train, "--val_data", val), needed=1)


@pytest.mark.parametrize("ending", ["jsonl", "parquet"])
def test_rows_and_the_extras_for_rewards(ending, tmp_path):
    info = {"index": 7, "split": "train"}
    first = {"problem": "é\n", "data_source": "gsm8k", "extra_info": info}
    second = GOOD | {"data_source": None, "extra_info": None}
    problems = Problems(write(tmp_path / f"a.{ending}", [GOOD | first, second]))
    assert len(problems) == 2
    assert problems.question(np.int64(0)) == "é\n"
    extras = [{"data_source": "", "extra_info": None}, {"data_source": "gsm8k", "extra_info": info}]
    assert problems.golds([np.int64(1), 0]) == (["1", "1"], extras)
    numbers = [GOOD | {"expected_answer": x} for x in (2, 0.5)]
    plain = Problems(write(tmp_path / f"b.{ending}", numbers))
    assert plain.golds([0, 1]) == (["2", "0.5"], extras[:1] * 2)


def test_a_column_by_its_distinct_values(tmp_path):
    levels = [["hard"], ["easy"], None, ["hard"]]
    problems = Problems(write(tmp_path / "[a].jsonl", [GOOD | {"level": x} for x in levels]))
    values, row = problems.column("level")
    assert [values[i] for i in row] == list(map(str, levels))
    assert len(values) == 3


def test_two_columns_by_their_distinct_pairs(tmp_path):
    rows = [GOOD | {"task": task, "level": level} for task, level in ("a1", "a2", "b1", "a2")]
    values, row = Problems(write(tmp_path / "t.jsonl", rows)).column("task,level")
    assert values == ["a, 1", "a, 2", "b, 1"]
    assert row.tolist() == [0, 1, 2, 1]


def test_rows_without_a_value_in_the_column_are_counted(tmp_path, capsys):
    rows = [GOOD | {"task": "a", "level": level} for level in (1, None, 2, None)]
    data = write(tmp_path / "t.jsonl", rows)
    flags = ("--sampler", "sec", "--column", "task,level", "--train_data", data, "--val_data", data)
    check_data(parse("--preset", "demo", *flags), needed=1)
    assert "--column task,level: 2 of 4 rows have no value" in capsys.readouterr().out


def test_a_missing_one_of_two_columns_is_named(tmp_path):
    problems = Problems(write(tmp_path / "t.jsonl", [GOOD | {"task": "a"}]))
    with pytest.raises(InputError, match="no column 'level'"):
        problems.column("task,level")


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
    assert Path(paths[0]).read_text() == "mine"
    assert capfd.readouterr().out == ""
    message = "no such data file, and python -m scripts.prepare_data --source offline failed$"
    with pytest.raises(InputError, match=f"^data/offline/val.jsonl: {message}"):
        prepare_missing(["data/offline/val.jsonl"])
    assert capfd.readouterr().err == "error: no hub\n"


# ---- what the rows are, whatever the file


@pytest.mark.parametrize("folder", ["exp[12]", "a*b?", "{x,y}"])
def test_a_folder_with_the_signs_of_a_pattern_is_read_as_named(folder, tmp_path, monkeypatch):
    write(tmp_path / "exp1/t.jsonl", [GOOD | {"problem": "another experiment"}])
    write(tmp_path / folder / "t.jsonl", [GOOD])
    monkeypatch.chdir(tmp_path / folder)
    assert Problems("t.jsonl").question(0) == "q"


@pytest.mark.parametrize("limit", [0, 1 << 24])
def test_other_rows_with_the_same_time_and_size_are_not_taken_for_the_old(limit, tmp_path, cache):
    cache(limit)
    path = write(tmp_path / "t.jsonl", [GOOD])
    old = Problems(path)
    times = path.stat().st_atime_ns, path.stat().st_mtime_ns
    write(path, [GOOD | {"problem": "r"}])
    os.utime(path, ns=times)
    new = Problems(path)
    assert [old.question(0), new.question(0)] == ["q", "r"]
    assert [new.crc32, old.crc32 == new.crc32] == [digest(path)[1], False]


@pytest.mark.parametrize("limit", [0, 1 << 24])
@pytest.mark.parametrize("ending", ["jsonl", "parquet"])
def test_rows_outlive_a_file_that_is_removed_or_rewritten(limit, ending, tmp_path, cache):
    cache(limit)
    path = write(tmp_path / f"t.{ending}", [GOOD] * 3)
    problems = Problems(path)
    path.write_bytes(b"x" * path.stat().st_size)
    assert problems.question(2) == "q"
    path.unlink()
    assert problems.golds([2])[0] == ["1"]


def test_a_column_of_a_file_that_was_replaced_is_rejected(tmp_path):
    path = write(tmp_path / "t.jsonl", [GOOD | {"level": 1}])
    problems = Problems(path)
    write(path, [GOOD | {"level": 2}])
    with pytest.raises(InputError, match="was replaced while the run began"):
        problems.column("level")


def test_a_file_that_changes_while_it_is_read_is_rejected(tmp_path, monkeypatch):
    path = write(tmp_path / "t.jsonl", [GOOD])
    convert = problem_files._line_batches

    def write_too(*arguments):
        yield from convert(*arguments)
        write(path, [GOOD | {"problem": "r"}])

    monkeypatch.setattr(problem_files, "_line_batches", write_too)
    with pytest.raises(InputError, match="changed while it was read; start again"):
        Problems(path)


def test_unused_fields_of_any_type_and_texts_like_dates_or_numbers_stay_as_they_are(tmp_path):
    answers = [3, r"\frac{1}{2}", "2024-01-05", "007", "1e3", 12345678901234567890123]
    unused = [{"u": x} for x in (None, 1, "a", [1], {"a": 1}, {"b": None})]
    rows = [GOOD | {"expected_answer": a} | u for a, u in zip(answers, unused, strict=True)]
    problems = Problems(write(tmp_path / "t.jsonl", rows * 2))
    assert problems.golds(range(6))[0] == list(map(str, answers))


NUMBERS = {  # the text in a JSON file, the answer
    "0.30000000000000004": "0.30000000000000004",
    "0.1000000000000000055511151231257827": "0.1",
    "5.0": "5",
    "-0.0": "0",
    "1e-7": "0.0000001",
    "1e22": "10000000000000000000000",
    "12345678901234567890.0": "12345678901234567890",
    "12345678901234567890": "12345678901234567890",
}


def test_json_numbers_keep_the_shortest_text_of_the_same_value(tmp_path):
    path = tmp_path / "t.jsonl"
    lines = [f'{{"problem": "q", "expected_answer": {number}}}\n' for number in NUMBERS]
    path.write_text("".join(lines))
    assert Problems(path).golds(range(len(NUMBERS)))[0] == [*NUMBERS.values()]


COLUMNS = [
    (pa.array([0.1, 5], pa.float32()), ["0.1", "5"]),
    (pa.array([np.float16(0.1), np.float16(5)], pa.float16()), ["0.1", "5"]),
    (pa.array([0.1, 1e22]), ["0.1", "10000000000000000000000"]),
    (pa.array([2**64 - 1, 1], pa.uint64()), ["18446744073709551615", "1"]),
    (pa.array([Decimal("1.50"), Decimal("100.00")]), ["1.5", "100"]),
    (pa.array(["a", "b"]).dictionary_encode(), ["a", "b"]),
    (pa.array([0.1, 0.1], pa.float32()).dictionary_encode(), ["0.1", "0.1"]),
    (pa.array(["a", "b"], pa.large_string()), ["a", "b"]),
    (pa.array(["a", "b"], pa.string_view()), ["a", "b"]),
]


@pytest.mark.parametrize(("column", "answers"), COLUMNS, ids=lambda x: str(getattr(x, "type", "")))
def test_parquet_columns_of_any_type_of_text_or_number(column, answers, tmp_path):
    table = {"problem": ["p", "q"], "expected_answer": column, "__index_level_0__": [7, 3]}
    pq.write_table(pa.table(table), tmp_path / "t.parquet")
    assert Problems(tmp_path / "t.parquet").golds([0, 1])[0] == answers


BAD_COLUMNS = [
    (pa.array([1.2345678901234568e19]), "a float64 of more digits than it can hold"),
    (pa.array([123456789.0], pa.float32()), "a float32 of more digits than it can hold"),
    (pa.array([math.nan]), "nan, which is not finite"),
    (pa.array([["1"]]), "a list"),
    (pa.array([{"a": 1}]), "a dict"),
    (pa.array([True]), "a bool"),
    (pa.array([datetime.date(2024, 1, 5)]), "a date"),
]


@pytest.mark.parametrize(("column", "reason"), BAD_COLUMNS, ids=lambda x: str(x)[:9])
def test_parquet_values_that_are_no_text_are_rejected_with_their_row(column, reason, tmp_path):
    pq.write_table(pa.table({"problem": ["p"], "expected_answer": column}), tmp_path / "t.parquet")
    with pytest.raises(InputError, match=rf"t\.parquet, row 1: .*\({reason}"):
        Problems(tmp_path / "t.parquet")


def test_an_empty_a_truncated_and_another_parquet_file_are_rejected(tmp_path):
    path = tmp_path / "t.parquet"
    pq.write_table(pa.table({"problem": pa.array([], "string"), "expected_answer": []}), path)
    with pytest.raises(InputError, match="has no rows"):
        Problems(path)
    write(path, [GOOD] * 100)
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(InputError, match=r"cannot be read as parquet: .* is it complete\?"):
        Problems(path)
    write(path, [{"question": "q", "answer": "1"}])
    with pytest.raises(InputError, match=r"no field 'problem' .it has: question, answer"):
        Problems(path)


def test_directories_are_rejected_and_symlinks_are_followed(tmp_path):
    with pytest.raises(InputError, match=r"is a directory; name a .jsonl or .parquet file"):
        Problems(tmp_path)
    path = write(tmp_path / "t.jsonl", [GOOD])
    (tmp_path / "link.jsonl").symlink_to(path)
    assert len(Problems(tmp_path / "link.jsonl")) == 1


# ---- copies that ranks share


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """Set the size from which files are shared; return the directory of the copies."""
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "cache"))

    def set_limit(limit):
        monkeypatch.setattr(problem_files, "SHARED_BYTES", limit)
        return shared.cache_directory()

    return set_limit


def test_a_copy_is_made_once_and_made_again_if_it_is_damaged(tmp_path, cache, monkeypatch):
    folder = cache(0)
    path = write(tmp_path / "t.jsonl", [GOOD | {"level": i} for i in range(20)])
    Problems(path)
    [copy] = folder.glob("*.arrow")
    with monkeypatch.context() as patch:
        patch.setattr(problem_files, "_text_batches", None)
        assert Problems(path).golds([19])[0] == ["1"]
    copy.write_bytes(copy.read_bytes()[:-10])
    assert Problems(path).column("level")[0] == [str(i) for i in range(20)]
    assert [*folder.glob("*.tmp")] == []


def test_ranks_that_start_at_once_make_one_copy(tmp_path, cache):
    folder = cache(0)
    path = write(tmp_path / "t.jsonl", [GOOD] * 20_000)
    with multiprocessing.get_context("fork").Pool(4) as pool:
        assert pool.map(len, pool.map(Problems, [path] * 4)) == [20_000] * 4
    assert len([*folder.glob("*.arrow")]) == 1


def test_a_cache_that_cannot_be_used_is_one_note(tmp_path, cache, capsys):
    cache(0)
    (tmp_path / "cache").write_text("a file in its place")
    path = write(tmp_path / "t.jsonl", [GOOD])
    assert [Problems(path).question(0), Problems(path).question(0)] == ["q", "q"]
    note = capsys.readouterr().out
    assert note.startswith(f"note: {tmp_path}/cache/goldilocks cannot be used (")
    assert note.endswith("set HF_HOME to a directory with room to share them\n")
    assert note.count("\n") == 1


def test_an_error_of_the_file_is_no_fault_of_the_cache(tmp_path, cache, capsys):
    folder = cache(0)
    with pytest.raises(InputError, match="line 1: lacks the field 'expected_answer'"):
        Problems(write(tmp_path / "t.jsonl", [{"problem": "q"}]))
    assert capsys.readouterr().out == ""
    assert [file.suffix for file in folder.iterdir()] == [".lock"]


# ---- reference answers that match no plain answer

WRAPPED = ["#### {}", "So it is {}.", '["{}"]', "<answer>{}</answer>", "Sum: {}"]
PLAIN = [
    r"\text{east}",
    "Monday",
    "x = 5",
    "5 apples",
    r"\{1,2\}",
    "[1,2]",
    "(1,2]",
    "1/2",
    "June 3",
]
PLAIN += [r"\begin{pmatrix} 1 \\ 2 \end{pmatrix}", "sqrt(3)", "2 pi", r"\$18", "72.", "$72$", "50%"]


@pytest.fixture(scope="module")
def verifier():
    with Verifier(workers=1) as verifier:
        yield verifier


@pytest.mark.parametrize("form", WRAPPED)
def test_answers_in_a_wrapping_are_counted_with_the_remedy(form, verifier):
    golds = [form.format(i) for i in range(10, 20)] + ["7"] * 20
    note = unmatched_note("t.jsonl", golds, verifier)
    assert note.startswith(f"note: 10 of 30 reference answers of t.jsonl, such as {golds[0]!r}, ")
    assert "match no plain answer: '10' earns 0. Keep only the answer itself" in note


def test_plain_answers_raise_no_note(verifier):
    assert unmatched_note("t.jsonl", PLAIN, verifier) == ""


def test_training_prints_the_note_of_its_files(tmp_path, halfway):
    rows = read_lines(halfway / "train.jsonl")
    for row in rows:
        row["expected_answer"] = f"#### {row['expected_answer']}"
    train = write(tmp_path / "data/train.jsonl", rows)
    write(tmp_path / "data/val.jsonl", read_lines(halfway / "val.jsonl"))
    flags = ("--sampler", "uniform", "--steps", 1)
    out = run(tmp_path / "run", *flags, data=tmp_path / "data")
    assert out.count(f"reference answers of {train}, such as '#### ") == 1
    assert "val.jsonl, such as" not in out

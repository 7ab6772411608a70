"""prepare_data: what becomes of every row of small tables, and rejected input."""

import hashlib
import math
from contextlib import nullcontext
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from fsspec.implementations.dirfs import DirFileSystem

from plumbing.files import read_lines
from scripts import prepare_data
from scripts.prepare_data import arguments, normalise, prepare
from scripts.sources import SOURCES
from tests.helpers.checks import rejected
from tests.helpers.files import write
from tests.helpers.ranks import contents

OWN, ANSWER = "problem expected_answer", "problem answer"
PART = "-00000-of-00001.parquet"


def table(columns, *rows):
    return [dict(zip(columns.split(), row, strict=False)) for row in rows]


ROWS = table(  # 4 distinct usable problems: "what is 1+1?", "find x.", "area?", "half?"
    OWN + " pass_rate_72b_tir",
    ("What is 1+1?", "2", "0.5"),
    ("what is  1+1?", "2", "0.5"),  # the same problem in other case and spacing
    (" ｗhat\u00a0is\n1+1? ", "2", "0.5"),  # and in other Unicode characters
    ("What is 1+1?", "2", "0.5"),  # so the first row's text is the most frequent
    ("Find x.", "3", "n/a"),
    ("Find x.", "4", "n/a"),  # another answer: 2 rows against 1
    ("FIND X.", "4", "n/a"),
    ("Area?", "\\frac{1}{2}", "1.0"),
    ("Half?", "\\frac{1}{2}", None),
    ("Empty?", "  ", "0.1"),  # dropped: empty_answer
    (" ", "7", "0.1"),  # dropped: empty_problem
    ("Bad?", "{{", "0.1"),  # dropped: unverifiable_answer
)
USABLE_ROWS = {"what is 1+1?": 4, "find x.": 3, "area?": 1, "half?": 1}


def run(copy, out, flags="--val_size 1", source="openmathreasoning"):
    """Return (manifest, training rows, validation rows)."""
    flags = f"--source {source} {copy} --out {out} {flags}"
    manifest = prepare(arguments(flags.split()))
    return manifest, read_lines(out / "train.jsonl"), read_lines(out / "val.jsonl")


def answers(rows):
    return {row["problem"]: row["expected_answer"] for row in rows}


@pytest.fixture(autouse=True, scope="module")
def shared_verifier():
    """Share one pool of workers, as starting them takes a second."""
    with prepare_data.Verifier(workers=1) as verifier, pytest.MonkeyPatch.context() as patch:
        patch.setattr(prepare_data, "Verifier", lambda workers: nullcontext(verifier))
        yield


@pytest.fixture
def copy(tmp_path):
    """A file with ROWS."""
    return write(tmp_path / "in.jsonl", ROWS)


@pytest.fixture
def hub(monkeypatch, tmp_path):
    """Make a folder the hub; hub(hub_id) is the folder of a data set at commit c0ffee."""
    info = type("Info", (), {"sha": "c0ffee"})
    monkeypatch.setattr(prepare_data.HfApi, "dataset_info", lambda self, name, revision: info)
    monkeypatch.setattr(prepare_data, "HfFileSystem", lambda: DirFileSystem(f"{tmp_path}/hub"))
    return lambda hub_id: tmp_path / f"hub/datasets/{hub_id}@c0ffee"


def test_one_row_of_each_problem_is_written_and_the_others_are_counted(tmp_path, copy):
    manifest, train, val = run(copy, tmp_path / "out")
    rows = {row.pop("problem"): row for row in train + val}
    assert rows == {
        "What is 1+1?": {"expected_answer": "2", "pass_rate_72b_tir": "0.5"},
        "FIND X.": {"expected_answer": "4", "pass_rate_72b_tir": "n/a"},  # alphabetically first
        "Area?": {"expected_answer": "\\frac{1}{2}", "pass_rate_72b_tir": "1.0"},
        "Half?": {"expected_answer": "\\frac{1}{2}"},
    }
    # 4 + 3 + 1 + 1 = 9 usable rows, 4 are written.
    drops = {"empty_answer": 1, "empty_problem": 1, "unverifiable_answer": 1, "repeat": 5}
    assert manifest["dropped_rows"] == drops
    assert manifest["rows_read"] == 12
    assert (manifest["train_rows"], manifest["val_rows"]) == (3, 1)


def test_problems_are_ranked_by_sha_256_of_seed_and_text(tmp_path, copy):
    _, train, val = run(copy, tmp_path / "out", "--val_size 1 --seed 2")
    texts = [normalise(row["problem"]) for row in val + train]
    assert texts == sorted(
        USABLE_ROWS, key=lambda text: hashlib.sha256(f"2\n{text}".encode()).digest()
    )


def test_keep_repeats_writes_every_usable_training_row(tmp_path, copy):
    _, train, _ = run(copy, tmp_path / "out")
    _, repeats, _ = run(copy, tmp_path / "all", "--val_size 1 --keep_repeats")
    texts = [normalise(row["problem"]) for row in train]
    expected = [text for text in texts for _ in range(USABLE_ROWS[text])]
    assert [normalise(row["problem"]) for row in repeats] == expected


def test_order_format_and_place_of_the_rows_do_not_change_the_files(tmp_path, copy, hub):
    _, *expected = run(copy, tmp_path / "out")
    write(hub("some/maths") / f"data/cot{PART}", ROWS[::-1])
    write(hub("some/maths") / f"data/tir{PART}", table(OWN, ("Another split?", "1")))
    for place, commit in {"some/maths": "c0ffee", hub("some/maths"): None}.items():
        manifest, *rows = run(place, tmp_path / f"out-{commit}")
        assert rows == expected
        assert manifest["commit"] == commit
        assert [Path(name).name for name in manifest["files"]] == [f"cot{PART}"]


def test_a_custom_file_may_have_other_field_names_and_marked_answers(tmp_path):
    rows = table("question answer level", ("a", "3 * 4 = 12\n#### 12", 1), ("b", "#### 1,000", 2))
    file = write(tmp_path / "a.jsonl", rows)
    flags = "--problem question --gold answer --val_size 1"
    _, train, val = run(file, tmp_path / "out", flags, source="own")
    assert sorted(map(str, train + val)) == [
        "{'problem': 'a', 'expected_answer': '12', 'level': 1}",
        "{'problem': 'b', 'expected_answer': '1000', 'level': 2}",
    ]


def test_training_problems_that_are_also_evaluated_on_are_dropped_and_counted(tmp_path, hub):
    """Also where only punctuation, case and spaces differ."""
    problems = ["What is 7 + 5?", "what is $7+5$", "What is 7 + 6?", "Else?", "Other?", "Held out"]
    copy = write(tmp_path / "in.jsonl", table(OWN, *((problem, "1") for problem in problems)))
    held_out = write(tmp_path / "val.parquet", table(OWN, ("held  out!", "2")))
    test = write(tmp_path / "test.jsonl", [{"problem": "What is 7 + 5 ?"}])  # needs no answer
    write(hub(SOURCES["aime25"].hub_id) / "test.jsonl", table(ANSWER, ("else", "1")))
    flags = f"--val_copy {held_out} --against {test} aime25"
    manifest, train, val = run(copy, tmp_path / "out", flags, source="own")
    assert sorted(answers(train)) == ["Other?", "What is 7 + 6?"]
    assert answers(val) == {"held  out!": "2"}
    assert manifest["dropped_rows"] == {"same_as_evaluation": 4}


GOOD_LINE = '{"problem": "a", "expected_answer": "1"}\n'
BAD_FILES = {
    "not JSON": (GOOD_LINE + "\n{oops\n", ".jsonl, line 3: damaged"),
    "boolean": (GOOD_LINE.replace('"1"', "true"), ".jsonl, line 1: True, a bool, no text"),
    "too few": (GOOD_LINE * 3, "too few usable problems"),
}


@pytest.mark.parametrize("name", BAD_FILES)
def test_bad_files_are_rejected_and_nothing_is_written(name, tmp_path):
    data, message = BAD_FILES[name]
    copy = tmp_path / "a.jsonl"
    copy.write_text(data)
    with rejected(message):
        run(copy, tmp_path / "out", source="own")
    assert not (tmp_path / "out").exists()


def test_earlier_files_survive_other_settings(tmp_path, copy):
    out = tmp_path / "out"
    run(copy, out)
    before = contents(out)
    with rejected("made with other settings"):
        run(copy, out, "--val_size 1 --seed 1")
    assert contents(out) == before
    run(copy, out)
    assert contents(out) == before


def test_numbers_are_written_in_their_shortest_text_and_nan_is_missing(tmp_path):
    """NaN is what pandas writes for a missing value."""
    floats = pa.array([0.1, 5, math.nan])
    columns = {"problem": ["p", "q", "r"], "expected_answer": floats, "rate": floats}
    pq.write_table(pa.table(columns), tmp_path / "in.parquet")
    manifest, train, val = run(tmp_path / "in.parquet", tmp_path / "out", source="own")
    assert manifest["dropped_rows"] == {"empty_answer": 1}
    assert answers(train + val) == {"p": "0.1", "q": "5"}
    assert {row["rate"] for row in train + val} == {0.1, 5.0}


def test_math_trains_on_all_but_math_500_and_needs_both_splits(tmp_path):
    """Training on one of MATH's two splits would silently be another experiment."""
    one = [("What is 1+1?", "\\boxed{3}, no, \\boxed{2}.", "5"), ("No box?", "It is 5.", "5")]
    other = [("Held  OUT?", "\\boxed{7}", "5"), ("Useless?", "\\boxed{8}", "5")]
    folder, val_copy = tmp_path / "MATH", tmp_path / "math500.jsonl"
    for split, rows in (("train", one), ("test", other)):
        write(folder / f"data/{split}{PART}", table("problem solution level", *rows))
    write(val_copy, table(ANSWER + " level", ("Held out?", "7", 5), ("Useless?", "", 5)))
    flags = f"--val_copy {val_copy}"
    manifest, train, val = run(folder, tmp_path / "out", flags, source="math")
    assert manifest["dropped_rows"] == {"no_box": 1, "same_as_evaluation": 2}
    assert manifest["validation"]["dropped_rows"] == {"empty_answer": 1}
    assert (answers(train), answers(val)) == ({"What is 1+1?": "2"}, {"Held out?": "7"})
    (folder / f"data/test{PART}").unlink()
    with rejected("file of \\bdata/test\\b"):
        run(folder, tmp_path / "other", flags, source="math")


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ("--source own", "--source own needs FILE"),
        ("--against math", "--against math: it is not a test set"),
        ("nowhere.jsonl", "nowhere.jsonl: no such file here, and the hub cannot be read"),
    ],
)
def test_bad_settings_are_rejected_and_nothing_is_written(flags, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with rejected(message):
        prepare(arguments([*flags.split(), "--out", "out"]))
    assert not Path("out").exists()


def test_gsm8k_is_read_in_the_format_of_the_hub(tmp_path, hub):
    """The answer follows "####"; GSM8K's test set is what it is validated on."""
    train = [("a", "1+0=<<1+0=1>>1\n#### 1"), ("c", "It is 5"), ("Tested?", "#### 3")]
    files = {"main/train": train, "main/test": [("Tested?", "#### 3")]}
    files["socratic/train"] = [("d", "#### 9")]
    for path, rows in files.items():
        write(hub("openai/gsm8k") / (path + PART), table("question answer", *rows))
    manifest = prepare(arguments(f"--source gsm8k --out {tmp_path}/out".split()))
    assert manifest["dropped_rows"] == {"no_####": 1, "same_as_evaluation": 1}
    assert answers(read_lines(tmp_path / "out/train.jsonl")) == {"a": "1"}
    assert answers(read_lines(tmp_path / "out/val.jsonl")) == {"Tested?": "3"}


def test_a_test_set_is_written_whole(tmp_path, hub):
    write(hub("HuggingFaceH4/aime_2024") / f"data/train{PART}", table(ANSWER, ("a", "033")))
    prepare(arguments(f"--source aime24 --out {tmp_path}/out".split()))
    assert answers(read_lines(tmp_path / "out/val.jsonl")) == {"a": "033"}
    assert not (tmp_path / "out/train.jsonl").exists()

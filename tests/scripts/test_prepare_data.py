"""prepare_data: what becomes of every row of small tables, and rejected input."""

import hashlib
import json
import random
import re
from contextlib import nullcontext
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from fsspec.implementations.dirfs import DirFileSystem

from plumbing.data.problems import normalise
from plumbing.files import read_lines
from scripts import prepare_data
from scripts.prepare_data import arguments, prepare
from scripts.sources import SOURCES
from tests.helpers.checks import rejected
from tests.helpers.files import write
from tests.helpers.models import ROOT
from tests.helpers.ranks import contents

OWN, ANSWER, QUESTION = "problem expected_answer", "problem answer", "question answer"
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
    flags = f"--source {source} --copy {copy} --out {out} {flags}"
    manifest = prepare(arguments(flags.split()))
    assert {path.name for path in out.iterdir()} == {"manifest.json", "train.jsonl", "val.jsonl"}
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
    assert json.loads((tmp_path / "out/manifest.json").read_text()) == manifest


@pytest.mark.parametrize("seed", range(3))
def test_problems_are_ranked_by_sha_256_of_seed_and_text(seed, tmp_path, copy):
    _, train, val = run(copy, tmp_path / "out", f"--val_size 1 --seed {seed}")
    texts = [normalise(row["problem"]) for row in val + train]
    assert texts == sorted(
        USABLE_ROWS, key=lambda text: hashlib.sha256(f"{seed}\n{text}".encode()).digest()
    )


def test_keep_repeats_writes_every_usable_training_row(tmp_path, copy):
    _, train, _ = run(copy, tmp_path / "out")
    _, repeats, _ = run(copy, tmp_path / "all", "--val_size 1 --keep_repeats")
    texts = [normalise(row["problem"]) for row in train]
    expected = [text for text in texts for _ in range(USABLE_ROWS[text])]
    assert [normalise(row["problem"]) for row in repeats] == expected


def test_order_format_and_place_of_the_rows_do_not_change_the_files(tmp_path, copy, hub):
    flags = "--val_size 1 --keep_repeats"
    _, *expected = run(copy, tmp_path / "out", flags)
    for name, rows in {"cot-00000-of-00002": ROWS[:7], "cot-00001-of-00002": ROWS[7:]}.items():
        write(hub("some/maths") / f"data/{name}.parquet", rows)
    write(hub("some/maths") / f"data/tir{PART}", table(OWN, ("Another split?", "1")))
    shuffled = write(tmp_path / "x.json", random.Random(0).sample(ROWS, len(ROWS)))
    copies = {"file": shuffled, "folder": hub("some/maths"), "hub": "some/maths"}
    for name, copy in copies.items():
        manifest, *rows = run(copy, tmp_path / f"out-{name}", flags)
        assert rows == expected
        assert manifest["commit"] == ("c0ffee" if name == "hub" else None)
    assert [Path(name).name[:9] for name in manifest["files"]] == ["cot-00000", "cot-00001"]


def test_a_custom_file_may_have_other_field_names_and_marked_answers(tmp_path):
    rows = table("question answer level", ("a", "3 * 4 = 12\n#### 12", 1), ("b", "#### 1,000", 2))
    file = write(tmp_path / "a.jsonl", rows)
    flags = f"--source own {file} --problem question --gold answer --val_size 1 --out"
    manifest = prepare(arguments([*flags.split(), str(tmp_path / "out")]))
    assert manifest["train_rows"] == manifest["val_rows"] == 1
    written = read_lines(tmp_path / "out/train.jsonl") + read_lines(tmp_path / "out/val.jsonl")
    assert sorted(map(str, written)) == [
        "{'problem': 'a', 'expected_answer': '12', 'level': 1}",
        "{'problem': 'b', 'expected_answer': '1000', 'level': 2}",
    ]


def test_a_field_that_is_not_there_is_named_with_those_that_are(tmp_path):
    file = write(tmp_path / "a.jsonl", table("question answer", ("a", "1")))
    with rejected("line 1: no field 'expected_answer' (it has: question, answer)"):
        run(file, tmp_path / "out", "--problem question", source="own")


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
    "not JSON.jsonl": (GOOD_LINE + "\n{oops\n", ".jsonl, line 3: damaged"),
    "boolean.jsonl": (GOOD_LINE.replace('"1"', "true"), "'expected_answer'.* bool"),
    "too few.jsonl": (GOOD_LINE * 3, "too few usable problems .*'train_rows': 0"),
}


@pytest.mark.parametrize("name", BAD_FILES)
def test_bad_files_are_rejected_in_one_line_and_nothing_is_written(name, tmp_path, capsys):
    data, message = BAD_FILES[name]
    copy, out = tmp_path / name, tmp_path / "out"
    copy.write_text(data)
    flags = f"--source own --val_size 1 --out {out} --copy".split()
    assert prepare_data.main([*flags, str(copy)]) == 2  # its name has spaces
    last = capsys.readouterr().err.splitlines()[-1]  # the lines before it are progress bars
    assert last.startswith("error: ")
    assert re.search(message, last)
    assert not out.exists()


def test_earlier_files_survive_other_settings_and_a_full_disk(tmp_path, copy, monkeypatch):
    out = tmp_path / "out"

    def fill_the_disk(path, text):
        raise OSError(28, "No space left on device")

    run(copy, out)
    before = contents(out)
    with rejected("made with other settings"):
        run(copy, out, "--val_size 1 --seed 1")
    assert contents(out) == before
    with monkeypatch.context() as patch, pytest.raises(OSError, match="No space left"):
        patch.setattr(prepare_data, "write_atomic", fill_the_disk)
        run(copy, out)
    assert contents(out) == {k: v for k, v in before.items() if "manifest" not in k}


def test_numbers_that_are_not_finite_count_as_missing(tmp_path):
    """NaN is what pandas writes for a missing value."""
    values = ("NaN", "Infinity", "-Infinity", "1", "2")
    row = '{{"problem": "q{}", "expected_answer": {}, "level": NaN}}\n'
    copy = tmp_path / "in.jsonl"
    copy.write_text("".join(row.format(*pair) for pair in enumerate(values)))
    manifest, train, val = run(copy, tmp_path / "out", source="own")
    assert manifest["dropped_rows"] == {"empty_answer": 3}
    assert answers(train + val) == {"q3": "1", "q4": "2"}
    assert all("level" not in row for row in train + val)


def test_float_columns_are_written_in_their_shortest_text(tmp_path):
    copy, floats = tmp_path / "in.parquet", pa.array([0.1, 5])
    columns = {"problem": ["p", "q"], "expected_answer": floats, "rate": floats}
    pq.write_table(pa.table(columns), copy)
    _, train, val = run(copy, tmp_path / "out", source="own")
    assert {row["expected_answer"] for row in train + val} == {"0.1", "5"}
    assert {row["rate"] for row in train + val} == {0.1, 5.0}


def test_math_trains_on_all_but_math_500_and_needs_both_splits(tmp_path):
    """Training on one of MATH's two splits would silently be another experiment."""
    one = [("What is 1+1?", "\\boxed{3}, no, \\boxed{2}.", "5"), ("No box?", "It is 5.", "5")]
    other = [("Held  OUT?", "\\boxed{7}", "5"), ("A third?", "\\boxed{\\frac{1}{3}}", "5")]
    other += [("Useless?", "\\boxed{8}", "5")]  # as the test set's answer is empty
    folder, val_copy = tmp_path / "MATH", tmp_path / "math500.jsonl"
    for split, rows in (("train", one), ("test", other)):
        write(folder / f"data/{split}{PART}", table("problem solution level", *rows))
    write(val_copy, table(ANSWER + " level", ("Held out?", "7", 5), ("Useless?", "", 5)))
    flags = f"--val_copy {val_copy}"
    manifest, train, val = run(folder, tmp_path / "out", flags, source="math")
    assert manifest["rows_read"] == 5
    assert manifest["dropped_rows"] == {"no_box": 1, "same_as_evaluation": 2}
    assert manifest["validation"]["dropped_rows"] == {"empty_answer": 1}
    assert answers(train) == {"What is 1+1?": "2", "A third?": r"\frac{1}{3}"}
    assert answers(val) == {"Held out?": "7"}
    (folder / f"data/test{PART}").unlink()
    with rejected("file of \\bdata/test\\b"):
        run(folder, tmp_path / "other", flags, source="math")


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ("--source maths", "invalid choice: 'maths'"),
        ("--source own", "--source own needs FILE"),
        ("--source own in.jsonl --val_copy x --val_size 1", "--val_size: own is validated on"),
        ("--source aime24 --val_size 1", "--val_size: aime24 is validated on"),
        ("--against math", "--against math: it is not a test set"),
        ("--copy loop.jsonl", "loop.jsonl: no such file here, and the hub cannot be read"),
        (f"--copy {ROOT}/samplers", "samplers: has no "),
    ],
)
def test_bad_settings_are_rejected_and_nothing_is_written(
    flags, message, tmp_path, copy, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    Path("loop.jsonl").symlink_to("loop.jsonl")
    with rejected(message):
        prepare(arguments([*flags.split(), "--out", "out"]))
    assert not Path("out").exists()


FORMATS = [  # source, file, columns, a row; what is written, or why it is dropped; None: not read
    ("gsm8k", "main/train", QUESTION, ("a", "1+0=<<1+0=1>>1\n#### 1"), ("a", "1")),
    ("gsm8k", "main/train", QUESTION, ("c", "It is 5"), "no_####"),
    ("gsm8k", "main/train", QUESTION, ("Tested?", "#### 3"), "same_as_evaluation"),
    ("gsm8k", "main/test", QUESTION, ("Tested?", "#### 3"), ("Tested?", "3")),
    ("gsm8k", "socratic/train", QUESTION, ("d", "#### 9"), None),
    ("deepmath", "train", "question final_answer difficulty", ("a", "0", 5.5), ("a", "0", 5.5)),
    ("deepmath", "train", "question final_answer difficulty", ("b", "0", None), ("b", "0")),
    ("gsm8k-test", "main/test", QUESTION, ("a", "#### 3"), ("a", "3")),
    ("aime24", "data/train", ANSWER, ("a", "033"), ("a", "033")),
]


@pytest.mark.parametrize("name", sorted({line[0] for line in FORMATS}))
def test_a_source_is_read_in_the_format_of_the_hub(name, tmp_path, hub):
    source, out, files, results = SOURCES[name], tmp_path / "out", {}, []
    for _, path, columns, row, result in filter(lambda line: line[0] == name, FORMATS):
        files.setdefault(path + PART, []).extend(table(columns, row))
        results.append(result)
    for path, rows in files.items():
        write(hub(source.hub_id) / path, rows)
    val_size = "" if source.held_out or source.evaluation else " --val_size 1"
    manifest = prepare(arguments(f"--source {name} --out {out}{val_size}".split()))
    rows = [tuple(row.values()) for file in out.glob("*.jsonl") for row in read_lines(file)]
    assert sorted(rows) == sorted(result for result in results if isinstance(result, tuple))
    assert [*manifest["dropped_rows"]] == [reason for reason in results if isinstance(reason, str)]
    assert (out / "train.jsonl").exists() != source.evaluation

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
from plumbing.errors import InputError
from plumbing.files import read_lines
from scripts import prepare_data
from scripts.prepare_data import arguments, prepare
from scripts.sources import SOURCES
from tests.helpers.files import write
from tests.helpers.models import ROOT
from tests.helpers.ranks import contents

GOOD, VOTE = "has_answer_extracted", "no_answer_extracted"
OPEN_MATH = "problem expected_answer problem_type pass_rate_72b_tir"
OPEN_MATH_SOURCES = ("openmathreasoning", "openmathreasoning-extracted")
OWN, ANSWER, QUESTION = "problem expected_answer", "problem answer", "question answer"
PART = "-00000-of-00001.parquet"


def table(columns, *rows):
    return [dict(zip(columns.split(), row, strict=False)) for row in rows]


ROWS = table(  # 4 distinct usable problems: "what is 1+1?", "find x.", "area?", "half?"
    OPEN_MATH,
    ("What is 1+1?", "2", GOOD, "0.5"),
    ("what is  1+1?", "2", GOOD, "0.5"),  # the same problem in other case and spacing
    (" ｗhat\u00a0is\n1+1? ", "2", GOOD, "0.5"),  # and in other Unicode characters
    ("What is 1+1?", "2", GOOD, "0.5"),  # so the first row's text is the most frequent
    ("Find x.", "3", GOOD, "n/a"),
    ("Find x.", "4", GOOD, "n/a"),  # another answer: 2 rows against 1
    ("FIND X.", "4", GOOD, "n/a"),
    ("Area?", "\\frac{1}{2}", GOOD, "1.0"),
    ("Half?", "\\frac{1}{2}", GOOD, None),
    ("Prove it.", "5", VOTE, "0.1"),  # dropped: other_problem_type
    ("Empty?", "  ", GOOD, "0.1"),  # dropped: empty_answer
    (" ", "7", GOOD, "0.1"),  # dropped: empty_problem
)
DROPPED = {"other_problem_type": 1, "empty_answer": 1, "empty_problem": 1}


def run(copy, out, flags="--val_size 1"):
    """Return (manifest, training rows, validation rows)."""
    flags = f"--source openmathreasoning-extracted --copy {copy} --out {out} {flags}"
    manifest = prepare(arguments(flags.split()))
    assert {path.name for path in out.iterdir()} == {"manifest.json", "train.jsonl", "val.jsonl"}
    return manifest, read_lines(out / "train.jsonl"), read_lines(out / "val.jsonl")


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


USABLE_ROWS = {"what is 1+1?": 4, "find x.": 3, "area?": 1, "half?": 1}


@pytest.mark.parametrize("seed", range(3))
def test_every_row_of_a_table_is_written_or_counted_and_ranked(seed, tmp_path, copy):
    """By SHA-256 of seed and normalised text; --keep_repeats writes every usable training row."""
    manifest, train, val = run(copy, tmp_path / "out", f"--val_size 1 --seed {seed}")
    texts = [normalise(row["problem"]) for row in val + train]
    ranked = sorted(USABLE_ROWS, key=lambda x: hashlib.sha256(f"{seed}\n{x}".encode()).digest())
    assert texts == ranked
    flags = f"--val_size 1 --seed {seed} --keep_repeats"
    repeats = [normalise(row["problem"]) for row in run(copy, tmp_path / "all", flags)[1]]
    assert repeats == [text for text in ranked[1:] for _ in range(USABLE_ROWS[text])]
    # 4 + 3 + 1 + 1 = 9 usable rows, 4 are written. 1+1: 3 repeats. x: 1 repeat and 1 conflict.
    assert manifest["rows_read"] == 12
    assert manifest["dropped_rows"] == DROPPED | {"repeat": 4, "conflicting_answer": 1}
    assert (manifest["train_rows"], manifest["val_rows"]) == (3, 1)
    assert {row.pop("problem"): row for row in train + val} == {
        "What is 1+1?": {"expected_answer": "2", "pass_rate": 0.5},
        "FIND X.": {"expected_answer": "4"},  # both texts occur once with "4": the first
        "Area?": {"expected_answer": "\\frac{1}{2}", "pass_rate": 1.0},
        "Half?": {"expected_answer": "\\frac{1}{2}"},
    }
    assert json.loads((tmp_path / "out/manifest.json").read_text()) == manifest


def test_the_papers_data_keep_every_type_of_problem(tmp_path, copy):
    manifest, train, val = run(copy, tmp_path / "out", "--source openmathreasoning --val_size 1")
    assert "Prove it." in [row["problem"] for row in train + val]
    assert "other_problem_type" not in manifest["dropped_rows"]


def test_order_format_and_place_of_the_rows_do_not_change_the_files(tmp_path, copy, hub):
    flags = "--val_size 1 --keep_repeats"
    expected = run(copy, tmp_path / "out", flags)[1:]
    parts = {"cot-00000-of-00002": ROWS[:7], "cot-00001-of-00002": ROWS[7:]}
    parts["tir-00000-of-00001"] = table(OPEN_MATH, ("Another split?", "1", GOOD, "n/a"))
    for name, rows in parts.items():
        write(hub("some/maths") / f"data/{name}.parquet", rows)
    shuffled = write(tmp_path / "x.json", random.Random(0).sample(ROWS, len(ROWS)))
    copies = {"file": shuffled, "folder": hub("some/maths"), "hub": "some/maths"}
    for name, copy in copies.items():
        manifest, *rows = run(copy, tmp_path / f"out-{name}", flags)
        assert rows == list(expected)
        assert manifest["commit"] == ("c0ffee" if name == "hub" else None)
    assert [Path(name).name[:9] for name in manifest["files"]] == ["cot-00000", "cot-00001"]


def test_a_custom_file_keeps_its_other_columns_and_its_usable_rows(tmp_path):
    """An unverifiable answer has two rows of three."""
    rows = table(OWN + " topic extra_info", ("a", "1", "sums", {"of": [1, 2]}), ("b", "2"))
    rows += table(OWN, ("Größe?", 18), ("c", 0.5), ("c", "{{"), ("c", "{{"), ("d", None))
    copy = write(tmp_path / "a.jsonl", rows)
    held_out = write(tmp_path / "b.parquet", table(OWN, ("B", "2")))
    manifest, train, val = run(copy, tmp_path / "out", f"--source own --val_copy {held_out}")
    assert rows[0] in train
    assert [row["problem"] for row in val] == ["B"]
    assert {row["expected_answer"] for row in train} == {"1", "18", "0.5"}
    drops = {"same_as_evaluation": 1, "empty_answer": 1, "unverifiable_answer": 2}
    assert manifest["dropped_rows"] == drops


GOOD_LINE = '{"problem": "a", "expected_answer": "1"}\n'
BAD_FILES = {
    "not JSON.jsonl": (GOOD_LINE + "\n{oops\n", ".jsonl, line 3: damaged"),
    "not Parquet.parquet": ("PAR1 no", ".parquet: cannot be read as parquet"),
    "no answer.jsonl": ('{"problem": "a", "b": "1"}', "no field 'expected_answer' .it has: prob"),
    "boolean.jsonl": (GOOD_LINE.replace('"1"', "true"), "'expected_answer' is a bool"),
    "half a character.jsonl": (GOOD_LINE.replace("a", "\\ud800", 1), "surrogates not allowed"),
    "too few.jsonl": (GOOD_LINE * 3, "1 usable problems in 3 rows .* too few for --val_size 1"),
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


def test_a_validation_file_without_a_usable_problem_is_named(tmp_path):
    copy = write(tmp_path / "a.jsonl", table(OWN, ("a", "1")))
    held_out = write(tmp_path / "b.jsonl", table(OWN, ("b", "{{")))
    message = f"^{held_out}: 0 usable problems in 1 rows .* too few to validate on"
    with pytest.raises(InputError, match=message):
        run(copy, tmp_path / "out", f"--source own --val_copy {held_out}")


def test_earlier_files_survive_other_settings_and_a_full_disk(tmp_path, copy, monkeypatch):
    out = tmp_path / "out"

    def fill_the_disk(table, path, *arguments):
        path.write_text("half")
        raise OSError(28, "No space left on device")

    run(copy, out)
    before = contents(out)
    with pytest.raises(InputError, match="made with other settings"):
        run(copy, out, "--val_size 1 --seed 1")
    with monkeypatch.context() as patch, pytest.raises(OSError, match="No space left"):
        patch.setattr(prepare_data.Table, "write", fill_the_disk)
        run(copy, out)
    assert contents(out) == before


def test_numbers_that_are_not_finite_count_as_missing(tmp_path):
    """NaN is what pandas writes for a missing value."""
    values = ("NaN", "Infinity", "-Infinity", "1", "2")
    row = '{{"problem": "q{}", "expected_answer": {}, "level": NaN}}\n'
    copy = tmp_path / "in.jsonl"
    copy.write_text("".join(row.format(*pair) for pair in enumerate(values)))
    manifest, train, val = run(copy, tmp_path / "out", "--source own --val_size 1")
    assert manifest["dropped_rows"] == {"empty_answer": 3}
    assert {row["expected_answer"] for row in train + val} == {"1", "2"}
    assert all(row.keys() == {"problem", "expected_answer"} for row in train + val)


def test_float_columns_are_written_in_their_shortest_text(tmp_path):
    copy, floats = tmp_path / "in.parquet", pa.array([0.1, 5], pa.float32())
    columns = {"problem": ["p", "q"], "expected_answer": floats, "pass_rate": floats}
    pq.write_table(pa.table(columns), copy)
    _, train, val = run(copy, tmp_path / "out", "--source own --val_size 1")
    assert {row["expected_answer"] for row in train + val} == {"0.1", "5"}
    assert {row["pass_rate"] for row in train + val} == {0.1, 5.0}


def test_answers_that_match_no_plain_answer_are_one_note(tmp_path, capsys):
    copy = write(tmp_path / "in.jsonl", table(OWN, *((f"q{i}", f"#### {i}") for i in range(20))))
    run(copy, tmp_path / "out", "--source own --val_size 1")
    note = f"note: 20 of 20 reference answers of {copy}, such as '#### 0', match no plain answer"
    assert capsys.readouterr().err.count(note) == 1


def test_math_trains_on_all_but_math_500_and_needs_both_splits(tmp_path):
    """Training on one of MATH's two splits would silently be another experiment."""
    one = [("What is 1+1?", "\\boxed{3}, no, \\boxed{2}.", "5"), ("No box?", "It is 5.", "5")]
    other = [("Held  OUT?", "\\boxed{7}", "5"), ("A third?", "\\boxed{\\frac{1}{3}}", "5")]
    other += [("Useless?", "\\boxed{8}", "5")]  # as the test set's answer is empty
    folder, val_copy = tmp_path / "MATH", tmp_path / "math500.jsonl"
    for split, rows in (("train", one), ("test", other)):
        write(folder / f"data/{split}{PART}", table("problem solution level", *rows))
    write(val_copy, table(ANSWER + " level", ("Held out?", "7", 5), ("Useless?", "", 5)))
    flags = f"--source math --val_copy {val_copy}"
    manifest, *rows = run(folder, tmp_path / "out", flags)
    assert manifest["rows_read"] == 5
    assert manifest["dropped_rows"] == {"no_box": 1, "same_as_evaluation": 2}
    assert manifest["validation"]["dropped_rows"] == {"empty_answer": 1}
    train, val = ({row["problem"]: row["expected_answer"] for row in split} for split in rows)
    assert train == {"What is 1+1?": "2", "A third?": r"\frac{1}{3}"}
    assert val == {"Held out?": "7"}
    (folder / f"data/test{PART}").unlink()
    with pytest.raises(InputError, match="file of a split 'test'"):
        run(folder, tmp_path / "other", flags)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ("--source maths", "invalid choice: 'maths' .choose from .*openmathreasoning"),
        ("--source own --copy=", "--source own needs --copy FILE"),
        ("--source own --val_copy x --val_size 1", "own is validated on another data set"),
        ("--val_copy x.jsonl", "--val_copy: openmathreasoning-extracted is validated on"),
        ("--source aime24 --against x.jsonl", "--against: aime24 is a test set, kept whole"),
        ("--against math", "--against math: it is not a test set"),
        ("--against x.jsonl", "x.jsonl: no such file here, and .* hub cannot be read"),
        (f"--copy {ROOT}/samplers", "samplers: no .jsonl, .parquet or .json file of a split 'cot'"),
    ],
)
def test_bad_settings_are_rejected_and_nothing_is_written(flags, message, tmp_path, copy):
    with pytest.raises(ValueError, match=message):
        run(copy, tmp_path / "out", flags)
    assert not (tmp_path / "out").exists()


def test_a_file_is_no_output_folder(tmp_path, copy):
    out = write(tmp_path / "out", [])
    with pytest.raises(InputError, match="is a file: choose another --out"):
        run(copy, out, "--source own")


def test_a_loop_of_links_is_no_file(tmp_path, copy):
    loop = tmp_path / "loop.jsonl"
    loop.symlink_to(loop)
    with pytest.raises(InputError, match=r"loop.jsonl: no such file here"):
        run(copy, tmp_path / "out", f"--source own --copy {loop}")


HEAD = "Solve the following math problem step by step. The last line of your response should be of"
HEAD += " the form Answer: $Answer.\n\n"
TAIL = '\n\nRemember to put your answer on its own line after "Answer:".'
DAPO, EN, GOLD = "prompt reward_model", "prompt solution", {"ground_truth": "34"}
BIG_MATH, DEEPMATH = "problem answer source llama8b_solve_rate", "question final_answer difficulty"
NUMINA = "problem answer problem_is_valid solution_is_valid question_type source"
FORMATS = [  # source, file, columns, a row; what is written, or why it is dropped; None: not read
    ("gsm8k", "main/train", QUESTION, ("a", "1+0=<<1+0=1>>1\n#### 1"), ("a", "1")),
    ("gsm8k", "main/train", QUESTION, ("b", "#### 1,000"), ("b", "1000")),
    ("gsm8k", "main/train", QUESTION, ("c", "It is 5"), "no_####"),
    ("gsm8k", "main/train", QUESTION, ("Tested?", "#### 3"), "same_as_evaluation"),
    ("gsm8k", "main/test", QUESTION, ("Tested?", "#### 3"), ("Tested?", "3")),
    ("gsm8k", "socratic/train", QUESTION, ("d", "#### 9"), None),
    ("dapo", "data/dapo", DAPO, ([{"content": f"{HEAD}a\n\nb{TAIL}"}], GOLD), ("a\n\nb", "34")),
    ("dapo", "data/dapo", DAPO, ([{"content": f"{HEAD}c{TAIL}"}], GOLD), ("c", "34")),
    ("dapo", "data/dapo", DAPO, ([{"content": "Solve d"}], GOLD), "other_prompt"),
    ("dapo-en", "en/train", EN, ("a", "34"), ("a", "34")),
    ("dapo-en", "en/train", EN, (f"{HEAD}b{TAIL}", "1"), ("b", "1")),
    ("dapo-en", "all/train", EN, ("汉", "1"), None),
    ("numina", "train", NUMINA, ("a", "1", "Yes", "Yes", "word", "cn"), ("a", "1", "cn")),
    ("numina", "train", NUMINA, ("b", "B", "Yes", "Yes", "MCQ", "cn"), ("b", "B", "cn")),
    ("numina", "train", NUMINA, ("c", "1", "Yes", "Yes", "proof"), "question_type=proof"),
    ("numina", "train", NUMINA, ("d", "1", "Yes", "No", "MCQ"), "other_solution_is_valid"),
    ("deepscaler", "deepscaler.json", ANSWER, ("a", "1"), ("a", "1")),
    ("deepscaler", "deepscaler.json", ANSWER, ("b", "2"), ("b", "2")),
    ("big-math", "train", BIG_MATH, ("a", "1", "harp", "0.25"), ("a", "1", 0.25, "harp")),
    ("big-math", "train", BIG_MATH, ("b", "1", "harp", None), ("b", "1", "harp")),
    ("deepmath", "train", DEEPMATH, ("a", "0", 5.5), ("a", "0", 5.5)),
    ("deepmath", "train", DEEPMATH, ("b", "0", None), ("b", "0")),
    ("gsm8k-test", "main/test", QUESTION, ("a", "#### 3"), ("a", "3")),
    ("gsm8k-platinum", "main/test", QUESTION, ("a", "#### 3"), ("a", "3")),
    ("math500", "test.jsonl", ANSWER + " level", ("a", "7", 5), ("a", "7", 5)),
    ("aime24", "data/train", ANSWER, ("a", "033"), ("a", "033")),
    ("aime25", "test.jsonl", ANSWER, ("a", "70"), ("a", "70")),
    ("amc23", "test", QUESTION, ("a", "27.0"), ("a", "27.0")),
]


@pytest.mark.parametrize(
    "name", sorted({*SOURCES} - {*OPEN_MATH_SOURCES, "math", "own", "reasoning-gym"})
)
def test_a_source_is_read_in_the_format_of_the_hub(name, tmp_path, hub):
    source, out, files, written, dropped = SOURCES[name], tmp_path / "out", {}, [], {}
    for _, path, columns, row, result in filter(lambda line: line[0] == name, FORMATS):
        file = path if path.endswith(("jsonl", "json")) else path + PART
        files.setdefault(file, []).extend(table(columns, row))
        if isinstance(result, str):
            dropped[result] = 1
        elif result:
            written.append(result)
    for path, rows in files.items():
        write(hub(source.hub_id) / path, rows)
    val_size = "" if source.held_out or source.evaluation else " --val_size 1"
    manifest = prepare(arguments(f"--source {name} --out {out}{val_size}".split()))
    rows = [row for file in out.glob("*.jsonl") for row in read_lines(file)]
    assert sorted(tuple(row.values()) for row in rows) == sorted(written)
    assert all({*row} <= {"problem", "expected_answer", "pass_rate", source.keep} for row in rows)
    assert manifest["dropped_rows"] == dropped
    assert (out / "train.jsonl").exists() != source.evaluation


def test_problems_of_the_files_against_are_dropped_counted_and_shown(tmp_path, hub):
    problems = ["What is 7 + 5?", "what is $7+5$", "What is 7 + 6?", "Else?", "Another?"]
    copy = write(tmp_path / "in.jsonl", table(OWN, *((problem, "1") for problem in problems)))
    test = write(tmp_path / "test.jsonl", [{"problem": "What is 7 + 5 ?"}])  # needs no answer
    write(hub(SOURCES["aime25"].hub_id) / "test.jsonl", table(ANSWER, ("else", "1")))
    flags = f"--source own --val_size 1 --against {test} aime25"
    manifest, *_ = run(copy, tmp_path / "out", flags)
    facts = manifest["decontamination"]
    assert manifest["dropped_rows"] == facts["dropped_problems"] == {"same_as_evaluation": 3}
    assert manifest["train_rows"] + manifest["val_rows"] == facts["evaluation_problems"] == 2
    shown = {row["training"]: row["evaluation"] for row in facts["examples"]["same_as_evaluation"]}
    assert shown == dict.fromkeys(problems[:2], "What is 7 + 5 ?") | {"Else?": "else"}

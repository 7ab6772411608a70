"""prepare_data: rows whose fate is read off the tables, and every input that must be refused."""

import hashlib
import json
import random
import re
from contextlib import nullcontext
from pathlib import Path

import huggingface_hub
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from fsspec.implementations.memory import MemoryFileSystem

from plumbing.errors import InputError
from plumbing.files import read_lines, write_lines
from scripts import prepare_data
from scripts.prepare_data import PROFILES, arguments, normalise, prepare, prepare_missing

GOOD, VOTE = "has_answer_extracted", "no_answer_extracted"
COLUMNS = ("problem", "expected_answer", "problem_type", "pass_rate_72b_tir")
TABLE = [  # 4 distinct usable problems: "what is 1+1?", "find x.", "area?", "half?"
    ("What is 1+1?", "2", GOOD, "0.5"),
    ("what is  1+1?", "2", GOOD, "0.5"),  # case and spacing: the same problem
    (" ｗhat\u00a0is\n1+1? ", "2", GOOD, "0.5"),  # also where Unicode writes it otherwise
    ("What is 1+1?", "2", GOOD, "0.5"),  # so the first row's text is the commonest
    ("Find x.", "3", GOOD, "n/a"),
    ("Find x.", "4", GOOD, "n/a"),  # another answer: 2 rows to 1 for "4"
    ("FIND X.", "4", GOOD, "n/a"),
    ("Area?", "\\frac{1}{2}", GOOD, "1.0"),
    ("Half?", "\\frac{1}{2}", GOOD, None),
    ("Prove it.", "5", VOTE, "0.1"),  # dropped: other_problem_type
    ("Empty?", "  ", GOOD, "0.1"),  # dropped: empty_answer
    (" ", "7", GOOD, "0.1"),  # dropped: empty_problem
]
DROPPED = {"other_problem_type": 1, "empty_answer": 1, "empty_problem": 1}
FILES = ["train.jsonl", "val.jsonl"]


def write_jsonl(path, rows=TABLE):
    write_lines(path, [dict(zip(COLUMNS, row, strict=True)) for row in rows])
    return path


def write_parquet(path, rows):
    table = pa.Table.from_pylist([dict(zip(COLUMNS, row, strict=True)) for row in rows])
    pq.write_table(table, path, row_group_size=5)
    return path


def flags(**settings):
    """Arguments of `prepare`; None is a flag not given, True one without a value."""
    given = {name: value for name, value in settings.items() if value is not None}
    return arguments([f"--{name}" + f"={x}" * (x is not True) for name, x in given.items()])


def run(source, out, **settings):
    manifest = prepare(flags(**{"val_size": 1, "source": source, "out": out} | settings))
    assert sorted(path.name for path in out.iterdir()) == ["manifest.json", *FILES]
    return manifest, *(read_lines(out / name) for name in FILES)


def content(out):
    return [(out / name).read_bytes() for name in FILES]


@pytest.fixture(autouse=True, scope="module")
def one_verifier():
    """Starting workers takes a second, so the tests of this file share one pool."""
    with prepare_data.Verifier(workers=1) as shared, pytest.MonkeyPatch.context() as patch:
        patch.setattr(prepare_data, "Verifier", lambda workers: nullcontext(shared))
        yield


@pytest.fixture
def hub(monkeypatch):
    """A hub in memory, where every dataset is at commit c0ffee."""
    files = MemoryFileSystem()
    files.store.clear()  # both are one for the whole process
    files.pseudo_dirs[:] = [""]
    info = type("Info", (), {"sha": "c0ffee"})
    monkeypatch.setattr(huggingface_hub.HfApi, "dataset_info", lambda self, name, revision: info)
    monkeypatch.setattr(huggingface_hub, "HfFileSystem", lambda: files)
    return files


def test_twelve_rows_by_hand(tmp_path):
    out = tmp_path / "out"
    manifest, train, val = run(write_jsonl(tmp_path / "in.jsonl"), out)
    # 4 + 3 + 1 + 1 = 9 usable rows, 4 are written. 1+1: 3 repeats. x: 1 repeat and 1 conflict.
    assert manifest["rows_read"] == 12
    assert manifest["dropped_rows"] == DROPPED | {"repeat": 4, "conflicting_answer": 1}
    assert (manifest["train_rows"], manifest["val_rows"]) == (3, 1)
    rows = {row.pop("problem"): row for row in train + val}
    assert rows == {
        "What is 1+1?": {"expected_answer": "2", "pass_rate": 0.5},
        "FIND X.": {"expected_answer": "4"},  # with "4" both texts once: the first
        "Area?": {"expected_answer": "\\frac{1}{2}", "pass_rate": 1.0},
        "Half?": {"expected_answer": "\\frac{1}{2}"},
    }
    assert json.loads((out / "manifest.json").read_text()) == manifest


def test_validation_is_the_smallest_ranks_of_the_normalised_texts(tmp_path):
    source, orders = write_jsonl(tmp_path / "in.jsonl"), set()
    texts = ["what is 1+1?", "find x.", "area?", "half?"]
    for seed in range(5):
        _, train, val = run(source, tmp_path / str(seed), val_size=2, seed=seed)
        ranks = {hashlib.sha256(f"{seed}\n{text}".encode()).digest(): text for text in texts}
        in_order = [ranks[rank] for rank in sorted(ranks)]
        assert [normalise(row["problem"]) for row in val + train] == in_order
        orders.add(tuple(in_order))
    assert len(orders) > 1


def test_keep_repeats_keeps_every_training_row_and_no_validation_text(tmp_path):
    source, seen = write_jsonl(tmp_path / "in.jsonl"), set()
    rows_of = {"what is 1+1?": 4, "find x.": 3, "area?": 1, "half?": 1}
    for seed in range(8):
        manifest, train, val = run(source, tmp_path / f"all{seed}", seed=seed, keep_repeats=True)
        held_out = normalise(val[0]["problem"])
        seen.add(held_out)
        assert held_out not in {normalise(row["problem"]) for row in train}
        assert len(train) == manifest["train_rows"] == 9 - rows_of[held_out]
        assert 12 == len(train) + len(val) + sum(manifest["dropped_rows"].values())
        assert run(source, tmp_path / f"distinct{seed}", seed=seed)[2] == val
    assert {"what is 1+1?", "find x."} <= seen  # problems with repeats were held out too


def test_order_format_and_place_make_no_difference(tmp_path, hub):
    run(write_jsonl(tmp_path / "in.jsonl"), tmp_path / "out", keep_repeats=True)
    folder = tmp_path / "copy" / "data"
    folder.mkdir(parents=True)
    write_parquet(folder / "cot-00000-of-00002.parquet", TABLE[:7])
    write_parquet(folder / "cot-00001-of-00002.parquet", TABLE[7:])
    write_parquet(folder / "tir-00000-of-00001.parquet", [("Another split?", "1", GOOD, "n/a")])
    for path in folder.iterdir():
        name = f"/datasets/some/maths@c0ffee/data/{path.name}"
        hub.pipe(name, path.read_bytes())
    sources = {
        "shuffled": write_jsonl(tmp_path / "x.jsonl", random.Random(0).sample(TABLE, len(TABLE))),
        "folder": tmp_path / "copy",
        "hub": "some/maths",
    }
    for name, source in sources.items():
        manifest, _, _ = run(source, tmp_path / name, keep_repeats=True)
        assert content(tmp_path / name) == content(tmp_path / "out")
        assert manifest["commit"] == ("c0ffee" if name == "hub" else None)
    assert [Path(name).name[:9] for name in manifest["files"]] == ["cot-00000", "cot-00001"]


def test_numbers_and_text_beyond_ascii(tmp_path):
    """And an answer that cannot be verified is no answer, though it has two rows of three."""
    rows = [("Größe?", 18), ("b", 0.5), ("b", "{{"), ("b", "{{"), ("d", None)]
    write_lines(tmp_path / "in.jsonl", [dict(zip(COLUMNS, row, strict=False)) for row in rows])
    manifest, train, val = run(tmp_path / "in.jsonl", tmp_path / "out")
    answers = {row["problem"]: row["expected_answer"] for row in train + val}
    assert answers == {"Größe?": "18", "b": "0.5"}
    assert manifest["dropped_rows"] == {"empty_answer": 1, "unverifiable_answer": 2}


def line(**fields):
    return json.dumps(fields) + "\n"


GOOD_LINE = line(problem="a", expected_answer="1")
BAD_FILES = {
    "not JSON": (GOOD_LINE + "{oops\n", "in.jsonl, after row 1: cannot be read"),
    "not parquet": ("PAR1 no", "in.parquet, after row 0: cannot be read"),
    "no object": ("[1, 2]\n", "in.jsonl, row 1: no field 'problem'"),
    "no answer": (line(problem="a", answer="1"), "no field 'expected_answer' .it has: problem, an"),
    "boolean": (line(problem="a", expected_answer=True), "row 1: 'expected_answer' is a bool"),
    "no text": (line(problem="\ud800", expected_answer="1"), "surrogates not allowed"),
    "empty": ("", "0 usable problems in 0 rows"),
    "too few": (GOOD_LINE * 3, "1 usable problems in 3 rows .* too few for --val_size 1"),
}


@pytest.mark.parametrize("case", BAD_FILES)
def test_bad_files_are_refused_in_one_line_and_leave_nothing(case, tmp_path, capsys):
    data, message = BAD_FILES[case]
    source = tmp_path / ("in.parquet" if case == "not parquet" else "in.jsonl")
    out = tmp_path / "out"
    source.write_text(data)
    assert prepare_data.main(["--source", str(source), "--out", str(out), "--val_size", "1"]) == 2
    said = capsys.readouterr().err.splitlines()[-1]  # above it, how far the reading got
    assert said.startswith("error: ") and re.search(message, said)
    assert not out.exists()


def test_others_files_are_not_overwritten(tmp_path):
    source, out = write_jsonl(tmp_path / "in.jsonl"), tmp_path / "out"
    run(source, out)
    before = content(out)
    run(source, out)  # the same settings: the same files again
    with pytest.raises(InputError, match="made otherwise"):
        run(source, out, seed=1)
    (out / "manifest.json").unlink()
    with pytest.raises(InputError, match="made otherwise"):
        run(source, out)
    assert content(out) == before


def test_a_failure_while_writing_leaves_the_old_files(tmp_path, monkeypatch):
    source, out = write_jsonl(tmp_path / "in.jsonl"), tmp_path / "out"
    run(source, out)
    before = content(out)

    def full_disk(table, path, ranks):
        path.write_text("half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(prepare_data.Table, "write", full_disk)
    with pytest.raises(OSError, match="No space left"):
        run(source, out)
    assert content(out) == before
    assert sorted(path.name for path in out.iterdir()) == sorted(prepare_data.OUTPUTS)


# MATH has solutions, MATH-500 answers. Of the nine solutions below three can be trained on.
SOLUTIONS = {
    "train": [
        ("What is 1+1?", "We add: \\boxed{3}, no, \\boxed{2}."),  # the last box is the gold
        ("Half?", "It is $\\boxed{\\frac{1}{2}}$."),
        ("half? ", "Clearly \\boxed{\\frac{1}{2}}."),  # the same problem: a repeat
        ("No box?", "It is 5."),  # dropped: no_box
        ("Open box?", "\\boxed{5"),  # dropped: no_box
        ("Nonsense?", "\\boxed{\\frac{}{}}"),  # dropped: unverifiable_answer
    ],
    "test": [
        ("Held  OUT?", "\\boxed{7}"),  # dropped: in MATH-500, but for case and spacing
        ("Held out and useless?", "\\boxed{8}"),  # dropped: in MATH-500, where its gold is empty
        ("A third?", "\\boxed{\\frac{1}{3}}"),
    ],
}
MATH_500 = [("Held out?", "7"), ("Held out and useless?", ""), ("Only there?", "9")]
MATH_DROPPED = {"no_box": 2, "unverifiable_answer": 1, "in_validation": 2, "repeat": 1}


@pytest.fixture
def math(tmp_path, hub):
    """(a folder with MATH as its mirrors have it, MATH-500 as a file); the hub has the same."""
    folder, file = tmp_path / "MATH" / "data", tmp_path / "test.jsonl"
    folder.mkdir(parents=True)
    root = f"/datasets/{PROFILES['math'].hub_id}@c0ffee/data"
    for split, rows in SOLUTIONS.items():
        path = folder / f"{split}-00000-of-00001.parquet"
        pq.write_table(pa.Table.from_pylist([{"problem": q, "solution": a} for q, a in rows]), path)
        hub.pipe(f"{root}/{path.name}", path.read_bytes())
    file.write_text("".join(line(problem=q, answer=a, level="5") for q, a in MATH_500))
    hub.pipe(f"/datasets/{PROFILES['math500'].hub_id}@c0ffee/test.jsonl", file.read_bytes())
    return tmp_path / "MATH", file


def test_math_is_what_math_500_leaves_and_a_missing_split_is_not_passed_over(tmp_path, math):
    """Training on one of MATH's two splits, without a word, would be another experiment."""
    settings = {"profile": "math", "val_source": math[1], "val_size": None}
    manifest, *rows = run(math[0], tmp_path / "out", **settings)
    assert (manifest["rows_read"], manifest["dropped_rows"]) == (9, MATH_DROPPED)
    assert manifest["validation"]["dropped_rows"] == {"empty_answer": 1}
    train, val = ({row["problem"]: row["expected_answer"] for row in half} for half in rows)
    assert train == {"What is 1+1?": "2", "Half?": r"\frac{1}{2}", "A third?": r"\frac{1}{3}"}
    assert val == {"Held out?": "7", "Only there?": "9"}
    assert manifest["validation"]["files"] == [str(math[1])]
    (math[0] / "data/test-00000-of-00001.parquet").unlink()
    with pytest.raises(InputError, match=r"no \.jsonl or \.parquet file of a split 'test'"):
        run(math[0], tmp_path / "other", **settings)
    assert not (tmp_path / "other").exists()


def test_a_missing_file_is_prepared_by_the_profile_that_its_path_names(
    tmp_path, monkeypatch, math, capsys
):
    monkeypatch.chdir(tmp_path)
    out = tmp_path / "data/math"
    prepare_missing(["data/math/train.jsonl", "data/math/val.jsonl"])
    assert capsys.readouterr().out.count(" is missing: ") == 1  # once for both
    manifest = json.loads((out / "manifest.json").read_text())
    assert manifest["dropped_rows"] == MATH_DROPPED
    assert manifest["commit"] == manifest["validation"]["commit"] == "c0ffee"
    before = content(out)
    others = ["data/mine/train.jsonl", "data/math/other.jsonl", "math/val.jsonl", "val.jsonl"]
    prepare_missing(["data/math/train.jsonl", *others])
    assert content(out) == before
    assert capsys.readouterr().out == "" and not (tmp_path / "data/mine").exists()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"val_size": 0}, "val_size: 0: must be in"),
        ({"profile": "math", "val_size": 3}, "--val_size: math is validated on another data set"),
        ({"val_source": "x.jsonl"}, "--val_source: openmathreasoning is validated on problems of"),
        ({"profile": "math", "val_source": "x.jsonl"}, "x.jsonl: no .jsonl or .parquet file"),
        ({"profile": "math500"}, "no field 'answer' .it has: problem"),
    ],
)
def test_bad_settings(settings, message, tmp_path, math):
    with pytest.raises(ValueError, match=message):
        run(math[0], tmp_path / "out", **{"val_size": None} | settings)
    assert not (tmp_path / "out").exists()

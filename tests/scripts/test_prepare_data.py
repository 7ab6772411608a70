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
from plumbing.problems import normalise
from scripts import prepare_data
from scripts.prepare_data import arguments, prepare, prepare_missing
from scripts.sources import SOURCES

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


def line(row):
    return json.dumps(row) + "\n"


def write_jsonl(path, rows=TABLE):
    write_lines(path, [dict(zip(COLUMNS, row, strict=True)) for row in rows])
    return path


def as_bytes(name, rows):
    """The rows in the form that the file's name says."""
    if name.endswith(".parquet"):
        pq.write_table(
            pa.Table.from_pylist(rows), sink := pa.BufferOutputStream(), row_group_size=5
        )
        return sink.getvalue().to_pybytes()
    return (json.dumps(rows) if name.endswith(".json") else "".join(map(line, rows))).encode()


def flags(**settings):
    """Arguments of `prepare`; None is a flag not given, True one without a value."""
    given = {name: value for name, value in settings.items() if value is not None}
    return arguments([f"--{name}" + f"={x}" * (x is not True) for name, x in given.items()])


def run(copy, out, **settings):
    manifest = prepare(flags(**{"val_size": 1, "copy": copy, "out": out} | settings))
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

    def publish(hub_id, name, data):
        files.pipe(f"/datasets/{hub_id}@c0ffee/{name}", data)

    return publish


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
    copy, orders = write_jsonl(tmp_path / "in.jsonl"), set()
    texts = ["what is 1+1?", "find x.", "area?", "half?"]
    for seed in range(5):
        _, train, val = run(copy, tmp_path / str(seed), val_size=2, seed=seed)
        ranks = {hashlib.sha256(f"{seed}\n{text}".encode()).digest(): text for text in texts}
        in_order = [ranks[rank] for rank in sorted(ranks)]
        assert [normalise(row["problem"]) for row in val + train] == in_order
        orders.add(tuple(in_order))
    assert len(orders) > 1


def test_keep_repeats_keeps_every_training_row_and_no_validation_text(tmp_path):
    copy, seen = write_jsonl(tmp_path / "in.jsonl"), set()
    rows_of = {"what is 1+1?": 4, "find x.": 3, "area?": 1, "half?": 1}
    for seed in range(8):
        manifest, train, val = run(copy, tmp_path / f"all{seed}", seed=seed, keep_repeats=True)
        held_out = normalise(val[0]["problem"])
        seen.add(held_out)
        assert held_out not in {normalise(row["problem"]) for row in train}
        assert len(train) == manifest["train_rows"] == 9 - rows_of[held_out]
        assert 12 == len(train) + len(val) + sum(manifest["dropped_rows"].values())
        assert run(copy, tmp_path / f"distinct{seed}", seed=seed)[2] == val
    assert {"what is 1+1?", "find x."} <= seen  # problems with repeats were held out too


def test_order_format_and_place_make_no_difference(tmp_path, hub):
    run(write_jsonl(tmp_path / "in.jsonl"), tmp_path / "out", keep_repeats=True)
    folder = tmp_path / "copy" / "data"
    folder.mkdir(parents=True)
    parts = {"cot-00000-of-00002": TABLE[:7], "cot-00001-of-00002": TABLE[7:]}
    parts["tir-00000-of-00001"] = [("Another split?", "1", GOOD, "n/a")]
    for name, rows in parts.items():
        rows = [dict(zip(COLUMNS, row, strict=True)) for row in rows]
        (folder / f"{name}.parquet").write_bytes(data := as_bytes(f"{name}.parquet", rows))
        hub("some/maths", f"data/{name}.parquet", data)
    copies = {
        "shuffled": write_jsonl(tmp_path / "x.jsonl", random.Random(0).sample(TABLE, len(TABLE))),
        "folder": tmp_path / "copy",
        "hub": "some/maths",
    }
    for name, copy in copies.items():
        manifest, _, _ = run(copy, tmp_path / name, keep_repeats=True)
        assert content(tmp_path / name) == content(tmp_path / "out")
        assert manifest["commit"] == ("c0ffee" if name == "hub" else None)
    assert [Path(name).name[:9] for name in manifest["files"]] == ["cot-00000", "cot-00001"]


def test_numbers_and_text_beyond_ascii(tmp_path):
    """And an answer that cannot be verified is no answer, though it has two rows of three."""
    rows = [("Größe?", 18), ("b", 0.5), ("b", "{{"), ("b", "{{"), ("d", None)]
    write_lines(tmp_path / "in.jsonl", [dict(zip(COLUMNS, row, strict=False)) for row in rows])
    manifest, train, val = run(tmp_path / "in.jsonl", tmp_path / "out", source="own")
    answers = {row["problem"]: row["expected_answer"] for row in train + val}
    assert answers == {"Größe?": "18", "b": "0.5"}
    assert manifest["dropped_rows"] == {"empty_answer": 1, "unverifiable_answer": 2}


GOOD_LINE = line({"problem": "a", "expected_answer": "1"})
BAD_FILES = {
    "not JSON": (GOOD_LINE + "{oops\n", "in.jsonl, after row 1: cannot be read"),
    "not parquet": ("PAR1 no", "in.parquet, after row 0: cannot be read"),
    "no list": ('"a"', "in.json, row 1: no field 'expected_answer'"),
    "no object": ("[1, 2]\n", "in.jsonl, row 1: no field 'expected_answer' .it has: none"),
    "no answer": (line({"problem": "a", "answer": "1"}), "'expected_answer' .it has: problem, an"),
    "boolean": (line({"problem": "a", "expected_answer": True}), "'expected_answer' is a bool"),
    "no text": (line({"problem": "\ud800", "expected_answer": "1"}), "surrogates not allowed"),
    "empty": ("", "0 usable problems in 0 rows"),
    "too few": (GOOD_LINE * 3, "1 usable problems in 3 rows .* too few for --val_size 1"),
}


@pytest.mark.parametrize("case", BAD_FILES)
def test_bad_files_are_refused_in_one_line_and_leave_nothing(case, tmp_path, capsys):
    data, message = BAD_FILES[case]
    ending = {"not parquet": "parquet", "no list": "json"}.get(case, "jsonl")
    copy, out = tmp_path / f"in.{ending}", tmp_path / "out"
    copy.write_text(data)
    given = ["--source", "own", "--copy", str(copy), "--out", str(out), "--val_size", "1"]
    assert prepare_data.main(given) == 2
    said = capsys.readouterr().err.splitlines()[-1]  # above it, how far the reading got
    assert said.startswith("error: ") and re.search(message, said)
    assert not out.exists()


def test_others_files_are_not_overwritten(tmp_path):
    copy, out = write_jsonl(tmp_path / "in.jsonl"), tmp_path / "out"
    run(copy, out)
    before = content(out)
    run(copy, out)  # the same settings: the same files again
    with pytest.raises(InputError, match="made otherwise"):
        run(copy, out, seed=1)
    (out / "manifest.json").unlink()
    with pytest.raises(InputError, match="made otherwise"):
        run(copy, out)
    assert content(out) == before


def test_a_failure_while_writing_leaves_the_old_files(tmp_path, monkeypatch):
    copy, out = write_jsonl(tmp_path / "in.jsonl"), tmp_path / "out"
    run(copy, out)
    before = content(out)

    def full_disk(table, path, ranks):
        path.write_text("half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(prepare_data.Table, "write", full_disk)
    with pytest.raises(OSError, match="No space left"):
        run(copy, out)
    assert content(out) == before
    assert sorted(path.name for path in out.iterdir()) == ["manifest.json", *FILES]


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
MATH_DROPPED = {"no_box": 2, "unverifiable_answer": 1, "same_as_evaluation": 2, "repeat": 1}


@pytest.fixture
def math(tmp_path, hub):
    """(a folder with MATH as its mirrors have it, MATH-500 as a file); the hub has the same."""
    folder, file = tmp_path / "MATH" / "data", tmp_path / "test.jsonl"
    folder.mkdir(parents=True)
    for split, rows in SOLUTIONS.items():
        name = f"{split}-00000-of-00001.parquet"
        rows = [{"problem": q, "solution": a, "level": "Level 5"} for q, a in rows]
        (folder / name).write_bytes(data := as_bytes(name, rows))
        hub(SOURCES["math"].hub_id, f"data/{name}", data)
        hub(SOURCES["math"].hub_id, f"algebra/{name}", data)  # another config: the same again
    rows = [{"problem": q, "answer": a, "level": 5} for q, a in MATH_500]
    file.write_bytes(data := as_bytes("test.jsonl", rows))
    hub(SOURCES["math500"].hub_id, "test.jsonl", data)
    return tmp_path / "MATH", file


def test_math_is_what_math_500_leaves_and_a_missing_split_is_not_passed_over(tmp_path, math):
    """Training on one of MATH's two splits, without a word, would be another experiment."""
    settings = {"source": "math", "val_copy": math[1], "val_size": None}
    manifest, *rows = run(math[0], tmp_path / "out", **settings)
    assert (manifest["rows_read"], manifest["dropped_rows"]) == (9, MATH_DROPPED)
    assert manifest["validation"]["dropped_rows"] == {"empty_answer": 1}
    train, val = ({row["problem"]: row["expected_answer"] for row in half} for half in rows)
    assert train == {"What is 1+1?": "2", "Half?": r"\frac{1}{2}", "A third?": r"\frac{1}{3}"}
    assert val == {"Held out?": "7", "Only there?": "9"}
    assert manifest["validation"]["files"] == [str(math[1])]
    (math[0] / "data/test-00000-of-00001.parquet").unlink()
    with pytest.raises(InputError, match="file of a split 'test'"):
        run(math[0], tmp_path / "other", **settings)
    assert not (tmp_path / "other").exists()


def test_a_missing_file_is_prepared_by_the_source_that_its_path_names(
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
        ({"source": "maths"}, "invalid choice: 'maths' .choose from .*openmathreasoning"),
        ({"source": "own", "copy": None}, "--source own needs --copy FILE"),
        ({"source": "own", "val_copy": "x", "val_size": 1}, "own is validated on another data set"),
        ({"source": "math", "val_size": 3}, "--val_size: math is validated on another data set"),
        ({"val_copy": "x.jsonl"}, "--val_copy: openmathreasoning is validated on problems of its"),
        ({"source": "aime24", "against": "x.jsonl"}, "--against: aime24 is a test set, kept whole"),
        ({"against": "math"}, "--against math: it is no test set"),
        ({"against": "x.jsonl"}, "x.jsonl: no .jsonl, .parquet or .json file"),
        ({"source": "math", "val_copy": "x.jsonl"}, "x.jsonl: no .jsonl, .parquet or .json file"),
        ({"source": "numina"}, "no field 'answer' .it has: problem, solution, level"),
        ({"source": "dapo"}, "no field 'prompt' .it has: "),
    ],
)
def test_bad_settings(settings, message, tmp_path, math):
    with pytest.raises(ValueError, match=message):
        run(**{"copy": math[0], "out": tmp_path / "out", "val_size": None} | settings)
    assert not (tmp_path / "out").exists()


PART = "-00000-of-00001.parquet"
HEAD = (
    "Solve the following math problem step by step. The last line of your response should be of "
    "the form Answer: $Answer (without quotes) where $Answer is the answer to the problem.\n\n"
)
TAIL = '\n\nRemember to put your answer on its own line after "Answer:".'


def dapo(prompt, gold):
    chat = [{"content": prompt, "role": "user"}]
    return {"prompt": chat, "reward_model": {"ground_truth": gold, "style": "rule"}}


def numina(problem, answer, question="math-word-problem", valid="Yes", solved="Yes"):
    row = {"problem": problem, "answer": answer, "question_type": question, "source": "cn_k12"}
    return row | {"problem_is_valid": valid, "solution_is_valid": solved, "synthetic": False}


def rows_of(*rows, of=("problem", "answer")):
    return [dict(zip(of, row, strict=True)) for row in rows]


# Source -> its files, what is written of them, the rows that are dropped. One answer is no answer.
FORMS = {
    "gsm8k": (
        {
            f"main/train{PART}": rows_of(
                ("One?", "1+0=<<1+0=1>>1\n#### 1"),
                ("Many?", "#### 1,000"),
                ("None?", "It is 5"),
                ("Tested?", "#### 3"),
                of=("question", "answer"),
            ),
            f"main/test{PART}": rows_of(("Tested?", "#### 3"), of=("question", "answer")),
            f"socratic/train{PART}": rows_of(("Other?", "#### 9"), of=("question", "answer")),
        },
        {"One?": ("1",), "Many?": ("1000",), "Tested?": ("3",)},
        {"no_####": 1, "same_as_evaluation": 1},
    ),
    "gsm8k-test": (
        {
            f"main/{name}{PART}": [{"question": name, "answer": "#### 3"}]
            for name in ("test", "train")
        },
        {"test": ("3",)},
        {},
    ),
    "gsm8k-platinum": (
        {f"main/test{PART}": [{"question": "a", "answer": "#### 3", "cleaning_status": "revised"}]},
        {"a": ("3",)},
        {},
    ),
    "math500": (
        {"test.jsonl": rows_of(("a", "7", 5), ("A", "7", 5), of=("problem", "answer", "level"))},
        {"A": ("7", 5)},
        {"repeat": 1},
    ),
    "deepscaler": (
        {"deepscaler.json": rows_of(("a", "1"), ("b", "\\frac{1}{2}"), ("c", ""))},
        {"a": ("1",), "b": ("\\frac{1}{2}",)},
        {"empty_answer": 1},
    ),
    "dapo": (
        {
            "data/dapo-math-17k.parquet": 100 * [dapo(f"{HEAD}a\n\nb{TAIL}", "34")]
            + [dapo(f"{HEAD}c{TAIL}", "1"), dapo("Solve d", "1")]
        },
        {"a\n\nb": ("34",), "c": ("1",)},
        {"repeat": 99, "other_prompt": 1},
    ),
    "dapo-en": (
        {
            f"en/train{PART}": rows_of(
                ("a", "34"), (f"{HEAD}b{TAIL}", "1"), of=("prompt", "solution")
            ),
            f"all/train{PART}": rows_of(("汉", "1"), of=("prompt", "solution")),
        },
        {"a": ("34",), "b": ("1",)},
        {},
    ),
    "big-math": (
        {
            f"data/train{PART}": [
                {"problem": "a", "answer": "1", "source": "harp", "llama8b_solve_rate": 0.015625},
                {"problem": "b", "answer": "2", "source": "orca", "llama8b_solve_rate": None},
            ]
        },
        {"a": ("1", 0.015625, "harp"), "b": ("2", "orca")},
        {},
    ),
    "numina": (
        {
            f"data/train{PART}": [
                numina("a", "1"),
                numina("b", "B", "MCQ"),
                numina("c", "1", "proof"),
                numina("d", "proof"),
                numina("e", "Notfound"),
                numina("f", "1", valid="Incomplete"),
                numina("g", "1", solved="Problem not solved"),
                numina("h", None),
            ]
        },
        {"a": ("1", "cn_k12"), "b": ("B", "cn_k12")},
        {"question_type=proof": 1, "answer=proof": 1, "answer=notfound": 1, "empty_answer": 1}
        | {"other_problem_is_valid": 1, "other_solution_is_valid": 1},
    ),
    "deepmath": (
        {
            f"data/train{PART}": rows_of(
                ("a", "0", 5.5), ("b", "1", 8.0), of=("question", "final_answer", "difficulty")
            )
        },
        {"a": ("0", 5.5), "b": ("1", 8.0)},
        {},
    ),
    "aime24": ({f"data/train{PART}": rows_of(("a", "033"))}, {"a": ("033",)}, {}),
    "aime25": ({"test.jsonl": rows_of(("a", "70"))}, {"a": ("70",)}, {}),
    "amc23": (
        {f"test{PART}": rows_of(("a", "27.0"), of=("question", "answer"))},
        {"a": ("27.0",)},
        {},
    ),
}


@pytest.mark.parametrize("name", [*FORMS])
def test_a_source_in_the_form_that_the_hub_has(name, tmp_path, hub):
    """What is written of a problem: its answer, pass rate, difficulty or origin, in this order."""
    files, expected, dropped = FORMS[name]
    known, out = SOURCES[name], tmp_path / "out"
    for path, rows in files.items():
        hub(known.hub_id, path, as_bytes(path, rows))
    own = None if known.held_out or known.evaluation else 1
    manifest = prepare(flags(source=name, out=out, val_size=own))
    rows = [row for file in out.glob("*.jsonl") for row in read_lines(file)]
    assert {row.pop("problem"): tuple(row.values()) for row in rows} == expected
    names = {"expected_answer", "pass_rate", known.keep}
    assert all(set(row) <= names for row in rows) and manifest["dropped_rows"] == dropped
    assert (out / "train.jsonl").exists() != known.evaluation


def test_every_source_has_a_form_above():
    assert {*FORMS, "openmathreasoning", "math", "own"} == set(SOURCES)


def test_problems_of_the_files_against_are_dropped_counted_and_shown(tmp_path, hub):
    problems = ["What is 7 + 5?", "what is $7+5$", "What is 7 + 6?", "Else?", "Another?"]
    write_lines(
        copy := tmp_path / "in.jsonl", rows_of(*((p, "1") for p in problems), of=COLUMNS[:2])
    )
    write_lines(test := tmp_path / "test.jsonl", [{"problem": "What is 7 + 5 ?"}])  # needs no gold
    hub(SOURCES["aime25"].hub_id, "test.jsonl", as_bytes("x.jsonl", rows_of(("else", "1"))))
    settings = flags(source="own", copy=copy, out=tmp_path / "out", val_size=1)
    settings.against = [str(test), "aime25"]
    found = (manifest := prepare(settings))["decontamination"]
    assert manifest["dropped_rows"] == {"same_as_evaluation": 3}
    assert manifest["train_rows"] + manifest["val_rows"] == 2
    assert found["evaluation_problems"] == 2
    assert found["dropped_problems"] == {"same_as_evaluation": 3}
    shown = {row["training"]: row["evaluation"] for row in found["examples"]["same_as_evaluation"]}
    assert shown == dict.fromkeys(problems[:2], "What is 7 + 5 ?") | {"Else?": "else"}


def test_a_file_of_ones_own_without_another(tmp_path):
    """Its other columns stay, of Parquet too."""
    rows = rows_of(("a", "1"), ("b", "2"), of=COLUMNS[:2])
    rows[0] |= {"topic": "sums", "extra_info": {"of": [1, 2]}}
    rows[1] |= {"topic": None, "extra_info": None}
    copies = [tmp_path / "a.jsonl", tmp_path / "a.parquet"]
    write_lines(copies[0], rows)
    pq.write_table(pa.Table.from_pylist(rows), copies[1])
    write_lines(other := tmp_path / "b.jsonl", rows_of(("B", "2"), of=COLUMNS[:2]))
    for copy in copies:
        how = {"source": "own", "val_copy": other, "val_size": None}
        _, train, val = run(copy, tmp_path / copy.suffix, **how)
        assert (train, [row["problem"] for row in val]) == (rows[:1], ["B"])

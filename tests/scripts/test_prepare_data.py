"""prepare_data: what becomes of every row of small tables, and rejected input."""

import hashlib
import json
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import pytest
from fsspec.implementations.dirfs import DirFileSystem

from plumbing.files import read_lines
from scripts import prepare_data
from scripts.prepare_data import arguments, prepare
from scripts.sources import SOURCES
from tests.helpers.checks import rejected
from tests.helpers.files import write
from tests.helpers.models import ROOT
from verify import Verifier

OWN, QUESTION, MATH = "problem expected_answer", "question answer", "problem solution level"
PART = "-00000-of-00001.parquet"


def table(columns, *rows):
    return [dict(zip(columns.split(), row, strict=True)) for row in rows]


def run(copy, out, flags="--val_size 1", source="own"):
    """Return the manifest and the rows of both files, [] without a file."""
    manifest = prepare(arguments(f"--source {source} {copy} --out {out} {flags}".split()))
    return manifest, read_lines(out / "train.jsonl"), read_lines(out / "val.jsonl")


def answers(rows):
    return {row["problem"]: row["expected_answer"] for row in rows}


@pytest.fixture(autouse=True, scope="module")
def verifier():
    """Share one pool of workers, as starting them takes a second."""
    with Verifier(workers=1) as verifier, pytest.MonkeyPatch.context() as patch:
        shared = nullcontext(verifier)
        patch.setattr(
            prepare_data,
            "Verifier",
            lambda workers, reward: Verifier(1, reward=reward) if reward else shared,
        )
        yield verifier


ROWS = {  # source, rows in, rows out, dropped
    "the first of repeated problems, whatever its case, spaces and Unicode forms": (
        "own",
        table(OWN + " n", ("Is 1?", "1", 5), ("is  1?", "2", 6), (" ｉS\u00a01? ", "1", 7)),
        table(OWN + " n", ("Is 1?", "1", 5)),
        {"repeat": 2},
    ),
    "the first of other answers that can be verified": (
        "own",
        table(OWN, ("x", "{{"), ("x", "4"), ("x", "5"), ("x", "5")),
        table(OWN, ("x", "4")),
        {"unverifiable_answer": 1, "repeat": 2},
    ),
    "empty": (
        "own",
        table(OWN, ("x", "  "), (" ", "7"), (None, "7"), ("y", None), ("z", "7")),
        table(OWN, ("z", "7")),
        {"no_answer": 2, "no_problem": 2},
    ),
    "without a field, after the first row": (
        "own",
        [*table(OWN, ("z", "7")), {"problem": "y"}, {"expected_answer": "7"}],
        table(OWN, ("z", "7")),
        {"no_answer": 1, "no_problem": 1},
    ),
    "the last box": (
        "math",
        table(MATH, ("x", "\\boxed{3}, no, \\boxed{2}.", "5"), ("y", "It is 5.", "5")),
        table(OWN + " level", ("x", "2", "5")),
        {"no_answer": 1},
    ),
    "what follows the mark": (
        "gsm8k",
        table(QUESTION, ("x", "1+0=<<1+0=1>>1\n#### 1"), ("y", "#### 1,000"), ("z", "#### (1,2)")),
        table(OWN, ("x", "1"), ("y", "1,000"), ("z", "(1,2)")),
        {},
    ),
}


@pytest.mark.parametrize("case", ROWS)
def test_every_row_is_kept_or_counted(case, tmp_path, verifier):
    name, rows, expected, dropped = ROWS[case]
    file = write(tmp_path / "in.jsonl", rows)
    usable, facts = prepare_data.load(replace(SOURCES[name], hub_id=str(file)), verifier)
    assert [json.loads(lines[0]) for lines in usable.values()] == expected
    assert facts["dropped_rows"] == dropped
    assert facts["rows_read"] == len(rows)


def test_both_files_are_ranked_by_sha_256_and_may_keep_repeats(tmp_path):
    rows = table(OWN, *((text, "1") for text in "abcdef")) * 2
    file = write(tmp_path / "in.json", rows)
    _, train, val = run(file, tmp_path / "out", "--val_size 2 --keep_repeats")
    rows.sort(key=lambda row: hashlib.sha256(f"0\n{row['problem']}".encode()).digest())
    first, second, *rest = rows[::2]
    assert val == [first, second]
    assert train == [row for row in rest for _ in range(2)]


def test_a_data_set_of_the_hub_is_read_at_its_commit_and_only_its_split(tmp_path, monkeypatch):
    rows = table(OWN + " pass_rate_72b_tir", ("a", "1", "0.5"), ("b", "2", "n/a"))
    folder = tmp_path / "datasets/some/maths@c0ffee/data"
    write(folder / f"cot{PART}", rows)
    write(folder / f"tir{PART}", table(OWN, ("Another split?", "1")))
    info = type("Info", (), {"sha": "c0ffee"})
    monkeypatch.setattr(prepare_data.HfApi, "dataset_info", lambda self, name: info)
    hub = DirFileSystem(str(tmp_path))
    monkeypatch.setattr(prepare_data, "url_to_fs", lambda url: (hub, url.removeprefix("hf://")))
    manifest, train, val = run("some/maths", tmp_path / "out", source="openmathreasoning")
    assert manifest["source"] == "hf://datasets/some/maths@c0ffee"
    assert sorted(train + val, key=str) == rows


def test_training_problems_that_are_also_validated_on_are_dropped_and_counted(tmp_path):
    """Also where only punctuation, case and spaces differ."""
    problems = ["What is 7 + 5?", "what is $7+5$", "What is 7 + 6?", "Held out", "Other?"]
    copy = write(tmp_path / "in.jsonl", table(QUESTION, *((problem, "1") for problem in problems)))
    rows = table(QUESTION, ("held  out!", "2"), ("What is 7 + 5 ?", "12"))
    held_out = write(tmp_path / "val.parquet", rows)
    flags = f"--problem question --gold answer --val_copy {held_out}"
    manifest, train, val = run(copy, tmp_path / "out", flags)
    assert sorted(answers(train)) == ["Other?", "What is 7 + 6?"]
    assert answers(val) == {"held  out!": "2", "What is 7 + 5 ?": "12"}
    assert manifest["dropped_rows"] == {"same_as_evaluation": 3}


def test_math_trains_on_all_but_math_500_and_needs_both_splits(tmp_path):
    """Training on one of MATH's two splits would silently be another experiment."""
    folder = tmp_path / "MATH"
    write(folder / f"data/train{PART}", table(MATH, ("1+1?", "\\boxed{2}", "5")))
    write(folder / f"data/test{PART}", table(MATH, ("Held  OUT?", "\\boxed{7}", "5")))
    held_out = write(tmp_path / "m.jsonl", table("problem answer level", ("Held out?", "7", 5)))
    _, train, val = run(folder, tmp_path / "out", f"--val_copy {held_out}", "math")
    assert (answers(train), answers(val)) == ({"1+1?": "2"}, {"Held out?": "7"})
    (folder / f"data/test{PART}").unlink()
    with rejected("file data/test*"):
        run(folder, tmp_path / "other", f"--val_copy {held_out}", "math")


@pytest.mark.parametrize("name", ["exp[12]", "x::file:y", "~"])
def test_a_name_that_looks_like_a_pattern_or_url_is_a_name(name, tmp_path, monkeypatch):
    """Of a folder with a file. The pattern would match its neighbours, or nothing."""
    monkeypatch.chdir(tmp_path)
    for neighbour in ("exp1", "y"):
        write(tmp_path / neighbour / "train.jsonl", table(OWN, ("no", "0")))
    write(tmp_path / name / f"train{name}.jsonl", table(OWN, ("a", "1"), ("b", "2")))
    _, train, val = run(name, tmp_path / "out")
    assert answers(train + val) == {"a": "1", "b": "2"}


def test_a_test_set_is_written_whole(tmp_path):
    write(tmp_path / f"data/train{PART}", table("problem answer", ("a", "033"), ("b", "7")))
    _, _, val = run(tmp_path, tmp_path / "out", "", "aime24")
    assert answers(val) == {"a": "033", "b": "7"}
    assert not (tmp_path / "out/train.jsonl").exists()


def test_the_first_three_problems_of_each_reason_to_drop_rows_are_kept_in_the_manifest(tmp_path):
    """With their answers, and the beginning of a long problem."""
    long = "l" * 100
    unusable = [("a", "or"), ("b", "tr"), ("c", "or"), ("d", "tr"), (long, "")]
    file = write(tmp_path / "in.jsonl", table(OWN, *unusable, ("e", "4"), ("f", "5")))
    manifest, _, _ = run(file, tmp_path / "out")
    assert manifest["dropped_examples"] == {
        "no_answer": {long[:80]: ""},
        "unverifiable_answer": {"a": "or", "b": "tr", "c": "or"},
    }


@pytest.mark.parametrize("flags", ["", f" --reward {ROOT / 'rewards/exact.py'}"])
def test_where_most_answers_are_letters_another_reward_is_suggested_that_keeps_them(
    flags, tmp_path, capsys
):
    """By default two letters are a product. The fourth answer is a choice, and no word."""
    rows = table(OWN, ("a", "or"), ("b", "gl"), ("c", "gfdk"), ("d", "A"))
    file = write(tmp_path / "in.jsonl", rows)
    manifest, _, _ = run(file, tmp_path / "out", "--val_size 1" + flags)
    suggestion = "3 of 4 reference answers are letters alone, such as 'or'"
    assert manifest["dropped_rows"] == ({} if flags else {"unverifiable_answer": 1})
    assert (suggestion in capsys.readouterr().out) == (not flags)


def test_a_custom_reward_gets_the_other_columns_that_it_gets_in_training(tmp_path):
    """Many of verl's rewards choose the comparison by data_source."""
    reward = tmp_path / "by_source.py"
    reward.write_text(
        "def compute_score(data_source, solution_str, ground_truth, extra_info=None):\n"
        "    return int(data_source == 'mine' and extra_info['unit'] == 'km')\n"
    )
    rows = table(
        OWN + " data_source extra_info",
        ("a", "7", "mine", {"unit": "km"}),
        ("b", "7", "mine", {"unit": "km"}),
        ("c", "7", "mine", {"unit": "m"}),
        ("d", "7", None, None),
    )
    file = write(tmp_path / "in.jsonl", rows)
    manifest, train, val = run(file, tmp_path / "out", f"--val_size 1 --reward {reward}")
    assert sorted(answers(train + val)) == ["a", "b"]
    assert manifest["dropped_rows"] == {"unverifiable_answer": 2}


SPELLINGS = {  # whether two problems are the same, but for punctuation
    ("Is 12 × 4 > 3?", "is 12 × 4>3"): True,
    ("5 \N{MINUS SIGN} 3", "5 - 3."): True,
    ("Add 1,234 and 5.", "Add 1234 and 5"): True,
    ("12 × 4", "12 ÷ 4"): False,
    ("x ≤ 3", "x ≥ 3"): False,
    ("What is 3.5 + 2?", "What is 35 + 2?"): False,
}


@pytest.mark.parametrize("pair", SPELLINGS)
def test_signs_and_decimal_points_are_no_punctuation(pair):
    one, other = (prepare_data.overlap_key(json.dumps({"problem": text})) for text in pair)
    assert (one == other) == SPELLINGS[pair]


REJECTED = {  # flags -> message
    "own bool.jsonl": "bool.jsonl, line 2: True, a bool, no text",
    "own half.jsonl": "half.jsonl, line 2: 'utf-8' codec can't encode",
    "own one.jsonl --val_size 1": "too few usable problems",
    "own": "--source own needs FILE",
    "own one.jsonl --gold problem": "--problem problem --gold problem: one field for both",
    "own two.jsonl --gold answer": "two.jsonl, line 1: fields 'answer' and 'expected_answer' would",
    "own cut.json": "cut.json: damaged (Expecting",
    "own nowhere": "nowhere: no such file, nor on the hub",
    "own one.jsonl --out .": ". exists: choose another --out",
}


@pytest.mark.parametrize("flags", REJECTED)
def test_bad_input_is_rejected_and_nothing_is_written(flags, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write(Path("one.jsonl"), table(OWN, ("a", "1")) * 3)
    write(Path("bool.jsonl"), table(OWN, ("a", "1"), ("b", True)))
    write(Path("two.jsonl"), table(OWN + " answer", ("a", "1", "2")))
    write(Path("half.jsonl"), table(OWN + " note", ("a", "1", ""), ("b", "2", "\ud800")))
    Path("cut.json").write_text('[{"problem": ')
    before = {*Path().rglob("*")}
    with rejected(REJECTED[flags]):
        prepare(arguments(f"--source {flags}".split()))
    assert {*Path().rglob("*")} == before

"""prepare_data: twelve rows whose fate is read off the table below, and every input that must be refused."""

import hashlib
import json
import random
import re
import sys
from contextlib import nullcontext
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "scripts"))
import prepare_data
from prepare_data import DataError, normalise, prepare, rank_of

GOOD, VOTE = "has_answer_extracted", "no_answer_extracted"
COLUMNS = ("problem", "expected_answer", "problem_type", "pass_rate_72b_tir", "generated_solution")
TABLE = [  # 4 distinct usable problems: "what is 1+1?", "find x.", "area?", "half?"
    ("What is 1+1?", "2", GOOD, "0.5", "long solution"),
    ("what is  1+1?", "2", GOOD, "0.5", "another"),  # case and spacing: the same problem
    (" What is\n1+1? ", "2", GOOD, "0.5", ""),
    (
        "What is 1+1?",
        "2",
        GOOD,
        "0.5",
        "",
    ),  # the first row again, so the first row's text is the commonest
    ("Find x.", "3", GOOD, "n/a", ""),
    ("Find x.", "4", GOOD, "n/a", ""),  # another answer: 2 rows to 1 for "4"
    ("FIND X.", "4", GOOD, "n/a", ""),
    ("Area?", "\\frac{1}{2}", GOOD, "1.0", ""),
    ("Half?", "\\frac{1}{2}", GOOD, None, ""),
    ("Prove it.", "5", VOTE, "0.1", ""),  # dropped: other_problem_type
    ("Empty?", "  ", GOOD, "0.1", ""),  # dropped: empty_answer
    (" ", "7", GOOD, "0.1", ""),  # dropped: empty_problem
]
DROPPED = {"other_problem_type": 1, "empty_answer": 1, "empty_problem": 1}


def write_jsonl(path, rows=TABLE):
    path.write_text(
        "".join(json.dumps(dict(zip(COLUMNS, row, strict=True))) + "\n" for row in rows)
    )
    return path


def write_parquet(path, rows=TABLE):
    pq.write_table(
        pa.Table.from_pylist([dict(zip(COLUMNS, row, strict=True)) for row in rows]),
        path,
        row_group_size=5,
    )
    return path


def run(source, out, **settings):
    settings = {"val_size": 1, "workers": 1, "progress": False} | settings
    manifest = prepare(str(source), str(out), **settings)
    assert sorted(path.name for path in out.iterdir()) == [
        "manifest.json",
        "train.jsonl",
        "val.jsonl",
    ]
    train, val = (
        [json.loads(line) for line in (out / name).read_text().splitlines()]
        for name in ("train.jsonl", "val.jsonl")
    )
    return manifest, train, val


def content(out):
    return [(out / name).read_bytes() for name in ("train.jsonl", "val.jsonl")]


@pytest.fixture(autouse=True, scope="module")
def one_verifier():
    """Starting workers takes a second, so the tests of this file share one pool."""
    with prepare_data.Verifier(workers=1) as shared, pytest.MonkeyPatch.context() as patch:
        patch.setattr(prepare_data, "Verifier", lambda workers: nullcontext(shared))
        yield


@pytest.mark.parametrize(
    "text", ["what is x²?", " What  is\tX2? ", "WHAT IS\n\nx²?", "ｗhat is\u00a0x2?"]
)
def test_normalised_text(text):
    assert normalise(text) == "what is x2?"


def test_twelve_rows_by_hand(tmp_path):
    manifest, train, val = run(write_jsonl(tmp_path / "in.jsonl"), tmp_path / "out")
    # 4 + 3 + 1 + 1 = 9 usable rows, of which 4 are written. 1+1: 3 repeats. x: 1 repeat and 1 conflict.
    assert manifest["rows_read"] == 12
    assert manifest["dropped_rows"] == DROPPED | {"repeat": 4, "conflicting_answer": 1}
    assert (manifest["problems"], manifest["train_rows"], manifest["val_rows"]) == (4, 3, 1)
    assert manifest["problems_with_conflicting_answers"] == 1
    rows = {row["problem"]: row for row in train + val}
    assert rows == {
        "What is 1+1?": {"problem": "What is 1+1?", "expected_answer": "2", "pass_rate": 0.5},
        "FIND X.": {
            "problem": "FIND X.",
            "expected_answer": "4",
        },  # with "4" both texts once: the first
        "Area?": {"problem": "Area?", "expected_answer": "\\frac{1}{2}", "pass_rate": 1.0},
        "Half?": {"problem": "Half?", "expected_answer": "\\frac{1}{2}"},
    }


def test_validation_is_the_smallest_ranks_of_the_normalised_texts(tmp_path):
    source = write_jsonl(tmp_path / "in.jsonl")
    texts = ["what is 1+1?", "find x.", "area?", "half?"]
    for seed in range(5):
        _, train, val = run(source, tmp_path / str(seed), val_size=2, seed=seed)
        in_order = sorted(
            texts, key=lambda text: hashlib.sha256(f"{seed}\n{text}".encode()).digest()
        )
        assert [normalise(row["problem"]) for row in val + train] == in_order


def test_seeds_choose_differently(tmp_path):
    assert (
        len({min(["a", "b", "c", "d"], key=lambda text: rank_of(text, seed)) for seed in range(20)})
        > 1
    )


def test_keep_repeats_keeps_every_training_row_and_no_validation_text(tmp_path):
    source = write_jsonl(tmp_path / "in.jsonl")
    rows_of = {"what is 1+1?": 4, "find x.": 3, "area?": 1, "half?": 1}
    seen = set()
    for seed in range(8):
        manifest, train, val = run(source, tmp_path / f"all{seed}", seed=seed, keep_repeats=True)
        held_out = normalise(val[0]["problem"])
        seen.add(held_out)
        assert held_out not in {normalise(row["problem"]) for row in train}
        assert len(train) == manifest["train_rows"] == 9 - rows_of[held_out]
        assert manifest["rows_read"] == len(train) + len(val) + sum(
            manifest["dropped_rows"].values()
        )
        _, distinct, same_val = run(source, tmp_path / f"distinct{seed}", seed=seed)
        assert same_val == val
        assert len(distinct) == 3
    assert {"what is 1+1?", "find x."} <= seen  # problems with repeats were held out too


def test_order_format_and_folders_make_no_difference(tmp_path):
    run(write_jsonl(tmp_path / "in.jsonl"), tmp_path / "out", keep_repeats=True)
    shuffled = random.Random(0).sample(TABLE, len(TABLE))
    run(
        write_jsonl(tmp_path / "shuffled.jsonl", shuffled), tmp_path / "shuffled", keep_repeats=True
    )
    run(write_parquet(tmp_path / "in.parquet"), tmp_path / "parquet", keep_repeats=True)
    folder = tmp_path / "copy" / "data"
    folder.mkdir(parents=True)
    write_parquet(folder / "cot-00000-of-00002.parquet", TABLE[:7])
    write_parquet(folder / "cot-00001-of-00002.parquet", TABLE[7:])
    write_parquet(folder / "tir-00000-of-00001.parquet", [("Another split?", "1", GOOD, "n/a", "")])
    manifest, _, _ = run(tmp_path / "copy", tmp_path / "folder", keep_repeats=True)
    assert [Path(name).name[:9] for name in manifest["files"]] == ["cot-00000", "cot-00001"]
    assert content(tmp_path / "out") == content(tmp_path / "shuffled")
    assert (
        content(tmp_path / "out") == content(tmp_path / "parquet") == content(tmp_path / "folder")
    )


def test_manifest_hashes_and_settings(tmp_path):
    run(write_jsonl(tmp_path / "in.jsonl"), tmp_path / "out", seed=3)
    manifest = json.loads((tmp_path / "out" / "manifest.json").read_text())
    for name, digest in manifest["sha256"].items():
        assert digest == hashlib.sha256((tmp_path / "out" / name).read_bytes()).hexdigest()
    assert manifest["settings"]["seed"] == 3
    assert "NFKC" in manifest["settings"]["normalisation"]


def test_unverifiable_answers_are_dropped_and_each_answer_is_checked_once(tmp_path, monkeypatch):
    asked = []

    class Picky:
        def __init__(self, workers):
            pass

        def __enter__(self):
            return self

        def __exit__(self, *_):
            pass

        def check_golds(self, golds):
            asked.extend(golds)
            return [gold != "4" for gold in golds]

    monkeypatch.setattr(prepare_data, "Verifier", Picky)
    monkeypatch.setattr(prepare_data, "BATCH", 2)
    manifest, _, _ = run(write_jsonl(tmp_path / "in.jsonl"), tmp_path / "out")
    assert sorted(asked) == ["2", "3", "4", "\\frac{1}{2}"]
    assert manifest["dropped_rows"] == DROPPED | {"unverifiable_answer": 2, "repeat": 3}


def test_the_real_verifier_decides(tmp_path):
    rows = [
        ("a?", "\\frac{3}{4}", GOOD, None, ""),
        ("b?", "12", GOOD, None, ""),
        ("c?", "{{{", GOOD, None, ""),
    ]
    manifest, train, val = run(write_jsonl(tmp_path / "in.jsonl", rows), tmp_path / "out")
    assert manifest["dropped_rows"] == {"unverifiable_answer": 1}
    assert {row["problem"] for row in train + val} == {"a?", "b?"}


def test_plain_files_numbers_and_text_beyond_ascii(tmp_path):
    rows = [{"problem": "Größe?", "expected_answer": 18}, {"problem": "b", "expected_answer": 0.5}]
    bad = '{"problem": "c \\ud800", "expected_answer": "1"}\n\n{"problem": "d", "expected_answer": null}\n'
    (tmp_path / "in.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows) + bad)
    manifest, train, val = run(tmp_path / "in.jsonl", tmp_path / "out")
    assert {row["problem"]: row["expected_answer"] for row in train + val} == {
        "Größe?": "18",
        "b": "0.5",
    }
    assert manifest["dropped_rows"] == {"not_unicode": 1, "empty_answer": 1}


def test_a_hub_dataset_is_read_by_split_and_by_column(tmp_path, monkeypatch):
    import huggingface_hub
    from fsspec.implementations.memory import MemoryFileSystem

    hub = MemoryFileSystem()
    root = "/datasets/someone/maths@c0ffee/data"
    hub.makedirs(root)
    for name, rows in (
        ("cot-0.parquet", TABLE[:5]),
        ("cot-1.parquet", TABLE[5:]),
        ("tir-0.parquet", TABLE),
    ):
        hub.pipe(f"{root}/{name}", write_parquet(tmp_path / name, rows).read_bytes())

    class Api:
        def dataset_info(self, name, revision):
            assert (name, revision) == ("someone/maths", "v1")
            return type("Info", (), {"sha": "c0ffee"})

    monkeypatch.setattr(huggingface_hub, "HfApi", Api)
    monkeypatch.setattr(huggingface_hub, "HfFileSystem", lambda: hub)
    manifest, _, _ = run("someone/maths", tmp_path / "hub", revision="v1")
    run(write_jsonl(tmp_path / "in.jsonl"), tmp_path / "local")
    assert content(tmp_path / "hub") == content(tmp_path / "local")
    assert manifest["commit"] == "c0ffee"
    with pytest.raises(DataError, match=r"someone/maths: has no .* of a split 'genselect'"):
        run("someone/maths", tmp_path / "no", revision="v1", split="genselect")


def line(**fields):
    return json.dumps(fields) + "\n"


BAD_FILES = {
    "not JSON": (line(problem="a", expected_answer="1") + "{oops\n", "in.jsonl, line 2: not JSON"),
    "not UTF-8": (b'{"problem": "\xff\xfe"}\n', "in.jsonl, line 1: not JSON"),
    "no object": ("[1, 2]\n", "in.jsonl, line 1: no field 'problem'"),
    "no answer": (
        "\n" + line(problem="a", answer="1"),
        r"line 2: no field 'expected_answer' \(it has: problem, answer",
    ),
    "wrong type": (
        line(problem=["a"], expected_answer="1"),
        "line 1: 'problem' is a list, expected text",
    ),
    "boolean": (line(problem="a", expected_answer=True), "line 1: 'expected_answer' is a bool"),
    "empty": ("", "0 usable problems in 0 rows"),
    "too few": (
        line(problem="a", expected_answer="1") * 3,
        "1 usable problems in 3 rows .* val_size 1",
    ),
}


@pytest.mark.parametrize("case", BAD_FILES)
def test_bad_files_are_refused_in_one_line_and_leave_nothing(case, tmp_path, capsys):
    data, message = BAD_FILES[case]
    (tmp_path / "in.jsonl").write_bytes(data if isinstance(data, bytes) else data.encode())
    arguments = [
        "--source",
        str(tmp_path / "in.jsonl"),
        "--out",
        str(tmp_path / "out"),
        "--val_size",
        "1",
    ]
    with pytest.raises(SystemExit) as stop:
        prepare_data.main(arguments)
    assert stop.value.code == 2
    said = capsys.readouterr().err.splitlines()[-1]  # above it, how far the reading got
    assert said.startswith("prepare_data: ") and re.search(message, said)
    assert not (tmp_path / "out").exists()


def test_bad_sources(tmp_path):
    (tmp_path / "broken.parquet").write_bytes(b"PAR1 no")
    (tmp_path / "in.csv").write_text("problem,expected_answer\n")
    (tmp_path / "empty").mkdir()
    pq.write_table(pa.table({"question": ["a"]}), tmp_path / "other.parquet")
    for source, message in {
        tmp_path / "missing.jsonl": "no such file or folder",
        tmp_path / "broken.parquet": "broken.parquet: cannot be read",
        tmp_path / "other.parquet": r"other.parquet: no field 'problem' \(it has: question\)",
        tmp_path / "in.csv": "expected a .jsonl or a .parquet file",
        tmp_path / "empty": "no .jsonl or .parquet file",
        "data/missing.parquet": "no such file or folder",
    }.items():
        with pytest.raises(DataError, match=message):
            run(source, tmp_path / "out")
        assert not (tmp_path / "out").exists()
    with pytest.raises(DataError, match="val_size 0"):
        run(write_jsonl(tmp_path / "in.jsonl"), tmp_path / "out", val_size=0)


def test_without_a_network_the_advice_is_a_local_copy(tmp_path, monkeypatch):
    import huggingface_hub

    def unreachable(self, *_, **__):
        raise ConnectionError("Name or service not known\nmore lines")

    monkeypatch.setattr(huggingface_hub.HfApi, "dataset_info", unreachable)
    with pytest.raises(
        DataError, match=r"nvidia/OpenMathReasoning: .*not known\).*local copy"
    ) as error:
        prepare(out=str(tmp_path / "out"), progress=False)
    assert "\n" not in str(error.value)
    assert not (tmp_path / "out").exists()


def test_others_files_are_not_overwritten(tmp_path):
    source, out = write_jsonl(tmp_path / "in.jsonl"), tmp_path / "out"
    run(source, out)
    before = content(out)
    run(source, out)  # the same settings: the same files again
    assert content(out) == before
    with pytest.raises(DataError, match=r"made otherwise \(seed was 0\)"):
        run(source, out, seed=1)
    assert content(out) == before
    run(source, out, seed=1, overwrite=True)
    assert json.loads((out / "manifest.json").read_text())["settings"]["seed"] == 1
    (out / "manifest.json").unlink()
    with pytest.raises(DataError, match="no readable manifest"):
        run(source, out)
    with pytest.raises(DataError, match="would overwrite its own source"):
        run(out, out, overwrite=True)
    assert len((out / "train.jsonl").read_text().splitlines()) == 3


def test_a_failure_while_writing_leaves_the_old_files(tmp_path, monkeypatch):
    source, out = write_jsonl(tmp_path / "in.jsonl"), tmp_path / "out"
    run(source, out)
    before = content(out)

    def full_disk(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(prepare_data, "write_files", full_disk)
    with pytest.raises(DataError, match="No space left"):
        run(source, out, seed=1, overwrite=True)
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
MATH_DROPPED |= {"validation_empty_answer": 1}


def math_rows(rows, gold):
    return [{"problem": q, gold: a, "level": "Level 5", "type": "Algebra"} for q, a in rows]


def write_math(folder):
    """A folder with MATH as its mirrors have it, and MATH-500 as a file; returns both."""
    (folder / "MATH" / "data").mkdir(parents=True)
    for split, rows in SOLUTIONS.items():
        path = folder / "MATH" / "data" / f"{split}-00000-of-00001.parquet"
        pq.write_table(pa.Table.from_pylist(math_rows(rows, "solution")), path)
    lines = "".join(json.dumps(row) + "\n" for row in math_rows(MATH_500, "answer"))
    (folder / "test.jsonl").write_text(lines)
    return folder / "MATH", folder / "test.jsonl"


def check_math(manifest, train, val):
    assert (manifest["rows_read"], manifest["dropped_rows"]) == (12, MATH_DROPPED)
    assert {row["problem"]: row["expected_answer"] for row in train} == {
        "What is 1+1?": "2",
        "Half?": "\\frac{1}{2}",
        "A third?": "\\frac{1}{3}",
    }
    assert {row["problem"]: row["expected_answer"] for row in val} == {
        "Held out?": "7",
        "Only there?": "9",
    }


def test_math_is_what_math_500_leaves(tmp_path):
    source, val_source = write_math(tmp_path)
    settings = {"profile": "math", "val_source": str(val_source), "val_size": None}
    manifest, train, val = run(source, tmp_path / "out", **settings)
    check_math(manifest, train, val)
    assert manifest["settings"]["profile"] == "math" and manifest["settings"]["val_size"] is None
    assert manifest["val_files"] == [str(val_source)]


@pytest.fixture
def hub_with_math(tmp_path, monkeypatch):
    """The hub with MATH and MATH-500 as PROFILES names them, in memory. Returns it."""
    import huggingface_hub
    from fsspec.implementations.memory import MemoryFileSystem

    write_math(tmp_path / "copy")
    hub = MemoryFileSystem()
    hub.store.clear()  # both are one for the whole process
    hub.pseudo_dirs[:] = [""]
    copies = {"math": tmp_path / "copy/MATH", "math500": tmp_path / "copy"}
    for name, pattern in {"math": "data/*.parquet", "math500": "*.jsonl"}.items():
        for path in copies[name].glob(pattern):
            root = f"/datasets/{prepare_data.PROFILES[name].hub_id}@c0ffee"
            hub.pipe(f"{root}/{path.relative_to(copies[name])}", path.read_bytes())
    monkeypatch.setattr(
        huggingface_hub.HfApi,
        "dataset_info",
        lambda self, name, revision: type("Info", (), {"sha": "c0ffee"}),
    )
    monkeypatch.setattr(huggingface_hub, "HfFileSystem", lambda: hub)
    return hub


def test_a_missing_file_is_prepared_by_the_profile_that_its_path_names(
    tmp_path, monkeypatch, hub_with_math, capsys
):
    monkeypatch.chdir(tmp_path)
    out = tmp_path / "data/math"
    prepare_data.prepare_missing(["data/math/train.jsonl", "data/math/val.jsonl"])
    printed = capsys.readouterr().out.splitlines()
    assert printed == [  # once for both
        "data/math/train.jsonl is missing: preparing it from DigitalLearningGmbH/MATH-lighteval "
        "without HuggingFaceH4/MATH-500, once"
    ]
    names = ("train.jsonl", "val.jsonl")
    train, val = ([json.loads(x) for x in (out / n).read_text().splitlines()] for n in names)
    manifest = json.loads((out / "manifest.json").read_text())
    check_math(manifest, train, val)
    assert manifest["commit"] == manifest["val_commit"] == "c0ffee"
    (out / "train.jsonl").write_text("mine")
    others = ["data/mine/train.jsonl", "data/math/other.jsonl", "math/val.jsonl", "val.jsonl"]
    prepare_data.prepare_missing(["data/math/train.jsonl", *others])
    assert (out / "train.jsonl").read_text() == "mine"
    assert capsys.readouterr().out == "" and not (tmp_path / "data/mine").exists()


def test_a_split_that_is_missing_is_not_passed_over(tmp_path, hub_with_math):
    """Training on one of MATH's two splits, without a word, would be another experiment."""
    copy = tmp_path / "copy/MATH"
    (copy / "data/test-00000-of-00001.parquet").unlink()
    settings = {"profile": "math", "val_source": tmp_path / "copy/test.jsonl", "val_size": None}
    with pytest.raises(
        DataError, match=r"MATH: has no \.jsonl or \.parquet file of a split 'test'"
    ):
        run(copy, tmp_path / "out", **settings)
    name = f"datasets/{prepare_data.PROFILES['math'].hub_id}@c0ffee"
    hub_with_math.rm(f"/{name}/data/train-00000-of-00001.parquet")
    with pytest.raises(DataError, match=r"MATH-lighteval: has no .* of a split 'train'"):
        run("math", tmp_path / "out", val_size=None)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"profile": "gsm"}, "profile 'gsm' of .*: choose from openmathreasoning, math, math500"),
        ({"source": "math", "profile": "math500"}, "profile 'math500' of math: choose from"),
        ({"profile": "math", "val_size": 3}, "val_size 3: math is validated on all of another"),
        (
            {"val_source": "x.jsonl"},
            "val_source x.jsonl: openmathreasoning is validated on problems",
        ),
        ({"profile": "math", "val_source": "x.jsonl"}, "x.jsonl: no such file or folder"),
        (
            {"profile": "math500", "split": "train", "val_size": 9},
            "no field 'answer' .it has: problem",
        ),
    ],
)
def test_bad_profiles(settings, message, tmp_path):
    source, _ = write_math(tmp_path)
    settings = {"source": source, "val_size": None} | settings
    with pytest.raises(DataError, match=message) as error:
        run(out=tmp_path / "out", **settings)
    assert "\n" not in str(error.value)
    assert not (tmp_path / "out").exists()


def test_without_the_held_out_set_nothing_is_written(tmp_path, monkeypatch):
    """MATH is there, MATH-500 is not: the line says which flag gives a copy of it."""
    import huggingface_hub

    def unreachable(self, *_, **__):
        raise ConnectionError("Name or service not known")

    monkeypatch.setattr(huggingface_hub.HfApi, "dataset_info", unreachable)
    source, _ = write_math(tmp_path)
    with pytest.raises(
        DataError, match=r"^HuggingFaceH4/MATH-500: .* --profile math --val_source COPY$"
    ):
        run(source, tmp_path / "out", profile="math", val_size=None)
    with pytest.raises(DataError, match=r"^DigitalLearn.* --profile math --source COPY$"):
        prepare(profile="math", out=str(tmp_path / "out"))
    assert not (tmp_path / "out").exists()

"""Problem files: their columns, what a check reads, and data that is missing.

Bad files are in test_bad_input.py.
"""

import unicodedata
from pathlib import Path

import datasets
import numpy as np
import pytest

from plumbing.errors import InputError
from plumbing.files import write_lines
from plumbing.problems import Problems, normalise, prepare_missing

GOOD = {"problem": "q", "expected_answer": "1"}


def write(path, *rows):
    if path.suffix == ".parquet":
        datasets.Dataset.from_list(list(rows)).to_parquet(path)
    else:
        write_lines(path, rows)
    return path


@pytest.mark.parametrize("ending", ["jsonl", "parquet"])
def test_rows_and_the_extras_for_rewards(ending, tmp_path):
    info = {"index": 7, "split": "train"}
    first = {"problem": "é\n", "data_source": "gsm8k", "extra_info": info}
    second = GOOD | {"data_source": None, "extra_info": None}
    problems = Problems(write(tmp_path / f"a.{ending}", GOOD | first, second))
    assert len(problems) == 2 and problems.question(np.int64(0)) == "é\n"
    extras = [{"data_source": "", "extra_info": None}, {"data_source": "gsm8k", "extra_info": info}]
    assert problems.golds([np.int64(1), 0], extras=True) == (["1", "1"], extras)
    plain = Problems(write(tmp_path / f"b.{ending}", GOOD | {"expected_answer": 2}))
    assert plain.golds([0], extras=True) == (["2"], extras[:1])


def test_a_column_by_its_distinct_values(tmp_path):
    levels = ["hard", "easy", None, "hard"]
    problems = Problems(write(tmp_path / "a.jsonl", *(GOOD | {"level": x} for x in levels)))
    values, row = problems.column("level")
    assert [values[i] for i in row] == levels and len(values) == 3


@pytest.mark.parametrize("text", ["ß İ ﬁ ｘ²", "A\u00a0b", "plain  ASCII\t\n", "\x1c a \x1f"])
def test_normalising_twice_is_normalising_once(text):
    once = normalise(text)
    assert normalise(once) == once and "  " not in once
    assert once == " ".join(unicodedata.normalize("NFKC", text.casefold()).casefold().split())


COMMAND = """
import pathlib, sys
folder = pathlib.Path("data", sys.argv[2])
if folder.name != "good":
    sys.exit("error: no hub")
folder.mkdir(parents=True)
for name in ("train.jsonl", "val.jsonl"):
    (folder / name).write_text("made")
"""


@pytest.fixture
def repository(tmp_path, monkeypatch):
    """A prepare_data in another repository, and a wrong one in the working directory."""
    for folder, code in {"repository": COMMAND, "work": "raise SystemExit('wrong')"}.items():
        (tmp_path / folder / "scripts").mkdir(parents=True)
        (tmp_path / folder / "scripts/__init__.py").touch()
        (tmp_path / folder / "scripts/prepare_data.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path / "repository")
    monkeypatch.chdir(tmp_path / "work")


def test_missing_default_data_are_prepared_once_in_the_working_directory(repository, capfd):
    paths = ["data/good/train.jsonl", "data/good/val.jsonl", "data/good/x.jsonl", "val.jsonl"]
    prepare_missing(paths)
    command = "python -m scripts.prepare_data --source good"
    assert capfd.readouterr() == (f"{paths[0]} is missing: running {command}\n", "")
    assert [Path(path).exists() for path in paths] == [True, True, False, False]
    Path(paths[0]).write_text("mine")
    prepare_missing(paths)
    assert Path(paths[0]).read_text() == "mine" and capfd.readouterr().out == ""


def test_a_failed_preparation_ends_the_run_after_the_error_of_its_command(repository, capfd):
    message = "no such data file, and python -m scripts.prepare_data --source offline failed$"
    with pytest.raises(InputError, match=f"^data/offline/val.jsonl: {message}"):
        prepare_missing(["data/offline/val.jsonl"])
    assert capfd.readouterr().err == "error: no hub\n"

"""plumbing/problems.py: the columns of a data file, and what a check costs.

Bad files are in test_bad_input.py.
"""

import json
import resource
import unicodedata
from pathlib import Path
from types import SimpleNamespace

import datasets
import numpy as np
import pytest

from plumbing.errors import InputError
from plumbing.files import write_lines
from plumbing.problems import Problems, check_data, normalise
from tests.helpers.models import ROOT
from train import parse

GOOD = {"problem": "q", "expected_answer": "1"}


def write(path, *rows):
    if path.suffix == ".parquet":
        datasets.Dataset.from_list(list(rows)).to_parquet(path)
    else:
        write_lines(path, rows)
    return path


@pytest.mark.parametrize("kind", ["jsonl", "parquet"])
@pytest.mark.parametrize("encode", [dict, json.dumps])
def test_rows_and_what_rewards_are_told_of_them(kind, encode, tmp_path):
    info = {"index": 7, "split": "train"}
    first = {"problem": "é\n", "data_source": "gsm8k", "extra_info": encode(info)}
    second = GOOD | {"data_source": None, "extra_info": None}
    problems = Problems(write(tmp_path / f"a.{kind}", GOOD | first, second))
    assert len(problems) == 2 and problems.answer(np.int64(1)) == "1"
    assert problems.question(np.int64(0)) == "é\n"
    assert problems.extra(np.int64(0)) == {"data_source": "gsm8k", "extra_info": info}
    assert problems.extra(1) == {"data_source": "", "extra_info": None}
    plain = Problems(write(tmp_path / f"b.{kind}", GOOD | {"expected_answer": 2}))
    assert plain.answer(0) == "2" and plain.extra(0) == problems.extra(1)


@pytest.mark.parametrize("odd", ["{cut", "[1]", 3])
def test_extra_info_that_is_no_object(odd, tmp_path):
    problems = Problems(write(tmp_path / "a.jsonl", GOOD | {"extra_info": odd}))
    with pytest.raises(InputError, match="the extra_info of problem 0 is no JSON object"):
        problems.extra(0)
    with pytest.raises(InputError, match="the extra_info of problem 0 is no JSON object"):
        problems.check_extras()


def test_extra_info_is_looked_at_before_the_first_step(tmp_path):
    """Where a reward is given it; the third problem's is none."""
    rows = [GOOD | {"problem": f"{i}", "extra_info": "[]" if i == 2 else "{}"} for i in range(4)]
    data = str(write(tmp_path / "a.jsonl", *rows))
    flags = ["--preset", "demo", "--train_data", data, "--val_data", data]
    check_data(parse(flags), 0, 4)
    with pytest.raises(InputError, match="the extra_info of problem 2 is no JSON object"):
        check_data(parse([*flags, "--reward", "mine.py"]), 0, 4)


def test_another_column_by_value(tmp_path):
    levels = ["hard", "easy", None, "hard"]
    problems = Problems(write(tmp_path / "a.jsonl", *(GOOD | {"level": x} for x in levels)))
    values, row = problems.column("level")
    assert [values[i] for i in row] == levels and len(values) == 3


def test_a_check_maps_no_rows_and_copies_none(tmp_path):
    """3 million problems on 8 ranks must not be 8 copies: what is checked is let go of."""

    def resident():  # MiB, mapped files and copies
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        return pages * resource.getpagesize() / 2**20

    path = write(tmp_path / "a.jsonl", *[GOOD | {"problem": "x" * 2000}] * 20_000)  # 40 MB
    Problems(path)  # converts the file
    before, problems = resident(), Problems(path)
    assert problems.answer(19_999) == "1" and resident() - before < 20


def check(train, val):
    there = {
        "train_data": str(train),
        "val_data": str(val),
        "column": "",
        "max_prompt_tokens": 9,
        "reward": "",
    }
    check_data(SimpleNamespace(**there), empty_prompt=0, need=1)


def test_problems_that_are_trained_on_and_validated_on_are_told_of(tmp_path, capsys):
    texts = ["What is 1+1?", "what  is\n1+1?", "Half?", "A third?"]
    train = write(tmp_path / "a.jsonl", *(GOOD | {"problem": text} for text in texts))
    shared = write(tmp_path / "b.parquet", *(GOOD | {"problem": p} for p in ["WHAT is 1+1?", "x"]))
    others = write(tmp_path / "c.jsonl", GOOD | {"problem": "What is 1+2?"})
    check(train, others)
    assert capsys.readouterr().out == ""
    check(train, shared)
    said = capsys.readouterr().out
    assert said.startswith(f"note: {shared} shares 1 of its 2 problems with the training ")
    assert said.endswith(f"--source own --copy {train} --val_copy {shared}\n")
    assert said.count("\n") == 1


def test_the_demo_validates_on_what_it_does_not_train_on(capsys):
    check(ROOT / "demo/train.jsonl", ROOT / "demo/val.jsonl")
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("text", ["ß İ ﬁ ｘ²", "A\u00a0b", "plain  ASCII\t\n", "\x1c a \x1f"])
def test_normalised_once_is_normalised(text):
    once = normalise(text)
    assert normalise(once) == once and "  " not in once
    assert once == " ".join(unicodedata.normalize("NFKC", text.casefold()).casefold().split())

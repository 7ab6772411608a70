"""Problems from reasoning-gym: the rows, and the files that prepare_data writes of them."""

import json
import sys
from collections import Counter

import pytest

from plumbing.errors import InputError
from scripts import prepare_data, reasoning_tasks
from tests.helpers.optional import need_reasoning_gym


@pytest.fixture(scope="module")
def few() -> list[dict]:
    need_reasoning_gym()
    return list(reasoning_tasks.rows(per_level=3))


@pytest.fixture
def out(few, tmp_path, monkeypatch):
    """The folder that prepare_data has written, with three rows a level."""
    monkeypatch.setattr(reasoning_tasks, "PER_LEVEL", 3)
    monkeypatch.setattr(reasoning_tasks.rows, "__defaults__", (0, 3, 99))
    argv = f"--source reasoning-gym --val_size 40 --out {tmp_path}/out".split()
    prepare_data.prepare(prepare_data.arguments(argv))
    return tmp_path / "out"


def test_each_level_of_each_task_has_as_many_rows_as_asked(few):
    levels = {(task, n) for task, all_ in reasoning_tasks.LEVELS.items() for n in range(len(all_))}
    assert Counter((row["task"], row["level"] - 1) for row in few) == dict.fromkeys(levels, 3)


def test_the_rows_are_the_same_each_time(few):
    assert list(reasoning_tasks.rows(per_level=3)) == few


def test_another_seed_makes_other_problems(few):
    other = {row["problem"] for row in reasoning_tasks.rows(seed=1, per_level=3)}
    assert len(other & {row["problem"] for row in few}) < len(few) / 4


def test_hardest_leaves_out_the_levels_above_it(few):
    easy = list(reasoning_tasks.rows(per_level=3, hardest=1))
    assert easy == [row for row in few if row["level"] == 1]


def test_prepare_data_writes_task_level_and_metadata(out):
    row = json.loads((out / "val.jsonl").read_text().splitlines()[0])
    assert row["extra_info"]["source_dataset"] == row["task"]
    assert row["level"] >= 1


def test_prepare_data_counts_the_rows_it_drops(out):
    manifest = json.loads((out / "manifest.json").read_text())
    kept = manifest["train_rows"] + manifest["val_rows"]
    assert kept + sum(manifest["dropped_rows"].values()) == manifest["rows_read"]


def test_a_missing_library_is_one_line_with_the_command_that_installs_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "reasoning_gym", None)
    with pytest.raises(InputError, match=r"pip install reasoning-gym==0\.1\.25"):
        next(reasoning_tasks.rows())

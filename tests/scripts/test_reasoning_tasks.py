"""Problems from reasoning-gym: the rows, and the files that prepare_data writes of them."""

import json
import zlib

import pytest

from plumbing.files import read_lines
from scripts import prepare_data, reasoning_tasks
from tests.helpers.optional import need_reasoning_gym


@pytest.fixture(scope="module")
def few() -> list[dict]:
    need_reasoning_gym()
    return list(reasoning_tasks.rows(per_level=3))


def test_rows_are_the_same_to_the_byte_for_a_seed_and_others_for_another(few):
    assert zlib.crc32(json.dumps(few).encode()) == 4124600399
    assert list(reasoning_tasks.rows(seed=1, per_level=3)) != few


def test_hardest_leaves_out_the_levels_above_it(few):
    easy = list(reasoning_tasks.rows(per_level=3, hardest=1))
    assert easy == [row for row in few if row["level"] == 1]


def test_prepare_data_writes_task_level_and_metadata(few, tmp_path, monkeypatch):
    monkeypatch.setattr(reasoning_tasks.rows, "__defaults__", (0, 3, 99))
    argv = f"--source reasoning-gym --val_size 40 --out {tmp_path}/out".split()
    prepare_data.prepare(prepare_data.arguments(argv))
    made_of = {row["problem"]: row for row in reversed(few)}  # of repeated rows the first is kept
    for row in read_lines(tmp_path / "out/val.jsonl"):
        made = made_of[row["problem"]]
        assert (row["task"], row["level"]) == (made["task"], made["level"])
        assert row["extra_info"]["source_dataset"] == row["task"]

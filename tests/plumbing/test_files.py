"""plumbing/files.py: JSON lines, atomic writes."""

import math

import numpy as np
import pytest

from plumbing import files
from plumbing.files import read_lines, write_atomic, write_lines


def test_lines_hold_numpy_numbers_and_nan_becomes_none(tmp_path):
    path = tmp_path / "a" / "x.jsonl"
    write_lines(path, [{"a": math.nan, "b": [1.0, math.inf], "c": {"d": np.float32(0.5)}}])
    write_lines(path, [{"a": np.int64(3)}], "a")
    assert read_lines(path) == [{"a": None, "b": [1.0, None], "c": {"d": 0.5}}, {"a": 3}]
    assert read_lines(tmp_path / "none.jsonl") == []
    path.write_text('{"a": "1\u20282"}\n')  # a line separator that is no end of a JSON line
    assert read_lines(path) == [{"a": "1\u20282"}]


def test_a_write_that_fails_keeps_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "config.json"
    write_atomic(path, "old")
    monkeypatch.setattr(files, "sync", lambda path: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        write_atomic(path, "new")
    assert path.read_text() == "old"

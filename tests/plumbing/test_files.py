"""plumbing/files.py: JSON lines, atomic writes, file systems that cannot do everything."""

import errno
import math
import os
from contextlib import nullcontext

import numpy as np
import pytest

from plumbing import files
from plumbing.errors import InputError
from plumbing.files import check_writable, read_lines, sync, write_atomic, write_lines
from tests.helpers.ranks import contents


def test_lines_hold_numpy_numbers_and_nan_becomes_none(tmp_path):
    path = tmp_path / "a" / "x.jsonl"
    write_lines(path, [{"a": math.nan, "b": [1.0, math.inf], "c": {"d": np.float32(0.5)}}])
    write_lines(path, [{"a": np.int64(3)}], "a")
    assert read_lines(path) == [{"a": None, "b": [1.0, None], "c": {"d": 0.5}}, {"a": 3}]
    assert read_lines(tmp_path / "none.jsonl") == []
    path.write_text('{"a": "1\u20282"}\n')  # a line separator that is no end of a JSON line
    assert read_lines(path) == [{"a": "1\u20282"}]


def test_a_write_that_fails_keeps_the_old_file_and_leaves_no_other(tmp_path, monkeypatch):
    path = tmp_path / "config.json"
    write_atomic(path, "old")
    monkeypatch.setattr(files, "sync", lambda path: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        write_atomic(path, "new")
    assert contents(tmp_path) == {str(path): b"old"}


def test_a_link_stays_and_its_file_is_written(tmp_path):
    (tmp_path / "file").write_text("old")
    link = tmp_path / "link"
    link.symlink_to("file")
    write_atomic(link, "new")
    assert link.is_symlink()
    assert (tmp_path / "file").read_text() == "new"


@pytest.mark.parametrize("write", [check_writable, lambda path: write_atomic(path, "x")])
def test_what_is_no_regular_file_is_rejected_and_stays(write, tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    for path in (pipe, tmp_path):
        with pytest.raises(InputError, match="is no regular file"):
            write(path)
    assert pipe.is_fifo()


@pytest.mark.parametrize(("number", "fails"), [(errno.EINVAL, False), (errno.EIO, True)])
def test_a_file_system_that_cannot_flush_is_written_without_it(
    number, fails, tmp_path, monkeypatch
):
    """Some CIFS and FUSE mounts refuse fsync, most often of directories. Not so a disk's error."""

    def fsync(descriptor):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "fsync", fsync)
    with pytest.raises(OSError, match="Input/output") if fails else nullcontext():
        sync(tmp_path)

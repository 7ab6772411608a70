"""Atomic file writes, JSON lines, and checksums."""

import errno
import json
import os
import secrets
import zlib
from pathlib import Path

import numpy as np

from plumbing.errors import InputError

# A file system may refuse to flush, most often a directory: some CIFS and FUSE mounts do.
NOT_SUPPORTED = (errno.EINVAL, errno.ENOSYS, errno.ENOTSUP, errno.EBADF, errno.EISDIR)


def read_lines(path: Path, torn: bool = False) -> list[dict]:
    """Read a JSON-lines file, [] if there is none; blank lines are skipped. torn: drop a last line
    that a crash has cut off. Raises InputError, with the line number, at other damaged lines."""
    # Bytes, because str.splitlines also splits at U+2028, which a text may hold.
    lines = path.read_bytes().splitlines() if path.exists() else []
    rows = []
    for number, line in enumerate(lines, 1):
        try:
            if line.strip():
                rows.append(json.loads(line))
        except ValueError as error:
            if not (torn and number == len(lines)):
                raise InputError(f"{path}, line {number}: damaged ({error})") from error
    return rows


def write_lines(path: Path, rows: list[dict], mode: str = "w") -> None:
    """Write rows as JSON lines: append them ("a") or replace the file atomically ("w")."""
    text = "".join(json.dumps(plain(row)) + "\n" for row in rows)
    if mode == "w":
        return write_atomic(path, text)
    with path.open("a") as file:
        file.write(text)


def plain(value):
    """Convert a value for JSON: NaN and infinities become None, numpy scalars Python numbers."""
    text = json.dumps(value, default=np.generic.item)
    return json.loads(text, parse_constant=lambda name: None)


def write_atomic(path: Path, data: str | bytes) -> None:
    """Write a file, a text as UTF-8, so that it holds, even after a crash, all of the new data or
    the previous ones. Makes its folder. A link stays, and the file that it names is written. Raises
    InputError if there is something else than a file."""
    path = path.resolve()
    temporary = _temporary(path)
    try:
        temporary.write_bytes(data.encode() if isinstance(data, str) else data)
        sync(temporary)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def check_writable(path: Path) -> None:
    """Raise InputError or OSError, before the work, if `write_atomic` could not write a file."""
    temporary = _temporary(path.resolve())
    temporary.touch()
    temporary.unlink()


def _temporary(path: Path) -> Path:
    """Return a new name beside a file, whose folder is made. Raises InputError if there is a
    directory, device or pipe, which a rename would replace or fail on."""
    if path.exists() and not path.is_file():
        raise InputError(f"{path} is no regular file: give the name of a file")
    path.parent.mkdir(parents=True, exist_ok=True)
    return path.with_name(f"{secrets.token_hex(8)}.tmp")


def sync(path: Path) -> None:
    """Flush a file, or a directory's list of files, to disk, where the file system can."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in NOT_SUPPORTED:
            raise
    finally:
        os.close(descriptor)


def file_crc32(path: Path) -> int:
    """Return the CRC-32 of a file."""
    crc = 0
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            crc = zlib.crc32(block, crc)
    return crc

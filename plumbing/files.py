"""Atomic file writes, JSON lines, and checksums."""

import json
import math
import os
import zlib
from pathlib import Path
from typing import BinaryIO

import numpy as np

from plumbing.errors import InputError


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
    path.parent.mkdir(parents=True, exist_ok=True)
    text = "".join(json.dumps(plain(row)) + "\n" for row in rows)
    if mode == "w":
        return write_atomic(path, text)
    with path.open("a") as file:
        file.write(text)


def plain(value):
    """Convert a value for JSON: NaN and infinities become None, numpy scalars Python numbers."""
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, dict):
        return {k: plain(v) for k, v in value.items()}
    if isinstance(value, list):
        return [plain(v) for v in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def write_atomic(path: Path, text: str) -> None:
    """Write a text file so that it holds, even after a crash, all of the text or the previous."""
    temporary = path.with_suffix(".tmp")
    temporary.write_text(text)
    sync(temporary)
    temporary.replace(path)


def check_writable(path: Path) -> None:
    """Raise InputError or OSError, before the work, if `write_atomic` could not write a file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.is_dir():
        raise InputError(f"{path} is a directory: give a file")
    temporary = path.with_suffix(".tmp")
    temporary.touch()
    temporary.unlink()


def sync(path: Path) -> None:
    """Flush a file, or a directory's list of files, to disk."""
    descriptor = os.open(path, os.O_RDONLY)
    os.fsync(descriptor)
    os.close(descriptor)


def digest(path: Path) -> list[int]:
    """Return a file's size in bytes and CRC-32."""
    with path.open("rb") as file:
        return digest_open(file)


def digest_open(file: BinaryIO) -> list[int]:
    """Return an open file's size in bytes and CRC-32; leave it at its beginning."""
    size = 0
    crc = 0
    file.seek(0)
    while block := file.read(1 << 20):
        size += len(block)
        crc = zlib.crc32(block, crc)
    file.seek(0)
    return [size, crc]

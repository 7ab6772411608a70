"""Files that are whole or not there, JSON lines, and checksums."""

import json
import math
import os
import zlib
from pathlib import Path

import numpy as np

from plumbing.errors import InputError


def read_lines(path: Path, torn: bool = False) -> list[dict]:
    """The rows of a JSON-lines file; [] where there is none. torn: a last line cut by a crash is
    left out. Raises InputError, with the number of the line, where another is damaged."""
    lines, rows = path.read_text().splitlines() if path.exists() else [], []
    for number, line in enumerate(lines, 1):
        try:
            rows.append(json.loads(line))
        except ValueError as error:
            if not (torn and number == len(lines)):
                raise InputError(f"{path}, line {number}: damaged ({error})") from error
    return rows


def write_lines(path: Path, rows: list[dict], mode: str = "w") -> None:
    """Rows as JSON lines, added ("a") or as a whole file ("w"), which appears at once."""
    path.parent.mkdir(parents=True, exist_ok=True)
    text = "".join(json.dumps(plain(row)) + "\n" for row in rows)
    if mode == "w":
        write_atomic(path, text)
    else:
        with path.open("a") as file:
            file.write(text)


def plain(value):
    """The value as JSON has it: NaN and infinities become null, numpy's numbers Python's."""
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, dict):
        return {k: plain(v) for k, v in value.items()}
    if isinstance(value, list):
        return [plain(v) for v in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def write_atomic(path: Path, text: str) -> None:
    """Writes a file that appears at once, with all of its text, or not at all."""
    temporary = path.with_suffix(".tmp")
    temporary.write_text(text)
    sync(temporary)
    temporary.replace(path)


def sync(path: Path) -> None:
    """Returns when a file, or the list of files in a folder, would survive a power cut."""
    descriptor = os.open(path, os.O_RDONLY)
    os.fsync(descriptor)
    os.close(descriptor)


def digest(path: Path) -> list[int]:
    """Size in bytes and CRC-32 of a file: enough to notice damage, or another file."""
    crc = 0
    with path.open("rb") as file:
        while block := file.read(1 << 24):
            crc = zlib.crc32(block, crc)
    return [path.stat().st_size, crc]

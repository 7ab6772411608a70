"""Read JSON lines, JSON lists and Parquet row by row, with the place of each row."""

import json
import math
from collections.abc import Iterable, Iterator
from decimal import Decimal
from typing import BinaryIO

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from plumbing.errors import InputError, first_lines

ROW = '{"problem": "...", "expected_answer": "..."}'
LINES = f"expected JSON lines, one object a line: {ROW}"
PANDAS = "pandas.read_csv(FILE, dtype=str).to_json(OUT, orient='records', lines=True)"
# The first bytes of other formats: what the file is, and what to do.
SIGNATURES = {
    b"\x1f\x8b": "is compressed with gzip: decompress it with gunzip",
    b"\x28\xb5\x2f\xfd": "is compressed with zstd: decompress it with unzstd",
    b"BZh": "is compressed with bzip2: decompress it with bunzip2",
    b"\xfd7zXZ": "is compressed with xz: decompress it with unxz",
    b"PK\x03\x04": "is a ZIP archive or an Excel table: export it as JSON lines or Parquet",
    b"\xff\xfe": "is UTF-16: convert it with iconv -f UTF-16 -t UTF-8",
    b"\xfe\xff": "is UTF-16: convert it with iconv -f UTF-16 -t UTF-8",
    b"{\0": "is UTF-16: convert it with iconv -f UTF-16LE -t UTF-8",
    b"\0{": "is UTF-16: convert it with iconv -f UTF-16BE -t UTF-8",
    b"PAR1": "is Parquet: rename it to .parquet",
    b"ARROW1": "is an Arrow file: write it as Parquet",
    b"\xff\xff\xff\xff": "is an Arrow stream: write it as Parquet",
    b"version https://git-lfs": "is a Git LFS pointer: fetch the file with git lfs pull",
    b"<": "is HTML or XML, often a page of a failed download: download it again",
}
BOM = b"\xef\xbb\xbf"


class JsonFloat(float):
    """A float of a JSON file, and its text there."""

    text: str

    @classmethod
    def parse(cls, text: str) -> "JsonFloat":
        """Convert the text of a JSON number."""
        number = cls(text)
        number.text = text
        return number


class JsonObject(dict):
    """An object of a JSON file; `repeated` has the names that occur more than once in it."""

    repeated: frozenset = frozenset()

    @classmethod
    def parse(cls, pairs: list[tuple]) -> "JsonObject":
        """Convert the names and values of a JSON object."""
        row = cls(pairs)
        if len(row) < len(pairs):
            names = [name for name, _ in pairs]
            row.repeated = frozenset(name for name in names if names.count(name) > 1)
        return row


_decode = json.JSONDecoder(parse_float=JsonFloat.parse, object_pairs_hook=JsonObject.parse).decode


def is_finite(value) -> bool:
    """Whether a value is not one of the numbers NaN, Infinity and -Infinity."""
    return not isinstance(value, float | np.floating | Decimal) or math.isfinite(value)


def plain_number(value: float | np.floating | Decimal) -> str:
    """Return the shortest decimal text, without an exponent, that gives the same number in its
    type: "0.1" for float32's 0.1, "5" for 5.0, all digits of a Decimal. A float of a JSON file
    keeps its text there unless a shorter one gives the same. Raises ValueError if it is not finite,
    or an integer to which the type may have rounded another."""
    if not is_finite(value):
        raise ValueError(f"{value}, which is not finite")
    if isinstance(value, Decimal):
        return _without_zeros(format(value, "f"))
    text = "0" if value == 0 else np.format_float_positional(value, trim="-")
    if isinstance(value, JsonFloat):
        written = _without_zeros(format(Decimal(value.text), "f"))
        return written if len(written) <= len(text) else text
    limits = np.finfo(type(value))
    digits = len(text.strip("-").rstrip("0"))
    if abs(value) >= 2.0 ** (limits.nmant + 1) and digits > limits.precision:
        raise ValueError(f"a {limits.dtype} of more digits than it can hold: store it as text")
    return text


def _without_zeros(text: str) -> str:
    text = text.rstrip("0").rstrip(".") if "." in text else text
    return "0" if text == "-0" else text


def text_of(value) -> str:
    """Return a text, or a number's plain text. Raises ValueError with the reason for other values,
    for numbers that plain_number rejects, and for half a surrogate pair."""
    if isinstance(value, str):
        if not value.isascii():
            lone = next((c for c in value if "\ud800" <= c <= "\udfff"), "")
            if lone:
                raise ValueError(f"half a surrogate pair ({lone!a}): surrogates not allowed")
        return value
    if isinstance(value, float | np.floating | Decimal):
        return plain_number(value)
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    raise ValueError(f"a {type(value).__name__}")


def format_of(file: BinaryIO, name: str) -> str:
    """Return "parquet", "list" (one JSON list) or "lines", by the name's ending and the first
    bytes. Raises InputError that says which other format it is, and what to do."""
    ending = name.lower().rpartition(".")[2]
    if ending in ("csv", "tsv", "xlsx"):
        raise InputError(f"{name}: is a {ending.upper()} file; convert it: {PANDAS}")
    head = file.read(64)
    file.seek(0)
    if not head:
        raise InputError(f"{name}: the file is empty")
    if ending == "parquet":
        return "parquet"
    for signature, text in SIGNATURES.items():
        if head.startswith(signature):
            raise InputError(f"{name}: {text}")
    if ending not in ("jsonl", "json", "ndjson"):
        raise InputError(f"{name}: expected a .jsonl or .parquet file")
    return "list" if head.removeprefix(BOM).lstrip().startswith(b"[") else "lines"


def check_fields(fields, columns: Iterable[str], location: str) -> None:
    """Raise InputError if one of the columns is not among the fields, or twice among them."""
    for column in columns:
        if column not in fields:
            names = ", ".join(fields) or "none"
            raise InputError(f"{location}: no field {column!r} (it has: {names})")
        if column in getattr(fields, "repeated", ()):
            raise InputError(f"{location}: the field {column!r} occurs twice")


def read_rows(file: BinaryIO, name: str, required=(), optional=None) -> Iterator[tuple]:
    """Yield (place, row) for each row of an open table; place is "line 7", or "row 7" of a list or
    of Parquet, counted from 1. Of a Parquet file, which must have the `required` columns, only
    these and the `optional` ones are read; None: all. Raises InputError with the place of the first
    damaged row."""
    kind = format_of(file, name)
    if kind == "lines":
        yield from parse_lines(file, name)
    elif kind == "list":
        yield from _list_rows(file, name)
    else:
        yield from _parquet_rows(file, name, required, optional)


def parse_lines(lines, name: str, first: int = 1) -> Iterator[tuple[str, JsonObject]]:
    """Yield (place, row) for each of these lines that is not blank; `first` is the number of the
    first. Raises InputError at a line that is no JSON object in UTF-8."""
    for number, line in enumerate(lines, first):
        if not line.strip():
            continue
        place = f"line {number}"
        try:
            row = _decode(line.removeprefix(BOM if number == 1 else b"").decode())
        except (ValueError, RecursionError) as error:
            raise InputError(f"{name}, {place}: damaged ({first_lines(error)}); {LINES}") from error
        yield place, _as_object(row, f"{name}, {place}")


def _list_rows(file: BinaryIO, name: str) -> Iterator[tuple[str, JsonObject]]:
    try:
        rows = _decode(file.read().removeprefix(BOM).decode())
    except (ValueError, RecursionError) as error:
        line = getattr(error, "lineno", 1)
        raise InputError(f"{name}, line {line}: damaged ({first_lines(error)})") from error
    for number, row in enumerate(rows, 1):
        yield f"row {number}", _as_object(row, f"{name}, row {number}")


def _as_object(row, location: str) -> JsonObject:
    if not isinstance(row, JsonObject):
        raise InputError(f"{location}: a {type(row).__name__}, no object such as {ROW}")
    return row


def _parquet_rows(file: BinaryIO, name: str, required, optional) -> Iterator[tuple]:
    number = 0
    try:
        table = pq.ParquetFile(file)
        names = table.schema_arrow.names
        check_fields(names, required, name)
        # Only the columns in use: solutions are most of the bytes of some data sets.
        wanted = [x for x in names if optional is None or x in {*required, *optional}]
        if repeated := {x for x in wanted if wanted.count(x) > 1}:
            raise InputError(f"{name}: the field {min(repeated)!r} occurs twice")
        for batch in table.iter_batches(8192, columns=wanted):
            columns = [_parquet_values(column) for column in batch.columns]
            for row in zip(*columns, strict=True):
                number += 1
                yield f"row {number}", dict(zip(wanted, row, strict=True))
    except (pa.ArrowException, OSError) as error:
        reason = f"cannot be read as parquet: {first_lines(error)}"
        raise InputError(f"{name}: {reason} (after row {number}); is it complete?") from error


def _parquet_values(column: pa.Array) -> list:
    """Return a column's values; floats keep their type, as float32's 0.1 is another number."""
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    values = column.to_pylist()
    if not pa.types.is_floating(column.type):
        return values
    number = np.dtype(column.type.to_pandas_dtype()).type
    return [None if value is None else number(value) for value in values]

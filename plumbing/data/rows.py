"""Read JSON lines and Parquet row by row, with the place of each row."""

import json
from collections.abc import Iterator
from decimal import Decimal
from typing import BinaryIO

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from plumbing.errors import InputError, first_lines

EXPECTED = 'expected JSON lines, {"problem": "...", "expected_answer": "..."}, or a .parquet file'
EXACT = 2.0**53  # from here on a float may have been another integer


def text_of(value) -> str:
    """Return a text, or the digits of a number without an exponent: "0.5", "5" for 5.0. Raises
    ValueError for other values, for texts that UTF-8 cannot hold, and for floats so large that they
    may have been another integer."""
    if isinstance(value, str):
        value.encode()  # half a surrogate pair raises UnicodeEncodeError, a ValueError
        return value
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    if isinstance(value, Decimal):
        return format(value, "f")
    if isinstance(value, float) and abs(value) < EXACT:  # false for NaN
        return np.format_float_positional(value, trim="-")
    raise ValueError(f"{value!r:.60}, a {type(value).__name__}, no text or exact number")


def parse_json(text: bytes):
    """Return the value of a JSON text. Raises ValueError if it is damaged, nested too deeply for
    Python, or has a field twice in an object, of which Python would keep the last."""
    try:
        return json.loads(text, object_pairs_hook=_distinct)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def _distinct(pairs: list[tuple]) -> dict:
    """Return the fields of a JSON object. Raises ValueError if two have the same name."""
    fields = dict(pairs)
    if len(fields) < len(pairs):
        raise ValueError(f"field {_repeated([name for name, _ in pairs])!r} is there twice")
    return fields


def _repeated(names: list[str]) -> str | None:
    """Return the first name that is there before, None if all are distinct."""
    return next((name for i, name in enumerate(names) if name in names[:i]), None)


def read_rows(
    file: BinaryIO, name: str, required=(), optional=None, strict=True
) -> Iterator[tuple]:
    """Yield (place, row) for each row of an open table: Parquet if its name ends in .parquet, else
    JSON lines. place is "line 7", or "row 7" of Parquet, counted from 1. Of Parquet only the
    `required` and `optional` columns are read; optional=None: all. Raises InputError, with the
    place, at a damaged row or one without a required field; not strict: only if it is the first."""
    if name.lower().endswith(".parquet"):
        rows = _parquet_rows(file, name, required, optional)
    else:
        rows = _json_rows(file, name)
    for place, row in rows:
        for column in required:
            if column not in row:
                raise InputError(f"{name}, {place}: no field {column!r}")
        if not strict:
            required = ()
        yield place, row


def _json_rows(file: BinaryIO, name: str) -> Iterator[tuple]:
    for number, line in enumerate(file, 1):
        if not line.strip():
            continue
        try:
            row = parse_json(line)
            if not isinstance(row, dict):
                raise ValueError(f"a {type(row).__name__}, no object")
        except ValueError as error:
            raise InputError(f"{name}, line {number}: damaged ({error}); {EXPECTED}") from error
        yield f"line {number}", row


def _parquet_rows(file: BinaryIO, name: str, required, optional) -> Iterator[tuple]:
    # Only the columns in use: solutions are most of the bytes of some data sets.
    columns = None if optional is None else [*required, *optional]
    try:
        table = pq.ParquetFile(file)
        if repeated := _repeated(table.schema_arrow.names):
            raise InputError(f"{name}: two columns are called {repeated!r}: rename or drop one")
        for field in table.schema_arrow:
            if field.name in required and field.type in (pa.float16(), pa.float32()):
                raise InputError(f"{name}: {field.name!r} is {field.type}: make it text")
        batches = table.iter_batches(8192, columns=columns)
        rows = (row for batch in batches for row in batch.to_pylist())
        for number, row in enumerate(rows, 1):
            yield f"row {number}", row
    except (pa.ArrowException, OSError) as error:
        raise InputError(f"{name}: {first_lines(error)}") from error

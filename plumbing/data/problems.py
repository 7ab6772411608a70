"""Problem files: the rows as text, checked before the first step, in one copy for all ranks."""

import itertools
import json
import math
import os
import re
import subprocess
import sys
import unicodedata
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import BinaryIO

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pj

from plumbing.data import rows as tables
from plumbing.data import shared
from plumbing.data.answers import unmatched_note
from plumbing.errors import InputError
from plumbing.files import digest, digest_open

TEXTS = ("problem", "expected_answer", "data_source")
COLUMNS = (*TEXTS, "extra_info")
BLOCK_BYTES = 1 << 23  # of JSON lines that are converted at once
BLOCK_ROWS = 2000  # of other formats
SHARED_BYTES = 1 << 24  # the rows of a larger file are one file that the ranks of a machine map
SAMPLED = 10_000  # reference answers that `Problems.unmatched_note` looks at


def normalise(text: str) -> str:
    """Return the text that identifies a problem: Unicode NFKC, case folded, each run of white space
    replaced by one space, ends stripped."""
    if text.isascii():  # the same, faster
        return " ".join(text.lower().split())
    folded = unicodedata.normalize("NFKC", text).casefold()
    composed = unicodedata.normalize("NFKC", folded)  # folding can undo NFKC
    return " ".join(composed.split())


class Problems:
    """The rows of a data file: `problem` and `expected_answer`, both text, and any other columns.

    `crc32` is the CRC-32 of the file that these rows were read from. They stay the same, whatever
    happens to the file afterwards. Raises InputError or OSError with one line that names the file,
    and the bad line if possible.
    """

    def __init__(self, path: str | Path):
        self.path = Path(path)
        if self.path.is_dir():
            raise InputError(f"{self.path}: is a directory; name a .jsonl or .parquet file in it")
        if not self.path.is_file():
            raise FileNotFoundError(f"{self.path}: no such data file (--train_data, --val_data)")
        self.rows, self.crc32 = self._read(COLUMNS)
        if not len(self.rows):
            raise InputError(f"{self.path}: has no rows")

    def __len__(self) -> int:
        return len(self.rows)

    def question(self, index: int) -> str:
        """Return the text of one problem."""
        return self._value("problem", index)

    def golds(self, indices: list[int]) -> tuple[list[str], list[dict]]:
        """Return the answers to some problems, which the teacher never sees, and other arguments of
        verl's reward functions: data_source and extra_info, "" and None without such a column."""
        answers = {}
        extras = {}
        for i in dict.fromkeys(indices):  # a group repeats its problem
            answers[i] = self._value("expected_answer", i)
            extra_info = self._value("extra_info", i) or "null"
            extras[i] = {
                "data_source": self._value("data_source", i) or "",
                "extra_info": json.loads(extra_info),
            }
        return [answers[i] for i in indices], [extras[i] for i in indices]

    def _value(self, name: str, index: int) -> str | None:
        column = self.rows[name]
        return column[int(index)].as_py()

    def column(self, name: str) -> tuple[list[str], np.ndarray]:
        """Return the distinct texts of another column, and the index of each row's text (n,). Of
        two columns, "task,level", the texts of a row are joined: "sums, 3". Reads the file again.
        Raises InputError if it has no such column, or is another file by now."""
        names = tuple(name.split(","))
        rows, crc32 = self._read(names)
        if crc32 != self.crc32:
            raise InputError(f"{self.path}: was replaced while the run began; start again")
        columns = [rows[name].to_pylist() for name in names]
        position = {}  # by text
        index_n = []
        for values in zip(*columns, strict=True):
            text = ", ".join(values)
            index_n.append(position.setdefault(text, len(position)))
        return list(position), np.array(index_n)

    def count_shared(self, others: "Problems") -> int:
        """Count the distinct problems of `others` that are here too, by normalised text: reads all
        problems, about 2 µs each, and keeps the texts of `others` alone."""
        wanted = set(others._texts())
        return len(wanted.intersection(self._texts()))

    def unmatched_note(self, verifier) -> str:
        """Return `unmatched_note` of this file; of a large one, of SAMPLED answers."""
        step = math.ceil(len(self) / SAMPLED)
        indices = list(range(0, len(self), step))
        golds, _ = self.golds(indices)
        return unmatched_note(str(self.path), golds, verifier)

    def _texts(self) -> Iterator[str]:
        """Yield the normalised problems in order; few of them are in memory at a time."""
        for chunk in self.rows["problem"].chunks:
            yield from map(normalise, chunk.to_pylist())

    def _read(self, names: tuple[str, ...]) -> tuple[pa.Table, int]:
        """Return columns as text, and the CRC-32 of the file that they are from."""
        schema = _text_schema(names)
        with self.path.open("rb") as file:
            version = _version(file)
            size, crc32 = digest_open(file)

            def batches() -> Iterator[pa.RecordBatch]:
                file.seek(0)
                yield from _text_batches(file, str(self.path), names)
                if _version(file) != version:
                    raise InputError(f"{self.path}: changed while it was read; start again")

            if size < SHARED_BYTES:
                return pa.Table.from_batches(batches(), schema), crc32
            copy = self._copy_name(size, crc32, names)
            return shared.shared_table(copy, schema, batches), crc32

    def _copy_name(self, size: int, crc32: int, names: tuple[str, ...]) -> str:
        """Name the copy that the ranks of a machine share: by content, as a time stamp may stay the
        same, and by the code that makes the copy."""
        this_file = digest(Path(__file__))
        row_parser = digest(Path(tables.__file__))
        maker = repr((this_file, row_parser, self.path.suffix, names))
        maker_crc32 = zlib.crc32(maker.encode())
        return f"{size}-{crc32:08x}-{maker_crc32:08x}.arrow"


def _text_schema(names: Iterable[str]) -> pa.Schema:
    return pa.schema([(name, pa.string()) for name in names])


def _version(file: BinaryIO) -> tuple[int, ...]:
    """Return what changes when an open file is written; its time of change cannot be set."""
    status = os.fstat(file.fileno())
    return status.st_size, status.st_mtime_ns, status.st_ctime_ns


def _text_batches(file: BinaryIO, path: str, names: tuple[str, ...]) -> Iterator[pa.RecordBatch]:
    """Yield columns of an open data file as text. Raises InputError at the first row that cannot be
    used."""
    if names == COLUMNS and tables.format_of(file, path) == "lines":
        yield from _line_batches(file, path)
        return
    required = TEXTS[:2] if names == COLUMNS else names
    rows = tables.read_rows(file, path, required, names)
    seen = set()
    while part := list(itertools.islice(rows, BLOCK_ROWS)):
        for _, row in part:
            seen.update(row)
        yield _convert(part, path, names)
    missing = [name for name in names if name not in seen]
    if missing and names != COLUMNS:
        raise InputError(f"{path}: no column {missing[0]!r}; it has {sorted(seen)}")


def _line_batches(file: BinaryIO, path: str) -> Iterator[pa.RecordBatch]:
    """Yield COLUMNS of JSON lines: as pyarrow parses them where all are plain text, else, and
    where there is any error, as Python does."""
    number = 1
    while block := file.read(BLOCK_BYTES):
        block += file.readline()
        n_lines = block.count(b"\n") + (not block.endswith(b"\n"))
        table = _parse_texts(block, n_lines)
        if table is None:
            rows = tables.parse_lines(block.split(b"\n"), path, number)
            yield _convert(rows, path, COLUMNS)
        else:
            yield from table.to_batches()
        number += n_lines


def _parse_texts(block: bytes, n_lines: int) -> pa.Table | None:
    """Parse JSON lines with pyarrow, several times as fast as Python does it. Returns None unless
    each line is a row with both texts, and none needs a closer look."""
    if b'"extra_info"' in block:
        return None
    options = pj.ParseOptions(
        explicit_schema=_text_schema(TEXTS),
        unexpected_field_behavior="ignore",
    )
    try:
        table = pj.read_json(pa.BufferReader(block), parse_options=options)
        table.validate(full=True)  # UTF-8
    except pa.ArrowInvalid:
        return None
    # A text without any of these characters may be blank.
    for name in TEXTS[:2]:
        is_shown = pc.match_substring_regex(table[name], "[!-~]")
        if not pc.all(is_shown, skip_nulls=False).as_py():
            return None
    if len(table) != n_lines:
        return None
    return table.append_column("extra_info", pa.nulls(n_lines, pa.string()))


def _convert(rows: Iterable[tuple], path: str, names: tuple[str, ...]) -> pa.RecordBatch:
    """Convert columns of (place, row) pairs to text."""
    cell = _cell if names == COLUMNS else _any_cell
    columns = {name: [] for name in names}
    for place, row in rows:
        for name, texts in columns.items():
            try:
                texts.append(cell(row, name))
            except ValueError as error:
                raise InputError(f"{path}, {place}: {error}") from error
    return pa.record_batch(columns, _text_schema(names))


def _cell(row: dict, name: str) -> str | None:
    """Return one of COLUMNS as text. Raises ValueError, without the place, if it cannot be used."""
    if name in getattr(row, "repeated", ()):
        raise ValueError(f"the field {name!r} occurs twice")
    value = row.get(name)
    if value is None and name not in TEXTS[:2]:
        return None
    if name == "extra_info":
        return json.dumps(value, default=str)
    if name == "data_source":
        return _label(value)
    if name not in row:
        names = ", ".join(row)
        raise ValueError(f"lacks the field {name!r} (it has: {names}); {tables.LINES}")
    try:
        text = tables.text_of(value)
        reason = "" if text.strip() else "blank"
    except ValueError as error:
        reason = str(error)
    if reason:
        raise ValueError(
            f"the field {name!r} must be text that is not blank, or a number, "
            f"not {value!r:.60} ({reason})"
        )
    return text


def _any_cell(row: dict, name: str) -> str:
    """Return another column as text."""
    return _label(row.get(name))


def _label(value) -> str:
    """Return any value as text, equal numbers as equal texts."""
    try:
        return tables.text_of(value)
    except ValueError:
        return ascii(value) if isinstance(value, str) else str(value)


def _note_missing(problems: Problems, column: str) -> None:
    """Print how many rows have no value in a column; they are a category of their own."""
    values_C, value_of = problems.column(column)
    missing_C = np.array(["None" in value.split(", ") for value in values_C])
    if count := int(missing_C[value_of].sum()):
        print(f"note: --column {column}: {count} of {len(problems)} rows have no value: 'None'")


def prepare_missing(paths: list[str]) -> None:
    """Run `python -m scripts.prepare_data --source NAME` if data/NAME/train.jsonl or val.jsonl is
    missing. Other paths are ignored. Raises InputError if the command, which prints why, fails."""
    for path in paths:
        source = re.fullmatch(r"data/([^/]+)/(?:train|val)\.jsonl", Path(path).as_posix())
        if not source or Path(path).exists():
            continue
        module = ["-m", "scripts.prepare_data", "--source", source[1]]
        command = f"python {' '.join(module)}"
        print(f"{path} is missing: running {command}", flush=True)
        # -P and our path: a folder `scripts` in the working directory must not be taken for ours.
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
        done = subprocess.run([sys.executable, "-P", *module], env=environment)
        if done.returncode:
            raise InputError(f"{path}: no such data file, and {command} failed")


def check_data(config, needed: int) -> Problems:
    """Prepare missing data files; check that both can be read and that the training file has the
    problems of one step, `needed`. Prints a note if they share some. Returns the validation
    problems. Raises InputError, OSError."""
    prepare_missing([config.train_data, config.val_data])
    train = Problems(config.train_data)
    val = Problems(config.val_data)
    if config.column:
        _note_missing(train, config.column)
    if len(train) < needed:
        raise InputError(
            f"{train.path} has {len(train)} problems, and one step draws {needed}: "
            "lower --prompts_per_step or --candidates"
        )
    if n_shared := train.count_shared(val):
        print(
            f"note: {n_shared} of the {len(val)} problems of {val.path} are training data too; "
            "to separate them: python -m scripts.prepare_data --source own "
            f"--copy {train.path} --val_copy {val.path}",
            flush=True,
        )
    return val

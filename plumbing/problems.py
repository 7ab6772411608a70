"""Problem files, JSONL or Parquet: memory-mapped rows, and checks before the first step."""

import json
import os
import re
import subprocess
import sys
import unicodedata
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import datasets
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from plumbing.errors import InputError

READERS = {".jsonl": "json", ".json": "json", ".parquet": "parquet"}  # of `datasets`


def normalise(text: str) -> str:
    """Return the text that identifies a problem: Unicode NFKC, case folded, each run of white space
    replaced by one space, ends stripped."""
    folded = unicodedata.normalize("NFKC", text).casefold()
    return " ".join(unicodedata.normalize("NFKC", folded).split())  # folding can undo NFKC


class Problems:
    """The rows of a data file: `problem` and `expected_answer`, both text, and any other columns.

    Raises InputError or OSError with one line that names the file, and the bad line if possible.
    """

    COLUMNS = ("problem", "expected_answer")

    def __init__(self, path: str | Path):
        self.path = Path(path)
        self._check(self._load())
        # Loaded again: the check maps the whole file into memory, and a run reads few of its rows.
        self.rows = self._load()
        for name in self.COLUMNS:
            if self.rows.features[name].dtype != "string":  # the cast rewrites the file
                self.rows = self.rows.cast_column(name, datasets.Value("string"))

    def __len__(self) -> int:
        return len(self.rows)

    def question(self, index: int) -> str:
        """Return the text of one problem."""
        return self.rows[int(index)]["problem"]

    def answer(self, index: int) -> str:
        """Return the reference answer to one problem; the teacher never sees it."""
        return self.rows[int(index)]["expected_answer"]

    def extra(self, index: int) -> dict:
        """Return the arguments of verl's reward functions for a row: {"data_source": text,
        "extra_info": dict or None}, "" and None if there is no such column. `extra_info` may be a
        struct or JSON text."""
        row = self.rows[int(index)]
        info = self._extra_info(row.get("extra_info"), index)
        return {"data_source": str(row.get("data_source") or ""), "extra_info": info}

    def check_extras(self) -> None:
        """Raise InputError at the first problem whose `extra_info` is not a JSON object."""
        if "extra_info" in self.rows.column_names:
            for index, info in enumerate(_values(self.rows, "extra_info")):
                self._extra_info(info, index)

    def _extra_info(self, info, index: int) -> dict | None:
        with suppress(ValueError):  # text that is not JSON fails the next check
            info = json.loads(info or "null") if isinstance(info, str) else info
        if not isinstance(info, dict | None):
            raise InputError(f"{self.path}: the extra_info of problem {index} is no JSON object")
        return info

    def golds(self, indices: list[int], extras: bool) -> tuple[list[str], list[dict] | None]:
        """Return the answers to some problems and, if asked for, their extras, for `Verifier`."""
        answers = [self.answer(i) for i in indices]
        return answers, [self.extra(i) for i in indices] if extras else None

    def count_shared(self, others: "Problems") -> int:
        """Count the distinct problems of `others` that are here too, by normalised text.

        Reads all problems, about 5 µs each (17 s for 3 million), and keeps none of the texts."""
        wanted = {hash(normalise(text)) for text in _values(others.rows, "problem")}
        hashes = (hash(normalise(text)) for text in _values(self.rows, "problem"))
        return len({key for key in hashes if key in wanted})

    def column(self, name: str) -> tuple[list, np.ndarray]:
        """Return the distinct values of another column, and the index of each row's value (n,)."""
        if name not in self.rows.column_names:
            names = ", ".join(map(repr, self.rows.column_names))
            raise InputError(f"{self.path}: has no column {name!r}; it has {names}")
        column = self.rows.data.column(name).combine_chunks()
        column = pc.dictionary_encode(column, null_encoding="encode")
        return column.dictionary.to_pylist(), column.indices.to_numpy()

    def _load(self) -> datasets.Dataset:
        """Load the rows with the reader that the file's name demands."""
        if not self.path.is_file():
            raise FileNotFoundError(f"{self.path}: no such data file (--train_data, --val_data)")
        if not (reader := READERS.get(self.path.suffix)):
            raise InputError(f"{self.path}: expected a .jsonl or .parquet file")
        if not self.path.stat().st_size:
            raise InputError(f"{self.path}: the file is empty")
        try:
            return datasets.load_dataset(reader, data_files=str(self.path), split="train")
        except (datasets.exceptions.DatasetGenerationError, ValueError) as error:
            reason = str(error.__cause__ or error).partition("\n")[0]
            raise self._error(f"cannot be read as {reader}: {reason}") from error

    def _check(self, rows: datasets.Dataset) -> None:
        if not len(rows):
            raise self._error("holds no problem")
        for name in self.COLUMNS:
            if name not in rows.column_names:
                raise self._error(f"lacks the field {name!r}")
            if not _is_filled(rows.data.column(name)):
                wanted = "text in every row (not blank, no date), or a number in every row"
                raise self._error(f"{name!r} must be {wanted}")

    def _error(self, reason: str) -> InputError:
        """Name the first bad line of a JSONL file if there is one, else give the reason. Reads all
        lines, so it is only called when something is wrong."""
        if self.path.suffix != ".parquet":
            with self.path.open("rb") as lines:
                for number, line in enumerate(lines, 1):
                    if line.strip() and (message := self._line_error(line)):
                        return InputError(f"{self.path}, line {number}: {message}")
        return InputError(f"{self.path}: {reason}")

    def _line_error(self, line: bytes) -> str | None:
        try:
            row = json.loads(line.decode("utf-8-sig"))
        except (ValueError, RecursionError) as error:
            return f"not JSON ({error})"
        for name in self.COLUMNS:
            value = row.get(name) if isinstance(row, dict) else None
            if type(value) not in (str, int, float) or not str(value).strip():
                return f"lacks the field {name!r}, as text or a number"
        return None


def prepare_missing(paths: list[str]) -> None:
    """Run `python -m scripts.prepare_data --source NAME` if data/NAME/train.jsonl or val.jsonl is
    missing. Other paths are ignored. Raises InputError if the command, which prints why, fails."""
    for path in paths:
        source = re.fullmatch(r"data/([^/]+)/(?:train|val)\.jsonl", Path(path).as_posix())
        if not source or Path(path).exists():
            continue
        command = ["-m", "scripts.prepare_data", "--source", source[1]]
        print(f"{path} is missing: running python {' '.join(command)}", flush=True)
        # -P and our path: a folder `scripts` in the working directory must not be taken for ours.
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
        if subprocess.run([sys.executable, "-P", *command], env=environment).returncode:
            raise InputError(f"{path}: no such data file, and python {' '.join(command)} failed")


def check_data(config, prompt_tokens: int, needed: int) -> None:
    """Prepare data files that are missing; check that both can be read and that the training file
    has `needed` problems, as many as one step draws. Prints a note if the two share problems.

    prompt_tokens: of a prompt with an empty question. Raises InputError or OSError.
    """
    if prompt_tokens >= config.max_prompt_tokens:
        reason = f"a prompt takes {prompt_tokens} tokens already without a question"
        raise InputError(f"--max_prompt_tokens {config.max_prompt_tokens}: {reason}")
    prepare_missing([config.train_data, config.val_data])
    train, val = Problems(config.train_data), Problems(config.val_data)
    if config.column:
        train.column(config.column)
    if config.reward:
        train.check_extras()
        val.check_extras()
    if len(train) < needed:
        raise InputError(f"{train.path} has {len(train)} problems, and one step draws {needed}")
    if shared := train.count_shared(val):
        arguments = f"--source own --copy {train.path} --val_copy {val.path}"
        print(
            f"note: {val.path} shares {shared} of its {len(val)} problems with the training data, "
            "so its accuracy includes problems that were trained on; to train without them: "
            f"python -m scripts.prepare_data {arguments}",
            flush=True,
        )


def _values(rows: datasets.Dataset, column: str) -> Iterator:
    """Yield the values of a column in order; few of them are in memory at a time."""
    for batch in rows.select_columns(column).iter(1000):
        yield from batch[column]


def _is_filled(column: pa.ChunkedArray) -> bool:
    """Check that all values are text that is not blank, or all are numbers that their text gives
    exactly. Values of other types would change: `datasets` turns mixed ones into quoted JSON."""
    if column.null_count:
        return False
    if pa.types.is_integer(column.type):
        return True
    if pa.types.is_floating(column.type):  # false for NaN, too
        return pc.all(pc.less(pc.abs(column), 2**53)).as_py()
    if str(column.type) not in ("string", "large_string", "string_view"):
        return False
    try:  # nothing here copies the text
        return not pc.any(pc.or_(pc.equal(column, ""), pc.utf8_is_space(column))).as_py()
    except pa.ArrowInvalid:  # not UTF-8
        return False

"""Problem files, JSONL or Parquet: memory-mapped rows, and checks before the first step."""

import os
import re
import subprocess
import sys
import unicodedata
from collections.abc import Iterator
from glob import escape
from pathlib import Path

import datasets
import numpy as np

from plumbing.errors import InputError
from plumbing.files import read_lines

READERS = {".jsonl": "json", ".json": "json", ".parquet": "parquet"}  # of `datasets`


def normalise(text: str) -> str:
    """Return the text that identifies a problem: Unicode NFKC, case folded, each run of white space
    replaced by one space, ends stripped."""
    folded = unicodedata.normalize("NFKC", text).casefold()
    return " ".join(unicodedata.normalize("NFKC", folded).split())  # folding can undo NFKC


class Problems:
    """The rows of a data file: `problem` and `expected_answer`, both text, and any other columns.
    Raises InputError or OSError with one line that names the file, and the bad line if possible."""

    def __init__(self, path: str | Path):
        self.path = Path(path)
        if not self.path.is_file():
            raise FileNotFoundError(f"{self.path}: no such data file (--train_data, --val_data)")
        if not (reader := READERS.get(self.path.suffix)):
            raise InputError(f"{self.path}: expected a .jsonl or .parquet file")
        if not self.path.stat().st_size:
            raise InputError(f"{self.path}: the file is empty")
        try:
            file = escape(str(self.path))  # else "[1]" would be a pattern
            self.rows = datasets.load_dataset(reader, data_files=file, split="train")
            self._check()
        except InputError:
            raise
        except (datasets.exceptions.DatasetGenerationError, ValueError) as error:
            if reader == "json":
                read_lines(self.path)  # raises InputError at the first line that is not JSON
            reason = str(error.__cause__ or error).partition("\n")[0]
            raise InputError(f"{self.path}: cannot be read as {reader}: {reason}") from error

    def _check(self) -> None:
        for name in ("problem", "expected_answer"):
            if name not in self.rows.column_names:
                raise InputError(f"{self.path}: lacks the field {name!r}")
            for number, value in enumerate(self._values(name), 1):
                text = isinstance(value, str) and value.strip()
                exact = type(value) is int or (type(value) is float and abs(value) < 2**53)
                if not (text or exact):
                    wanted = f"the field {name!r} must be text that is not blank, or a number"
                    raise InputError(f"{self.path}, row {number}: {wanted}, not {value!r:.60}")

    def __len__(self) -> int:
        return len(self.rows)

    def question(self, index: int) -> str:
        """Return the text of one problem."""
        return str(self.rows[int(index)]["problem"])

    def golds(self, indices: list[int]) -> tuple[list[str], list[dict]]:
        """Return the answers to some problems, which the teacher never sees, and other arguments of
        verl's reward functions: data_source and extra_info, "" and None without such a column."""
        answers, extras = {}, {}
        for i in dict.fromkeys(indices):  # a group repeats its problem
            row = self.rows[int(i)]
            value = row["expected_answer"]  # 5.0 is 5 in a file with decimals
            answers[i] = str(value).removesuffix(".0") if isinstance(value, float) else str(value)
            extras[i] = {"data_source": str(row.get("data_source") or "")}
            extras[i]["extra_info"] = row.get("extra_info")
        return [answers[i] for i in indices], [extras[i] for i in indices]

    def column(self, name: str) -> tuple[list[str], np.ndarray]:
        """Return the distinct texts of another column, and the index of each row's text (n,)."""
        if name not in self.rows.column_names:
            raise InputError(f"{self.path}: no column {name!r}; it has {self.rows.column_names}")
        position = {}
        index_n = [position.setdefault(str(value), len(position)) for value in self._values(name)]
        return list(position), np.array(index_n)

    def count_shared(self, others: "Problems") -> int:
        """Count the distinct problems of `others` that are here too, by normalised text: reads all
        problems, about 5 µs each, and keeps the texts of `others` alone."""
        own, wanted = (map(normalise, map(str, p._values("problem"))) for p in (self, others))
        return len({*wanted}.intersection(own))

    def _values(self, column: str) -> Iterator:
        """Yield the values of a column in order; few of them are in memory at a time."""
        for batch in self.rows.select_columns(column).iter(1000):
            yield from batch[column]


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


def check_data(config, needed: int) -> None:
    """Prepare missing data files; check that both can be read and that the training file has the
    problems of one step, `needed`. Prints a note if they share some. Raises InputError, OSError."""
    prepare_missing([config.train_data, config.val_data])
    train, val = Problems(config.train_data), Problems(config.val_data)
    if config.column:
        train.column(config.column)
    if len(train) < needed:
        raise InputError(f"{train.path} has {len(train)} problems, and one step draws {needed}")
    if shared := train.count_shared(val):
        files = f"note: {shared} of the {len(val)} problems of {val.path} are training data too"
        remedy = f"python -m scripts.prepare_data --source own --copy {train.path}"
        print(f"{files}; to separate them: {remedy} --val_copy {val.path}", flush=True)

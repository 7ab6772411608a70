"""Problem files: rows as text, and checks of them before the first step."""

import json
import sys
from pathlib import Path

import numpy as np

from plumbing.data.rows import read_rows, text_of
from plumbing.errors import InputError
from plumbing.files import file_crc32

REQUIRED = ["problem", "expected_answer"]
EXTRAS = ["data_source", "extra_info"]  # for rewards with verl's signature


def extras_of(row: dict) -> str:
    """Return the other arguments of verl's reward functions that a row has, as JSON."""
    extras = {name: row[name] for name in EXTRAS if row.get(name) is not None}
    return json.dumps(extras, default=str)


class Problems:
    """The rows of a data file: `problem` and `expected_answer`, both text, and a column of
    categories: of two columns, "task,level", the texts of a row are joined: "sums, 3".

    Each rank reads the file once, for itself, and keeps its rows in memory, whatever happens to the
    file afterwards. `crc32` is the CRC-32 of the file. Raises InputError with one line that names
    the file, and the bad line if possible."""

    def __init__(self, path: str | Path, column: str = ""):
        self.path = Path(path)
        self._questions = []
        self._golds = []
        self._extras = []  # as JSON
        self._categories = []
        names = column.split(",") if column else []
        required = [*REQUIRED, *names]
        try:
            self.crc32 = file_crc32(self.path)
            with self.path.open("rb") as file:
                for place, row in read_rows(file, str(path), required, EXTRAS):
                    self._append(row, names, place)
        except OSError as error:
            raise InputError(str(error)) from error
        if not self._questions:
            raise InputError(f"{path}: has no rows")

    def _append(self, row: dict, names: list[str], place: str) -> None:
        """Keep a row. Data sets repeat problems and sources: sys.intern keeps each text once."""
        question = self._text(row, "problem", place)
        gold = self._text(row, "expected_answer", place)
        category = ", ".join(str(row[name]) for name in names)
        self._questions.append(sys.intern(question))
        self._golds.append(gold)
        self._extras.append(sys.intern(extras_of(row)))
        self._categories.append(sys.intern(category))

    def _text(self, row: dict, name: str, place: str) -> str:
        """Return a required field as text that is not blank."""
        try:
            text = text_of(row[name])
            if not text.strip():
                raise ValueError("blank")
        except ValueError as error:
            raise InputError(f"{self.path}, {place}: field {name!r}: {error}") from error
        return text

    def __len__(self) -> int:
        return len(self._questions)

    def question(self, index: int) -> str:
        """Return the text of one problem."""
        return self._questions[index]

    def overlap(self, others: "Problems") -> str:
        """Return a warning if other problems, to validate on, are also here; else ""."""
        known = {*self._questions}
        shared = sum(question in known for question in others._questions)
        if not shared:
            return ""
        return f"warning: {others.path}: {shared:,} of {len(others):,} problems are trained on"

    def golds(self, indices: list[int]) -> tuple[list[str], list[dict]]:
        """Return the answers to some problems, which the teacher never sees, and other arguments of
        verl's reward functions: data_source and extra_info, where the row has them."""
        golds = []
        extras = []
        for index in indices:
            golds.append(self._golds[index])
            extras.append(json.loads(self._extras[index]))
        return golds, extras

    def categories(self) -> tuple[list[str], np.ndarray]:
        """Return the distinct categories, and the index of each row's category (n,)."""
        position = {}
        index_n = []
        for text in self._categories:
            index = position.setdefault(text, len(position))
            index_n.append(index)
        return list(position), np.array(index_n)

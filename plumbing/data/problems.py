"""Problem files: rows as text, and checks of them before the first step."""

import json
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from plumbing.data.rows import read_rows, text_of
from plumbing.errors import InputError
from plumbing.files import file_crc32

REQUIRED = ["problem", "expected_answer"]
EXTRAS = ["data_source", "extra_info"]  # for rewards with verl's signature


class Problems:
    """The rows of a data file: `problem` and `expected_answer`, both text, and a column of
    categories: of two columns, "task,level", the texts of a row are joined: "sums, 3".

    Each rank reads the file for itself and keeps its rows in memory, whatever happens to the file
    afterwards. `crc32` is the CRC-32 of the file. Raises InputError or OSError with one line that
    names the file, and the bad line if possible."""

    def __init__(self, path: str | Path, column: str = ""):
        self.path = Path(path)
        folder = self.path.parent
        if folder.parent == Path("data") and not self.path.exists():  # a preset's
            command = f"python -m scripts.prepare_data --source {folder.name}"
            raise InputError(f"{path} is missing; this makes it: {command}")
        self.crc32 = file_crc32(self.path)
        self._questions = []
        self._golds = []
        self._extras = []  # as JSON
        self._categories = []
        names = column.split(",") if column else []
        once = {}  # data sets repeat problems and sources: each text is kept once
        with self.path.open("rb") as file:
            for place, row in read_rows(file, str(self.path), [*REQUIRED, *names], EXTRAS):
                question = self._text(row, "problem", place)
                extra = json.dumps([row.get(name) for name in EXTRAS], default=str)
                category = ", ".join(str(row[name]) for name in names)
                self._questions.append(once.setdefault(question, question))
                self._golds.append(self._text(row, "expected_answer", place))
                self._extras.append(once.setdefault(extra, extra))
                self._categories.append(once.setdefault(category, category))
        if not self._questions:
            raise InputError(f"{self.path}: has no rows")

    def _text(self, row: dict, name: str, place: str) -> str:
        """Return a required field as text that is not blank."""
        try:
            text = text_of(row[name])
        except ValueError as error:
            raise InputError(f"{self.path}, {place}: field {name!r}: {error}") from error
        if not text.strip():
            raise InputError(f"{self.path}, {place}: field {name!r} is blank")
        return text

    def __len__(self) -> int:
        return len(self._questions)

    def question(self, index: int) -> str:
        """Return the text of one problem."""
        return self._questions[index]

    def golds(self, indices: Iterable[int]) -> tuple[list[str], list[dict]]:
        """Return the answers to some problems, which the teacher never sees, and other arguments of
        verl's reward functions: data_source and extra_info, "" and None without such a column."""
        golds = []
        extras = []
        for index in indices:
            source, info = json.loads(self._extras[index])
            extras.append({"data_source": source or "", "extra_info": info})
            golds.append(self._golds[index])
        return golds, extras

    def categories(self) -> tuple[list[str], np.ndarray]:
        """Return the distinct categories, and the index of each row's category (n,)."""
        position = {}
        index_n = [position.setdefault(text, len(position)) for text in self._categories]
        return list(position), np.array(index_n)


def check_data(config, needed: int) -> tuple[Problems, Problems]:
    """Read the data files. Raises InputError, also if the training file lacks the problems of one
    step, `needed`, or OSError."""
    train = Problems(config.train_data, config.column)
    if len(train) < needed:
        raise InputError(
            f"{train.path} has {len(train)} problems, and one step draws {needed}: "
            "lower --prompts_per_step or --candidates"
        )
    return train, Problems(config.val_data)

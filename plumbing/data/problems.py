"""Problem files: rows as text, and checks of them before the first step."""

import json
import os
import re
import subprocess
import sys
import unicodedata
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from plumbing.data.rows import check_fields, read_rows, text_of
from plumbing.errors import InputError
from plumbing.files import digest

REQUIRED = ("problem", "expected_answer")
EXTRAS = ("data_source", "extra_info")  # for rewards with verl's signature
# A reference answer with words around the answer: "#### 72", "<answer>72</answer>".
WRAPPED = re.compile(r"####|\\boxed|</?answer>|\banswer(?: is\b|:)", re.IGNORECASE)


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

    Each rank reads the file for itself and keeps its rows in memory, whatever happens to the file
    afterwards. `crc32` is the CRC-32 of the file. Raises InputError or OSError with one line that
    names the file, and the bad line if possible."""

    def __init__(self, path: str | Path):
        self.path = Path(path)
        self.crc32 = digest(self.path)[1]
        self._questions = []
        self._golds = []
        self._extras = []  # as JSON
        once = {}  # data sets repeat problems and sources: each text is kept once
        with self.path.open("rb") as file:
            for place, row in read_rows(file, str(self.path), REQUIRED, EXTRAS):
                question = self._text(row, "problem", place)
                extra = json.dumps([row.get(name) for name in EXTRAS], default=str)
                self._questions.append(once.setdefault(question, question))
                self._golds.append(self._text(row, "expected_answer", place))
                self._extras.append(once.setdefault(extra, extra))
        if not self._questions:
            raise InputError(f"{self.path}: has no rows")

    def _text(self, row: dict, name: str, place: str) -> str:
        """Return a required field as text that is not blank."""
        check_fields(row, [name], f"{self.path}, {place}")
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

    def column(self, name: str) -> tuple[list[str], np.ndarray]:
        """Return the distinct texts of another column, and the index of each row's text (n,). Of
        two columns, "task,level", the texts of a row are joined: "sums, 3". Reads the file again.
        Raises InputError if a row has no such column."""
        names = name.split(",")
        position = {}  # by text
        index_n = []
        with self.path.open("rb") as file:
            for place, row in read_rows(file, str(self.path), names, ()):
                check_fields(row, names, f"{self.path}, {place}, --column")
                text = ", ".join(str(row[name]) for name in names)
                index_n.append(position.setdefault(text, len(position)))
        return list(position), np.array(index_n)

    def count_shared(self, others: "Problems") -> int:
        """Count the distinct problems of `others` that are here too, by normalised text."""
        wanted = set(map(normalise, others._questions))
        return len(wanted.intersection(map(normalise, self._questions)))

    def note_wrapped(self) -> None:
        """Print a note on answers such as "#### 72", where a 72 earns 0."""
        wrapped = [gold for gold in self._golds if WRAPPED.search(gold)]
        if wrapped:
            print(
                f"note: {len(wrapped):,} reference answers of {self.path} have words around the "
                f"answer, such as {wrapped[0]!r:.70}: a plain answer earns 0"
            )


def prepare_missing(paths: list[str]) -> None:
    """Run `python -m scripts.prepare_data --source NAME` if data/NAME/train.jsonl or val.jsonl is
    missing. Other paths are ignored. Raises InputError if the command, which prints why, fails."""
    for path in paths:
        source = re.fullmatch(r"data/([^/]+)/(?:train|val)\.jsonl", Path(path).as_posix())
        if not source or Path(path).exists():
            continue
        module = ["-m", "scripts.prepare_data", "--source", source[1]]
        command = f"python {' '.join(module)}"
        print(f"{path} is missing: running {command}")
        # -P and our path: a folder `scripts` in the working directory must not be taken for ours.
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
        done = subprocess.run([sys.executable, "-P", *module], env=environment)
        if done.returncode:
            raise InputError(f"{path}: no such data file, and {command} failed")


def check_data(config, needed: int) -> tuple[Problems, Problems]:
    """Prepare missing data files; read both. Prints notes on problems that both have, and on
    answers that the verifier would compare word for word. Raises InputError, also if the training
    file lacks the problems of one step, `needed`, or OSError."""
    prepare_missing([config.train_data, config.val_data])
    train = Problems(config.train_data)
    val = Problems(config.val_data)
    if config.column:
        train.column(config.column)
    if len(train) < needed:
        raise InputError(
            f"{train.path} has {len(train)} problems, and one step draws {needed}: "
            "lower --prompts_per_step or --candidates"
        )
    if n_shared := train.count_shared(val):
        print(
            f"note: {n_shared} of the {len(val)} problems of {val.path} are training data too; "
            "to separate them: python -m scripts.prepare_data --source own "
            f"{train.path} --val_copy {val.path}",
        )
    if not config.reward:  # a custom reward reads answers in its own way
        for problems in (train, val):
            problems.note_wrapped()
    return train, val

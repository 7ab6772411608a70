"""Files of problems, JSONL or Parquet, memory-mapped; all text is checked before the first step."""

import json
import unicodedata
from contextlib import suppress
from pathlib import Path

import datasets
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from plumbing.errors import InputError

KINDS = {".jsonl": "json", ".json": "json", ".parquet": "parquet"}


def normalise(text: str) -> str:
    """The text that decides whether two problems are the same: Unicode NFKC, case folded, runs of
    white space as one space, ends stripped."""
    if text.isascii():
        return " ".join(text.lower().split())
    folded = unicodedata.normalize("NFKC", text).casefold()
    return " ".join(unicodedata.normalize("NFKC", folded).split())  # folding can undo NFKC


class Problems:
    """The rows of a data file: `problem` and `expected_answer`, both text, and any other columns.

    Raises InputError or OSError with one line that names the file, and the line in it where that
    can be known.
    """

    COLUMNS = ("problem", "expected_answer")
    VERL = ("data_source", "extra_info")  # what verl's reward functions are given of a row

    def __init__(self, path: str | Path):
        self.path = Path(path)
        kind = self._kind()
        self._check(self._load(kind))
        # Anew: the check has mapped the whole file into memory, and a run reads few rows of it.
        rows = self._load(kind)
        self.others = rows.remove_columns(list(self.COLUMNS))
        self.verl = rows.select_columns([c for c in self.VERL if c in self.others.column_names])
        self.rows = rows.select_columns(list(self.COLUMNS))
        text = datasets.Features({name: datasets.Value("string") for name in self.COLUMNS})
        if self.rows.features != text:  # numbers become text; the cast rewrites the file
            self.rows = self.rows.cast(text)

    def __len__(self) -> int:
        return len(self.rows)

    def question(self, index: int) -> str:
        """The text of one problem."""
        return self.rows[int(index)]["problem"]

    def answer(self, index: int) -> str:
        """The gold answer of one problem; the teacher never sees it."""
        return self.rows[int(index)]["expected_answer"]

    def extra(self, index: int) -> dict:
        """{"data_source": text, "extra_info": dict or None}: of the columns of these names, where
        the file has them, else "" and None. `extra_info` may be a struct, or text that is JSON."""
        row = self.verl[int(index)] if self.verl.column_names else {}
        info = self._extra_info(row.get("extra_info"), index)
        return {"data_source": str(row.get("data_source") or ""), "extra_info": info}

    def check_extras(self) -> None:
        """Raises InputError at the first problem whose `extra_info` is no JSON object."""
        if "extra_info" in self.verl.column_names:
            parts = self.verl.select_columns("extra_info").iter(1000)
            infos = (info for part in parts for info in part["extra_info"])
            for index, info in enumerate(infos):
                self._extra_info(info, index)

    def _extra_info(self, info, index: int) -> dict | None:
        with suppress(ValueError):  # what is no JSON stays text
            info = json.loads(info or "null") if isinstance(info, str) else info
        if not isinstance(info, dict | None):
            raise InputError(f"{self.path}: the extra_info of problem {index} is no JSON object")
        return info

    def golds(self, indices: list[int], extras: bool) -> tuple[list[str], list[dict] | None]:
        """The answers of some problems, and their extras if asked for, as verify.Verifier takes
        them."""
        more = [self.extra(i) for i in indices] if extras else None
        return [self.answer(i) for i in indices], more

    def shares(self, others: "Problems") -> int:
        """How many different problems of the others are here too, by normalised text. It is a pass
        over all problems (5 µs each: about 17 s for 3 million), of which none stays in memory."""
        wanted, found = set(others._hashes()), set()
        for text in self._hashes():
            if text in wanted:
                found.add(text)
        return len(found)

    def _hashes(self):
        """Of each normalised problem, in the order of the file."""
        for batch in self.rows.select_columns("problem").iter(1000):
            for text in batch["problem"]:
                yield hash(normalise(text))

    def column(self, name: str) -> tuple[list, np.ndarray]:
        """Any other column: its distinct values, and which of them each row has, int (n,)."""
        if name not in self.others.column_names:
            there = ", ".join(map(repr, self.others.column_names)) or "none"
            raise InputError(f"{self.path}: has no column {name!r} for --column; it has {there}")
        column = self.others.data.column(name).combine_chunks()
        column = pc.dictionary_encode(column, null_encoding="encode")
        return column.dictionary.to_pylist(), column.indices.to_numpy()

    def _kind(self) -> str:
        """The reader for the file, once its first bytes are those of such a file: `datasets` would
        unpack an archive, and keep for good what it had in it."""
        if not self.path.is_file():
            raise FileNotFoundError(f"{self.path}: no such data file (--train_data, --val_data)")
        if not (kind := KINDS.get(self.path.suffix)):
            raise InputError(f"{self.path}: expected a .jsonl or .parquet file")
        with self.path.open("rb") as file:
            head = file.read(4)
        if not head:
            raise InputError(f"{self.path}: the file is empty")
        text = head.strip(b"\xef\xbb\xbf \t\r\n")  # less a byte order mark
        if not (head == b"PAR1" if kind == "parquet" else text[:1] in (b"{", b"[", b"")):
            raise self._error(f"is no {kind} file")
        return kind

    def _load(self, kind: str) -> datasets.Dataset:
        try:
            return datasets.load_dataset(kind, data_files=str(self.path), split="train")
        except (datasets.exceptions.DatasetGenerationError, ValueError) as error:
            why = str(error.__cause__ or error).partition("\n")[0]
            raise self._error(f"cannot be read as {kind}: {why}") from error

    def _check(self, rows: datasets.Dataset) -> None:
        if not len(rows):
            raise self._error("holds no problem")
        for name in self.COLUMNS:
            if name not in rows.column_names:
                raise self._error(f"lacks the field {name!r}")
            if not _filled(rows.data.column(name)):
                wanted = "text in every row (not blank, no date), or a number in every row"
                raise self._error(f"{name!r} must be {wanted}")

    def _error(self, why: str) -> InputError:
        """Names the first bad line of a JSONL file, where there is one; only looked for once
        something is wrong, as that reads them all."""
        if self.path.suffix != ".parquet":
            with self.path.open("rb") as lines:
                for number, line in enumerate(lines, 1):
                    if line.strip() and (wrong := self._wrong(line)):
                        return InputError(f"{self.path}, line {number}: {wrong}")
        return InputError(f"{self.path}: {why}")

    def _wrong(self, line: bytes) -> str | None:
        try:
            row = json.loads(line.decode("utf-8-sig"))
        except (ValueError, RecursionError) as error:
            return f"not JSON ({error})"
        for name in self.COLUMNS:
            value = row.get(name) if isinstance(row, dict) else None
            if type(value) not in (str, int, float) or not str(value).strip():
                return f"lacks the field {name!r}, as text or a number"
        return None


def check_data(config, empty_prompt: int, need: int) -> None:
    """Raises InputError or OSError unless a step can draw `need` problems from the training data,
    and the validation data can be read. Files that are missing are made, if their path says how."""
    if empty_prompt >= config.max_prompt_tokens:
        what = f"a prompt takes {empty_prompt} tokens already without a question"
        raise InputError(f"--max_prompt_tokens {config.max_prompt_tokens}: {what}")
    paths = (config.train_data, config.val_data)
    if missing := [path for path in paths if not Path(path).exists()]:
        from scripts.prepare_data import prepare_missing

        prepare_missing(missing)  # others stay missing
    problems, held_out = (Problems(path) for path in paths)
    if config.column:
        problems.column(config.column)
    if config.reward:
        problems.check_extras()
        held_out.check_extras()
    if len(problems) < need:
        what = f"has {len(problems)} problems, and one step draws {need}"
        raise InputError(f"{config.train_data} {what}")
    if shared := problems.shares(held_out):
        what = f"{held_out.path} shares {shared} of its {len(held_out)} problems with the training"
        without = f"--source own --copy {problems.path} --val_copy {held_out.path}"
        print(
            f"note: {what} data, so accuracy there is partly on what was trained on; to train "
            f"without them: python -m scripts.prepare_data {without}",
            flush=True,
        )


def _filled(column: pa.ChunkedArray) -> bool:
    """Whether all are text and not blank, or all numbers that their text can say exactly. Other
    types (mixed ones, which come as JSON in quotes, or dates) would not stay what the file says."""
    if column.null_count:
        return False
    if pa.types.is_integer(column.type):
        return True
    if pa.types.is_floating(column.type):  # NaN is not less either
        return pc.all(pc.less(pc.abs(column), 2**53)).as_py()
    if str(column.type) not in ("string", "large_string", "string_view"):
        return False
    try:  # nothing here makes a copy of the text
        return not pc.any(pc.or_(pc.equal(column, ""), pc.utf8_is_space(column))).as_py()
    except pa.ArrowInvalid:  # not UTF-8
        return False

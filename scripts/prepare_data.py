r"""Write train.jsonl, val.jsonl and manifest.json from a public data set or from a copy of it.

    python -m scripts.prepare_data                                    # OpenMathReasoning, streamed
    python -m scripts.prepare_data --source math --copy DIR --val_copy FILE      # from local copies
    python -m scripts.prepare_data --source dapo --val_size 500 --against math500 aime24
    python -m scripts.prepare_data --source own --copy mine.jsonl --val_copy held_out.jsonl
    python -m scripts.prepare_data --source aime25                      # a test set: only val.jsonl
    python -m scripts.prepare_data --source reasoning-gym --val_size 480           # made, not read

docs/data.md lists the sources. Dropped rows are counted by reason in the manifest. Problems are
ranked by sha256(seed + normalised text): the `val_size` smallest ranks are the validation split,
and both files are sorted by rank, whatever the order of the rows. Of several answers to a problem
the most frequent is kept, and of its rows the most frequent; alphabetical order breaks ties.
Distinct rows are held in memory, about 1 KB each.
"""

import hashlib
import json
import os
import re
import sys
import tempfile
from argparse import Namespace, RawDescriptionHelpFormatter
from collections import Counter, defaultdict
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path

from fsspec import AbstractFileSystem
from fsspec.implementations.local import LocalFileSystem
from huggingface_hub import HfApi, HfFileSystem
from tqdm import tqdm

from plumbing.command_line import Parser, count, user_path
from plumbing.data.answers import unmatched_note
from plumbing.data.problems import normalise
from plumbing.data.rows import check_fields, read_rows
from plumbing.errors import InputError, first_lines, print_error
from plumbing.files import write_atomic
from scripts import reasoning_tasks
from scripts.decontaminate import Evaluation
from scripts.sources import SOURCES, Source
from verify import Verifier

TRAIN, VAL, MANIFEST = "train.jsonl", "val.jsonl", "manifest.json"
EXAMPLES = 5  # for each reason, in the manifest


def find_files(place: str) -> tuple[str, list[str], AbstractFileSystem, str | None]:
    """Find all files of a local file or folder, or of a hub data set NAME[@REVISION].

    Returns (root, sorted names, their file system, commit). A local file is its own root; a local
    place has no commit. Raises InputError if the place is neither local nor readable on the hub.
    """
    root = os.path.realpath(place)  # before Python 3.13 Path.resolve fails at a loop of links
    file_system = LocalFileSystem()
    commit = None
    try:
        if not Path(place).exists():
            name, _, revision = place.partition("@")
            commit = HfApi().dataset_info(name, revision=revision or None).sha
            root = f"datasets/{name}@{commit}"
            file_system = HfFileSystem()
        return root, sorted(file_system.find(root)), file_system, commit
    except Exception as error:  # the errors of the hub and of the HTTP library share no other base
        raise InputError(
            f"{place}: no such file here, and the Hugging Face hub cannot be read "
            f"({first_lines(error)}): check name and network, or give a --copy"
        ) from error


def select_tables(names: list[str], root: str, source: Source, place: str) -> list[str]:
    """Select the files below `root` that hold the source's rows.

    JSON Lines and Parquet are preferred to JSON, the folder `source.config` to all files, and names
    with a word of `source.splits` to all names. Raises InputError, which names `place`, if no file
    is left or only some of the splits have files.
    """
    tables = [name for name in names if name.endswith((".jsonl", ".parquet"))]
    names = tables or [name for name in names if name.endswith(".json")]  # often metadata
    names = [name for name in names if f"/{source.config}/" in name.removeprefix(root)] or names
    words = {name: set(re.split(r"[/_.-]", name.removeprefix(root))) for name in names}
    splits = set(source.splits.split())
    missing = sorted(splits.difference(*words.values()))
    if not names or 0 < len(missing) < len(splits):
        raise InputError(f"{place}: no .jsonl, .parquet or .json file of a split {missing[0]!r}")
    if missing:
        return names
    return [name for name in names if words[name] & splits]


class Table:
    """The usable rows of a data set, by problem. Raises InputError if it cannot be read."""

    def __init__(self, source: Source, copy: str | None):
        self.source, self.place = source, copy or source.hub_id
        self.locate()
        self.rows = defaultdict(Counter)  # rank -> how often each (answer, line of JSON) occurs
        self.rows_read, self.dropped = 0, Counter()  # rows by reason
        self.seen = set()  # rank of every problem, usable or not
        self.overlaps = {}  # rank -> (reason, an example for the manifest)

    def locate(self) -> None:
        """Find the files: `place` itself if it is a file, else the source's files below it."""
        root, names, self.file_system, self.commit = find_files(self.place)
        is_file = names == [root]
        self.names = names if is_file else select_tables(names, root, self.source, self.place)

    def read(self, columns: list[str], all_columns: bool = False):
        """Yield (location, row) for each row of each file. Every row must have the columns."""
        for name in self.names:
            place = "row 0"
            try:
                # Without read-ahead, which would fetch the long solutions between the columns.
                with self.file_system.open(name, "rb", cache_type="none") as file:
                    rows = read_rows(file, name, columns, None if all_columns else ())
                    for place, row in tqdm(rows, name, unit=" rows", unit_scale=True):
                        check_fields(row, columns, f"{name}, {place}")
                        yield f"{name}, {place}", row
            except InputError:
                raise
            except Exception as error:  # a broken file, disk or network, as any library reports it
                reason = f"cannot be read ({first_lines(error)})"
                raise InputError(f"{name}, after {place}: {reason}") from error

    def load(self, seed: int, verifier: Verifier, evaluation: Evaluation) -> None:
        """Read all rows. Drop the problems that occur in the evaluation."""
        for location, row in self.read(self.source.columns, self.source.keep == "*"):
            self.add(row, location, seed, evaluation)
        answers = sorted({answer for counts in self.rows.values() for answer, _ in counts})
        tqdm.write(f"checking {len(answers)} reference answers", file=sys.stderr)
        valid = dict(zip(answers, verifier.check_golds(answers), strict=True))
        for rank, counts in list(self.rows.items()):
            for answer, line in list(counts):
                if not valid[answer]:
                    self.dropped["unverifiable_answer"] += counts.pop((answer, line))
            if not counts:
                del self.rows[rank]

    def add(self, row: dict, location: str, seed: int, evaluation: Evaluation) -> None:
        """Add a row, or count the reason to drop it."""
        problem = self.source.problem_of(row, location)
        answer = self.source.answer_of(row, location)
        rank = hashlib.sha256(f"{seed}\n{normalise(problem or '')}".encode()).digest()
        self.rows_read += 1
        if rank not in self.seen and (match := evaluation.find(problem or "")):
            self.overlaps[rank] = match[0], {"training": problem} | match[1]
        self.seen.add(rank)
        reason = self.source.drop_reason(row, problem, answer)
        if rank in self.overlaps:
            reason = self.overlaps[rank][0]
        if reason:
            self.dropped[reason] += 1
            return
        record = self.source.record(row, problem, answer)
        line = json.dumps(record, ensure_ascii=False, default=str)  # dates become text
        self.rows[rank][answer, line] += 1

    def answers(self) -> list[str]:
        """Return an answer of each usable problem."""
        return [next(iter(counts))[0] for counts in self.rows.values()]

    def choose(self, rank: bytes) -> tuple[str, str]:
        """Return one (answer, line) of a problem, and count the others as dropped."""
        counts, times = self.rows[rank], Counter()
        for (answer, _), n in counts.items():
            times[answer] += n
        best = min(counts, key=lambda row: (-times[row[0]], row[0], -counts[row], row[1]))
        self.dropped["repeat"] += times[best[0]] - 1
        self.dropped["conflicting_answer"] += times.total() - times[best[0]]
        return best

    def write(self, path: Path, ranks: list[bytes], keep_repeats: bool = False) -> int:
        """Write the lines of these problems in order. Returns their number."""
        written = 0
        with path.open("w", encoding="utf-8") as file:
            for rank in ranks:
                repeats = self.rows[rank].elements()
                rows = sorted(repeats) if keep_repeats else [self.choose(rank)]
                file.writelines(f"{line}\n" for _, line in rows)
                written += len(rows)
        return written

    def facts(self) -> dict:
        """Return the data set's entry in the manifest."""
        facts = {"source": self.place, "commit": self.commit, "files": self.names}
        return facts | {"rows_read": self.rows_read, "dropped_rows": dict(+self.dropped)}

    def overlap_facts(self, evaluation: Evaluation) -> dict:
        """Return the manifest's entry on problems dropped because they are evaluated on."""
        examples = defaultdict(list)
        for _, (reason, example) in sorted(self.overlaps.items()):
            examples[reason].append(example)
        return {
            "evaluation_problems": len(evaluation.problems),
            "dropped_problems": {reason: len(shown) for reason, shown in examples.items()},
            "examples": {reason: shown[:EXAMPLES] for reason, shown in examples.items()},
        }


class GeneratedTable(Table):
    """The rows of `reasoning_tasks`, which are made with the split's seed, not read."""

    def __init__(self, source: Source, seed: int):
        super().__init__(source, None)
        self.seed = seed

    def locate(self) -> None:
        """Name the tasks."""
        self.names, self.commit = list(reasoning_tasks.LEVELS), None

    def read(self, columns: list[str], all_columns: bool = False):
        """Yield (location, row) for each row."""
        for number, row in enumerate(reasoning_tasks.rows(self.seed), start=1):
            yield f"{self.place}, row {number}", row


def check_output(out: Path, settings: dict) -> None:
    """Raise InputError if `out` is a file, or has files that these settings did not make."""
    if out.is_file():
        raise InputError(f"{out} is a file: choose another --out")
    recorded = None
    with suppress(OSError, ValueError, KeyError, TypeError):  # no manifest, or a damaged one
        recorded = json.loads((out / MANIFEST).read_text(encoding="utf-8"))["settings"]
    if recorded != settings and any((out / name).exists() for name in (TRAIN, VAL, MANIFEST)):
        remedy = "choose another --out, or remove them"
        raise InputError(f"{out}: holds files made with other settings, or by hand: {remedy}")


def arguments(argv: list[str] | None = None) -> Namespace:
    """Parse the command line into the settings that `prepare` takes."""
    parser = Parser(description=__doc__, formatter_class=RawDescriptionHelpFormatter)
    add, names = parser.add_argument, ", ".join(SOURCES)
    add("--source", choices=SOURCES, default="openmathreasoning", metavar="NAME", help=names)
    help = "file, folder or hub data set NAME[@REVISION] to read instead"
    add("--copy", type=user_path, default=None, help=help)
    help = "likewise, for the data set that is validated on"
    add("--val_copy", type=user_path, default=None, help=help)
    against = "test sets, names or files with a column `problem`, to keep out of training"
    add("--against", type=user_path, nargs="+", default=[], metavar="NAME|FILE", help=against)
    add("--out", type=user_path, default=None, help="folder for the files (data/SOURCE)")
    add("--val_size", type=count, default=None, help="problems to validate on (the source's)")
    add("--seed", type=int, default=0, help="of the split and the order (%(default)s)")
    repeats = "write repeated training rows too, as the paper did"
    add("--keep_repeats", action="store_true", default=False, help=repeats)
    return parser.parse_args(argv)


def source_of(args: Namespace) -> Source:
    """Return the source that --source names. Raises InputError if another flag contradicts it."""
    source, unused = SOURCES[args.source], {"val_copy": "is validated on problems of its own"}
    if source.is_generated:
        unused["copy"] = "is made by the library, not read"
    if not (source.hub_id or args.copy):
        raise InputError(f"--source {args.source} needs --copy FILE, a file of yours")
    if args.source == "own" and args.val_copy:
        source = replace(source, held_out="own")
    if source.held_out:
        unused = {"val_size": "is validated on another data set"}
    if source.evaluation:
        flags = ("val_size", "val_copy", "against", "keep_repeats")
        unused = dict.fromkeys(flags, "is a test set, kept whole")
    for flag, reason in unused.items():
        if getattr(args, flag):
            raise InputError(f"--{flag}: {args.source} {reason}")
    return source


def open_tables(args: Namespace, source: Source) -> tuple[Table, Table, list[Table]]:
    """Locate the data sets to read.

    Returns (train, val, tests): val is train unless the source is validated on another data set,
    and tests are the data sets whose problems are kept out of training. Raises InputError if one
    cannot be located or a name in --against is not a test set.
    """
    if source.is_generated:
        train = GeneratedTable(source, args.seed)
    else:
        train = Table(source, args.copy)
    val = train
    tests = []
    if source.held_out:
        val = Table(SOURCES[source.held_out], args.val_copy)
        tests.append(val)
    for name in args.against:
        if name in SOURCES and not SOURCES[name].evaluation:
            raise InputError(f"--against {name}: it is not a test set")
        tests.append(Table(SOURCES[name], None) if name in SOURCES else Table(SOURCES["own"], name))
    return train, val, tests


def read_evaluation(tests: list[Table]) -> Evaluation:
    """Read the problems of the test sets. Their files need not have answers."""
    evaluation = Evaluation()
    for table in tests:
        for location, row in table.read([table.source.problem.partition(".")[0]]):
            evaluation.add(table.source.problem_of(row, location) or "", table.place)
    return evaluation


def load_tables(train: Table, val: Table, seed: int, evaluation: Evaluation) -> None:
    """Load the usable rows of both tables, which may be the same one, and print a note if reference
    answers match no plain answer. Problems of the evaluation are dropped from train only."""
    with Verifier(workers=4) as verifier:
        if val is not train:
            val.load(seed, verifier, Evaluation())
        train.load(seed, verifier, evaluation)
        for table in [train] if val is train else [train, val]:
            if note := unmatched_note(table.place, table.answers(), verifier):
                tqdm.write(note, file=sys.stderr)


def split_ranks(train: Table, val: Table, val_size: int) -> tuple[list[bytes], list[bytes]]:
    """Split the problems into training and validation problems.

    Returns the sorted ranks of both. A table that is both train and val has the `val_size` smallest
    as its validation problems; a test set has only those. Raises InputError if there are too few.
    """
    ranks = sorted(train.rows)
    if val is not train:
        if not val.rows:
            raise too_few(val, "to validate on")
        if not ranks:
            raise too_few(train, "to train on")
        return ranks, sorted(val.rows)
    if train.source.evaluation:
        if not ranks:
            raise too_few(train, "for a test set")
        return [], ranks
    if len(ranks) <= val_size:
        raise too_few(train, f"for --val_size {val_size}")
    return ranks[val_size:], ranks[:val_size]


def too_few(table: Table, use: str) -> InputError:
    """Return the error of a table with too few usable problems for a use."""
    return InputError(
        f"{table.place}: {len(table.rows)} usable problems in {table.rows_read} rows "
        f"(dropped: {table.dropped}): too few {use}"
    )


def replace_files(folder: Path, out: Path) -> None:
    """Move the files of `folder` to `out`. The manifest is removed first and moved last, so that it
    never stands beside files of other settings."""
    (out / MANIFEST).unlink(missing_ok=True)
    for name in (TRAIN, VAL, MANIFEST):
        if (folder / name).exists():  # a test set has no training rows
            (folder / name).replace(out / name)


def prepare(args: Namespace) -> dict:
    """Write the files that `arguments` describe; return the manifest. The files replace earlier
    ones only when all of them are complete. Raises ValueError or OSError."""
    source = source_of(args)
    out = Path(args.out or f"data/{args.source}")
    settings = asdict(source) | {name: x for name, x in vars(args).items() if name != "out"}
    check_output(out, settings)
    train, val, tests = open_tables(args, source)
    evaluation = read_evaluation(tests)
    load_tables(train, val, args.seed, evaluation)
    train_ranks, val_ranks = split_ranks(train, val, args.val_size or source.val_size)
    manifest = {"settings": settings}
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=out, prefix=".preparing-") as folder:
        folder = Path(folder)
        if not source.evaluation:
            train_rows = train.write(folder / TRAIN, train_ranks, args.keep_repeats)
            manifest["train_rows"] = train_rows
        manifest["val_rows"] = val.write(folder / VAL, val_ranks)
        manifest |= train.facts()
        if val is not train:
            manifest["validation"] = val.facts()
        if tests:
            manifest["decontamination"] = train.overlap_facts(evaluation)
        write_atomic(folder / MANIFEST, json.dumps(manifest, indent=1) + "\n")
        replace_files(folder, out)
    return manifest


def main(argv: list[str] | None = None) -> int:
    """Run the command line. Returns 0, or 2 after printing one error line."""
    try:
        manifest = prepare(arguments(argv))
    except (ValueError, OSError) as error:
        print_error(error)
        return 2
    shown = ("rows_read", "dropped_rows", "train_rows", "val_rows")
    print(json.dumps({key: manifest[key] for key in shown if key in manifest}))
    return 0


if __name__ == "__main__":
    sys.exit(main())

r"""Write train.jsonl, val.jsonl and manifest.json from a public data set or from a copy of it.

    python -m scripts.prepare_data                                    # OpenMathReasoning, streamed
    python -m scripts.prepare_data --source math DIR --val_copy FILE             # from local copies
    python -m scripts.prepare_data --source own FILE --problem question --gold answer
    python -m scripts.prepare_data --source own FILE --val_copy HELD_OUT --against math500 aime24
    python -m scripts.prepare_data --source aime25                      # a test set: only val.jsonl
    python -m scripts.prepare_data --source reasoning-gym --val_size 480           # made, not read

docs/data.md lists the sources. Dropped rows are counted by reason in the manifest. Problems are
ranked by sha256(seed + normalised text): the `val_size` smallest ranks are the validation split,
and both files are sorted by rank. The first usable row of each problem is kept. Training problems
that are also validated on, or in a file of --against, are dropped: only punctuation, case, white
space and Unicode forms may differ. Distinct rows are held in memory.
"""

import hashlib
import io
import json
import re
import sys
import unicodedata
from argparse import Namespace, RawDescriptionHelpFormatter
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import BinaryIO

from fsspec import AbstractFileSystem
from fsspec.implementations.local import LocalFileSystem
from huggingface_hub import HfApi, HfFileSystem
from tqdm import tqdm

from plumbing.command_line import Parser, count
from plumbing.data.rows import read_rows
from plumbing.errors import InputError, first_lines
from plumbing.files import write_atomic
from scripts import analysis, reasoning_tasks
from scripts.sources import SOURCES, Source
from verify import Verifier

TRAIN, VAL, MANIFEST = "train.jsonl", "val.jsonl", "manifest.json"
Table = dict[str, list[str]]  # the rank of a problem -> its usable rows as lines of JSON


def find_files(source: Source) -> tuple[AbstractFileSystem, list[str], str | None]:
    """Find the tables of a local file or folder, or of a hub data set: their file
    system, their names, and the hub's commit. Raises InputError if one of `source.files` is not
    there, as training on one of two splits would silently be another experiment."""
    place = source.hub_id
    if Path(place).is_file():
        return LocalFileSystem(), [place], None
    root, file_system, commit = str(Path(place).absolute()), LocalFileSystem(), None
    try:
        if not Path(place).exists():
            commit = HfApi().dataset_info(place).sha
            root, file_system = f"datasets/{place}@{commit}", HfFileSystem()
        paths = sorted(file_system.find(root))
    except Exception as error:  # the errors of the hub and of the HTTP library share no other base
        reason = f"no such file here, and the hub cannot be read ({first_lines(error)})"
        raise InputError(f"{place}: {reason}") from error
    names = []
    for pattern in source.files:
        table = re.compile(rf"(?:{pattern}).*\.(?:jsonl|parquet|json)$")
        part = [path for path in paths if table.search(path.removeprefix(f"{root}/"))]
        if not part:
            raise InputError(f"{place}: has no JSON or Parquet file of {pattern}")
        names += part
    return file_system, names, commit


def open_rows(source: Source, seed: int, columns: list[str]) -> tuple[dict, Iterator]:
    """Open a data set. Returns its entry in the manifest, and an iterator over (location, row),
    each row with these columns and, where the source keeps all, all others."""
    facts = {"source": source.hub_id}
    if source.hub_id == reasoning_tasks.PACKAGE:
        return facts, enumerate(reasoning_tasks.rows(seed), start=1)
    file_system, names, commit = find_files(source)

    def rows() -> Iterator[tuple[str, dict]]:
        for name in names:
            # Without read-ahead, which would fetch the long solutions between the columns.
            with file_system.open(name, "rb", cache_type="none") as file:
                optional = None if source.keep == "*" else ()
                is_list = file.read(1) == b"["  # of JSON, as DeepScaleR's
                file.seek(0)
                table = as_lines(file) if is_list else file
                for line, row in read_rows(table, name, columns, optional):
                    yield f"{name}, {line}", row

    return facts | {"commit": commit, "files": names}, rows()


def as_lines(file: BinaryIO) -> BinaryIO:
    """Turn a JSON list into JSON lines."""
    return io.BytesIO("\n".join(map(json.dumps, json.load(file))).encode())


def normalise(text: str) -> str:
    """Return the text that identifies a problem: Unicode NFKC, case folded, each run of white space
    replaced by one space, ends stripped."""
    folded = unicodedata.normalize("NFKC", text).casefold()
    composed = unicodedata.normalize("NFKC", folded)  # folding can undo NFKC
    return " ".join(composed.split())


def overlap_key(problem: str) -> str:
    """Return what two spellings of one problem share: letters, digits and signs."""
    return "".join(re.findall(r"\w|[-+*/^=<>%]", normalise(problem)))


def overlap_keys(source: Source) -> set[str]:
    """Return the overlap_key of all problems of a test set, whose files need no answers."""
    _, rows = open_rows(source, 0, [source.problem])
    return {overlap_key(str(row[source.problem])) for _, row in rows} - {""}


def load(source: Source, seed: int, verifier: Verifier, evaluated=()) -> tuple[Table, dict]:
    """Read the usable rows of a data set, without the problems whose overlap_key is in `evaluated`.
    Returns them and the manifest's entry, which counts the rows dropped by reason. --keep_repeats
    writes the repeated rows that are counted here."""
    facts, rows = open_rows(source, seed, source.columns())
    counts, dropped = Counter(), Counter()  # of (rank, answer, line), and by reason
    with tqdm(rows, facts["source"], unit=" rows", unit_scale=True) as bar:
        for location, row in bar:
            try:
                problem, answer, reason = source.parse(row)
            except ValueError as error:
                raise InputError(f"{location}: {error}") from error
            if overlap_key(problem) in evaluated:
                reason = "same_as_evaluation"
            if reason:
                dropped[reason] += 1
                continue
            rank = hashlib.sha256(f"{seed}\n{normalise(problem)}".encode()).hexdigest()
            record = source.record(row, problem, answer)
            counts[rank, answer, json.dumps(record, ensure_ascii=False, default=str)] += 1
    facts["rows_read"] = counts.total() + dropped.total()
    table = usable_rows(counts, verifier)
    dropped["unverifiable_answer"] = counts.total() - sum(map(len, table.values()))
    dropped["repeat"] = sum(len(lines) - 1 for lines in table.values())
    return table, facts | {"dropped_rows": +dropped}


def usable_rows(counts: Counter, verifier: Verifier) -> Table:
    """Return the rows whose answers can be verified, each as often as it was read."""
    answers = sorted({answer for _, answer, _ in counts})
    tqdm.write(f"checking {len(answers)} reference answers", file=sys.stderr)
    valid = dict(zip(answers, verifier.check_golds(answers), strict=True))
    table = defaultdict(list)
    for rank, answer, line in counts.elements():
        if valid[answer]:
            table[rank].append(line)
    return table


def arguments(argv: list[str] | None = None) -> Namespace:
    """Parse the command line into the settings that `prepare` takes."""
    parser = Parser(description=__doc__, formatter_class=RawDescriptionHelpFormatter)
    add, names = parser.add_argument, ", ".join(SOURCES)
    add("--source", choices=SOURCES, default="openmathreasoning", metavar="NAME", help=names)
    path = {"default": None, "metavar": "FILE"}
    add("copy", nargs="?", **path, help="file, folder or hub data set to read instead")
    add("--val_copy", **path, help="likewise, of the data set to validate on")
    add("--problem", default=None, help="field of the problem (the source's)")
    add("--gold", default=None, help="field of the reference answer (the source's)")
    against = "test sets, names or files with a column `problem`, to keep out of training"
    add("--against", nargs="+", default=[], metavar="NAME|FILE", help=against)
    add("--out", default=None, help="folder for the files (data/SOURCE)")
    add("--val_size", type=count, default=None, help="problems to validate on (the source's)")
    add("--seed", type=int, default=0, help="of the split and the order (%(default)s)")
    repeats = "write repeated training rows too, as the paper did"
    add("--keep_repeats", action="store_true", default=False, help=repeats)
    return parser.parse_args(argv)


def data_sets(args: Namespace) -> tuple[Source, Source | None, list[Source]]:
    """Return the source, the data set to validate on, if another, and the test sets of --against,
    each with the place of its copy."""
    given = {"hub_id": args.copy, "problem": args.problem, "gold": args.gold}
    given = {name: value for name, value in given.items() if value}
    source = replace(SOURCES[args.source], **given)
    if not source.hub_id:
        raise InputError("--source own needs FILE, a file of yours")
    held_out = SOURCES.get(source.held_out)
    if args.val_copy:
        held_out = replace(held_out or source, hub_id=args.val_copy)
    tests = []
    for name in args.against:
        tests.append(SOURCES.get(name) or replace(SOURCES["own"], hub_id=name))
        if name in SOURCES and not SOURCES[name].evaluation:
            raise InputError(f"--against {name}: it is not a test set")
    return source, held_out, tests


def make_files(args: Namespace) -> tuple[dict[str, list[str]], dict]:
    """Read the data sets. Returns the lines of each file, and the manifest without the settings."""
    source, held_out, tests = data_sets(args)
    tests += [held_out] if held_out else []
    evaluated = {key for test in tests for key in overlap_keys(test)}
    with Verifier(workers=4) as verifier:
        train, manifest = load(source, args.seed, verifier, evaluated)
        pool, validation = load(held_out, args.seed, verifier) if held_out else (train, {})
    whole = held_out or source.evaluation
    size = args.val_size or (None if whole else source.val_size)
    val = [pool.pop(rank)[0] for rank in sorted(pool)[:size]]
    files = {VAL: val}
    if not source.evaluation:
        end = None if args.keep_repeats else 1
        files = {TRAIN: [line for rank in sorted(train) for line in train[rank][:end]]} | files
    for name, lines in files.items():
        manifest[f"{Path(name).stem}_rows"] = len(lines)
    manifest["validation"] = validation
    if not all(files.values()):
        raise InputError(f"too few usable problems to train and validate on: {manifest}")
    return files, manifest


def prepare(args: Namespace) -> dict:
    """Write the files that `arguments` describe; return the manifest. They replace earlier files of
    the same settings alone. Raises ValueError or OSError."""
    settings = asdict(SOURCES[args.source]) | vars(args)
    del settings["out"]
    settings = json.loads(json.dumps(settings))  # as the manifest has them
    out = Path(args.out or f"data/{args.source}")
    path = out / MANIFEST
    made = json.loads(path.read_text())["settings"] if path.exists() else None
    if out.exists() and made != settings:
        raise InputError(f"{out}: holds files made with other settings: choose another --out")
    files, facts = make_files(args)
    out.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)  # it never stands beside other files
    for name, lines in files.items():
        write_atomic(out / name, "\n".join([*lines, ""]))
    manifest = {"settings": settings} | facts
    write_atomic(path, json.dumps(manifest, indent=1) + "\n")
    return manifest


def main(argv: list[str] | None = None) -> None:
    with analysis.one_line("prepare_data", ValueError):
        manifest = prepare(arguments(argv))
    shown = ("rows_read", "dropped_rows", "train_rows", "val_rows")
    print(json.dumps({key: manifest[key] for key in shown if key in manifest}))


if __name__ == "__main__":
    main()

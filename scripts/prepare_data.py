r"""Write train.jsonl, val.jsonl and manifest.json from a public data set or from a copy of it.

    python -m scripts.prepare_data                                    # OpenMathReasoning, streamed
    python -m scripts.prepare_data --source math --copy DIR --val_copy FILE      # from local copies
    python -m scripts.prepare_data --source own FILE --problem question --gold answer
    python -m scripts.prepare_data --source own FILE --val_copy HELD_OUT --against math500 aime24
    python -m scripts.prepare_data --source aime25                      # a test set: only val.jsonl
    python -m scripts.prepare_data --source reasoning-gym --val_size 480           # made, not read

docs/data.md lists the sources. Dropped rows are counted by reason in the manifest. Problems are
ranked by sha256(seed + normalised text): the `val_size` smallest ranks are the validation split,
and both files are sorted by rank, whatever the order of the rows. Of several answers to a problem
the most frequent is kept, and of its rows the most frequent; alphabetical order breaks ties.
Training problems that are also validated on, or in a file of --against, are dropped: only
punctuation, case, white space and Unicode forms may differ. Distinct rows are held in memory.
"""

import hashlib
import json
import re
import sys
from argparse import Namespace, RawDescriptionHelpFormatter
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path

import pandas as pd
from fsspec import AbstractFileSystem
from fsspec.implementations.local import LocalFileSystem
from huggingface_hub import HfApi, HfFileSystem
from tqdm import tqdm

from plumbing.command_line import Parser, count, user_path
from plumbing.data.problems import normalise
from plumbing.data.rows import check_fields, read_rows
from plumbing.errors import InputError, first_lines, print_error
from plumbing.files import write_atomic
from scripts import reasoning_tasks
from scripts.sources import SOURCES, Source
from verify import Verifier

TRAIN, VAL, MANIFEST = "train.jsonl", "val.jsonl", "manifest.json"
TABLE = re.compile(r"\.(jsonl|parquet|json)$")


def find_files(place: str, source: Source) -> tuple[AbstractFileSystem, list[str], str | None]:
    """Find the tables of a local file or folder, or of a hub data set NAME[@REVISION]: their file
    system, their names, and the hub's commit. Raises InputError if one of `source.files` is not
    there, as training on one of two splits would silently be another experiment."""
    if Path(place).is_file():
        return LocalFileSystem(), [place], None
    root, file_system, commit = str(Path(place).absolute()), LocalFileSystem(), None
    try:
        if not Path(place).exists():
            name, _, revision = place.partition("@")
            commit = HfApi().dataset_info(name, revision=revision or None).sha
            root, file_system = f"datasets/{name}@{commit}", HfFileSystem()
        names = [name for name in sorted(file_system.find(root)) if TABLE.search(name)]
    except Exception as error:  # the errors of the hub and of the HTTP library share no other base
        reason = f"no such file here, and the hub cannot be read ({first_lines(error)})"
        raise InputError(f"{place}: {reason}") from error
    found = []
    for pattern in source.files:
        part = [name for name in names if re.search(pattern, name.removeprefix(f"{root}/"))]
        if not part:
            raise InputError(f"{place}: has no {TABLE.pattern} file of {pattern}")
        found += part
    return file_system, found, commit


def overlap_key(problem: str) -> str:
    """Return what two spellings of one problem share: letters, digits and signs."""
    return "".join(re.findall(r"\w|[-+*/^=<>%]", normalise(problem)))


def open_rows(source: Source, copy: str | None, seed: int, columns: list[str]):
    """Open the source, or a copy of it. Returns its entry in the manifest, and an iterator over
    (location, row), each row with these columns and, where the source keeps all, all others."""
    place = copy or source.hub_id
    if not (source.files or copy):
        rows = enumerate(reasoning_tasks.rows(seed), start=1)
        return {"source": place}, rows
    file_system, names, commit = find_files(place, source)

    def rows() -> Iterator[tuple[str, dict]]:
        for name in names:
            # Without read-ahead, which would fetch the long solutions between the columns.
            with file_system.open(name, "rb", cache_type="none") as file:
                parsed = read_rows(file, name, columns, None if source.keep == "*" else ())
                for line, row in parsed:
                    check_fields(row, columns, f"{name}, {line}")
                    yield f"{name}, {line}", row

    return {"source": place, "commit": commit, "files": names}, rows()


def load(source: Source, copy, seed: int, verifier: Verifier, evaluated=()) -> tuple:
    """Read the usable rows, without the problems whose overlap_key is in `evaluated`. Returns a
    table of distinct rows (rank of the problem, answer, line of JSON, number n of occurrences) and
    the manifest's entry, which counts the rows dropped by reason."""
    facts, rows = open_rows(source, copy, seed, source.columns())
    times, dropped = Counter(), Counter()
    with tqdm(rows, facts["source"], unit=" rows", unit_scale=True) as bar:
        for location, row in bar:
            problem, answer, reason = source.parse(row, location)
            if overlap_key(problem) in evaluated:
                reason = "same_as_evaluation"
            if reason:
                dropped[reason] += 1
                continue
            rank = hashlib.sha256(f"{seed}\n{normalise(problem)}".encode()).hexdigest()
            record = source.record(row, problem, answer)
            times[rank, answer, json.dumps(record, ensure_ascii=False, default=str)] += 1
    facts["rows_read"] = times.total() + dropped.total()
    answers = sorted({answer for _, answer, _ in times})
    tqdm.write(f"checking {len(answers)} reference answers", file=sys.stderr)
    valid = dict(zip(answers, verifier.check_golds(answers), strict=True))
    usable = [(*row, n) for row, n in times.items() if valid[row[1]]]
    table = pd.DataFrame(usable, columns=["rank", "answer", "line", "n"])
    n_usable = int(table.n.sum())
    dropped["unverifiable_answer"] = times.total() - n_usable
    # --keep_repeats writes these, if they are of training problems.
    dropped["repeat"] = n_usable - table["rank"].nunique()
    return table, facts | {"dropped_rows": +dropped}


def lines_of(table: pd.DataFrame, keep_repeats: bool = False) -> list[str]:
    """Return the lines to write, sorted by rank: one of each problem, or all."""
    if keep_repeats:
        table = table.sort_values(["rank", "answer", "line"])
        return [*table.line.repeat(table.n)]
    of_answer = table.groupby(["rank", "answer"]).n.transform("sum")
    order = table.assign(of_answer=-of_answer, n=-table.n)
    order = order.sort_values(["rank", "of_answer", "answer", "n", "line"])
    return [*order.drop_duplicates("rank").line]


def arguments(argv: list[str] | None = None) -> Namespace:
    """Parse the command line into the settings that `prepare` takes."""
    parser = Parser(description=__doc__, formatter_class=RawDescriptionHelpFormatter)
    add, names = parser.add_argument, ", ".join(SOURCES)
    add("--source", choices=SOURCES, default="openmathreasoning", metavar="NAME", help=names)
    path = {"type": user_path, "default": None, "metavar": "FILE"}
    add("--copy", **path, help="file, folder or hub data set NAME[@REVISION] to read instead")
    add("copy", nargs="?", type=user_path, help="the same")
    add("--val_copy", **path, help="likewise, of the data set to validate on")
    add("--problem", default=None, help="field of the problem (the source's)")
    add("--gold", default=None, help="field of the reference answer (the source's)")
    against = "test sets, names or files with a column `problem`, to keep out of training"
    add("--against", type=user_path, nargs="+", default=[], metavar="NAME|FILE", help=against)
    add("--out", type=user_path, default=None, help="folder for the files (data/SOURCE)")
    add("--val_size", type=count, default=None, help="problems to validate on (the source's)")
    add("--seed", type=int, default=0, help="of the split and the order (%(default)s)")
    repeats = "write repeated training rows too, as the paper did"
    add("--keep_repeats", action="store_true", default=False, help=repeats)
    return parser.parse_args(argv)


def overlap_keys(source: Source, copy: str | None) -> set[str]:
    """Return the overlap_key of all problems of a test set, whose files need no answers."""
    _, rows = open_rows(source, copy, 0, [source.problem])
    return {overlap_key(str(row[source.problem])) for _, row in rows} - {""}


def check_output(out: Path, settings: dict) -> None:
    """Raise InputError if the folder has files that these settings did not make."""
    manifest = out / MANIFEST
    made = json.loads(manifest.read_text())["settings"] if manifest.exists() else None
    if made != settings and any((out / name).exists() for name in (TRAIN, VAL, MANIFEST)):
        raise InputError(f"{out}: holds files made with other settings: choose another --out")


def prepare(args: Namespace) -> dict:
    """Write the files that `arguments` describe; return the manifest. They replace earlier files of
    the same settings alone. Raises ValueError or OSError."""
    fields = {name: vars(args)[name] for name in ("problem", "gold") if vars(args)[name]}
    source = replace(SOURCES[args.source], **fields)
    if not (source.hub_id or args.copy):
        raise InputError("--source own needs FILE, a file of yours")
    held_out = SOURCES[source.held_out] if source.held_out else source if args.val_copy else None
    if args.val_size and (held_out or source.evaluation):
        raise InputError(f"--val_size: {args.source} is validated on other data, all of them")
    out = Path(args.out or f"data/{args.source}")
    settings = asdict(source) | {name: x for name, x in vars(args).items() if name != "out"}
    settings = json.loads(json.dumps(settings))  # as the manifest has them
    check_output(out, settings)
    files, manifest = read_tables(args, source, held_out)
    out.mkdir(parents=True, exist_ok=True)
    (out / MANIFEST).unlink(missing_ok=True)  # it never stands beside other files
    for name, lines in files.items():
        write_atomic(out / name, "\n".join([*lines, ""]))
    manifest = {"settings": settings} | manifest
    write_atomic(out / MANIFEST, json.dumps(manifest, indent=1) + "\n")
    return manifest


def read_tables(args: Namespace, source: Source, held_out: Source | None) -> tuple[dict, dict]:
    """Read the data sets. Returns the lines of each file, and the manifest without the settings."""
    evaluated, validation = set(), {}
    for name in args.against:
        test, copy = (SOURCES[name], None) if name in SOURCES else (SOURCES["own"], name)
        if not (copy or test.evaluation):
            raise InputError(f"--against {name}: it is not a test set")
        evaluated |= overlap_keys(test, copy)
    with Verifier(workers=4) as verifier:
        if held_out:
            evaluated |= overlap_keys(held_out, args.val_copy)
            val, validation = load(held_out, args.val_copy, args.seed, verifier)
        table, manifest = load(source, args.copy, args.seed, verifier, evaluated)
    if not held_out:
        size = len(table) if source.evaluation else args.val_size or source.val_size
        is_val = table["rank"].isin(sorted(set(table["rank"]))[:size])
        val, table = table[is_val], table[~is_val]
    files = {} if source.evaluation else {TRAIN: lines_of(table, args.keep_repeats)}
    files[VAL] = lines_of(val)
    manifest |= {f"{Path(name).stem}_rows": len(lines) for name, lines in files.items()}
    manifest["validation"] = validation
    if not all(files.values()):
        raise InputError(f"too few usable problems to train and validate on: {manifest}")
    return files, manifest


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

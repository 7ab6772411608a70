r"""Write train.jsonl, val.jsonl and manifest.json from a public data set or from a copy of it.

    python -m scripts.prepare_data                                    # OpenMathReasoning, streamed
    python -m scripts.prepare_data --source math DIR --val_copy FILE             # from local copies
    python -m scripts.prepare_data --source own FILE --problem question --gold answer
    python -m scripts.prepare_data --source aime25                      # a test set: only val.jsonl
    python -m scripts.prepare_data --source reasoning-gym --val_size 480           # made, not read

docs/data.md lists the sources. The manifest, which is printed, counts the dropped rows by reason,
with examples. Problems are ranked by SHA-256("0\n" + normalised text): the `val_size` smallest
ranks are the validation split, and both files are sorted by rank. The first usable row of each
problem is kept. Training problems that are also validated on are dropped: only punctuation, case,
white space and Unicode forms may differ. Distinct rows are held in memory.
"""

import hashlib
import json
import re
import unicodedata
from argparse import Namespace
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace
from itertools import compress
from pathlib import Path, PurePosixPath
from sys import intern
from typing import BinaryIO

from fsspec import AbstractFileSystem
from fsspec.core import url_to_fs
from fsspec.implementations.local import LocalFileSystem
from huggingface_hub import HfApi
from tqdm import tqdm

from plumbing.command_line import count
from plumbing.data.problems import extras_of
from plumbing.data.rows import parse_json, read_rows
from plumbing.errors import InputError, first_lines, print_line
from plumbing.files import write_atomic
from scripts import reasoning_tasks
from scripts.command import exit_on_error, make_parser
from scripts.sources import SOURCES, Source
from verify import Verifier

ENDINGS = (".jsonl", ".json", ".parquet")
EXAMPLES = 3  # problems that are shown for each reason to drop rows
# Two letters or more, which the default comparison may take for a product: gl = lg.
_LETTERS = re.compile(r"(?!(?i:yes|no|true|false)$)[^\W\d_]{2,}")


def locate(place: str) -> str:
    """Return a local path as it is, and a hub id as the URL of the data set's newest commit.
    Raises InputError if it is neither."""
    if Path(place).exists():
        return place
    try:
        commit = HfApi().dataset_info(place).sha
    except Exception as error:  # the errors of the hub and of the HTTP library share no other base
        raise InputError(f"{place}: no such file, nor on the hub: {first_lines(error)}") from error
    return f"hf://datasets/{place}@{commit}"


def find_tables(url: str, patterns: tuple[str, ...]) -> tuple[AbstractFileSystem, list[str]]:
    """Find the files of a data set: their file system and names. Raises InputError if a pattern
    has none, as training on one of two splits would silently be another experiment."""
    if Path(url).exists():  # its name may look like a pattern or a URL
        file_system, root = LocalFileSystem(), str(Path(url).absolute())
    else:
        file_system, root = url_to_fs(url)
    if file_system.isfile(root):
        return file_system, [root]
    files = [name for name in file_system.find(root) if name.endswith(ENDINGS)]
    names = []
    for pattern in patterns:
        # Relative to the root, whose own folders must not match.
        tables = [name for name in files if PurePosixPath(name[len(root) :]).match(pattern)]
        if not tables:
            raise InputError(f"{url}: has no JSON or Parquet file {pattern}")
        names += tables
    return file_system, names


def read(url: str, source: Source) -> Iterator[tuple[dict, str]]:
    """Yield, for each row of a data set, the fields to write and the reason to drop it. Raises
    InputError, with the place of the row, if one cannot be read."""
    required = [source.problem, source.gold]
    optional = None if source.keep == "*" else [source.keep]
    file_system, names = find_tables(url, source.files)
    for name in tqdm(names, url, unit=" files"):
        # Without read-ahead, which would fetch the long solutions between the columns.
        with file_system.open(name, "rb", cache_type="none") as file:
            is_list = file.read(1) == b"["  # of JSON, as DeepScaleR's
            file.seek(0)
            lines = map(json.dumps, read_list(file, name)) if is_list else file
            for place, row in read_rows(lines, name, required, optional, strict=False):
                try:
                    yield source.parse(row)
                except ValueError as error:
                    raise InputError(f"{name}, {place}: {error}") from error


def read_list(file: BinaryIO, name: str) -> list:
    """Return the rows of a file that is one JSON list. Raises InputError if it is damaged."""
    try:
        return parse_json(file.read())
    except ValueError as error:
        raise InputError(f"{name}: damaged ({error})") from error


def normalise(text: str) -> str:
    """Return the text that identifies a problem: Unicode NFKC, case folded, each run of white space
    replaced by one space, ends stripped."""
    folded = unicodedata.normalize("NFKC", text).casefold()
    composed = unicodedata.normalize("NFKC", folded)  # folding can undo NFKC
    return " ".join(composed.split())


def overlap_key(line: str) -> str:
    """Return what spellings of a row's problem share: letters, digits, decimal points and signs."""
    problem = normalise(json.loads(line)["problem"]).replace("\N{MINUS SIGN}", "-")
    return "".join(re.findall(r"\w|[-+*/^=<>%×÷·⋅±√≤≥≠]|(?<=\d)\.(?=\d)", problem))


def suggestion(answers: list[str]) -> str:
    """Return advice where most reference answers are letters alone, else ""."""
    letters = [answer for answer in answers if _LETTERS.fullmatch(answer)]
    if 2 * len(letters) <= len(answers):
        return ""
    return (
        f"{len(letters):,} of {len(answers):,} reference answers are letters alone, such as "
        f"{letters[0]!r:.40}. By default two letters are a product, so that ab answers ba: prepare "
        "and train with --reward rewards/exact.py"
    )


def drop(manifest: dict, reason: str, line: str) -> None:
    """Count a dropped row, and keep the first problems with their reference answers, shortened."""
    counts = manifest["dropped_rows"]
    counts[reason] = counts.get(reason, 0) + 1
    examples = manifest["dropped_examples"].setdefault(reason, {})
    if len(examples) < EXAMPLES:
        row = json.loads(line)
        examples[f"{row['problem']:.80}"] = f"{row['expected_answer']:.80}"


def load(source: Source, verifier: Verifier) -> tuple[dict[str, list[str]], dict]:
    """Read the usable rows of a data set. Returns them as lines of JSON by the rank of the problem,
    and the manifest's entry. --keep_repeats writes the repeated rows that are counted here."""
    if source.files:
        url = locate(source.hub_id)
        rows = read(url, source)
    else:
        url = reasoning_tasks.PACKAGE
        rows = map(source.parse, reasoning_tasks.rows())
    manifest = {"source": url, "rows_read": 0, "dropped_rows": {}, "dropped_examples": {}}
    usable = []
    for record, reason in rows:
        manifest["rows_read"] += 1
        line = json.dumps(record, ensure_ascii=False, default=str)
        if reason:
            drop(manifest, reason, line)
            continue
        problem = normalise(record["problem"])
        rank = hashlib.sha256(f"0\n{problem}".encode()).hexdigest()
        # A custom reward's other arguments, as in training.
        extras = extras_of(record) if verifier.reward else "{}"
        answer = record["expected_answer"]
        usable.append((intern(rank), intern(answer), intern(extras), intern(line)))
    if not verifier.reward and (advice := suggestion([answer for _, answer, _, _ in usable])):
        print_line(advice)
    print_line("checking the reference answers")
    golds = sorted({(answer, extras) for _, answer, extras, _ in usable})
    answers = [answer for answer, _ in golds]
    extras_of_golds = [json.loads(extras) for _, extras in golds]
    valid = {*compress(golds, verifier.check_golds(answers, extras_of_golds))}
    table = defaultdict(list)
    for rank, answer, extras, line in usable:
        if (answer, extras) not in valid:
            drop(manifest, "unverifiable_answer", line)
            continue
        if rank in table:
            drop(manifest, "repeat", line)
        table[rank].append(line)
    return table, manifest


def arguments(argv) -> Namespace:
    """Parse the command line into the settings that `prepare` takes."""
    parser = make_parser(__doc__)
    add = parser.add_argument
    add(
        "--source",
        choices=SOURCES,
        default="openmathreasoning",
        help="(%(default)s)",
    )
    add("hub_id", nargs="?", metavar="FILE", help="file, folder or hub data set to read instead")
    add("--val_copy", metavar="FILE", help="likewise, of the data set to validate on")
    add("--problem", help="field of the problem (the source's)")
    add("--gold", help="field of the reference answer (the source's)")
    add("--reward", default="", help="reward that checks the reference answers, as of train.py")
    add("--out", help="new folder for the files (data/SOURCE)")
    add("--val_size", type=count, help="problems to validate on (the source's)")
    add("--keep_repeats", action="store_true", help="train on repeated rows too")
    return parser.parse_args(argv)


def data_sets(args: Namespace) -> tuple[Source, Source | None]:
    """Return the source, and the one to validate on, if another, with the places of copies."""
    names = ("hub_id", "problem", "gold")
    given = {name: value for name, value in vars(args).items() if name in names and value}
    source = replace(SOURCES[args.source], **given)
    if not source.hub_id:
        raise InputError("--source own needs FILE, a file of yours")
    if source.problem == source.gold:
        raise InputError(f"--problem {source.problem} --gold {source.gold}: one field for both")
    held_out = SOURCES.get(source.held_out)
    if args.val_copy:
        held_out = replace(held_out or source, hub_id=args.val_copy)
    return source, held_out


def load_both(args: Namespace) -> tuple[dict, dict, dict]:
    """Read the data sets. Returns the rows to train on, those to validate on, which without a data
    set of their own are the first by rank, and the manifest."""
    source, held_out = data_sets(args)
    with Verifier(workers=4, reward=args.reward) as verifier:
        validation = load(held_out, verifier) if held_out else None
        train, manifest = load(source, verifier)
    if validation:
        val, manifest["validation"] = validation
    else:
        first = sorted(train)[: args.val_size or source.val_size]
        val = {rank: train.pop(rank) for rank in first}
    return train, val, manifest


def prepare(args: Namespace) -> dict:
    """Write the files that `arguments` describe; return the manifest. Raises InputError if the
    folder exists, and other ValueErrors or OSErrors."""
    out = Path(args.out or f"data/{args.source}")
    if out.exists():
        raise InputError(f"{out} exists: choose another --out, or delete it")
    train, val, manifest = load_both(args)
    files = {"val": [val[rank][0] for rank in sorted(val)[: args.val_size]]}
    validated = {overlap_key(lines[0]) for lines in val.values()}
    kept = []
    for rank in sorted(train):
        line = train[rank][0]
        if overlap_key(line) in validated:
            drop(manifest, "same_as_evaluation", line)
        else:
            kept.append(rank)
    if SOURCES[args.source].val_size:
        end = None if args.keep_repeats else 1
        files["train"] = [line for rank in kept for line in train[rank][:end]]
    manifest |= {f"{name}_rows": len(lines) for name, lines in files.items()}
    if not all(files.values()):
        raise InputError(
            "too few usable problems to train and to validate on (--val_size): "
            f"{json.dumps(manifest)}"
        )
    for name, lines in files.items():
        write_atomic(out / f"{name}.jsonl", "\n".join([*lines, ""]))
    settings = json.dumps(manifest | {"settings": vars(args)}, indent=1, ensure_ascii=False)
    write_atomic(out / "manifest.json", settings + "\n")
    return manifest


def main(argv=None) -> None:
    with exit_on_error("prepare_data"):
        print(json.dumps(prepare(arguments(argv)), indent=1, ensure_ascii=False))


if __name__ == "__main__":
    main()

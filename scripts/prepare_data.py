#!/usr/bin/env python
r"""Make train.jsonl, val.jsonl and manifest.json from a public data set, or from a local copy of it.

    python scripts/prepare_data.py                                       # OpenMathReasoning, streamed
    python scripts/prepare_data.py --source cot.parquet --out data/mine  # from a file or a folder
    python scripts/prepare_data.py --source math                         # MATH without MATH-500
    python scripts/prepare_data.py --source DIR --profile math --val_source FILE  # the same from copies

PROFILES has a line for each data set: where it is, and where the gold answer is in it. What a preset
of train.py needs and does not find in data/NAME, it prepares there by the profile NAME.

OpenMathReasoning's `cot` split has 3.2 million rows, one per *solution*, of about 306 thousand
distinct problems. A validation split by rows would train on nearly all of its own validation
problems. Here:

* a problem is its normalised text (`normalise`: Unicode NFKC, case folded, white space collapsed);
* every problem has a rank, sha256(seed + normalised text). The `val_size` smallest are the validation
  problems, whatever the order of the rows and however often a problem is repeated or differently
  spaced. Where another data set is validated on, it is, whole (MATH-500 for MATH), and no row with
  the normalised text of one of its problems is trained on;
* of a problem's answers (compared as text) the most frequent is kept, on a tie the alphabetically
  first; of the rows with that answer again the most frequent, then the first. What goes is counted;
* `keep_repeats` writes every row of a training problem, as the paper did with its "3 million
  problems". The validation problems are the same ones, once each, and no row of theirs is trained on.

The files are in the order of the ranks: shuffled, and the same bytes for any order of the source.
Memory stays small: rows wait in a nameless temporary SQLite file (in SQLITE_TMPDIR, else TMPDIR, else
/tmp), which vanishes even if this process is killed; equal rows are one row with a count there.
"""

import argparse
import hashlib
import itertools
import json
import re
import shutil
import sqlite3
import sys
import tempfile
import unicodedata
from collections import Counter
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from tqdm import tqdm

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from verify import Verifier, extract_boxed


@dataclass(frozen=True)
class Profile:
    """What to know of a public data set. Its problems are in the column `problem`."""

    hub_id: str
    splits: str  # words; the files whose name says one of them are read
    gold: str = "expected_answer"  # the column with the gold answer,
    boxed: bool = False  # or with a solution, whose last \boxed{} is the gold
    held_out: str = ""  # the profile to validate on; "": on val_size problems of its own


PROFILES = {
    "openmathreasoning": Profile("nvidia/OpenMathReasoning", "cot"),
    # 500 of MATH's 5,000 test problems are MATH-500; the others are trained on, as is usual.
    "math": Profile(
        "DigitalLearningGmbH/MATH-lighteval", "train test", "solution", True, "math500"
    ),
    "math500": Profile("HuggingFaceH4/MATH-500", "test", "answer"),
}
DEFAULT = "openmathreasoning"
VAL_SIZE = 5000  # paper, Dataset Details
OPTIONAL = ("problem_type", "pass_rate_72b_tir")
PROBLEM_TYPE = (
    "has_answer_extracted"  # the other types are proofs, or answers by a vote over solutions
)
NORMALISATION = "Unicode NFKC, case folded, runs of white space as one space, ends stripped"
OUTPUTS = ("train.jsonl", "val.jsonl", "manifest.json")
BATCH = 8192  # rows in memory at a time


class DataError(ValueError):
    """The input or the output folder cannot be used; one line says which, why and what to do."""


def normalise(text: str) -> str:
    """The text that decides whether two problems are the same (folding can undo NFKC, hence twice)."""
    return " ".join(
        unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", text).casefold()).split()
    )


def rank_of(problem: str, seed: int) -> bytes:
    """A problem's identity and its place in the shuffled order, in one: sha256(seed + normalised text)."""
    text = f"{seed}\n{normalise(problem)}"
    return hashlib.sha256(text.encode(errors="surrogatepass")).digest()


def one_line(error):
    """The error's type and the first line of its message."""
    return f"{type(error).__name__}: {(str(error).strip() or 'no message').splitlines()[0]}"


def locate(source, split, revision, flags):
    """(file names, a function that opens one, the hub commit) of a file, a folder or a hub dataset.

    split: words. Of a hub dataset or a folder, the files whose name says one of them. flags: what to
    give to read a copy instead.
    """
    path, commit, open_file = Path(source), None, partial(open, mode="rb")
    if path.is_file():
        return [source], open_file, None
    if path.is_dir():
        root, names = path.as_posix(), (found.as_posix() for found in path.rglob("*"))
    elif not re.fullmatch(r"\w[\w.-]*/[\w.-]+(?<!\.jsonl)(?<!\.parquet)", source):
        raise DataError(
            f"{source}: no such file or folder (a hub dataset is named like "
            f"{PROFILES[DEFAULT].hub_id}, a known one like {', '.join(PROFILES)})"
        )
    else:
        from huggingface_hub import HfApi, HfFileSystem

        try:
            commit, hub = HfApi().dataset_info(source, revision=revision).sha, HfFileSystem()
            root = f"datasets/{source}@{commit}"
            names = hub.find(root)
        except (
            Exception
        ) as error:  # the hub's errors, the HTTP library's and OSErrors share no other base
            raise DataError(
                f"{source}: no such file or folder here, and the Hugging Face hub cannot be read "
                f"({one_line(error)}): check name and network, or give a local copy by "
                f"prepare_data.py {flags} COPY"
            ) from error
        # No read-ahead: the columns asked for lie far apart, between the long solutions.
        open_file = partial(hub.open, mode="rb", cache_type="none")
    names = sorted(name for name in names if name.endswith((".jsonl", ".parquet")))
    of_split, missing = set(), ""
    for word in split.split():
        says_word = re.compile(rf"(^|[/_.-]){re.escape(word)}[/_.-]")
        found = {name for name in names if says_word.search(name.removeprefix(root))}
        of_split, missing = of_split | found, missing if found else word
    missing = missing if commit or of_split else ""  # a folder that names no split is all of it
    if not names or missing:
        raise DataError(
            f"{source}: has no .jsonl or .parquet file"
            + (f" of a split {missing!r}" if missing else "")
        )
    return sorted(of_split) or names, open_file, commit


def read_jsonl(file, name, gold):
    """(where, row) of every line that is not blank."""
    for number, line in enumerate(file, 1):
        if line.strip():
            try:
                row = json.loads(line)
            except ValueError as error:  # also bytes that are not UTF-8
                raise DataError(f"{name}, line {number}: not JSON ({one_line(error)})") from error
            check_fields(row if isinstance(row, dict) else {}, gold, f"{name}, line {number}")
            yield f"{name}, line {number}", row


def read_parquet(file, name, gold):
    """(where, row) of every row, of the columns used only: the solutions are nearly all of the bytes."""
    import pyarrow.parquet

    table = pyarrow.parquet.ParquetFile(file)
    fields = table.schema_arrow.names
    check_fields(fields, gold, name)
    used = [field for field in ("problem", gold, *OPTIONAL) if field in fields]
    batches = table.iter_batches(BATCH, columns=used)
    rows = itertools.chain.from_iterable(batch.to_pylist() for batch in batches)
    yield from ((f"{name}, row {number}", row) for number, row in enumerate(rows, 1))


def check_fields(fields, gold, where):
    """Complain of a missing field and say which ones there are."""
    for field in ("problem", gold):
        if field not in fields:
            raise DataError(f"{where}: no field {field!r} (it has: {', '.join(fields) or 'none'})")


def read_rows(names, open_file, gold, progress):
    """(where, row) of every row of every file. gold: the column of the answer."""
    with tqdm(unit=" rows", unit_scale=True, disable=not progress, mininterval=1) as bar:
        for number, name in enumerate(names, 1):
            bar.set_description(f"reading file {number} of {len(names)}")
            reader = {".jsonl": read_jsonl, ".parquet": read_parquet}.get(Path(name).suffix)
            if reader is None:
                raise DataError(f"{name}: expected a .jsonl or a .parquet file")
            try:
                with open_file(name) as file:
                    for where_row in reader(file, name, gold):
                        bar.update()
                        yield where_row
            except DataError:
                raise
            except (
                Exception
            ) as error:  # a broken file, disk or network, in whichever library's terms
                raise DataError(f"{name}: cannot be read ({one_line(error)})") from error


def as_text(row, field, where):
    """A field as text: null is empty, a number its digits; anything else is a mistake in the file."""
    value = row[field]
    if isinstance(value, bool) or not isinstance(value, str | int | float | None):
        raise DataError(f"{where}: {field!r} is a {type(value).__name__}, expected text")
    return "" if value is None else str(value)


def store_rows(rows, profile, validation, db, seed, check_golds, dropped, held_out=frozenset()):
    """Put the usable rows into the table, count the others by reason, return how many there were.

    validation: whether all of them are for it. held_out: ranks of problems not to be trained on.
    """
    read, verifiable = 0, {}  # verifiable: every distinct answer is checked once
    while batch := list(itertools.islice(rows, BATCH)):
        read += len(batch)
        usable = []
        for where, row in batch:
            problem, answer = as_text(row, "problem", where), as_text(row, profile.gold, where)
            answer = extract_boxed(answer) if profile.boxed else answer.strip()
            if row.get("problem_type", PROBLEM_TYPE) != PROBLEM_TYPE:
                dropped["other_problem_type"] += 1
            elif not problem.strip():
                dropped["empty_problem"] += 1
            elif rank_of(problem, seed) in held_out:
                dropped["in_validation"] += 1
            elif answer is None:
                dropped["no_box"] += 1
            elif not answer:
                dropped["empty_answer"] += 1
            elif re.search(
                "[\ud800-\udfff]", problem + answer
            ):  # JSON can spell what no file can hold
                dropped["not_unicode"] += 1
            else:
                usable.append({"problem": problem, "expected_answer": answer})
                rate = row.get(
                    "pass_rate_72b_tir"
                )  # text in OpenMathReasoning, "n/a" where not known
                if re.fullmatch(r"[01](\.\d*)?", str(rate)):
                    usable[-1]["pass_rate"] = float(rate)
        new = sorted({record["expected_answer"] for record in usable} - verifiable.keys())
        verifiable.update(zip(new, check_golds(new), strict=True))
        for record in usable:
            if verifiable[record["expected_answer"]]:
                line = json.dumps(record, ensure_ascii=False)
                key = rank_of(record["problem"], seed), record["expected_answer"], line
                db.execute(
                    "INSERT INTO rows VALUES (?, ?, ?, ?, 1) ON CONFLICT DO UPDATE SET n = n + 1",
                    (not validation, *key),
                )
            else:
                dropped["unverifiable_answer"] += 1
    return read


def choose(lines: list[tuple[str, str, int]]) -> tuple[str, int]:
    """The line to keep of a problem's (answer, line, times) triples, and how many rows answer otherwise."""
    times = Counter()
    for answer, _, n in lines:
        times[answer] += n
    best = min(times, key=lambda answer: (-times[answer], answer))
    _, line = min((-n, line) for answer, line, n in lines if answer == best)
    return line, times.total() - times[best]


def write_files(db, folder, val_size, keep_repeats, dropped, progress):
    """Write val.jsonl and train.jsonl in the order of the ranks; return counts and hashes."""
    problems, conflicting, rows = 0, 0, Counter()
    digests = {name: hashlib.sha256() for name in OUTPUTS[:2]}
    # Validation problems of another data set (train = 0) come first, else the smallest ranks.
    table = db.execute("SELECT rank, answer, line, n FROM rows ORDER BY train, rank, answer, line")
    groups = tqdm(
        itertools.groupby(table, lambda row: row[0]),
        "writing",
        unit=" problems",
        disable=not progress,
    )
    with (folder / "train.jsonl").open("wb") as train, (folder / "val.jsonl").open("wb") as val:
        for _, group in groups:
            lines = [row[1:] for row in group]
            name, file = ("val.jsonl", val) if problems < val_size else ("train.jsonl", train)
            kept, others = choose(lines)
            problems, conflicting = problems + 1, conflicting + (others > 0)
            if name == "val.jsonl" or not keep_repeats:
                dropped["repeat"] += sum(n for _, _, n in lines) - others - 1
                dropped["conflicting_answer"] += others
                lines = [("", kept, 1)]
            for _, line, n in lines:
                data = f"{line}\n".encode() * n
                file.write(data)
                digests[name].update(data)
                rows[name] += n
    return {
        "problems": problems,
        "problems_with_conflicting_answers": conflicting,
        "train_rows": rows["train.jsonl"],
        "val_rows": rows["val.jsonl"],
        "sha256": {name: digest.hexdigest() for name, digest in digests.items()},
    }


def check_output(out, settings):
    """Refuse a folder that holds anything but what these very settings made."""
    if not any((out / name).exists() for name in OUTPUTS):
        return
    try:
        found = json.loads((out / "manifest.json").read_text(encoding="utf-8"))["settings"]
        other = [
            f"{key} was {found.get(key)!r}" for key in settings if found.get(key) != settings[key]
        ]
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        other = ["no readable manifest says how"]
    if other:
        raise DataError(
            f"{out}: holds files made otherwise ({', '.join(other)}): choose another --out, or --overwrite"
        )


def resolve(source, profile, val_source, val_size):
    """(name in PROFILES, source, val_source, val_size): what was asked for, else the profile's."""
    name = source if source in PROFILES else profile or DEFAULT
    source = str(source or name)
    if profile not in (None, name) or name not in PROFILES:
        raise DataError(f"profile {profile!r} of {source}: choose from {', '.join(PROFILES)}")
    if source == name:
        source = PROFILES[name].hub_id
    if not PROFILES[name].held_out:
        if val_source:
            raise DataError(f"val_source {val_source}: {name} is validated on problems of its own")
        return name, source, None, VAL_SIZE if val_size is None else val_size
    if val_size is not None:
        raise DataError(f"val_size {val_size}: {name} is validated on all of another data set")
    return name, source, str(val_source or PROFILES[PROFILES[name].held_out].hub_id), None


def prepare(
    source: str | None = None,
    out: str | None = None,
    val_size: int | None = None,
    seed: int = 0,
    keep_repeats: bool = False,
    split: str | None = None,
    revision: str | None = None,
    overwrite: bool = False,
    workers: int = 4,
    progress: bool = True,
    profile: str | None = None,
    val_source: str | None = None,
) -> dict:
    """Make the three files in the folder `out`, return the manifest. Raises DataError, a line to show.

    `source` is a name of PROFILES, or a .jsonl or .parquet file, a folder of them or a hub dataset
    whose rows have the form of `profile`; of the latter two, the files whose name says `split`.
    `val_source`: likewise, a copy of what the profile is validated on. None: what the profile says.
    Files appear under their names only when all of them are complete.
    """
    name, source, val_source, val_size = resolve(source, profile, val_source, val_size)
    known, split, out = PROFILES[name], split or PROFILES[name].splits, Path(out or f"data/{name}")
    test = PROFILES.get(known.held_out)
    dropped, val_dropped = Counter(), Counter()
    settings = {
        "profile": name,
        "source": source,
        "split": split,
        "revision": revision,
        "val_source": val_source,
        "val_size": val_size,
        "seed": seed,
    }
    settings |= {
        "keep_repeats": keep_repeats,
        "problem_type": PROBLEM_TYPE,
        "normalisation": NORMALISATION,
    }
    if workers < 1 or not (test or val_size >= 1):
        raise DataError(
            f"val_size {val_size} and workers {workers}: there must be at least 1 of each"
        )
    if not overwrite:
        check_output(out, settings)
    names, open_file, commit = locate(source, split, revision, f"--profile {name} --source")
    manifest = {"settings": settings, "commit": commit, "files": names}
    val_names = []
    if test:
        flags = f"--profile {name} --val_source"
        val_names, val_open, val_commit = locate(val_source, test.splits, None, flags)
        manifest |= {"val_commit": val_commit, "val_files": val_names}
    sources = {Path(name).resolve() for name in names + val_names}
    if {(out / name).resolve() for name in OUTPUTS} & sources:
        raise DataError(f"{out}: would overwrite its own source {source}: choose another --out")
    try:
        out.mkdir(parents=True, exist_ok=True)
        for unfinished in out.glob(".preparing-*"):  # it was killed
            shutil.rmtree(unfinished)
        with tempfile.TemporaryDirectory(prefix=".preparing-", dir=out) as folder:
            db = sqlite3.connect("")  # "": on disk, nameless, removed by the system
            db.execute("PRAGMA cache_size = -65536")  # KiB in memory
            db.execute(
                "CREATE TABLE rows (train, rank, answer, line, n, "
                "PRIMARY KEY (train, rank, answer, line)) WITHOUT ROWID"
            )
            read, held_out = 0, frozenset()
            with Verifier(workers=workers) as verifier:
                stored = db, seed, verifier.check_golds
                if test:  # few; a problem of them is not trained on even where it is not usable
                    rows = list(read_rows(val_names, val_open, test.gold, progress))
                    held_out = {rank_of(as_text(row, "problem", at), seed) for at, row in rows}
                    read += store_rows(iter(rows), test, True, *stored, val_dropped)
                    dropped.update({f"validation_{why}": n for why, n in val_dropped.items()})
                rows = read_rows(names, open_file, known.gold, progress)
                read += store_rows(rows, known, False, *stored, dropped, held_out)
            count = "SELECT count(DISTINCT rank) FROM rows"
            (problems,) = db.execute(count).fetchone()
            if test:
                (val_size,) = db.execute(f"{count} WHERE NOT train").fetchone()
            if not 0 < val_size < problems:
                raise DataError(
                    f"{source}: {problems} usable problems in {read} rows (dropped: {dict(dropped)}) are too "
                    f"few for val_size {val_size} and some to train on: "
                    + ("" if test else "lower --val_size or ")
                    + "give more data"
                )
            counts = write_files(db, Path(folder), val_size, keep_repeats, dropped, progress)
            db.close()
            assert read == counts["train_rows"] + counts["val_rows"] + dropped.total(), (
                "a row went uncounted"
            )
            manifest |= {"rows_read": read, "dropped_rows": dict(+dropped)} | counts
            text = json.dumps(manifest, indent=1, ensure_ascii=False) + "\n"
            (Path(folder) / "manifest.json").write_text(text, encoding="utf-8")
            (out / "manifest.json").unlink(
                missing_ok=True
            )  # gone first and back last: never beside others' files
            for name in OUTPUTS:
                (Path(folder) / name).replace(out / name)
    except (OSError, sqlite3.Error) as error:
        raise DataError(
            f"{out}: cannot be written ({one_line(error)}): is there space in it and in TMPDIR?"
        ) from error
    finally:
        if out.is_dir() and not any(out.iterdir()):
            out.rmdir()
    return manifest


def prepare_missing(paths: list[str]) -> None:
    """Make the files that are not there and whose path says how: data/NAME/train.jsonl, val.jsonl."""
    for path in map(Path, paths):
        name = path.parent.name
        says_how = name in PROFILES and path in [Path("data", name, file) for file in OUTPUTS[:2]]
        if says_how and not path.exists():
            known = PROFILES[name]
            without = f" without {PROFILES[known.held_out].hub_id}" if known.held_out else ""
            print(f"{path} is missing: preparing it from {known.hub_id}{without}, once", flush=True)
            prepare(name)


def main(argv=None):
    """The command line of `prepare`."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add(
        "--source",
        help=f"{', '.join(PROFILES)}, a hub dataset, .jsonl or .parquet file, or folder of them "
        "(where the profile says)",
    )
    add("--profile", choices=PROFILES, help=f"whose form such a file or folder has ({DEFAULT})")
    add("--val_source", help="likewise, what is validated on where that is another data set")
    add("--out", help="folder for the three files (data/PROFILE)")
    add(
        "--val_size",
        type=int,
        help=f"validation problems, where they are its own ({VAL_SIZE}; paper, Dataset Details)",
    )
    add("--seed", type=int, default=0, help="of the split and the order (%(default)s)")
    add("--keep_repeats", action="store_true", help="train on repeated rows too, as the paper did")
    add("--split", help="read the files whose name says one of these words (the profile's)")
    add("--revision", help="branch, tag or commit of the hub dataset (its newest)")
    add("--overwrite", action="store_true", help="replace what is in --out")
    add("--workers", type=int, default=4, help="processes that check answers (%(default)s)")
    try:
        manifest = prepare(**vars(parser.parse_args(argv)))
    except DataError as error:
        print(f"prepare_data: {error}", file=sys.stderr)
        sys.exit(2)
    print(
        json.dumps(
            {key: manifest[key] for key in ("rows_read", "dropped_rows", "train_rows", "val_rows")}
        )
    )


if __name__ == "__main__":
    main()

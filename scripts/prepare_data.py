r"""Make train.jsonl, val.jsonl and manifest.json from a public data set, or from a copy of it.

    python -m scripts.prepare_data                                    # OpenMathReasoning, streamed
    python -m scripts.prepare_data --source cot.parquet --out data/mine      # a file or a folder
    python -m scripts.prepare_data --profile math                            # MATH without MATH-500
    python -m scripts.prepare_data --profile math --source DIR --val_source FILE     # from copies

OpenMathReasoning's `cot` split has 3.2 million rows, one per *solution*, of about 306 thousand
problems: a validation split by rows would train on nearly all of its own problems. So a problem is
its normalised text, and has a rank, sha256(seed + normalised text). The `val_size` smallest ranks
are validated on, whatever the order and spelling of the rows; or, whole, another data set (MATH-500
for MATH), no problem of which is trained on.

Of a problem's answers (compared as text) the most frequent is kept, on a tie the alphabetically
first; of the rows with that answer again the most frequent, then the first. With `keep_repeats`
every row of a training problem is written, as the paper did with its "3 million problems".

The files are in the order of the ranks: shuffled, and the same bytes for any order of the source.
Memory stays small: rows wait in a nameless temporary SQLite file (in SQLITE_TMPDIR, else TMPDIR,
else /tmp), which vanishes even if this process is killed; equal rows are one with a count there.
"""

import argparse
import hashlib
import itertools
import json
import re
import shutil
import sqlite3
import sys
import unicodedata
from collections import Counter
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pyarrow.parquet
from filelock import FileLock, Timeout
from tqdm import tqdm

from plumbing.errors import InputError, first_lines, say
from verify import Verifier, extract_boxed


@dataclass(frozen=True)
class Profile:
    """What to know of a public data set. Its problems are in the column `problem`."""

    hub_id: str
    splits: str  # words; the files whose name says one of them are read
    gold: str = "expected_answer"  # the column with the gold answer,
    boxed: bool = False  # or with a solution, whose last \boxed{} is the gold
    held_out: str = ""  # the profile to validate on; "": on val_size problems of its own


# 500 of MATH's 5,000 test problems are MATH-500; the others are trained on, as is usual.
MATH = "DigitalLearningGmbH/MATH-lighteval"
PROFILES = {
    "openmathreasoning": Profile("nvidia/OpenMathReasoning", "cot"),
    "math": Profile(MATH, "train test", "solution", True, "math500"),
    "math500": Profile("HuggingFaceH4/MATH-500", "test", "answer"),
}
DEFAULT = "openmathreasoning"
VAL_SIZE = 5000  # paper, Dataset Details
OPTIONAL = ("problem_type", "pass_rate_72b_tir")
PROBLEM_TYPE = "has_answer_extracted"  # the others are proofs, or answers by a vote over solutions
NORMALISATION = "Unicode NFKC, case folded, runs of white space as one space, ends stripped"
OUTPUTS = ("train.jsonl", "val.jsonl", "manifest.json")
BATCH = 8192  # rows in memory at a time


def normalise(text: str) -> str:
    """The text that decides whether two problems are the same."""
    folded = unicodedata.normalize("NFKC", text).casefold()
    return " ".join(unicodedata.normalize("NFKC", folded).split())  # folding can undo NFKC


def rank_of(problem: str, seed: int) -> bytes:
    """A problem's identity and its place in the shuffled order: sha256(seed + normalised text)."""
    text = f"{seed}\n{normalise(problem)}"
    return hashlib.sha256(text.encode(errors="surrogatepass")).digest()


def on_hub(dataset, revision, copy):
    """(root, files, a function that opens one, commit) of a hub dataset; copy: flags for one."""
    from huggingface_hub import HfApi, HfFileSystem

    try:
        commit, hub = HfApi().dataset_info(dataset, revision=revision).sha, HfFileSystem()
        root = f"datasets/{dataset}@{commit}"
        names = hub.find(root)
    except Exception as error:  # the hub's and the HTTP library's errors share no other base
        raise InputError(
            f"{dataset}: no such file or folder here, and the Hugging Face hub cannot be read "
            f"({first_lines(error)}): check name and network, or give a local copy by "
            f"python -m scripts.prepare_data {copy} COPY"
        ) from error
    # No read-ahead: the columns asked for lie far apart, between the long solutions.
    return root, names, partial(hub.open, mode="rb", cache_type="none"), commit


def locate(source, splits, revision, copy):
    """(file names, a function that opens one, commit) of a file, a folder or a hub dataset.

    Of a folder or a dataset: the files whose name says one of the words in `splits`; a folder whose
    files say none of them is read whole.
    """
    path, commit, open_file = Path(source), None, partial(open, mode="rb")
    if path.is_file():
        root, names = source, [source]
    elif path.is_dir():
        root, names = path.as_posix(), [found.as_posix() for found in path.rglob("*")]
    elif re.fullmatch(r"\w[\w.-]*/[\w.-]+(?<!\.jsonl)(?<!\.parquet)", source):
        root, names, open_file, commit = on_hub(source, revision, copy)
    else:
        known = PROFILES[DEFAULT].hub_id
        raise InputError(f"{source}: no such file or folder (a hub dataset is named like {known})")
    names, found = sorted(name for name in names if name.endswith((".jsonl", ".parquet"))), {}
    for word in splits.split():
        says_word = re.compile(rf"[/_.-]{word}[/_.-]")
        found[word] = [name for name in names if says_word.search(name.removeprefix(root))]
    if not (commit or any(found.values())):
        found = {splits: names}
    if missing := [word for word, files in found.items() if not files]:
        raise InputError(f"{source}: no .jsonl or .parquet file of a split {missing[0]!r}")
    return sorted(set().union(*found.values())), open_file, commit


def check_fields(fields, gold, where):
    """Complain of a missing field."""
    for field in ("problem", gold):
        if field not in fields:
            raise InputError(f"{where}: no field {field!r} (it has: {', '.join(fields) or 'none'})")


def read_jsonl(file, name, gold):
    """(where, row) of every line that is not blank."""
    for number, line in enumerate(file, 1):
        where = f"{name}, line {number}"
        if line.strip():
            try:
                row = json.loads(line)
            except ValueError as error:  # also bytes that are not UTF-8
                raise InputError(f"{where}: not JSON ({first_lines(error)})") from error
            check_fields(row if isinstance(row, dict) else {}, gold, where)
            yield where, row


def read_parquet(file, name, gold):
    """(where, row) of every row, of the columns used: the solutions are most of the bytes."""
    table = pyarrow.parquet.ParquetFile(file)
    fields = table.schema_arrow.names
    check_fields(fields, gold, name)
    used = [field for field in ("problem", gold, *OPTIONAL) if field in fields]
    batches = table.iter_batches(BATCH, columns=used)
    rows = itertools.chain.from_iterable(batch.to_pylist() for batch in batches)
    yield from ((f"{name}, row {number}", row) for number, row in enumerate(rows, 1))


def read_rows(names, open_file, gold):
    """(where, row) of every row of every file. gold: the column of the answer."""
    for name in names:
        read = read_jsonl if name.endswith(".jsonl") else read_parquet
        try:
            with open_file(name) as file:
                yield from tqdm(read(file, name, gold), name, unit=" rows", unit_scale=True)
        except InputError:
            raise
        except Exception as error:  # a broken file, disk or network, in any library's terms
            raise InputError(f"{name}: cannot be read ({first_lines(error)})") from error


def as_text(row, field, where):
    """A field as text: null is empty, a number its digits; all else is a mistake in the file."""
    value = row[field]
    if isinstance(value, bool) or not isinstance(value, str | int | float | None):
        raise InputError(f"{where}: {field!r} is a {type(value).__name__}, expected text")
    return "" if value is None else str(value)


def why_not(row, problem, answer):
    """Why a row cannot be used, as the manifest counts it; "" where it can."""
    if row.get("problem_type", PROBLEM_TYPE) != PROBLEM_TYPE:
        return "other_problem_type"
    if not problem.strip():
        return "empty_problem"
    if answer is None:
        return "no_box"
    if not answer:
        return "empty_answer"
    if re.search("[\ud800-\udfff]", problem + answer):  # JSON can spell what no file can hold
        return "not_unicode"
    return ""


class Table:
    """The usable rows in a SQLite file; `dropped` counts the others by reason.

    check_golds: answers -> whether each can be verified; every distinct one is asked about once.
    """

    def __init__(self, seed, check_golds):
        self.seed, self.check_golds, self.verifiable = seed, check_golds, {}
        self.dropped, self.held_out = Counter(), set()  # held_out: ranks not to be trained on
        self.db = sqlite3.connect("")  # "": on disk, nameless, removed by the system
        self.db.execute("PRAGMA cache_size = -65536")  # KiB in memory
        columns = "train, rank, answer, line, n, PRIMARY KEY (train, rank, answer, line)"
        self.db.execute(f"CREATE TABLE rows ({columns}) WITHOUT ROWID")

    def problems(self):
        """How many distinct ones there are."""
        return self.db.execute("SELECT count(DISTINCT rank) FROM rows").fetchone()[0]

    def store(self, rows, profile, train):
        """Take (where, row) of a data set, which is trained or else validated on; return how many
        there were."""
        read, prefix = 0, "" if train else "validation_"
        while batch := list(itertools.islice(rows, BATCH)):
            read += len(batch)
            usable = []  # (rank, record)
            for where, row in batch:
                problem, answer = (as_text(row, name, where) for name in ("problem", profile.gold))
                answer = extract_boxed(answer) if profile.boxed else answer.strip()
                rank = rank_of(problem, self.seed)
                if not train:
                    self.held_out.add(rank)
                known = train and rank in self.held_out
                if why := "in_validation" if known else why_not(row, problem, answer):
                    self.dropped[prefix + why] += 1
                    continue
                record = {"problem": problem, "expected_answer": answer}
                rate = str(row.get("pass_rate_72b_tir"))  # text, "n/a" where it is not known
                if re.fullmatch(r"[01](\.\d*)?", rate):
                    record["pass_rate"] = float(rate)
                usable.append((rank, record))
            new = sorted({record["expected_answer"] for _, record in usable} - {*self.verifiable})
            self.verifiable.update(zip(new, self.check_golds(new), strict=True))
            for rank, record in usable:
                answer = record["expected_answer"]
                if not self.verifiable[answer]:
                    self.dropped[f"{prefix}unverifiable_answer"] += 1
                    continue
                self.db.execute(
                    "INSERT INTO rows VALUES (?, ?, ?, ?, 1) ON CONFLICT DO UPDATE SET n = n + 1",
                    (train, rank, answer, json.dumps(record, ensure_ascii=False)),
                )
        return read

    def write(self, folder, val_size, keep_repeats):
        """Write val.jsonl and train.jsonl in the order of the ranks; return counts and hashes."""
        # Validation problems of another data set (train = 0) come first, else the smallest ranks.
        query = "SELECT rank, answer, line, n FROM rows ORDER BY train, rank, answer, line"
        groups = itertools.groupby(self.db.execute(query), lambda row: row[0])
        files, count, conflicting = [folder / name for name in OUTPUTS[:2]], [0, 0], 0
        with files[0].open("wb") as train, files[1].open("wb") as val:
            for number, (_, group) in enumerate(tqdm(groups, "writing", unit=" problems"), 1):
                held = number <= val_size
                lines, times = [row[1:] for row in group], Counter()  # times: answer -> n
                for answer, _, n in lines:
                    times[answer] += n
                # The most frequent answer, and its most frequent line.
                best = min(lines, key=lambda x, times=times: (-times[x[0]], x[0], -x[2], x[1]))
                conflicting += len(times) > 1
                if held or not keep_repeats:
                    self.dropped["repeat"] += times[best[0]] - 1
                    self.dropped["conflicting_answer"] += times.total() - times[best[0]]
                    lines = [(*best[:2], 1)]
                for _, line, n in lines:
                    (val if held else train).write(f"{line}\n".encode() * n)
                    count[held] += n
        found = {"problems": number, "problems_with_conflicting_answers": conflicting}
        found |= {"train_rows": count[0], "val_rows": count[1]}
        digests = {}
        for path in files:
            with path.open("rb") as file:
                digests[path.name] = hashlib.file_digest(file, "sha256").hexdigest()
        return found | {"sha256": digests}


def check_output(out, settings):
    """Refuse a folder that holds anything but what these very settings made."""
    if not any((out / name).exists() for name in OUTPUTS):
        return
    try:
        found = json.loads((out / "manifest.json").read_text(encoding="utf-8"))["settings"]
        other = [f"{key} was {found[key]!r}" for key in settings if found[key] != settings[key]]
    except (OSError, ValueError, KeyError, TypeError):
        other = ["no readable manifest says how"]
    if other:
        raise InputError(
            f"{out}: holds files made otherwise ({', '.join(other)}): choose another --out, or "
            "remove them"
        )


@contextmanager
def unfinished(out):
    """A folder in `out`, for one process at a time; in the end nothing is left of it."""
    folder = out / ".preparing"
    folder.mkdir(parents=True, exist_ok=True)
    try:
        with FileLock(folder / "lock", timeout=0):
            try:
                yield folder
            finally:
                shutil.rmtree(folder)
                if not any(out.iterdir()):
                    out.rmdir()
    except Timeout as error:
        raise InputError(f"{out}: another process prepares it: begin when it is done") from error


def arguments(argv=None):
    """The command line; also what `prepare` takes."""
    how = {"formatter_class": argparse.RawDescriptionHelpFormatter}
    parser = argparse.ArgumentParser(description=__doc__, **how)
    add = parser.add_argument
    add("--profile", choices=PROFILES, default=DEFAULT, help="the data set (%(default)s)")
    add("--source", help="a copy or another of its form: file, folder or hub dataset")
    add("--revision", help="branch, tag or commit of the hub dataset (its newest)")
    add("--val_source", help="likewise, what is validated on where that is another data set")
    add("--out", help="folder for the three files (data/PROFILE)")
    add("--val_size", type=int, help=f"validation problems, where they are its own ({VAL_SIZE})")
    add("--seed", type=int, default=0, help="of the split and the order (%(default)s)")
    add("--keep_repeats", action="store_true", help="train on repeated rows too, as the paper did")
    return parser.parse_args(argv)


def prepare(args) -> dict:
    """Make the three files as `arguments` say; return the manifest.

    They appear under their names only when all of them are complete. Raises InputError.
    """
    known, out = PROFILES[args.profile], Path(args.out or f"data/{args.profile}")
    test, copy = PROFILES.get(known.held_out), f"--profile {args.profile}"
    args.source = args.source or known.hub_id
    if test and args.val_size is not None:
        what = f"{args.profile} is validated on all of another data set"
        raise InputError(f"val_size {args.val_size}: {what}")
    if args.val_source and not test:
        what = f"{args.profile} has validation problems of its own"
        raise InputError(f"val_source {args.val_source}: {what}")
    if test:
        args.val_source = args.val_source or test.hub_id
    elif args.val_size is None:
        args.val_size = VAL_SIZE
    elif args.val_size < 1:
        raise InputError(f"val_size {args.val_size}: there must be at least 1")
    settings = {"profile": args.profile, "source": args.source, "split": known.splits}
    settings |= {name: value for name, value in vars(args).items() if name != "out"}
    settings |= {"problem_type": PROBLEM_TYPE, "normalisation": NORMALISATION}
    check_output(out, settings)
    where = locate(args.source, known.splits, args.revision, f"{copy} --source")
    names, _, commit = where
    manifest = {"settings": settings, "commit": commit, "files": names}
    if test:
        val_where = locate(args.val_source, test.splits, None, f"{copy} --val_source")
        manifest |= {"val_commit": val_where[2], "val_files": val_where[0]}
    if out.resolve() in {Path(name).resolve().parent for name in names}:
        raise InputError(f"{out}: holds the source {args.source}: choose another --out")
    try:
        with unfinished(out) as folder, Verifier(workers=4) as verifier:
            table, read, val_size = Table(args.seed, verifier.check_golds), 0, args.val_size
            if test:
                read = table.store(read_rows(*val_where[:2], test.gold), test, False)
                val_size = table.problems()
            read += table.store(read_rows(*where[:2], known.gold), known, True)
            if not 0 < val_size < (problems := table.problems()):
                raise InputError(
                    f"{args.source}: {problems} usable problems in {read} rows (dropped: "
                    f"{dict(table.dropped)}) are too few for val_size {val_size} and some to train "
                    f"on: {'' if test else 'lower --val_size or '}give more data"
                )
            counts = table.write(folder, val_size, args.keep_repeats)
            table.db.close()
            manifest |= {"rows_read": read, "dropped_rows": dict(+table.dropped)} | counts
            text = json.dumps(manifest, indent=1, ensure_ascii=False) + "\n"
            (folder / "manifest.json").write_text(text, encoding="utf-8")
            # The manifest goes first and comes back last: it is never beside others' files.
            (out / "manifest.json").unlink(missing_ok=True)
            for name in OUTPUTS:
                (folder / name).replace(out / name)
    except (OSError, sqlite3.Error) as error:
        why = f"cannot be written ({first_lines(error)}): is there space in it and in TMPDIR?"
        raise InputError(f"{out}: {why}") from error
    return manifest


def prepare_missing(paths: list[str]) -> None:
    """Make the missing files whose path says how: data/NAME/train.jsonl and val.jsonl."""
    for path in map(Path, paths):
        name = path.parent.name
        says_how = name in PROFILES and path in [Path("data", name, file) for file in OUTPUTS[:2]]
        if says_how and not path.exists():
            known = PROFILES[name]
            without = f" without {PROFILES[known.held_out].hub_id}" if known.held_out else ""
            print(f"{path} is missing: preparing it from {known.hub_id}{without}, once", flush=True)
            prepare(arguments(["--profile", name]))


def main(argv=None):
    """Returns the exit status: 0, or 2 and one line on stderr."""
    try:
        manifest = prepare(arguments(argv))
    except InputError as error:
        say(error)
        return 2
    said = ("rows_read", "dropped_rows", "train_rows", "val_rows")
    print(json.dumps({key: manifest[key] for key in said}))
    return 0


if __name__ == "__main__":
    sys.exit(main())

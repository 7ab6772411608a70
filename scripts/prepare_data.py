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
Distinct rows wait in memory, about 1 KB each.
"""

import hashlib
import json
import re
import sys
import tempfile
import unicodedata
from argparse import RawDescriptionHelpFormatter
from collections import Counter, defaultdict
from dataclasses import asdict, dataclass
from pathlib import Path

import pyarrow.parquet
from fsspec.implementations.local import LocalFileSystem
from tqdm import tqdm

from plumbing.errors import InputError, first_lines, say
from plumbing.files import write_whole
from plumbing.flags import Parser, count
from verify import Verifier, extract_boxed


@dataclass(frozen=True)
class Profile:
    """What to know of a public data set. Its problems are in the column `problem`."""

    hub_id: str
    splits: str  # words; the files whose name says one of them are read
    gold: str = "expected_answer"  # the column with the gold answer,
    boxed: bool = False  # or with a solution, whose last \boxed{} is the gold
    held_out: str = ""  # the profile to validate on; "": on val_size problems of its own
    only: str = ""  # COLUMN=VALUE: rows with another value there are dropped
    rate: str = ""  # the column with another model's pass rate, written as `pass_rate`


# The other problem types are proofs, and answers by a vote over generated solutions.
OPEN_MATH = {"only": "problem_type=has_answer_extracted", "rate": "pass_rate_72b_tir"}
# 500 of MATH's 5,000 test problems are MATH-500; the others are trained on, as is usual.
MATH = "DigitalLearningGmbH/MATH-lighteval"
PROFILES = {
    "openmathreasoning": Profile("nvidia/OpenMathReasoning", "cot", **OPEN_MATH),
    "math": Profile(MATH, "train test", "solution", True, "math500"),
    "math500": Profile("HuggingFaceH4/MATH-500", "test", "answer"),
}
VAL_SIZE = 5000  # paper, Dataset Details
OUTPUTS = ("train.jsonl", "val.jsonl", "manifest.json")


def normalise(text: str) -> str:
    """The text that decides whether two problems are the same: Unicode NFKC, case folded, runs of
    white space as one space, ends stripped."""
    folded = unicodedata.normalize("NFKC", text).casefold()
    return " ".join(unicodedata.normalize("NFKC", folded).split())  # folding can undo NFKC


def rank_of(problem: str, seed: int) -> bytes:
    """A problem's identity and its place in the shuffled order: sha256(seed + normalised text)."""
    return hashlib.sha256(f"{seed}\n{normalise(problem)}".encode()).digest()


def locate(source: str, splits: str):
    """(file names, the file system they are on, commit) of a file, a folder or a hub dataset, NAME
    or NAME@REVISION.

    Of the last two: the files whose name says one of the words in `splits`, or where no name says
    any of them, all.
    """
    from huggingface_hub import HfApi, HfFileSystem

    name, _, revision = source.partition("@")
    root, files, commit = str(Path(source).resolve()), LocalFileSystem(), None
    try:
        if not Path(source).exists():
            commit = HfApi().dataset_info(name, revision=revision or None).sha
            root, files = f"datasets/{name}@{commit}", HfFileSystem()
        names = sorted(files.find(root))
    except Exception as error:  # the hub's and the HTTP library's errors share no other base
        raise InputError(
            f"{source}: no such file or folder here, and the Hugging Face hub cannot be read "
            f"({first_lines(error)}): check name and network, or give a local copy as "
            "python -m scripts.prepare_data --help says"
        ) from error
    if names == [root]:  # a file
        return names, files, commit
    names, found = [name for name in names if name.endswith((".jsonl", ".parquet"))], {}
    for word in splits.split():
        says_word = re.compile(rf"[/_.-]{word}[/_.-]")
        found[word] = [name for name in names if says_word.search(name.removeprefix(root))]
    if not any(found.values()):
        found = {splits: names}
    if missing := [word for word, names in found.items() if not names]:
        raise InputError(f"{source}: no .jsonl or .parquet file of a split {missing[0]!r}")
    return sorted(set().union(*found.values())), files, commit


def check_fields(fields, profile: Profile, where: str) -> None:
    """Complain of a missing field."""
    for field in ("problem", profile.gold):
        if field not in fields:
            raise InputError(f"{where}: no field {field!r} (it has: {', '.join(fields) or 'none'})")


def read_parquet(file, profile: Profile, name: str):
    """Every row, of the columns used: in some data sets the solutions are most of the bytes."""
    table = pyarrow.parquet.ParquetFile(file)
    fields = table.schema_arrow.names
    check_fields(fields, profile, name)
    used = {"problem", profile.gold, profile.only.partition("=")[0], profile.rate}
    for batch in table.iter_batches(8192, columns=[field for field in fields if field in used]):
        yield from batch.to_pylist()


def read_rows(names: list[str], files, profile: Profile):
    """(where, row) of every row of every file."""
    for name in names:
        number = 0
        try:
            # No read-ahead: the columns asked for lie far apart, between the long solutions.
            with files.open(name, "rb", cache_type="none") as file:
                rows = map(json.loads, filter(bytes.strip, file))
                if name.endswith(".parquet"):
                    rows = read_parquet(file, profile, name)
                for number, row in enumerate(tqdm(rows, name, unit=" rows", unit_scale=True), 1):
                    where = f"{name}, row {number}"
                    check_fields(row if isinstance(row, dict) else {}, profile, where)
                    yield where, row
        except InputError:
            raise
        except Exception as error:  # a broken file, disk or network, in any library's terms
            why = f"{name}, after row {number}: cannot be read ({first_lines(error)})"
            raise InputError(why) from error


def as_text(row: dict, field: str, where: str) -> str:
    """A field as text: null is empty, a number its digits; all else is a mistake in the file."""
    value = row[field]
    if isinstance(value, bool) or not isinstance(value, str | int | float | None):
        raise InputError(f"{where}: {field!r} is a {type(value).__name__}, expected text")
    return "" if value is None else str(value)


class Table:
    """The usable rows of a data set: rank -> how often each (answer, line of JSON) is there.

    `seen` has the rank of every problem, usable or not; `dropped` counts rows by reason.
    """

    def __init__(self, profile: Profile, source: str | None):
        self.profile, self.source = profile, source or profile.hub_id
        self.names, self.files, self.commit = locate(self.source, profile.splits)
        self.rows, self.dropped = defaultdict(Counter), Counter()
        self.seen, self.read = set(), 0

    def load(self, seed: int, check_golds, held_out=()) -> None:
        """Read all. check_golds: answers -> whether each can be verified; asked once about each.
        held_out: ranks of problems to leave out."""
        for where, row in read_rows(self.names, self.files, self.profile):
            self.add(where, row, seed, held_out)
        golds = sorted({answer for counts in self.rows.values() for answer, _ in counts})
        tqdm.write(f"checking {len(golds)} gold answers", file=sys.stderr)
        good = dict(zip(golds, check_golds(golds), strict=True))
        for rank, counts in list(self.rows.items()):
            for answer, line in list(counts):
                if not good[answer]:
                    self.dropped["unverifiable_answer"] += counts.pop((answer, line))
            if not counts:
                del self.rows[rank]

    def add(self, where: str, row: dict, seed: int, held_out) -> None:
        """Take a row, or count why not."""
        known = self.profile
        problem, answer = (as_text(row, name, where) for name in ("problem", known.gold))
        answer = extract_boxed(answer) if known.boxed else answer.strip()
        rank = rank_of(problem, seed)
        self.seen.add(rank)
        self.read += 1
        column, _, value = known.only.partition("=")
        why_not = {
            "in_validation": rank in held_out,
            f"other_{column}": row.get(column, value) != value,
            "empty_problem": not problem.strip(),
            "no_box": answer is None,
            "empty_answer": not answer,
        }
        for reason, holds in why_not.items():
            if holds:
                self.dropped[reason] += 1
                return
        record = {"problem": problem, "expected_answer": answer}
        rate = str(row.get(known.rate))  # text in some data sets, "n/a" where it is not known
        if re.fullmatch(r"[01](\.\d*)?", rate):
            record["pass_rate"] = float(rate)
        self.rows[rank][answer, json.dumps(record, ensure_ascii=False)] += 1

    def settle(self, ranks: list[bytes]) -> None:
        """Keep one answer of each of these problems, and one line."""
        for rank in ranks:
            counts, times = self.rows[rank], Counter()
            for (answer, _), n in counts.items():
                times[answer] += n
            best = min(times, key=lambda answer: (-times[answer], answer))
            lines = {line: n for (answer, line), n in counts.items() if answer == best}
            self.dropped["repeat"] += times[best] - 1
            self.dropped["conflicting_answer"] += times.total() - times[best]
            self.rows[rank] = Counter([(best, min(lines, key=lambda x: (-lines[x], x)))])

    def write(self, path: Path, ranks: list[bytes]) -> int:
        """Write the lines of these problems; return how many."""
        counts = [item for rank in ranks for item in sorted(self.rows[rank].items())]
        with path.open("w", encoding="utf-8") as file:
            file.writelines(f"{line}\n" * n for (_, line), n in counts)
        return sum(n for _, n in counts)

    def facts(self) -> dict:
        """What the manifest says of it."""
        found = {"source": self.source, "commit": self.commit, "files": self.names}
        return found | {"rows_read": self.read, "dropped_rows": dict(+self.dropped)}


def check_output(out: Path, settings: dict) -> None:
    """Refuse a folder that holds anything but what these very settings made."""
    if any((out / name).exists() for name in OUTPUTS):
        try:
            found = json.loads((out / "manifest.json").read_text(encoding="utf-8"))["settings"]
        except (OSError, ValueError, KeyError, TypeError):
            found = None
        if found != settings:
            what = "holds files made otherwise, or by hand"
            raise InputError(f"{out}: {what}: choose another --out, or remove them")


def arguments(argv=None):
    """The command line; also what `prepare` takes."""
    parser = Parser(description=__doc__, formatter_class=RawDescriptionHelpFormatter)
    add = parser.add_argument
    known = "openmathreasoning"
    add("--profile", choices=PROFILES, default=known, help="the data set (%(default)s)")
    add("--source", default=None, help="a copy: file, folder, or hub dataset NAME[@REVISION]")
    add("--val_source", default=None, help="likewise, of another data set that is validated on")
    add("--out", default=None, help="folder for the three files (data/PROFILE)")
    add("--val_size", type=count, default=None, help=f"problems validated on ({VAL_SIZE})")
    add("--seed", type=int, default=0, help="of the split and the order (%(default)s)")
    keep = "train on repeated rows too, as the paper did"
    add("--keep_repeats", action="store_true", default=False, help=keep)
    return parser.parse_args(argv)


def prepare(args) -> dict:
    """Make the three files as `arguments` say; return the manifest.

    They appear under their names only when all of them are complete. Raises ValueError or OSError.
    """
    profile, out = PROFILES[args.profile], Path(args.out or f"data/{args.profile}")
    other = PROFILES.get(profile.held_out)
    unused = "val_size" if other else "val_source"
    if getattr(args, unused) is not None:
        what = "another data set" if other else "problems of its own"
        raise InputError(f"--{unused}: {args.profile} is validated on {what}")
    settings = asdict(profile) | {k: v for k, v in vars(args).items() if k != "out"}
    check_output(out, settings)
    train = Table(profile, args.source)
    val = Table(other, args.val_source) if other else train
    with Verifier(workers=4) as verifier:
        if other:
            val.load(args.seed, verifier.check_golds)
        train.load(args.seed, verifier.check_golds, val.seen if other else ())
    ranks, size = sorted(train.rows), 0 if other else args.val_size or VAL_SIZE
    val_ranks, train_ranks = sorted(val.rows) if other else ranks[:size], ranks[size:]
    if not (val_ranks and train_ranks):
        found = f"{len(ranks)} usable problems in {train.read} rows (dropped: {train.dropped})"
        what = "too few to train on" if other else f"too few for --val_size {size}"
        raise InputError(f"{train.source}: {found}: {what}")
    val.settle(val_ranks)
    if not args.keep_repeats:
        train.settle(train_ranks)
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=out, prefix=".preparing-") as name:
        folder, manifest = Path(name), {"settings": settings}
        manifest["train_rows"] = train.write(folder / "train.jsonl", train_ranks)
        manifest["val_rows"] = val.write(folder / "val.jsonl", val_ranks)
        manifest |= train.facts() | ({"validation": val.facts()} if other else {})
        write_whole(folder / "manifest.json", json.dumps(manifest, indent=1) + "\n")
        # The manifest goes first and comes back last: it is never beside others' files.
        (out / "manifest.json").unlink(missing_ok=True)
        for name in OUTPUTS:
            (folder / name).replace(out / name)
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
    except (ValueError, OSError) as error:
        say(error)
        return 2
    said = ("rows_read", "dropped_rows", "train_rows", "val_rows")
    print(json.dumps({key: manifest[key] for key in said}))
    return 0


if __name__ == "__main__":
    sys.exit(main())

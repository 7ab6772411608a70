r"""Make train.jsonl, val.jsonl and manifest.json from a public data set, or from a copy of it.

    python -m scripts.prepare_data                                    # OpenMathReasoning, streamed
    python -m scripts.prepare_data --source math                             # MATH without MATH-500
    python -m scripts.prepare_data --source math --copy DIR --val_copy FILE          # from copies
    python -m scripts.prepare_data --source dapo --val_size 500 --against math500 aime24
    python -m scripts.prepare_data --source own --copy mine.jsonl --val_copy held_out.jsonl
    python -m scripts.prepare_data --source aime25                   # a test set: val.jsonl alone

The sources are in scripts/sources.py. Of all of them, rows without a problem or a gold, golds that
cannot be verified, and repeated problems are dropped, and counted in the manifest.

Many have a row per *solution*: OpenMathReasoning's `cot` split 3.2 million, of about 306 thousand
problems. A validation split by rows would train on nearly all of its own problems. So a problem is
its normalised text, and has a rank, sha256(seed + normalised text). The `val_size` smallest ranks
are validated on, whatever the order and spelling of the rows; or, whole, another data set (MATH-500
for MATH). No problem of that, or of the test sets in --against, is trained on, also if it is
spelled otherwise, or stands in a longer text: scripts/decontaminate.py says when. The manifest
counts what was dropped for it, and shows some.

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
from argparse import RawDescriptionHelpFormatter
from collections import Counter, defaultdict
from dataclasses import asdict, replace
from pathlib import Path

import pyarrow.parquet
from fsspec.implementations.local import LocalFileSystem
from tqdm import tqdm

from plumbing.command_line import Parser, count
from plumbing.errors import InputError, first_lines, print_error
from plumbing.files import write_atomic
from plumbing.problems import normalise
from scripts.decontaminate import Evaluation
from scripts.sources import SOURCES, Source, check_fields
from verify import Verifier

VAL_SIZE = 5000  # paper, Dataset Details
TRAIN, VAL, MANIFEST = "train.jsonl", "val.jsonl", "manifest.json"
EXAMPLES = 5  # of each reason, in the manifest


def rank_of(problem: str, seed: int) -> bytes:
    """A problem's identity and its place in the shuffled order: sha256(seed + normalised text)."""
    return hashlib.sha256(f"{seed}\n{normalise(problem)}".encode()).digest()


def locate(place: str, config: str, splits: str):
    """(file names, the file system they are on, commit) of a file, a folder or a hub dataset, NAME
    or NAME@REVISION.

    Of the last two: the files in a folder called `config`, or where none is, all; of these the ones
    whose name says one of the words in `splits`, or where no name says any of them, all.
    """
    from huggingface_hub import HfApi, HfFileSystem

    name, _, revision = place.partition("@")
    root, files, commit = str(Path(place).resolve()), LocalFileSystem(), None
    try:
        if not Path(place).exists():
            commit = HfApi().dataset_info(name, revision=revision or None).sha
            root, files = f"datasets/{name}@{commit}", HfFileSystem()
        names = sorted(files.find(root))
    except Exception as error:  # the hub's and the HTTP library's errors share no other base
        raise InputError(
            f"{place}: no such file or folder here, and the Hugging Face hub cannot be read "
            f"({first_lines(error)}): check name and network, or give a local copy as "
            "python -m scripts.prepare_data --help says"
        ) from error
    if names == [root]:  # a file
        return names, files, commit
    tables = [name for name in names if name.endswith((".jsonl", ".parquet"))]
    names = tables or [name for name in names if name.endswith(".json")]  # often about the data
    names = [name for name in names if f"/{config}/" in name.removeprefix(root)] or names
    found = {}
    for word in splits.split():
        says_word = re.compile(rf"[/_.-]{word}[/_.-]")
        found[word] = [name for name in names if says_word.search(name.removeprefix(root))]
    if not any(found.values()):
        found = {splits: names}
    if missing := [word for word, names in found.items() if not names]:
        raise InputError(f"{place}: no .jsonl, .parquet or .json file of a split {missing[0]!r}")
    return sorted(set().union(*found.values())), files, commit


def read_parquet(file, columns: list[str], others: bool, name: str):
    """Every row. Unless the others are wanted, of these columns alone: in some data sets the
    solutions are most of the bytes."""
    table = pyarrow.parquet.ParquetFile(file)
    check_fields(table.schema_arrow.names, columns, name)
    for batch in table.iter_batches(8192, columns=None if others else columns):
        yield from batch.to_pylist()


def read_rows(names: list[str], files, columns: list[str], others: bool = False):
    """(where, row) of every row of every file: Parquet, JSON lines, or in .json one list. Raises
    InputError where a file or a row has not all of `columns`."""
    for name in names:
        number = 0
        try:
            # No read-ahead: the columns asked for lie far apart, between the long solutions.
            with files.open(name, "rb", cache_type="none") as file:
                rows = map(json.loads, filter(bytes.strip, file))
                if name.endswith(".parquet"):
                    rows = read_parquet(file, columns, others, name)
                elif name.endswith(".json"):
                    rows = json.load(file)
                for number, row in enumerate(tqdm(rows, name, unit=" rows", unit_scale=True), 1):
                    where = f"{name}, row {number}"
                    check_fields(row if isinstance(row, dict) else {}, columns, where)
                    yield where, row
        except InputError:
            raise
        except Exception as error:  # a broken file, disk or network, in any library's terms
            why = f"{name}, after row {number}: cannot be read ({first_lines(error)})"
            raise InputError(why) from error


class Table:
    """The usable rows of a data set: rank -> how often each (answer, line of JSON) is there.

    `seen` has the rank of every problem, usable or not; `dropped` counts rows by reason; `stands`
    has the problems that are evaluated on: rank -> (reason, its text, which evaluation problem).
    """

    def __init__(self, known: Source, copy: str | None):
        self.known, self.place = known, copy or known.hub_id
        self.names, self.files, self.commit = locate(self.place, known.config, known.splits)
        self.rows, self.dropped = defaultdict(Counter), Counter()
        self.seen, self.stands, self.read = set(), {}, 0

    def load(self, seed: int, check_golds, evaluation: Evaluation) -> None:
        """Read all. check_golds: answers -> whether each can be verified; asked once about each.
        evaluation: problems to leave out."""
        known = self.known
        for where, row in read_rows(self.names, self.files, known.columns, known.keep == "*"):
            self.add(where, row, seed, evaluation)
        golds = sorted({answer for counts in self.rows.values() for answer, _ in counts})
        tqdm.write(f"checking {len(golds)} gold answers", file=sys.stderr)
        good = dict(zip(golds, check_golds(golds), strict=True))
        for rank, counts in list(self.rows.items()):
            for answer, line in list(counts):
                if not good[answer]:
                    self.dropped["unverifiable_answer"] += counts.pop((answer, line))
            if not counts:
                del self.rows[rank]

    def problems(self):
        """The text of every row's problem; nothing else is read, or need be there."""
        columns = [self.known.problem.partition(".")[0]]
        for where, row in read_rows(self.names, self.files, columns):
            yield self.known.problem_of(row, where) or ""

    def add(self, where: str, row: dict, seed: int, evaluation: Evaluation) -> None:
        """Take a row, or count why not."""
        known = self.known
        problem, answer = known.problem_of(row, where), known.gold_of(row, where)
        rank = rank_of(problem or "", seed)
        if rank not in self.seen and (found := evaluation.find(problem or "")):
            self.stands[rank] = (found[0], problem, found[1])
        self.seen.add(rank)
        self.read += 1
        why_not = {self.stands[rank][0]: True} if rank in self.stands else {}
        why_not |= known.unwanted(row) | {
            "other_prompt": problem is None,
            "empty_problem": not (problem or "").strip(),
            f"no_{known.reading}": answer is None,
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
        kept = [*row] if known.keep == "*" else [known.keep]
        kept = [name for name in kept if name not in record and row.get(name) is not None]
        record |= {name: row[name] for name in kept}
        line = json.dumps(record, ensure_ascii=False, default=str)  # a date as text
        self.rows[rank][answer, line] += 1

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
        found = {"source": self.place, "commit": self.commit, "files": self.names}
        return found | {"rows_read": self.read, "dropped_rows": dict(+self.dropped)}

    def overlap(self, evaluation: Evaluation) -> dict:
        """What the manifest says of the problems that are evaluated on: how many, and a few."""
        examples = defaultdict(list)
        for _, (reason, text, i) in sorted(self.stands.items()):
            other, place = evaluation.problems[i]
            examples[reason].append({"training": text, "evaluation": other, "from": place})
        return {
            "evaluation_problems": evaluation.size,
            "dropped_problems": {reason: len(found) for reason, found in examples.items()},
            "examples": {reason: found[:EXAMPLES] for reason, found in examples.items()},
        }


def check_output(out: Path, settings: dict) -> None:
    """Refuse a folder that holds anything but what these very settings made."""
    if any((out / name).exists() for name in (TRAIN, VAL, MANIFEST)):
        try:
            found = json.loads((out / MANIFEST).read_text(encoding="utf-8"))["settings"]
        except (OSError, ValueError, KeyError, TypeError):
            found = None
        if found != settings:
            what = "holds files made otherwise, or by hand"
            raise InputError(f"{out}: {what}: choose another --out, or remove them")


def arguments(argv=None):
    """The command line; also what `prepare` takes."""
    parser = Parser(description=__doc__, formatter_class=RawDescriptionHelpFormatter)
    add = parser.add_argument
    name = "openmathreasoning"
    add("--source", choices=SOURCES, default=name, metavar="NAME", help=", ".join(SOURCES))
    add("--copy", default=None, help="in its place: file, folder, or hub dataset NAME[@REVISION]")
    add("--val_copy", default=None, help="likewise, of another data set that is validated on")
    what = "test sets, by name or as files with a column `problem`: what is in them is dropped"
    add("--against", nargs="+", default=[], metavar="NAME|FILE", help=what)
    add("--out", default=None, help="folder for the files (data/SOURCE)")
    add("--val_size", type=count, default=None, help=f"problems validated on ({VAL_SIZE})")
    add("--seed", type=int, default=0, help="of the split and the order (%(default)s)")
    keep = "train on repeated rows too, as the paper did"
    add("--keep_repeats", action="store_true", default=False, help=keep)
    return parser.parse_args(argv)


def source_of(args) -> Source:
    """The source named, once no other flag contradicts it. Raises InputError."""
    known = SOURCES[args.source]
    if not (known.hub_id or args.copy):
        raise InputError(f"--source {args.source} needs --copy FILE, a file of yours")
    if args.source == "own" and args.val_copy:
        known = replace(known, held_out="own")
    if known.evaluation:
        unused, what = ("val_size", "val_copy", "against", "keep_repeats"), "a test set, kept whole"
    elif known.held_out:
        unused, what = ("val_size",), "validated on another data set"
    else:
        unused, what = ("val_copy",), "validated on problems of its own"
    for flag in unused:
        if getattr(args, flag):
            raise InputError(f"--{flag}: {args.source} is {what}")
    return known


def table_against(name: str) -> Table:
    """What --against names: a test set among the sources, or a file with a column `problem`."""
    if name not in SOURCES:
        return Table(SOURCES["own"], name)
    if not SOURCES[name].evaluation:
        raise InputError(f"--against {name}: it is no test set")
    return Table(SOURCES[name], None)


def prepare(args) -> dict:
    """Make the files as `arguments` say; return the manifest.

    They appear under their names only when all of them are complete. Raises ValueError or OSError.
    """
    known, out = source_of(args), Path(args.out or f"data/{args.source}")
    settings = asdict(known) | {k: v for k, v in vars(args).items() if k != "out"}
    check_output(out, settings)
    train = Table(known, args.copy)
    val = Table(SOURCES[known.held_out], args.val_copy) if known.held_out else train
    tests = [val] if known.held_out else []
    tests += map(table_against, args.against)
    evaluation = Evaluation()
    for table in tests:
        for problem in table.problems():
            evaluation.add(problem, table.place)
    with Verifier(workers=4) as verifier:
        if known.held_out:
            val.load(args.seed, verifier.check_golds, Evaluation())
        train.load(args.seed, verifier.check_golds, evaluation)
    ranks, size = sorted(train.rows), args.val_size or VAL_SIZE
    val_ranks, train_ranks = ranks[:size], ranks[size:]
    if known.held_out:
        val_ranks, train_ranks = sorted(val.rows), ranks
    elif known.evaluation:
        val_ranks, train_ranks = ranks, []
    if not (val_ranks and (train_ranks or known.evaluation)):
        found = f"{len(ranks)} usable problems in {train.read} rows (dropped: {train.dropped})"
        what = "too few to train on" if known.held_out else f"too few for --val_size {size}"
        raise InputError(f"{train.place}: {found}: {what}")
    val.settle(val_ranks)
    if not args.keep_repeats:
        train.settle(train_ranks)
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=out, prefix=".preparing-") as name:
        folder, manifest = Path(name), {"settings": settings}
        if not known.evaluation:
            manifest["train_rows"] = train.write(folder / TRAIN, train_ranks)
        manifest["val_rows"] = val.write(folder / VAL, val_ranks)
        manifest |= train.facts() | ({"validation": val.facts()} if known.held_out else {})
        if tests:
            manifest["decontamination"] = train.overlap(evaluation)
        write_atomic(folder / MANIFEST, json.dumps(manifest, indent=1) + "\n")
        # The manifest goes first and comes back last: it is never beside others' files.
        (out / MANIFEST).unlink(missing_ok=True)
        for name in files_of(args.source):
            (folder / name).replace(out / name)
    return manifest


def files_of(source: str) -> list[str]:
    """What is made of a source, the manifest last."""
    return [VAL, MANIFEST] if SOURCES[source].evaluation else [TRAIN, VAL, MANIFEST]


def prepare_missing(paths: list[str]) -> None:
    """Make the missing files whose path says how: data/SOURCE/train.jsonl and val.jsonl."""
    for path in map(Path, paths):
        name = path.parent.name
        known = SOURCES.get(name)
        if not (known and known.hub_id) or path.exists():
            continue
        if path in [Path("data", name, file) for file in files_of(name)[:-1]]:
            without = f" without {SOURCES[known.held_out].hub_id}" if known.held_out else ""
            print(f"{path} is missing: preparing it from {known.hub_id}{without}, once", flush=True)
            prepare(arguments(["--source", name]))


def main(argv=None):
    """Returns the exit status: 0, or 2 and one line on stderr."""
    try:
        manifest = prepare(arguments(argv))
    except (ValueError, OSError) as error:
        print_error(error)
        return 2
    said = ("rows_read", "dropped_rows", "train_rows", "val_rows")
    print(json.dumps({key: manifest[key] for key in said if key in manifest}))
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Show a run in TensorBoard, trackio or Weights & Biases; the run itself is only read.

    python -m scripts.mirror runs/demo-goldilocks-seed0 --to tensorboard --follow
    tensorboard --logdir logs --samples_per_plugin scalars=0,text=0     # logs: --out; 0: show all
    python -m scripts.mirror runs/demo-goldilocks-seed0 --to trackio
    trackio show --project goldilocks-rl                                # goldilocks-rl: --project

Logged at their steps are every number of metrics.jsonl, under its name there; of each evaluation
the share of every status (val_status/...) and the mean length (val_tokens); and the samples. A
number that is not known (null) is not logged. --follow goes on until the run is finished, or
Ctrl-C (exit status 130); it may be started before the run.

At its start the command reads back what the tracker's store has of the run, and then writes what
the folder has and the store has not. So it may be killed at any moment: started again, it neither
repeats nor leaves out a number. It also follows that

- a line that is still being written is left for the next look;
- an evaluation that is added to a step later is logged at that step;
- of steps that a killed run makes again from its checkpoint, what the store has stays. On CPU the
  new numbers are the same; else metrics.jsonl differs from the tracker there;
- a store whose run has another configuration is refused: give one of the two another --name.

The stores: TensorBoard's event files in OUT/NAME; trackio's SQLite file on this machine (`trackio
sync` publishes it); W&B's server. That may show a row only some seconds after it took it: started
again sooner than that, the command would write the row a second time. Tests have no such server.
"""

import json
import sqlite3
import sys
import textwrap
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import closing
from functools import cache
from importlib import import_module
from pathlib import Path

import pandas as pd
from filelock import FileLock, Timeout

from plumbing.errors import InputError
from plumbing.files import read_lines
from plumbing.run_dir import FREE, INEXACT
from scripts import analysis
from verify import STATUSES

WAIT = 5.0  # seconds between two looks of --follow


class Tracker:
    """What a tracker's store has of a run: `held`, by key the steps, and `config`, {} without one.

    read() fills both; open(config) begins to write; write(step, values) logs numbers and tables,
    the latter as their rows, in one record that is stored whole or not at all; close() returns when
    all is stored. `place`: the tracker's folder on this machine.
    """

    errors: tuple = ()  # what the package raises where it refuses

    def __init__(self, out: Path, project: str, name: str):
        """Imports the package. Raises InputError where it is not installed."""
        package = type(self).__name__.lower()
        try:
            self.package = import_module(package)
        except ImportError as error:
            raise InputError(f"--to {package}: {error}: pip install {package}") from error
        self.place, self.project, self.name = out, project, name
        self.held, self.config = defaultdict(set), {}

    def flush(self) -> None:
        """Hands over what was written, where the tracker does not do that by itself."""


class TensorBoard(Tracker):
    """A record of an event file has a checksum, and a torn one is taken for the file's end."""

    def read(self):
        from tensorboard.backend.event_processing.event_file_loader import LegacyEventFileLoader

        for path in (self.place / self.name).glob("events.out.tfevents.*"):
            for event in LegacyEventFileLoader(str(path)).Load():
                for value in event.summary.value:
                    key = value.tag.removesuffix("/text_summary")
                    if key == "config":
                        self.config = json.loads(value.tensor.string_val[0])
                    else:
                        self.held[key].add(event.step)

    def open(self, config):
        from torch.utils.tensorboard import FileWriter
        from torch.utils.tensorboard.summary import text

        self.writer, self.text = FileWriter(self.place / self.name), text
        if not self.config:
            as_code = textwrap.indent(json.dumps(config, indent=1), "    ")
            self.writer.add_summary(text("config", as_code), 0)

    def write(self, step, values):
        summary = self.package.compat.proto.summary_pb2.Summary()
        for key, value in values.items():
            if isinstance(value, list):
                summary.MergeFrom(self.text(key, "\n\n".join(map(in_markdown, value))))
            else:
                summary.value.add(tag=key, simple_value=value)
        self.writer.add_summary(summary, step)

    def flush(self):
        self.writer.flush()

    def close(self):
        self.writer.close()


def in_markdown(sample: dict) -> str:
    """A sample as TensorBoard shows it: as code, for the text of a completion may be anything."""
    code = textwrap.indent(sample["prompt"] + sample["completion"], "    ")
    return f"Problem {sample['problem']}: {sample['status']}\n\n{code}"


class Trackio(Tracker):
    """A step's record is a row of a table of SQLite."""

    errors = (ValueError, sqlite3.Error)

    def __init__(self, out, project, name):
        super().__init__(out, project, name)
        from trackio import utils

        remote = any(utils.resolve_space_id_and_server_url(None, None))
        if remote or utils.get_storage_mode() != "sqlite":
            why = "trackio: only its SQLite file on this machine can be read back"
            local = "TRACKIO_DIR has to be on a local disk"
            unset = "TRACKIO_SPACE_ID and TRACKIO_SERVER_URL unset"
            raise InputError(f"{why}: {local}, {unset}; `trackio sync` publishes it")
        self.place = utils.TRACKIO_DIR

    def read(self):
        from trackio.sqlite_storage import SQLiteStorage

        self.config = SQLiteStorage.get_run_config(self.project, self.name) or {}
        for row in SQLiteStorage.get_logs(self.project, self.name):
            for key in row:
                self.held[key.removeprefix("__")].add(row["step"])  # added to words of its own

    def open(self, config):
        run = {"name": self.name, "config": config, "resume": "allow"}
        off = {"auto_log_gpu": False, "auto_log_cpu": False, "embed": False}
        self.run = self.package.init(self.project, **run, **off)

    def write(self, step, values):
        self.run.log(with_tables(values, self.package.Table), step=step)

    def close(self):
        self.package.finish()
        written, self.held = self.held, defaultdict(set)
        self.read()  # where trackio cannot write, it warns and goes on
        lost = sum(len(steps - self.held[key]) for key, steps in written.items())
        if lost:
            raise InputError(f"trackio did not store {lost} values: the same command adds them")


class Wandb(Tracker):
    """A step's record is a row of the history, where `step` is a column: W&B's own count of rows
    only grows, and could not take what is added to an earlier step."""

    def __init__(self, out, project, name):
        super().__init__(out, project, name)
        self.errors = (ValueError, self.package.Error)

    def read(self):
        from wandb.apis.public.runs import RunNotFoundError

        try:
            run = self.package.Api().run(f"{self.project}/{self.name}")
        except RunNotFoundError:
            return
        self.config = dict(run.config)
        for row in run.scan_history(use_cache=False):
            for key, value in row.items():
                if value is not None:  # a key of other rows
                    self.held[key].add(row["step"])

    def open(self, config):
        run = {"project": self.project, "id": self.name, "name": self.name, "resume": "allow"}
        if not self.config:
            run["config"] = config
        off = self.package.Settings(console="off", x_disable_stats=True)
        self.run = self.package.init(**run, mode="online", dir=self.place, settings=off)
        self.run.define_metric("*", step_metric="step")

    def write(self, step, values):
        self.run.log({"step": step} | with_tables(values, self.package.Table))

    def close(self):
        self.run.finish()


def with_tables(values: dict, table: type) -> dict:
    """The values with rows as a tracker's table of them."""
    rows = {key: value for key, value in values.items() if isinstance(value, list)}
    return values | {key: table(dataframe=pd.DataFrame(rows[key])) for key in rows}


TRACKERS = {"tensorboard": TensorBoard, "trackio": Trackio, "wandb": Wandb}


def pending(folder: Path, rows: list[dict], held: dict[str, set[int]]) -> Iterator[tuple]:
    """(step, values) for each of the metrics' rows of which the store lacks something. What else
    the folder has of a step is complete when the step has its row."""
    samples = defaultdict(list)
    for sample in read_lines(folder / "samples.jsonl", torn=True):
        samples[sample.pop("step")].append(sample)
    for row in rows:
        step = row["step"]
        values = {key: value for key, value in row.items() if key != "step" and value is not None}
        if "val_accuracy" in row:
            values |= verdicts(folder / "evals" / f"step_{step}.jsonl")
        if samples[step]:
            values["samples"] = samples[step]
        lacking = {key: value for key, value in values.items() if step not in held[key]}
        if lacking:
            yield step, lacking


@cache
def verdicts(path: Path) -> dict[str, float]:
    """The share of each status in an evaluation, and the mean length in tokens; {} without one."""
    rows = read_lines(path)
    if not rows:
        return {}
    count = Counter(row["status"] for row in rows)
    shares = {f"val_status/{status}": count[status] / len(rows) for status in (*STATUSES, *count)}
    return shares | {"val_tokens": sum(row["tokens"] for row in rows) / len(rows)}


def mirror(folder: Path, tracker: Tracker, follow: bool) -> int:
    """Writes what the store lacks, once or until the run is finished. Returns at how many steps."""
    steps = set()
    while True:
        rows = read_lines(folder / "metrics.jsonl", torn=True)
        for step, values in pending(folder, rows, tracker.held):
            tracker.write(step, values)
            steps.add(step)
            for key in values:
                tracker.held[key].add(step)
        tracker.flush()
        last = rows[-1] if rows else {}
        config = analysis.read_config(folder)  # anew: a finished run may go on with more steps
        finished = last.get("step") == config["steps"] and "val_accuracy" in last
        if finished or not follow:
            return len(steps)
        time.sleep(WAIT)


def begin(tracker: Tracker, config: dict) -> None:
    """Opens the store. Raises InputError where it has a run of this name that is another one."""
    tracker.read()
    fixed = config.keys() - FREE - INEXACT if tracker.config else set()
    if differ := sorted(key for key in fixed if tracker.config.get(key) != config[key]):
        what = f"{tracker.place} has a run {tracker.name} of another configuration"
        raise InputError(f"{what} ({', '.join(differ)}): choose another --name")
    there = len(set().union(*tracker.held.values()))
    print(f"{tracker.place} has {there} steps of {tracker.name}", flush=True)
    tracker.open(config)


def wait_for(path: Path) -> None:
    """Returns when the file is there."""
    if not path.exists():
        print(f"waiting for {path}", flush=True)
    while not path.exists():
        time.sleep(WAIT)


def main(argv=None) -> int:
    """The command line; returns 130 where Ctrl-C ended it."""
    parser = analysis.parser(__doc__)
    add = parser.add_argument
    add("run", metavar="RUN", type=Path, help="a folder that train.py made, or will make")
    add("--to", required=True, choices=TRACKERS, help="the tracker")
    add("--follow", action="store_true", help="go on until the run is finished")
    add("--name", help="of the run in the tracker (the folder's)")
    add("--project", default="goldilocks-rl", help="of trackio and W&B (%(default)s)")
    add("--out", type=Path, default=Path("logs"), help="folder of event files, W&B's (%(default)s)")
    args = parser.parse_args(argv)
    folder = args.run.resolve()
    name = args.name or folder.name
    with analysis.one_line("mirror"):
        tracker = TRACKERS[args.to](args.out, args.project, name)
    try:
        with analysis.one_line("mirror", Timeout, *tracker.errors):
            if args.follow:
                wait_for(folder / "config.json")
            config = analysis.read_config(folder)
            with FileLock(tracker.place / f"{name}-{args.to}-mirror.lock", timeout=0):
                begin(tracker, config)
                with closing(tracker):
                    added = mirror(folder, tracker, args.follow)
            print(f"{added} steps added", flush=True)
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())

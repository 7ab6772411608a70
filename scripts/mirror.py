"""Copy a run to TensorBoard, trackio or Weights & Biases. The run directory is only read.

    python -m scripts.mirror runs/demo-goldilocks-seed0 --to tensorboard --follow
    tensorboard --logdir logs --samples_per_plugin scalars=0,text=0     # logs: --out; 0: show all
    python -m scripts.mirror runs/demo-goldilocks-seed0 --to trackio
    trackio show --project goldilocks-rl                                # goldilocks-rl: --project

It logs every number of metrics.jsonl under its name there; for each evaluation the share of every
status (val_status/...) and the mean length (val_tokens); and the samples. Nulls are left out. With
--follow it continues until the run is finished, or Ctrl-C (exit status 130), and may be started
before the run.

Every start writes the tracker's run again from the run directory, so the command may be killed at
any time: started again, it neither repeats nor omits a step. It does the same when the run resumes
from a checkpoint and so replaces steps that were already copied.

- TensorBoard: event files in OUT/NAME. mirror deletes those that it wrote before.
- trackio: a SQLite file on this machine (`trackio sync` publishes it). mirror deletes its own run.
- W&B: its server cannot replace steps, so mirror continues after the last step there. Steps that
  a resumed run replaces keep their first numbers: the same ones on a CPU.

A step whose evaluation was interrupted is copied when the run has made up for it. TensorBoard and
trackio are refused if they have a run of this name and other settings: choose another --name.
"""

import json
import sqlite3
import sys
import textwrap
import time
import zlib
from collections import Counter, defaultdict
from contextlib import closing
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from types import ModuleType

import pandas as pd
from filelock import FileLock, Timeout

from plumbing.errors import InputError
from plumbing.files import read_lines, write_atomic
from plumbing.run_dir import FREE, INEXACT
from scripts import analysis
from verify import STATUSES

WAIT = 5.0  # seconds between two looks at the run with --follow


@dataclass
class Tracker:
    """Where a run is copied to. Subclasses define start(config), which begins the run anew,
    write(step, numbers, samples) and close()."""

    package: ModuleType
    place: Path
    project: str
    name: str

    def stored_config(self) -> dict:
        """The settings of the run of this name that would be overwritten; {} if there is none."""
        return {}


class TensorBoard(Tracker):
    def stored_config(self):
        path = self.place / self.name / "config.json"
        return json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}

    def start(self, config):
        from torch.utils.tensorboard import SummaryWriter

        folder, text = self.place / self.name, json.dumps(config, indent=1)
        for file in folder.glob("events.out.tfevents.*.mirror"):
            file.unlink()
        # purge_step makes a TensorBoard that is running forget the deleted files.
        how = {"purge_step": 0, "flush_secs": int(WAIT), "filename_suffix": ".mirror"}
        self.writer = SummaryWriter(folder, **how)
        self.writer.add_text("config", as_code(text))
        write_atomic(folder / "config.json", text)

    def write(self, step, numbers, samples):
        for key, value in numbers.items():
            self.writer.add_scalar(key, value, step)
        texts = []
        for sample in samples:
            code = as_code(sample["prompt"] + sample["completion"])
            texts.append(f"Problem {sample['problem']}: {sample['status']}\n\n{code}")
        if texts:
            self.writer.add_text("samples", "\n\n".join(texts), step)

    def close(self):
        self.writer.close()


def as_code(text: str) -> str:
    """Markdown that shows any text as it is."""
    return textwrap.indent(text, "    ")


class Trackio(Tracker):
    def __post_init__(self):
        from trackio import utils

        self.place = utils.TRACKIO_DIR
        remote = any(utils.resolve_space_id_and_server_url(None, None))
        if remote or utils.get_storage_mode() != "sqlite":
            local = "TRACKIO_DIR has to be on a local disk"
            unset = "TRACKIO_SPACE_ID and TRACKIO_SERVER_URL unset"
            raise InputError(f"trackio: {local}, {unset}; `trackio sync` publishes the run")

    def stored_runs(self) -> list:
        try:
            runs = self.package.Api().runs(self.project)
        except ValueError:  # no such project yet
            return []
        return [run for run in runs if run.name == self.name]

    def stored_config(self):
        return next((run.config for run in self.stored_runs()), None) or {}

    def start(self, config):
        for run in self.stored_runs():
            if not run.delete():
                raise InputError(f"{self.place}: the run {self.name} cannot be deleted")
        off = {"auto_log_gpu": False, "auto_log_cpu": False, "embed": False}
        self.run, self.rows = self.package.init(self.project, self.name, config=config, **off), 0

    def write(self, step, numbers, samples):
        self.run.log(numbers | as_table(samples, self.package.Table), step=step)
        self.rows += 1

    def close(self):
        from trackio.sqlite_storage import SQLiteStorage

        self.package.finish()
        stored = SQLiteStorage.get_log_count(self.project, run_id=self.run.id)
        if stored != self.rows:  # trackio only warns if it cannot write
            raise InputError(f"trackio stored {stored} of {self.rows} steps: run mirror again")


class Wandb(Tracker):
    def start(self, config):
        # Runs of other settings have another id, so that none is overwritten.
        settings = json.dumps(fixed_settings(config), sort_keys=True)
        run = {"id": f"{self.name}-{zlib.crc32(settings.encode()):08x}", "resume": "allow"}
        run |= {"project": self.project, "name": self.name, "config": config, "mode": "online"}
        off = self.package.Settings(console="off", x_disable_stats=True)
        self.run = self.package.init(**run, dir=self.place, settings=off)

    def write(self, step, numbers, samples):
        if step >= self.run.starting_step:  # the server has the steps before it
            values = numbers | as_table(samples, self.package.Table)
            self.run.log(values, step=step, commit=True)

    def close(self):
        self.run.finish()


def as_table(samples: list[dict], table: type) -> dict:
    """The samples as a tracker's table; nothing if there are none."""
    return {"samples": table(dataframe=pd.DataFrame(samples))} if samples else {}


TRACKERS = {"tensorboard": TensorBoard, "trackio": Trackio, "wandb": Wandb}


def fixed_settings(config: dict) -> dict:
    """The settings that stay the same when a run is continued."""
    return {key: value for key, value in config.items() if key not in FREE | INEXACT}


def complete_rows(run_dir: Path, config: dict) -> list[dict]:
    """The rows of metrics.jsonl, without a last one that still has to be evaluated."""
    rows = read_lines(run_dir / "metrics.jsonl", torn=True)
    if rows and "val_accuracy" not in rows[-1]:
        step = rows[-1]["step"]
        if step % config["eval_every"] == 0 or step == config["steps"]:
            rows.pop()
    return rows


def numbers_of(run_dir: Path, row: dict) -> dict[str, float]:
    """The known numbers of a step. If it was evaluated, also the share of each status and the mean
    length in tokens."""
    numbers = {key: value for key, value in row.items() if key != "step" and value is not None}
    verdicts = read_lines(run_dir / "evals" / f"step_{row['step']}.jsonl")
    if "val_accuracy" in row and verdicts:
        count = Counter(verdict["status"] for verdict in verdicts)
        for status in (*STATUSES, *count):
            numbers[f"val_status/{status}"] = count[status] / len(verdicts)
        numbers["val_tokens"] = sum(verdict["tokens"] for verdict in verdicts) / len(verdicts)
    return numbers


def copy(run_dir: Path, tracker: Tracker, follow: bool) -> int | None:
    """Copy all steps, and with `follow` those that come, until the run is finished. Returns their
    number, or None as soon as steps that were copied are replaced."""
    copied = []
    while True:
        config = analysis.read_config(run_dir)  # a finished run may go on with more steps
        rows = complete_rows(run_dir, config)
        if rows[: len(copied)] != copied:
            return None
        samples = defaultdict(list)
        for sample in read_lines(run_dir / "samples.jsonl", torn=True):
            samples[sample.pop("step")].append(sample)
        for row in rows[len(copied) :]:
            tracker.write(row["step"], numbers_of(run_dir, row), samples[row["step"]])
        copied = rows
        if not follow or (rows and rows[-1]["step"] == config["steps"]):
            return len(rows)
        time.sleep(WAIT)


def mirror(run_dir: Path, tracker: Tracker, follow: bool) -> int:
    """Write the tracker's run from its first step, again whenever the run replaces steps. Returns
    the number of steps. Raises InputError if the tracker has a run of other settings."""
    steps = None
    while steps is None:
        config, stored = analysis.read_config(run_dir), tracker.stored_config()
        fixed = fixed_settings(config) if stored else {}
        if differ := sorted(key for key in fixed if stored.get(key) != fixed[key]):
            other = f"has a run of this name and another configuration ({', '.join(differ)})"
            raise InputError(f"{tracker.place} {other}: choose another --name")
        tracker.start(config)
        with closing(tracker):
            steps = copy(run_dir, tracker, follow)
    return steps


def main(argv=None) -> int:
    """The command line; returns 130 if Ctrl-C ended it."""
    parser = analysis.parser(__doc__)
    add = parser.add_argument
    add("run", metavar="RUN", type=Path, help="a run directory, or what will be one")
    add("--to", required=True, choices=TRACKERS, help="the tracker")
    add("--follow", action="store_true", help="continue until the run is finished")
    add("--name", help="name of the run in the tracker (the directory's)")
    add("--project", default="goldilocks-rl", help="for trackio and W&B (%(default)s)")
    add("--out", type=Path, default=Path("logs"), help="for event files and W&B's (%(default)s)")
    args = parser.parse_args(argv)
    run_dir = args.run.resolve()
    name = args.name or run_dir.name
    with analysis.one_line("mirror"):
        try:
            package = import_module(args.to)
        except ImportError as error:
            raise InputError(f"--to {args.to}: {error}: pip install {args.to}") from error
        tracker = TRACKERS[args.to](package, args.out, args.project, name)
    refused = Timeout, ValueError, sqlite3.Error, getattr(package, "Error", OSError)
    try:
        with analysis.one_line("mirror", *refused):
            if args.follow and not (run_dir / "config.json").exists():
                print(f"waiting for {run_dir}", flush=True)
                while not (run_dir / "config.json").exists():
                    time.sleep(WAIT)
            with FileLock(tracker.place / f"{name}-{args.to}-mirror.lock", timeout=0):
                steps = mirror(run_dir, tracker, args.follow)
            print(f"{tracker.place} has {steps} steps of {name}", flush=True)
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())

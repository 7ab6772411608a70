"""Copy a run to TensorBoard, trackio or Weights & Biases. The run directory is only read.

    python -m scripts.mirror runs/demo-goldilocks-seed0 --to tensorboard --follow
    tensorboard --logdir logs --samples_per_plugin scalars=0,text=0     # logs: --out; 0: show all
    python -m scripts.mirror runs/demo-goldilocks-seed0 --to trackio
    trackio show --project goldilocks-rl                                # goldilocks-rl: --project

It logs the numbers of metrics.jsonl, for each evaluation also val_status/... (share of every
status) and val_tokens (mean length), and the samples. Every start deletes the tracker's copy (in
TensorBoard OUT/NAME, in trackio a local SQLite file, which `trackio sync` publishes) and writes it
again, as it does when a resumed run replaces steps. W&B's server replaces no step, so the copy
continues after the last one; with WANDB_MODE=offline each start writes a new folder for `wandb
sync`. W&B's other variables count too, such as WANDB_DIR; flags win. A step without its evaluation
is copied when the run has made it.
"""

import json
import os
import sys
import textwrap
import time
import zlib
from collections import defaultdict
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pandas as pd
from filelock import FileLock, Timeout

from plumbing.command_line import file_path
from plumbing.config import is_due
from plumbing.errors import InputError, first_lines
from plumbing.files import read_lines, write_atomic
from plumbing.run.facts import FREE, INEXACT
from scripts import analysis
from verify import STATUSES

OUT, PROJECT = "logs", "goldilocks-rl"  # unless flags, or W&B's own variables, name others
WAIT = 5.0  # seconds between two looks at the run with --follow


def open_tensorboard(out: Path, project: str, name: str, config: dict):
    """Begin event files anew; return write(step, numbers, samples) and close()."""
    from torch.utils.tensorboard import SummaryWriter

    settings = out / name / "mirror.json"
    if settings.exists():
        check_same(config, json.loads(settings.read_text()), out / name)
    for file in settings.parent.glob("events.out.tfevents.*.mirror"):
        file.unlink()
    # purge_step makes a TensorBoard that is running forget the deleted files.
    writer = SummaryWriter(out / name, purge_step=0, flush_secs=5, filename_suffix=".mirror")
    write_atomic(settings, json.dumps(config, indent=1))
    as_code = partial(textwrap.indent, prefix="    ")  # Markdown that shows any text as it is
    writer.add_text("config", as_code(settings.read_text()))

    def write(step: int, numbers: dict[str, float], samples: list[dict]) -> None:
        for key, value in numbers.items():
            writer.add_scalar(key, value, step)
        title = "Problem {problem}: {status}\n\n".format_map
        texts = [title(s) + as_code(s["prompt"] + s["completion"]) for s in samples]
        if texts:
            writer.add_text("samples", "\n\n".join(texts), step)

    return write, writer.close


def open_trackio(out: Path, project: str, name: str, config: dict):
    """Begin a run of trackio anew; return write(step, numbers, samples) and close()."""
    import trackio
    from trackio import utils
    from trackio.sqlite_storage import SQLiteStorage

    if any(utils.resolve_space_id_and_server_url(None, None)):
        raise InputError("unset TRACKIO_SPACE_ID and TRACKIO_SERVER_URL: the copy is a local file")
    if utils.get_storage_mode() != "sqlite":
        raise InputError(f"TRACKIO_DIR {utils.TRACKIO_DIR}: must be on a local disk")
    check_same(config, SQLiteStorage.get_run_config(project, name) or {}, utils.TRACKIO_DIR)
    SQLiteStorage.delete_run(project, name)
    off = {"auto_log_gpu": False, "auto_log_cpu": False, "embed": False}
    run = trackio.init(project, name, config=config, **off)
    steps = []

    def write(step: int, numbers: dict[str, float], samples: list[dict]) -> None:
        run.log(numbers | as_table(samples, trackio.Table), step=step)
        steps.append(step)

    def close() -> None:
        trackio.finish()
        stored = SQLiteStorage.get_log_count(project, name)
        if stored != len(steps):  # trackio only warns if it cannot write
            raise InputError(f"trackio stored {stored} of {len(steps)} steps: start mirror again")

    return write, close


def open_wandb(out: Path, project: str, name: str, config: dict):
    """Begin or continue a run of W&B; return write(step, numbers, samples) and close()."""
    import wandb

    # Runs with other settings have another id.
    checksum = zlib.crc32(json.dumps(fixed_settings(config), sort_keys=True).encode())
    key = os.environ.get("WANDB_RUN_ID", f"{name}-{checksum:08x}")
    names = {"project": project, "name": name, "id": key, "dir": out}
    off = wandb.Settings(console="off", x_disable_stats=True)
    run = wandb.init(**names, config=config, resume="allow", settings=off)
    if run.disabled:
        raise InputError("W&B is disabled, by WANDB_MODE or its settings: nothing would be copied")

    def write(step: int, numbers: dict[str, float], samples: list[dict]) -> None:
        if step >= run.starting_step:  # the server has the steps before it
            run.log(numbers | as_table(samples, wandb.Table), step=step, commit=True)

    return write, run.finish


TRACKERS = {"tensorboard": open_tensorboard, "trackio": open_trackio, "wandb": open_wandb}


def as_table(samples: list[dict], table: type) -> dict:
    """The samples as a tracker's table; nothing if there are none."""
    return {"samples": table(dataframe=pd.DataFrame(samples))} if samples else {}


def fixed_settings(config: dict) -> dict:
    """The settings that stay the same when a run is continued."""
    return {key: value for key, value in config.items() if key not in FREE | INEXACT}


def check_same(config: dict, stored: dict, place: Path) -> None:
    """Raise InputError if the tracker's run, {} without one, has other settings than this one."""
    fixed = fixed_settings(config) if stored else {}
    if differ := sorted(key for key in fixed if stored.get(key) != fixed[key]):
        other = f"has a run of this name and another configuration ({', '.join(differ)})"
        raise InputError(f"{place} {other}: choose another --name")


def numbers_of(run_dir: Path, row: dict) -> dict[str, float]:
    """The known numbers of a step, and of its evaluation the shares of statuses and mean length."""
    numbers = {key: value for key, value in row.items() if key != "step" and value is not None}
    verdicts = pd.DataFrame(read_lines(run_dir / "evals" / f"step_{row['step']}.jsonl"))
    if "val_accuracy" in row and len(verdicts):
        shares = verdicts.status.value_counts(normalize=True).to_dict()
        shares = dict.fromkeys(STATUSES, 0.0) | shares
        numbers |= {f"val_status/{status}": share for status, share in shares.items()}
        numbers["val_tokens"] = verdicts.tokens.mean()
    return numbers


def copy(run_dir: Path, write: Callable, follow: bool) -> int | None:
    """Copy all steps, and with `follow` those to come, until the run is finished. Returns their
    number, or None as soon as steps that were copied are replaced."""
    copied = []
    while True:
        config = analysis.read_config(run_dir)  # a finished run may go on with more steps
        rows = read_lines(run_dir / "metrics.jsonl", torn=True)
        if rows and "val_accuracy" not in rows[-1]:  # is its evaluation still to come?
            last = rows[-1]["step"]
            if is_due(last, config["eval_every"], config["steps"]):
                rows.pop()
        if rows[: len(copied)] != copied:
            return None
        samples = defaultdict(list)
        for sample in read_lines(run_dir / "samples.jsonl", torn=True):
            samples[sample.pop("step")].append(sample)
        for row in rows[len(copied) :]:
            write(row["step"], numbers_of(run_dir, row), samples[row["step"]])
        copied = rows
        if not follow or (rows and rows[-1]["step"] == config["steps"]):
            return len(rows)
        time.sleep(WAIT)


def mirror(run_dir: Path, args, name: str) -> int:
    """Write the tracker's run, again whenever the run replaces steps; return the steps' number."""
    steps = None
    while steps is None:
        config = analysis.read_config(run_dir)
        try:
            write, close = TRACKERS[args.to](args.out, args.project, name, config)
        except Exception as error:  # the trackers raise many kinds
            install = f": pip install {args.to}" if isinstance(error, ImportError) else ""
            raise InputError(f"--to {args.to}: {first_lines(error)}{install}") from error
        try:
            steps = copy(run_dir, write, args.follow)
        finally:
            close()
    return steps


def main(argv=None) -> int:
    """The command line; returns 130 if Ctrl-C ended it."""
    parser = analysis.parser(__doc__)
    add = parser.add_argument
    add("run", metavar="RUN", type=file_path, help="a run directory, or what will be one")
    add("--to", required=True, choices=TRACKERS, help="the tracker")
    add("--follow", action="store_true", help="continue until the run is finished")
    add("--name", help="name of the run in the tracker (the directory's)")
    add("--project", help=f"for trackio and W&B ({PROJECT})")
    add("--out", type=file_path, help=f"for event files and W&B's ({OUT})")
    args = parser.parse_args(argv)
    # Path.resolve fails, before Python 3.13, at a loop of links.
    run_dir = Path(os.path.realpath(args.run))
    variables = os.environ if args.to == "wandb" else {}
    args.project = args.project or variables.get("WANDB_PROJECT", PROJECT)
    args.out = args.out or Path(variables.get("WANDB_DIR", OUT))
    name = args.name or variables.get("WANDB_NAME", run_dir.name)
    try:
        with analysis.one_line("mirror", Timeout):
            if args.follow and not (run_dir / "config.json").exists():
                print(f"waiting for {run_dir}", flush=True)
                while not (run_dir / "config.json").exists():
                    time.sleep(WAIT)
            with FileLock(args.out / f"{name}-{args.to}-mirror.lock", timeout=0):
                steps = mirror(run_dir, args, name)
            print(f"{steps} steps of {name} copied to {args.to}", flush=True)
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())

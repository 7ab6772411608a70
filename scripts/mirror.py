"""Copy the numbers of a run to TensorBoard or Weights & Biases. The run directory is only read.

    python -m scripts.mirror runs/demo-goldilocks-seed0 --to tensorboard --follow
    tensorboard --logdir logs --samples_per_plugin scalars=0            # logs: --out; 0: show all
    python -m scripts.mirror runs/demo-goldilocks-seed0 --to wandb      # pip install wandb

Every start deletes TensorBoard's copy in OUT/NAME and writes it again, as it does when a resumed
run replaces steps. W&B's server replaces no step, so the copy continues after the last one. A step
is copied when its evaluation is made. W&B's own variables count, such as WANDB_MODE=offline.
"""

import json
import os
import sys
import time
import zlib
from collections.abc import Callable
from pathlib import Path

from plumbing.command_line import file_path
from plumbing.config import is_due
from plumbing.errors import InputError
from plumbing.files import read_lines
from scripts import analysis

WAIT = 5.0  # seconds between two looks at the run with --follow
Tracker = tuple[Callable[[int, dict], None], Callable]  # write(step, numbers) and close()


def open_tensorboard(args, name: str, config: dict, first_row: dict) -> Tracker:
    """Begin event files anew."""
    from torch.utils.tensorboard import SummaryWriter

    folder = args.out / name
    for file in folder.glob("events.out.tfevents.*.mirror"):
        file.unlink()
    # purge_step makes a TensorBoard that is running forget the deleted files.
    writer = SummaryWriter(folder, purge_step=0, flush_secs=5, filename_suffix=".mirror")
    writer.add_text("config", f"```\n{json.dumps(config, indent=1)}\n```")

    def write(step: int, numbers: dict) -> None:
        for key, value in numbers.items():
            writer.add_scalar(key, value, step)

    return write, writer.close


def open_wandb(args, name: str, config: dict, first_row: dict) -> Tracker:
    """Begin or continue a run of W&B."""
    import wandb

    # The times in the first row tell this run from another of its name; a resume keeps them.
    key = zlib.crc32(json.dumps(first_row).encode())
    identity = {"project": args.project, "name": name, "id": f"{name}-{key:08x}"}
    run = wandb.init(**identity, dir=args.out, config=config, resume="allow")
    if run.disabled:
        raise InputError("W&B is disabled, by WANDB_MODE or its settings: nothing would be copied")

    def write(step: int, numbers: dict) -> None:
        if step >= run.starting_step:  # the server has the steps before it
            run.log(numbers, step=step, commit=True)

    return write, run.finish


TRACKERS = {"tensorboard": open_tensorboard, "wandb": open_wandb}


def complete_rows(run_dir: Path, steps: int, eval_every: int) -> list[dict]:
    """Read the rows of metrics.jsonl, without a last one whose evaluation is still to come."""
    rows = read_lines(run_dir / "metrics.jsonl", torn=True)
    is_pending = rows and "val_accuracy" not in rows[-1]
    if is_pending and is_due(rows[-1]["step"], eval_every, steps):
        rows.pop()
    return rows


def mirror(run_dir: Path, args) -> int:
    """Copy all steps, and with --follow those to come, until the run is finished. Begins again when
    steps that were copied are replaced. Returns the number of steps."""
    copied, close = [], lambda: None
    try:
        while True:
            config = analysis.read_config(run_dir)  # a finished run may go on with more steps
            rows = complete_rows(run_dir, config["steps"], config["eval_every"])
            if rows and (not copied or rows[: len(copied)] != copied):
                close()
                name = args.name or run_dir.name
                write, close = TRACKERS[args.to](args, name, config, rows[0])
                copied = []
            for row in rows[len(copied) :]:
                numbers = {k: v for k, v in row.items() if k != "step" and v is not None}
                write(row["step"], numbers)
            copied = rows
            if not args.follow or (rows and rows[-1]["step"] == config["steps"]):
                return len(rows)
            time.sleep(WAIT)
    finally:
        close()


def main(argv=None) -> int:
    """The command line; returns 130 if Ctrl-C ended it."""
    parser = analysis.parser(__doc__)
    add = parser.add_argument
    add("run", metavar="RUN", type=file_path, help="a run directory, or what will be one")
    add("--to", required=True, choices=TRACKERS, help="the tracker")
    add("--follow", action="store_true", help="continue until the run is finished")
    add("--name", help="name of the run in the tracker (the directory's)")
    add("--project", help="for W&B (WANDB_PROJECT)")
    add("--out", type=file_path, default=Path("logs"), help="folder for files (%(default)s)")
    args = parser.parse_args(argv)
    run_dir = Path(os.path.realpath(args.run))  # "runs/latest" is named as what it points to
    try:
        with analysis.one_line("mirror", ImportError):
            while args.follow and not (run_dir / "config.json").exists():
                time.sleep(WAIT)
            print(f"{mirror(run_dir, args)} steps copied to {args.to}", flush=True)
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Copy the numbers of a run to TensorBoard or Weights & Biases. The run directory is only read.

    python -m scripts.mirror runs/demo-goldilocks-seed0 --to tensorboard --follow
    tensorboard --logdir logs --samples_per_plugin scalars=0            # logs: --out; 0: show all
    python -m scripts.mirror runs/demo-goldilocks-seed0 --to wandb      # pip install wandb

Every start deletes TensorBoard's copy in OUT/NAME and writes it again, as it does when a resumed
run replaces steps. W&B's server replaces no step, so the copy continues after the last one. A step
that is due for an evaluation is copied after it. W&B's own variables count, such as WANDB_PROJECT
and WANDB_MODE=offline.
"""

import json
import time
import zlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from plumbing.config import is_due
from plumbing.errors import InputError, first_lines
from plumbing.files import read_lines
from scripts.command import exit_on_error, make_parser
from scripts.study.runs import read_config

WAIT = 5.0  # seconds between two looks at the run with --follow


@contextmanager
def to_tensorboard(out: Path, name: str, config: dict, first_row: dict) -> Iterator[Callable]:
    """Begin event files anew. Yields the function write(numbers, step)."""
    from torch.utils.tensorboard import SummaryWriter

    folder = out / name
    for file in folder.glob("events.out.tfevents.*.mirror"):
        file.unlink()

    def write(numbers: dict, step: int) -> None:
        for key, value in numbers.items():
            writer.add_scalar(key, value, step)

    # purge_step makes a TensorBoard that is running forget the deleted files.
    with SummaryWriter(folder, purge_step=0, flush_secs=5, filename_suffix=".mirror") as writer:
        yield write


@contextmanager
def to_wandb(out: Path, name: str, config: dict, first_row: dict) -> Iterator[Callable]:
    """Begin or continue a run of W&B. Yields the function write(numbers, step)."""
    import wandb

    # The times in the first row tell this run from another of its name; a resume keeps them.
    key = zlib.crc32(json.dumps([name, first_row]).encode())
    try:
        run = wandb.init(
            name=name, id=f"goldilocks-{key:08x}", resume="allow", dir=out, config=config
        )
    except wandb.errors.Error as error:  # no key in a batch job, no network
        raise InputError(
            f"W&B cannot begin {name}: {first_lines(error)}; `wandb login`, WANDB_API_KEY or "
            "WANDB_MODE=offline may help"
        ) from error

    def write(numbers: dict, step: int) -> None:
        if step >= run.starting_step:  # the server has the steps before it
            run.log(numbers, step=step)

    try:
        yield write
    finally:  # also at Ctrl-C, which `with` would report as a failed run
        run.finish()


TRACKERS = {"tensorboard": to_tensorboard, "wandb": to_wandb}


def mirror(run_dir: Path, tracker: str, out: Path, follow: bool) -> int:
    """Copy all steps, and with `follow` those to come, until the run is finished. Begins again when
    steps that were copied are replaced. Returns the number of steps."""
    copied = []
    with ExitStack() as stack:
        while True:
            config = read_config(run_dir)  # a finished run may go on with more steps
            rows = read_lines(run_dir / "metrics.jsonl", torn=True)
            newest = rows[-1] if rows else {}
            step = newest.get("step", 0)
            finished = step == config["steps"]
            is_evaluated = is_due(step, config["eval_every"], config["steps"])
            if is_evaluated and "val_accuracy" not in newest:  # not yet
                rows = rows[:-1]
                finished = False
            if rows[: len(copied)] != copied:
                copied = []
            if rows and not copied:
                stack.close()  # the copy of replaced steps
                begin = TRACKERS[tracker]
                write = stack.enter_context(begin(out, run_dir.name, config, rows[0]))
            for row in rows[len(copied) :]:
                numbers = {name: value for name, value in row.items() if value is not None}
                write(numbers, numbers.pop("step"))
            copied = rows
            if finished or not follow:
                return len(rows)
            time.sleep(WAIT)


def main(argv=None) -> None:
    """Run the command; Ctrl-C ends it."""
    parser = make_parser(__doc__, out="logs")
    add = parser.add_argument
    add("run", metavar="RUN", type=Path, help="a run directory")
    add("--to", required=True, choices=TRACKERS, help="the tracker")
    add("--follow", action="store_true", help="continue until the run is finished")
    with suppress(KeyboardInterrupt), exit_on_error("mirror"):
        args = parser.parse_args(argv)
        run_dir = args.run.resolve()  # "runs/latest" is named as what it points to
        steps = mirror(run_dir, args.to, args.out, args.follow)
        print(f"{steps} steps copied")


if __name__ == "__main__":
    main()

"""Run the study of docs/study_plan.md: where does selection pay, on toy tasks?

python -m experiments.study --only claim                  # one part; rerun it to continue
python -m experiments.study --minutes 0                   # report on the finished runs
"""

import os
import subprocess
import sys
import time
import zlib
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import torch
from filelock import FileLock, Timeout

from experiments import study_report, toy_task
from experiments.study_plan import PARTS, TASKS, Cell, task_folder
from plumbing.command_line import count
from plumbing.files import read_lines, write_lines
from scripts import analysis


def prepare(out: Path, cells: list[Cell], jobs: int) -> None:
    """Make the data and base models of these cells; existing ones are kept."""
    folders = {cell.task: task_folder(out, cell.task) for cell in cells}
    # statistics.json is written last.
    missing = [task for task, at in folders.items() if not (at / "statistics.json").exists()]
    with ProcessPoolExecutor(jobs, get_context("spawn"), torch.set_num_threads, (1,)) as pool:
        calls = [pool.submit(toy_task.make, TASKS[task], folders[task], 0) for task in missing]
        for call in calls:
            call.result()
    for task, live in {(cell.task, cell.live) for cell in cells if cell.live < 1}:
        thin(folders[task], live)


def thin(folder: Path, live: float) -> None:
    """Write live<SHARE>.jsonl: the training problems, of which a share keeps its reference answer.
    The others get 0, which is never right."""
    rows = read_lines(folder / "train.jsonl")
    for row in rows:
        if zlib.crc32(row["problem"].encode()) >= live * 2**32:
            row["expected_answer"] = "0"
    write_lines(folder / f"live{live:g}.jsonl", rows)


def run_all(out: Path, cells: list[Cell], jobs: int, minutes: float) -> int:
    """Run what is not finished, seed by seed; start none after `minutes`. Return the failures."""
    end, one_thread = time.time() + 60 * minutes, os.environ | {"OMP_NUM_THREADS": "1"}
    # By folder: cells that differ only in the number of seeds share runs.
    runs = {cell.folder(out, seed): (cell, seed) for cell in cells for seed in range(cell.seeds)}
    todo = [(cell, seed) for cell, seed in runs.values() if not cell.is_done(out, seed)]
    todo.sort(key=lambda job: job[1])

    def run(job: tuple[Cell, int]) -> int | None:
        """The exit status; None if the time is up."""
        if time.time() > end:
            return None
        cell, seed = job
        log = out / f"{cell.name}-seed{seed}.log"
        with log.open("w") as file:
            command = cell.command(out, seed)
            status = subprocess.run(command, stdout=file, stderr=file, env=one_thread).returncode
        print(f"FAILED, see {log}" if status else f"done: {log.stem}", flush=True)
        return status

    with ThreadPoolExecutor(jobs) as pool:
        statuses = list(pool.map(run, todo))
    print(f"{len(todo) - statuses.count(0)} runs left: rerun to continue", flush=True)
    return sum(map(bool, statuses))


def main(argv=None) -> int:
    """Return the exit status: 1 if a run failed."""
    parser = analysis.parser(__doc__)
    add = parser.add_argument
    add("--out", type=Path, default=Path("runs/study"), help="folder of everything (%(default)s)")
    add("--only", choices=PARTS, nargs="+", default=list(PARTS), help="parts of the plan")
    add("--jobs", type=count, default=2, help="runs at a time, one thread each (%(default)s)")
    add("--minutes", type=float, default=600, help="start no run after (%(default)s); 0: report")
    args = parser.parse_args(argv)
    out, failed = args.out.resolve(), 0
    out.mkdir(parents=True, exist_ok=True)
    pairs = [pair for part in args.only for pair in PARTS[part]]
    cells = list(dict.fromkeys(cell for pair in pairs for cell in pair))
    # One study at a time.
    with analysis.one_line("study", Timeout), FileLock(out / "study.lock", timeout=0):
        if args.minutes:
            prepare(out, cells, args.jobs)
            failed = run_all(out, cells, args.jobs, args.minutes)
        rows = [row for part in args.only for row in study_report.compared(out, part)]
        if rows:
            print(study_report.show(rows))
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())

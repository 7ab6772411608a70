"""The paper's claim where its conditions hold, and where it ends: every run, and its tables.

    python -m experiments.study --out runs/study              # all of docs/study_plan.md; goes on
    python -m experiments.study --out runs/study --only claim # one part of it
    python -m experiments.study --out runs/study --minutes 0  # what is known by now

The plan as code is in study_plan.py, what is made of finished runs in study_report.py.
"""

import os
import subprocess
import sys
import time
import zlib
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import pandas as pd
import torch
from filelock import FileLock, Timeout

from experiments import toy_task
from experiments.study_plan import PARTS, WHERE, WORLDS, Cell, place
from experiments.study_report import answer_of, compared, draw, draw_quantity, show, show_best_rates
from plumbing.command_line import count
from plumbing.files import read_lines, write_lines
from scripts import analysis, audit, plot

# How processes of a pool start: anew, with one thread each.
OWN_THREAD = {"mp_context": get_context("spawn"), "initializer": torch.set_num_threads}
OWN_THREAD |= {"initargs": (1,)}


def prepare(out: Path, cells: list[Cell], jobs: int) -> None:
    """Makes the worlds of these cells; what is there is kept."""
    # Its statistics are written last.
    whole = {cell.world: place(out, cell.world) / "statistics.json" for cell in cells}
    worlds = [world for world, path in whole.items() if not path.exists()]

    with ProcessPoolExecutor(jobs, **OWN_THREAD) as pool:
        makers = [pool.submit(toy_task.make, WORLDS[w], place(out, w), 0) for w in worlds]
        for maker in makers:
            maker.result()
    for world, live in {(cell.world, cell.live) for cell in cells if cell.live < 1}:
        thin(place(out, world), live)


def thin(world: Path, live: float) -> None:
    """Training problems of which a share `live` is left as it is. The gold of the others is 0,
    which no number of these worlds has: the same draws, with fewer live groups."""
    rows = read_lines(world / "train.jsonl")
    for row in rows:
        if zlib.crc32(row["problem"].encode()) >= live * 2**32:
            row["expected_answer"] = "0"
    write_lines(world / f"live{live:g}.jsonl", rows)


ONE_THREAD = os.environ | {"OMP_NUM_THREADS": "1"}


def run_all(out: Path, cells: list[Cell], jobs: int, minutes: float) -> int:
    """Runs what is not finished, `jobs` at a time, seeds in turn; after `minutes` it starts none.
    Returns how many failed."""
    end = time.time() + 60 * minutes
    # By folder: cells that differ in the number of seeds alone share runs.
    runs = {cell.folder(out, seed): (cell, seed) for cell in cells for seed in range(cell.seeds)}
    todo = [(cell, seed) for cell, seed in runs.values() if not cell.is_done(out, seed)]
    todo.sort(key=lambda each: each[1])

    def one(job: tuple[Cell, int]) -> int | None:
        """Exit status, None where the time is up."""
        if time.time() > end:
            return None
        cell, seed = job
        log = out / f"{cell.name}-seed{seed}.log"
        with log.open("w") as file:
            done = subprocess.run(cell.command(out, seed), stdout=file, stderr=file, env=ONE_THREAD)
        print(f"FAILED, see {log}" if done.returncode else f"done: {log.stem}", flush=True)
        return done.returncode

    with ThreadPoolExecutor(jobs) as pool:
        statuses = list(pool.map(one, todo))
    left = len(todo) - statuses.count(0)
    print(f"{left} runs left: the same command goes on", flush=True)
    return sum(map(bool, statuses))


def ask(out: Path, worlds: list[str], jobs: int) -> None:
    """Asks the uniform run of seed 0 in each of these worlds, where it is finished, whether a
    teacher would pay; the answer is kept, as the teacher takes minutes to learn."""
    done = [world for world in worlds if Cell(world).is_done(out, 0)]
    with ProcessPoolExecutor(jobs, **OWN_THREAD) as pool:
        asked = [pool.submit(answer, out, w) for w in done if not answer_of(out, w).exists()]
        for each in asked:
            each.result()


def answer(out: Path, world: str) -> None:
    """Asks the teacher that the world's Goldilocks runs have: the base model."""
    run = analysis.Run.load(Cell(world).folder(out, 0))
    model = str(place(out, world) / "model")
    write_lines(answer_of(out, world), [audit.would_pay(run, model)[model]])


def main(argv=None) -> int:
    """The command line; returns 1 if a run failed."""
    parser = analysis.parser(__doc__)
    add = parser.add_argument
    add("--out", type=Path, default=Path("runs/study"), help="folder of everything (%(default)s)")
    add("--only", choices=PARTS, nargs="+", default=list(PARTS), help="parts of the plan")
    add("--jobs", type=count, default=2, help="runs at a time, one thread each (%(default)s)")
    add("--minutes", type=float, default=600, help="no run starts after (%(default)s); 0: report")
    args = parser.parse_args(argv)
    out = args.out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    cells = [cell for part in args.only for both in PARTS[part] for cell in both]
    cells = list(dict.fromkeys(cells))
    # One study at a time.
    with analysis.one_line("study", Timeout), FileLock(out / "study.lock", timeout=0):
        failed = 0
        if args.minutes:
            prepare(out, cells, args.jobs)
            failed = run_all(out, cells, args.jobs, args.minutes)
            wanted = [PARTS[part] for part in WHERE if part in args.only]
            ask(out, [base.world for both in wanted for base, _ in both], args.jobs)
        found = {part: compared(out, part) for part in {*args.only, *WHERE}}
        if any(len(found[part]) for part in args.only):
            print(show(pd.concat([found[part] for part in args.only])))
        if "rates" in args.only:
            print(show_best_rates(out))
        if any(len(found[part]) for part in WHERE):
            figure = draw(out, pd.concat([found[part] for part in WHERE]))
            print(plot.save(figure, out / "study.png"))
        if len(found.get("quantity", ())):
            print(plot.save(draw_quantity(found["quantity"]), out / "quantity.png"))
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())

"""Train a step of a past run again, from the checkpoint before it, and compare every number.

    torchrun --nproc_per_node 3 -m scripts.replay runs/demo-goldilocks-seed0 --step 57

Start as many processes as the run had student ranks; selections.jsonl replaces the Teacher, and a
sampler without one proposes again. It writes only RUN/replay/step_57.jsonl, one completion a line.
Exit status 0: all numbers but times are the same to the last bit, as they are on one kind of CPU
(on a GPU the backward of PyTorch's own attention adds in no fixed order); 1: some differ. A step
whose loss or gradient was not finite fails again, and each line says whether its log-probs are
finite.
"""

import math
import sys
from collections.abc import Iterator
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path

import torch

import train
from grpo import Completion, Group
from plumbing.batches import collate
from plumbing.command_line import count
from plumbing.data.problems import Problems
from plumbing.distributed.layout import Layout
from plumbing.distributed.shutdown import begin_process, run_ranks
from plumbing.errors import InputError, NonFiniteError, print_line
from plumbing.files import plain, read_lines, write_lines
from plumbing.plugins import path_of
from plumbing.run import checkpoint, code
from records.metrics import History
from records.rows import logged_groups
from sampler import Sampler, file_of, find_sampler
from scripts.command import exit_on_error, make_parser
from scripts.study.runs import config_of, read_config, read_problems
from verify import Verifier


def recorded_proposals(rows: list[dict], P: int) -> Iterator[tuple[list[Group], dict]]:
    """Yield what the Teacher's ranks sent in each round of a run, P groups and no metrics. rows: of
    its selections.jsonl."""
    groups = [
        Group(
            row["chosen"],
            size=row["completions"],
            pool=row["pool"],
            utilities=[math.nan if u is None else u for u in row["utilities"]],
            explored=row["explored"],
        )
        for row in rows
    ]
    for first in range(0, len(groups), P):
        yield groups[first : first + P], {}


def load(run_dir: Path) -> tuple[train.Config, Layout]:
    """Read the run's settings. Raises InputError if this is another number of ranks."""
    settings = read_config(run_dir)
    config = replace(config_of(settings), teacher_ranks=0)
    layout = train.build_layout(config)
    ranks = settings["student_ranks"]
    if layout.world != ranks:
        raise InputError(f"{run_dir} has {ranks} student ranks: torchrun --nproc_per_node {ranks}")
    plugins = {"--sampler": file_of(config.sampler), "--reward": path_of(config.reward)}
    changed = code.changes(settings, {"code": code.checksums(plugins)})
    if changed and layout.rank == 0:
        print_line(f"warning: the code has changed since the run: {', '.join(changed)}")
    return config, layout


def restore(run_dir: Path, student: train.Student, problems: Problems, start: int) -> Sampler:
    """Load the student as it was after step `start`, and build its sampler; what the Teacher chose
    is read from the logs."""
    c = student.config
    if start:
        folder = checkpoint.directory(run_dir, start)
        checkpoint.load_models(folder, student.layout.group, {"student": student.trained_model})
        student.generator.refresh(student.policy)
    if find_sampler(c.sampler).uses_teacher:
        rows = read_lines(run_dir / "selections.jsonl", torn=True)
        rows = [row for row in rows if row["step"] > start]
        proposals = recorded_proposals(rows, c.prompts_per_step)
        return train.TeacherClient(
            train.context_of(c, problems, student.encode),
            receive=partial(next, proposals, ([], {})),  # in the end none
            send=lambda groups: None,
        )
    sampler = train.build_sampler(c, student.layout, problems)
    if start:
        sampler.load_state_dict(checkpoint.load_state(run_dir, start))
    return sampler


def is_same(logged: dict, row: dict) -> bool:
    """Whether a step's numbers, times aside, are those logged. Prints those that differ."""
    different = {
        name: (logged[name], value)
        for name, value in plain(row).items()
        if not name.endswith(("_s", "seconds")) and logged.get(name, value) != value
    }
    print_line(f"step {row['step']}: differences (then, now): {different}")
    return not different


def replay(run_dir: Path, last: int, student: train.Student) -> bool:
    """Train steps again, from the checkpoint before it up to step `last`; write the completions of
    the last one trained. Returns whether all numbers are the same, or the step that failed then
    fails again. Raises InputError if the run did not come to the step."""
    logged = {row["step"]: row for row in read_lines(run_dir / "metrics.jsonl", torn=True)}
    steps = max(logged, default=0)
    if last > steps + 1:  # the step that failed is not logged
        raise InputError(f"{run_dir} has {steps} steps")
    start = checkpoint.latest_valid_checkpoint(run_dir, before=last)
    c = student.config
    problems = read_problems(c.train_data, read_config(run_dir)["train_data_crc32"], c.column)
    sampler = restore(run_dir, student, problems, start)
    history = History(logged_groups(run_dir, start), problems, c.column)
    groups = []  # of the latest step
    same = True
    failure = None
    for step in range(start + 1, last + 1):
        groups.clear()
        try:
            row = train.train_step(
                step,
                student,
                sampler,
                problems,
                lambda _, drawn, decode: groups.extend(drawn),
                history,
            )
        except NonFiniteError as error:
            failure = error
            break
        if step in logged and student.layout.rank == 0:
            same &= is_same(logged[step], row)
    failed = failure is not None
    lines = [outcome(student, group, o, failed) for group in groups for o in group.completions]
    if student.layout.rank == 0:
        out = run_dir / "replay" / f"step_{step}.jsonl"
        write_lines(out, lines)
        print_line(str(failure or f"step {step} is finite"))
        print_line(f"its completions: {out}")
    failed_in_the_run = step not in logged
    return same and failed == failed_in_the_run


def outcome(student: train.Student, group: Group, o: Completion, failed: bool) -> dict:
    """Return a completion's line. If the step failed, also whether its log-probs are finite: every
    rank forwards each row alone."""
    line = {
        "problem": group.problem,
        "prompt_ids": group.prompt_ids,
        "completion": student.generator.tokenizer.decode(o.ids),
    }
    line |= asdict(o)
    if failed:
        batch = collate([(group.prompt_ids, o)], student.layout.device)
        with torch.no_grad():
            logp_N, _ = student.policy(batch, student.config.temperature)
        line["finite_logp"] = bool(logp_N.isfinite().all())
    return line


def main(argv=None) -> int:
    parser = make_parser(__doc__)
    parser.add_argument("run", metavar="RUN", type=Path, help="a run directory")
    parser.add_argument("--step", type=count, required=True, help="the step to train again")
    begin_process()
    with exit_on_error("replay"):
        args = parser.parse_args(argv)
        config, layout = load(args.run)
        with Verifier(workers=config.verify_workers, reward=config.reward) as verifier:

            def body() -> int:
                student = train.Student.load(config, layout, verifier)
                same = replay(args.run, args.step, student)
                return int(not all(layout.gather_world(same)))

            return run_ranks(layout, config.timeout_minutes, body)


if __name__ == "__main__":
    sys.exit(main())

"""Train a step of a past run again, from the checkpoint before it, and compare every number.

    torchrun --nproc_per_node 3 -m scripts.replay runs/demo-goldilocks-seed0 --step 57

Start as many processes as the run had student ranks; selections.jsonl replaces the teacher. It
writes only RUN/replay/step_57.jsonl, one completion a line. Exit status 0: all numbers but times
are the same to the last bit, as they are on one kind of CPU (on a GPU the backward of PyTorch's own
attention adds in no fixed order); 1: some differ. A step whose loss or gradient was not finite
fails again, and each line says whether its log-probs are finite.
"""

import json
import math
import sys
from collections import deque
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import torch

import train
from grpo import Group
from plumbing import command_line
from plumbing.batches import collate
from plumbing.data.problems import Problems
from plumbing.distributed.layout import Layout
from plumbing.distributed.shutdown import begin_process, reject, run_ranks
from plumbing.errors import InputError, NonFiniteError
from plumbing.files import plain, read_lines, write_lines
from plumbing.plugins import path_of
from plumbing.run import checkpoint
from sampler import DynamicSampling, file_of, find_sampler
from scripts import analysis
from verify import Verifier


class Recorded:
    """A sampler that proposes the groups of selections.jsonl. train_on: the run's; continues:
    whether a problem's second row in a step continues its group, as samplers with rounds of their
    own do; with --resample_rounds it is another group."""

    def __init__(self, rows: list[dict], train_on: Callable, continues: bool):
        self.train_on = train_on
        self.continues = continues
        self.rounds = {}  # (step, round) -> rows
        for row in rows:
            self.rounds.setdefault((row["step"], row["round"]), []).append(row)
        self.step = min((step for step, _ in self.rounds), default=1) - 1

    def propose(self, n: int) -> list[Group]:
        self.step += 1
        self.round = 0
        return self.next_round([])

    def more(self, groups: list[Group]) -> list[Group]:
        self.round += 1
        return self.next_round(groups)

    def next_round(self, earlier: list[Group]) -> list[Group]:
        """Make the groups of a round, or raise the size of those that it continues."""
        known = {group.problem: group for group in earlier} if self.continues else {}
        groups = []
        for row in self.rounds.get((self.step, self.round), []):
            problem = row["chosen"]
            utilities = [math.nan if u is None else u for u in row["utilities"]]
            new = Group(problem, 0, row["pool"], utilities, row["explored"])
            group = known.get(problem, new)
            group.size += row["completions"]
            groups.append(group)
        return groups

    def observe(self, groups: list[Group]) -> None: ...

    def metrics(self) -> dict:
        return {}


def load(
    run_dir: Path, step: int, device: str | None
) -> tuple[train.Config, Layout, Recorded, int]:
    """Read what the steps need, and find the checkpoint before them. device: None, or one to use
    instead of the run's. Raises InputError."""
    if sys.flags.optimize > 1:
        raise InputError(
            "python -OO removes docstrings, and transformers then loads no model: use -O"
        )
    settings = analysis.read_config(run_dir)
    config = analysis.recorded(train.Config, settings)
    config.device = device or config.device
    config.teacher_model = ""
    config.teacher_ranks = 0
    layout = Layout(config)
    ranks = settings["student_ranks"]
    if layout.world != ranks:
        command = f"torchrun --nproc_per_node {ranks} -m scripts.replay {run_dir} --step {step}"
        raise InputError(f"{run_dir} was trained by {ranks} student ranks: {command}")
    check_files(config, settings)
    recorded, start = recorded_sampler(run_dir, step, config)
    return config, layout, recorded, start


def check_files(config: train.Config, settings: dict) -> None:
    """Raise InputError if the training data, or the file of a custom reward or sampler, has changed
    since the run, OSError if it is gone. settings: the run's config.json."""
    paths = {
        "train_data": config.train_data,
        "reward": path_of(config.reward),
        "sampler": file_of(config.sampler),
    }
    for name, path in paths.items():
        if path:
            analysis.check_unchanged(path, settings[f"{name}_crc32"])


def recorded_sampler(run_dir: Path, last: int, config: train.Config) -> tuple[Recorded, int]:
    """Read the groups of the steps from the newest checkpoint before step `last` up to it. Returns
    their sampler, and the checkpoint's step, 0 if there is none. Raises InputError if the run has
    no step `last`, or no checkpoint is intact."""
    rows = read_lines(run_dir / "selections.jsonl", torn=True)
    newest = max((row["step"] for row in rows), default=0)
    if not 1 <= last <= newest:
        raise InputError(f"--step {last}: {run_dir} has steps 1 to {newest}")
    start = checkpoint.latest_valid_checkpoint(run_dir, before=last)
    cls = DynamicSampling if config.resample_rounds else find_sampler(config.sampler)
    rows = [row for row in rows if start < row["step"] <= last]
    return Recorded(rows, cls.train_on, continues=not config.resample_rounds), start


def is_same(logged: dict | None, row: dict) -> bool:
    """Whether a step's numbers, times aside, are those logged. Prints those that differ."""
    if logged is None:
        print(f"step {row['step']} failed then, and does not now")
        return False
    row = json.loads(json.dumps(plain(row)))
    names = [k for k in logged if k in row and k != "seconds" and not k.endswith("_s")]
    different = [name for name in names if logged[name] != row[name]]
    same = len(names) - len(different)
    print(f"step {row['step']}: {same} of {len(names)} numbers are the same", flush=True)
    for name in different:
        print(f"  {name}: {logged[name]} then, {row[name]} now")
    return not different


def replay(run_dir: Path, last: int, student, sampler: Recorded, start: int) -> bool:
    """Train steps start + 1 to `last` again; write the completions of the last one trained. Returns
    whether all numbers are the same, or the step that failed then fails again."""
    problems, same, latest = Problems(student.config.train_data), [], deque(maxlen=1)
    logged = {row["step"]: row for row in read_lines(run_dir / "metrics.jsonl", torn=True)}
    if start:
        path = checkpoint.directory(run_dir, start)
        checkpoint.load_learners(path, student.layout.group, {"student": student.learner})
        student.generator.refresh(student.policy)
    failure = None
    for step in range(start + 1, last + 1):
        try:
            row = train.train_step(step, student, sampler, problems, lambda *x: latest.append(x))
        except NonFiniteError as error:
            failure = error
            break
        same.append(student.layout.rank > 0 or is_same(logged.get(step), row))
    step, groups, _ = latest[-1]
    lines = outcome_lines(student, groups, failed=failure is not None)
    if failure:
        same.append(step not in logged)
    if student.layout.rank == 0:
        if failure:
            print(f"{'as then' if all(same) else 'not so then'}: {failure}")
        out = run_dir / "replay" / f"step_{step}.jsonl"
        write_lines(out, lines)
        print(f"completions of step {step}: {out}", flush=True)
    return all(same)


def outcome_lines(student, groups: list[Group], failed: bool) -> list[dict]:
    """A line for each completion. If the step failed, also whether its log-probs are finite: every
    rank forwards each row alone."""
    lines = []
    for group in groups:
        for o in group.completions:
            line = {"problem": group.problem, "reward": o.reward, "status": o.status}
            line |= {"advantage": o.advantage, "prompt_ids": group.prompt_ids}
            line |= {"completion_ids": o.ids, "completion": student.tokenizer.decode(o.ids)}
            if failed:
                row = [(group.prompt_ids, o)]
                batch = collate(row, student.layout.device)
                with torch.no_grad():
                    logp_N, _ = student.policy(batch, student.config.temperature)
                line["finite_logp"] = bool(logp_N.isfinite().all())
            lines.append(line)
    return lines


def main(argv: list[str] | None = None) -> int:
    parser = command_line.Parser(description=command_line.first_line(__doc__))
    parser.add_argument("run", type=command_line.file_path, help="run directory")
    parser.add_argument("--step", type=int, required=True, help="the step to train again")
    devices = {"choices": ("auto", "cpu", "cuda"), "default": None}
    parser.add_argument("--device", **devices, help="another than the run's")
    begin_process()
    with ExitStack() as stack:
        try:
            args = parser.parse_args(argv)
            config, layout, sampler, start = load(args.run, args.step, args.device)
            verifier = stack.enter_context(
                Verifier(workers=config.verify_workers, reward=config.reward)
            )
        except (ValueError, OSError) as error:
            return reject(error)

        def body() -> int:
            student = train.Student(config, layout, verifier)
            same = replay(args.run, args.step, student, sampler, start)
            return int(not all(layout.gather_world(same)))

        return run_ranks(layout, config.timeout_minutes, body)


if __name__ == "__main__":
    sys.exit(main())

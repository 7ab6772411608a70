"""Train a step of a past run again, from the checkpoint before it, and compare every number.

    torchrun --nproc_per_node 3 -m scripts.replay runs/demo-goldilocks-seed0 --step 57

Start as many processes as the run had student ranks; selections.jsonl replaces the Teacher, and a
sampler without one proposes again. It writes only RUN/replay/step_57.jsonl, one completion a line.
Exit status 0: all numbers but times are the same to the last bit, as they are on one kind of CPU
(on a GPU the backward of PyTorch's own attention adds in no fixed order); 1: some differ. A step
whose loss or gradient was not finite fails again, and each line says whether its log-probs are
finite.
"""

import itertools
import json
import math
import sys
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
from sampler import Sampler, file_of, find_sampler
from scripts import analysis
from verify import Verifier


class Recorded(Sampler):
    """The proposals of a run with a Teacher, rows of its selections.jsonl. Its rounds, of P groups
    each, end as DAPO's do in the base class."""

    def __init__(self, config: train.Config, rows: list[dict]):
        self.P = config.prompts_per_step
        self.resample_rounds = config.resample_rounds
        self.rows = iter(rows)

    def propose(self, P):
        groups = []
        for row in itertools.islice(self.rows, P):
            utilities = [math.nan if u is None else u for u in row["utilities"]]
            size = row["completions"]
            groups.append(Group(row["chosen"], size, row["pool"], utilities, row["explored"]))
        return groups


def load(run_dir: Path, step: int, device: str | None) -> tuple[train.Config, Layout, int]:
    """Read the run's settings, and find the checkpoint before the step. device: None, or one to use
    instead of the run's. Raises InputError if this is another number of ranks, or a file that the
    run used has changed, OSError if one is gone."""
    settings = analysis.read_config(run_dir)
    config = analysis.recorded(train.Config, settings)
    config.device = device or config.device
    config.teacher_ranks = 0
    layout = train.build_layout(config)
    ranks = settings["student_ranks"]
    if layout.world != ranks:
        command = f"torchrun --nproc_per_node {ranks} -m scripts.replay {run_dir} --step {step}"
        raise InputError(f"{run_dir} was trained by {ranks} student ranks: {command}")
    paths = {"train_data": config.train_data, "reward": path_of(config.reward)}
    paths["sampler"] = file_of(config.sampler)
    for name, path in paths.items():
        if path:
            analysis.check_unchanged(path, settings[f"{name}_crc32"])
    rows = read_lines(run_dir / "selections.jsonl", torn=True)
    newest = max((row["step"] for row in rows), default=0)
    if not 1 <= step <= newest:
        raise InputError(f"--step {step}: {run_dir} has steps 1 to {newest}")
    return config, layout, checkpoint.latest_valid_checkpoint(run_dir, before=step)


def build_sampler(run_dir: Path, config: train.Config, layout, problems, start: int) -> Sampler:
    """Build the sampler as it was after step `start`."""
    if find_sampler(config.sampler).uses_teacher:
        rows = read_lines(run_dir / "selections.jsonl", torn=True)
        return Recorded(config, [row for row in rows if row["step"] > start])
    sampler = train.build_sampler(config, layout, problems)
    if start:
        sampler.load_state_dict(checkpoint.load_state(run_dir, start))
    return sampler


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


def replay(run_dir: Path, last: int, student: train.Student, start: int) -> bool:
    """Train steps start + 1 to `last` again; write the completions of the last one trained. Returns
    whether all numbers are the same, or the step that failed then fails again."""
    problems = Problems(student.config.train_data)
    sampler = build_sampler(run_dir, student.config, student.layout, problems, start)
    logged = {row["step"]: row for row in read_lines(run_dir / "metrics.jsonl", torn=True)}
    if start:
        path = checkpoint.directory(run_dir, start)
        checkpoint.load_learners(path, student.layout.group, {"student": student.learner})
        student.generator.refresh(student.policy)
    same, latest, failure = True, [], None
    for step in range(start + 1, last + 1):
        try:
            row = train.train_step(step, student, sampler, problems, lambda *x: latest.append(x))
        except NonFiniteError as error:
            failure = error
            same &= step not in logged
            break
        same &= student.layout.rank > 0 or is_same(logged.get(step), row)
    step, groups, _ = latest[-1]
    lines = outcome_lines(student, groups, failed=failure is not None)
    if student.layout.rank == 0:
        if failure:
            print(f"{'as then' if same else 'not so then'}: {failure}")
        out = run_dir / "replay" / f"step_{step}.jsonl"
        write_lines(out, lines)
        print(f"completions of step {step}: {out}", flush=True)
    return same


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
                batch = collate([(group.prompt_ids, o)], student.layout.device)
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
            config, layout, start = load(args.run, args.step, args.device)
            verifier = Verifier(workers=config.verify_workers, reward=config.reward)
            verifier = stack.enter_context(verifier)
        except (ValueError, OSError) as error:
            return reject(error)

        def body() -> int:
            student = train.Student(config, layout, verifier)
            same = replay(args.run, args.step, student, start)
            return int(not all(layout.gather_world(same)))

        return run_ranks(layout, config.timeout_minutes, body)


if __name__ == "__main__":
    sys.exit(main())

"""Trains a step of a past run again: from the newest checkpoint before it, selections and seed.

    torchrun --nproc_per_node 3 -m scripts.replay runs/demo-goldilocks-seed0 --step 57

Start as many processes as the run had student ranks; selections.jsonl stands in for the teacher.
Every number of metrics.jsonl that measures no time is compared, and the step's completions are
written to RUN/replay/step_57.jsonl, one a line with its reward and advantage; nothing else in the
run's folder changes. Exit status 0: all the same to the last bit, as they are on one kind of CPU
(on a GPU the backward of PyTorch's own attention adds in no fixed order); 1: something differs.

The step whose loss or gradient was not finite (exit status 3 of train.py) fails here again, and
then each line says as well whether the log-probs of its completion are finite. Replay it before
the run is continued: that cuts its logs at the newest checkpoint.
"""

import json
import sys
from collections import deque
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist

import grpo
import train
from plumbing import checkpoint, command_line
from plumbing.batches import collate
from plumbing.distributed.layout import Layout, begin_process, reject
from plumbing.errors import InputError, NonFiniteError
from plumbing.files import plain, read_lines, write_lines
from plumbing.plugins import path_of
from plumbing.problems import Problems
from sampler import Selections
from scripts import analysis
from verify import Verifier


class Recorded:
    """A sampler that proposes what was proposed: rows of selections.jsonl, in their order."""

    def __init__(self, rows: list[dict]):
        self.rows = rows

    def propose(self, n: int) -> Selections:
        rows, self.rows = self.rows[:n], self.rows[n:]
        pool_N_K, utilities_N_K, chosen_N, explored_N = (
            np.array([row[name] for row in rows])
            for name in ("pool", "utilities", "chosen", "explored")
        )
        position_N = (pool_N_K == chosen_N[:, None]).argmax(axis=1)
        return Selections(pool_N_K, utilities_N_K.astype(float), position_N, explored_N)

    def observe(self, index_N, successes_N, G) -> None: ...

    def metrics(self) -> dict:
        return {}


def load(folder: Path, step: int) -> tuple[train.Config, Layout, Recorded, int]:
    """What the steps need, and the step of the checkpoint before them. Raises InputError."""
    settings = analysis.read_config(folder)
    config = command_line.recorded(train.Config, settings)
    config.teacher_ranks, ranks = 0, settings["student_ranks"]
    layout = Layout(config)
    if layout.world != ranks:
        right = f"torchrun --nproc_per_node {ranks} -m scripts.replay {folder} --step {step}"
        raise InputError(f"{folder} was trained by {ranks} student ranks: {right}")
    for name, path in {"train_data": config.train_data, "reward": path_of(config.reward)}.items():
        if path:
            analysis.check_unchanged(path, settings[f"{name}_crc32"])
    rows = read_lines(folder / "selections.jsonl", torn=True)
    last = max((row["step"] for row in rows), default=0)
    if not 1 <= step <= last:
        raise InputError(f"--step {step}: {folder} has steps 1 to {last}")
    start = checkpoint.latest_valid_checkpoint(folder, before=step)
    return config, layout, Recorded([row for row in rows if start < row["step"] <= step]), start


def outcome_lines(student, selections, rollouts, failed: bool) -> list[dict]:
    """One line for each completion. failed: also whether its log-probs are finite (on all ranks,
    each of which forwards every row alone)."""
    c, lines = student.config, []
    rewards_P_G = rollouts.rewards_P_G(c.group_size)
    advantage_B = grpo.group_advantages(rewards_P_G, c.advantage_std).flatten().tolist()
    for b, problem in enumerate(selections.index_N.repeat(c.group_size).tolist()):
        line = {"problem": problem, "reward": rollouts.rewards[b], "status": rollouts.statuses[b]}
        line |= {"advantage": advantage_B[b], "prompt_ids": rollouts.prompt_ids[b]}
        line["completion_ids"] = rollouts.completion_ids[b]
        line["completion"] = student.tokenizer.decode(rollouts.completion_ids[b])
        if failed:
            row = collate(rollouts, [b], student.tokenizer.pad_token_id, student.layout.device)
            with torch.no_grad():
                logp_N, _ = student.policy(row, c.temperature)
            line["finite_logp"] = bool(logp_N.isfinite().all())
        lines.append(line)
    return lines


def compare(then: dict | None, now: dict) -> bool:
    """Prints which numbers of a row of metrics.jsonl differ; returns whether none does."""
    if then is None:
        print(f"step {now['step']} failed then, and does not now")
        return False
    now = json.loads(json.dumps(plain(now)))
    names = [k for k in then if k in now and k != "seconds" and not k.endswith("_s")]
    different = [name for name in names if then[name] != now[name]]
    same = len(names) - len(different)
    print(f"step {now['step']}: {same} of {len(names)} numbers are the same", flush=True)
    for name in different:
        print(f"  {name}: {then[name]} then, {now[name]} now")
    return not different


def replay(folder: Path, last: int, student, sampler: Recorded, start: int) -> bool:
    """Makes steps start + 1 to `last` again; returns whether all came out as they had."""
    problems, same, latest = Problems(student.config.train_data), [], deque(maxlen=1)
    logged = {row["step"]: row for row in read_lines(folder / "metrics.jsonl", torn=True)}
    if start:
        path = checkpoint.folder_of(folder, start)
        checkpoint.load_models(path, student.layout.group, sampler, student)
    failed = None
    for step in range(start + 1, last + 1):
        try:
            row = train.train_step(step, student, sampler, problems, lambda *x: latest.append(x))
        except NonFiniteError as error:
            failed = error
            break
        same.append(student.layout.rank > 0 or compare(logged.get(step), row))
    step, selections, rollouts, _ = latest[-1]
    lines = outcome_lines(student, selections, rollouts, bool(failed))
    if failed:
        same.append(step not in logged)
    if student.layout.rank == 0:
        if failed:
            print(f"{'as then' if all(same) else 'not so then'}: {failed}")
        out = folder / "replay" / f"step_{step}.jsonl"
        write_lines(out, lines)
        print(f"completions of step {step}: {out}", flush=True)
    return all(same)


def main(argv: list[str] | None = None) -> int:
    parser = command_line.Parser(description=__doc__.splitlines()[0])
    parser.add_argument("run", type=Path, help="a run's folder")
    parser.add_argument("--step", type=int, required=True, help="the step to train again")
    begin_process()
    try:
        args = parser.parse_args(argv)
        config, layout, sampler, start = load(args.run, args.step)
    except (ValueError, OSError) as error:
        return reject(error)
    with Verifier(workers=config.verify_workers, reward=config.reward) as verifier:
        layout.connect(config.timeout_minutes)
        try:
            student = train.Student(config, layout, verifier)
            same = replay(args.run, args.step, student, sampler, start)
            same = all(layout.gather(same))
        except Exception as error:  # whatever it is: this rank has to say it
            return layout.report(error)
    dist.destroy_process_group()
    return int(not same)


if __name__ == "__main__":
    sys.exit(main())

#!/usr/bin/env python
"""Run one step of a past run again: from the nearest checkpoint before it, selections.jsonl and the seed.

    torchrun --nproc_per_node 3 scripts/replay.py runs/demo-goldilocks-seed0 --step 57

Start as many processes as the run had student ranks. The steps from the checkpoint on are trained again by train.py's
own loop, with the recorded problems in place of a sampler, so that no teacher is needed; nothing in the run's folder
changes but the new folder `replay/`. There rank 0 writes every completion of the step (`step_57.jsonl`) and its
gradient after clipping, parameter by parameter (`step_57.safetensors`). Then every number of these steps is compared
with metrics.jsonl. Exit status 0: all the same to the last bit, as they are on one kind of machine; 1: some differ.
"""

import argparse
import json
import os
import sys
from dataclasses import fields
from pathlib import Path

sys.path.insert(
    0, str(Path(__file__).resolve().parent.parent)
)  # the core files lie beside this folder
import numpy as np
from safetensors.torch import save_file
from transformers.utils import logging as hf_logging

import train
from sampler import InputError, Selections
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

    def state_dict(self) -> dict:
        return {}

    def load_state_dict(self, state: dict) -> None: ...

    def metrics(self) -> dict:
        return {}


class Replay(train.Run):
    """The run's folder, read only: what would be logged is compared, and the last step is written to `out`."""

    def __init__(self, config: train.Config, layout: train.Layout, step: int):
        super().__init__(config, layout)
        self.last, self.out = step, self.folder / "replay"
        self.logged = {
            row["step"]: row for row in train.read_lines(self.folder / "metrics.jsonl", torn=True)
        }
        self.differ = 0

    def resume(self, step: int, sampler, student=None) -> None:
        self.load(step, sampler, student)
        optimizer_step = student.optimizer.step

        def keep_gradient_and_step():
            self.gradient = {
                name: p.grad.full_tensor().cpu() for name, p in student.policy.named_parameters()
            }
            optimizer_step()

        student.optimizer.step = keep_gradient_and_step
        student.generator.export = lambda folder: None  # the run has its own

    def save(self, step: int, sampler, student=None) -> None: ...

    def owes_evaluation(self, step: int) -> bool:
        return False

    def log(self, metrics: dict, groups: train.Groups | None = None, tokenizer=None) -> None:
        if (step := metrics["step"]) == self.last:
            self.layout.request_stop()  # ends the loop after this step
        if self.layout.rank or groups is None:
            return
        again = json.loads(json.dumps(train.plain(metrics)))
        again.pop("val_accuracy", None)  # nothing is evaluated
        names = [
            k for k in self.logged[step] if k in again and k != "seconds" and not k.endswith("_s")
        ]
        different = [name for name in names if again[name] != self.logged[step][name]]
        self.differ += len(different)
        print(
            f"step {step}: {len(names) - len(different)} of {len(names)} numbers are the same",
            flush=True,
        )
        for name in different:
            print(f"  {name}: {self.logged[step][name]} then, {again[name]} now")
        if step == self.last:
            G = groups.rewards_P_G.shape[1]
            problems = groups.selections.index_N.repeat(G).tolist()
            columns = (problems, groups.rewards_P_G.flatten().tolist(), groups.statuses)
            rows = [
                dict(zip(("problem", "reward", "status"), row, strict=True))
                for row in zip(*columns, strict=True)
            ]
            for row, ids in zip(rows, groups.rollouts.completion_ids, strict=True):
                row |= {"completion": tokenizer.decode(ids), "completion_ids": ids}
            train.write_lines(self.out / f"step_{step}.jsonl", rows)
            save_file(self.gradient, self.out / f"step_{step}.safetensors")
            print(f"completions and gradient of step {step} are in {self.out}")

    def show_plan(self, start: int, student, n_train: int, n_val: int) -> None:
        if self.layout.rank == 0:
            print(f"replaying steps {start + 1} to {self.last} of {self.folder}", flush=True)

    def show_result(self, finished: bool) -> None: ...


def load(folder: Path, step: int) -> tuple[train.Config, list[dict], int]:
    """Config, the selections to replay, and the step of the checkpoint before them. Raises InputError in one line."""
    if not (folder / "config.json").is_file():
        raise InputError(f"{folder} holds no run: there is no config.json")
    settings = json.loads((folder / "config.json").read_text())
    config = train.Config(**{f.name: settings[f.name] for f in fields(train.Config)})
    config.out, config.teacher_ranks, config.eval_every = str(folder), 0, sys.maxsize
    layout = train.Layout(config)
    if layout.world != settings["student_ranks"]:
        raise InputError(
            f"{folder} was trained by {settings['student_ranks']} student ranks, and random streams belong to ranks: "
            f"torchrun --nproc_per_node {settings['student_ranks']} scripts/replay.py {folder} --step {step}"
        )
    if changed := [
        k for k, v in train.Run(config, layout).facts().items() if "crc32" in k and v != settings[k]
    ]:
        raise InputError(f"the problems have changed since the run: {changed[0]} differs")
    rows = train.read_lines(folder / "selections.jsonl", torn=True)
    last = max((row["step"] for row in rows), default=0)
    if not 1 <= step <= last:
        raise InputError(f"--step {step}: {folder} has steps 1 to {last}")
    start = max([n for n in train.Run(config, layout).steps() if n < step], default=0)
    return config, [row for row in rows if start < row["step"] <= step], start


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("run", type=Path, help="a run's folder")
    parser.add_argument("--step", type=int, required=True, help="the step to run again")
    args = parser.parse_args(argv)
    try:
        config, rows, start = load(args.run, args.step)
    except (ValueError, OSError) as error:
        if os.environ.get("RANK", "0") == "0":
            print(f"error: {error}", file=sys.stderr)
        return 2
    hf_logging.set_verbosity_error()
    hf_logging.disable_progress_bar()
    layout = train.Layout(config)
    train.build_sampler = lambda *_: Recorded(rows)
    train.Student.evaluate = lambda *_: {"val_accuracy": float("nan")}
    with Verifier(workers=config.verify_workers) as verifier:
        layout.connect(config)
        run = Replay(config, layout, args.step)
        train.train(config, layout, run, start, verifier)
        differ = max(layout.gather(run.differ))
    return 1 if differ else 0


if __name__ == "__main__":
    sys.exit(main())

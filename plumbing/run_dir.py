"""The run directory: its settings, its logs, and whether a run in it may be resumed."""

import json
import os
import socket
import tempfile
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path

import torch
import transformers
from filelock import FileLock, Timeout
from torch.distributed.checkpoint.stateful import Stateful

from grpo import Group
from plumbing import checkpoint
from plumbing.checkpoint import Learners
from plumbing.config import Config
from plumbing.distributed.layout import Layout
from plumbing.errors import InputError
from plumbing.files import digest, read_lines, write_atomic, write_lines
from plumbing.plugins import path_of

# Settings that may differ when a run is resumed; any others would make it another experiment.
FREE = {"out", "steps", "eval_every", "checkpoint_every", "keep", "timeout_minutes"}
FREE |= {"verify_workers", "teacher_ranks"}
# These may differ too, but the run does not resume bit for bit: rounding changes or, with another
# number of teacher ranks, the teacher's batch.
INEXACT = {"world_size", "student_ranks", "device", "torch", "transformers"}
INEXACT |= {"per_device_batch_size", "max_rollout_tokens", "activation_checkpointing"}
LOGS = ("metrics.jsonl", "selections.jsonl", "samples.jsonl")


class RunDir:
    """The files of a run, which rank 0 writes: settings, logs, evaluations, checkpoints, models.
    After a kill the same command resumes from the newest checkpoint, on CPUs bit for bit.
    sampler_file: the file of a sampler that is not in sampler.py."""

    def __init__(self, config: Config, layout: Layout, sampler_file: Path | None):
        self.config, self.layout, self.path = config, layout, Path(config.out)
        files = {"train_data": config.train_data, "val_data": config.val_data}
        files |= {"sampler": sampler_file, "reward": path_of(config.reward)}
        self.files = {name: Path(file) for name, file in files.items() if file}

    def facts(self) -> dict:
        """Return all that the run's numbers depend on, as config.json holds it."""
        layout, facts = self.layout, asdict(self.config)
        facts |= {"world_size": layout.world, "student_ranks": layout.n_students}
        facts |= {"device": layout.device.type}
        facts |= {"torch": torch.__version__, "transformers": transformers.__version__}
        if os.environ.get("LOCAL_RANK", "0") == "0":  # one rank of each machine reads the files
            facts |= {f"{name}_crc32": digest(path)[1] for name, path in self.files.items()}
        return facts

    def open(self) -> int:
        """Check the directory, create and lock it; return the step to resume from, 0 for a new run.
        Raises InputError if it holds something else, or a run that this one cannot resume."""
        out, settings = f"--out {self.path}", self.path / "config.json"
        try:
            if not settings.exists():
                entries = self.path.iterdir() if self.path.exists() else ()
                # A run that is killed as it begins may leave a lock and unfinished files.
                if any(p.name != "lock" and p.suffix != ".tmp" for p in entries):
                    raise InputError(f"{out}: not empty, and holds no run; choose another")
            self.path.mkdir(parents=True, exist_ok=True)
            # Kept until this process ends. A soft lock would outlive a kill.
            self.file_lock = FileLock(self.path / "lock", mode=0o666, fallback_to_soft=False)
            self.file_lock.acquire(timeout=0)
            return self._step_to_resume(settings) if settings.exists() else 0
        except Timeout as error:  # an OSError, too
            raise InputError(f"{out} is in use: end that job, or choose another") from error
        except OSError as error:
            raise InputError(f"{out} cannot be used ({error.strerror}): choose another") from error

    def _step_to_resume(self, settings: Path) -> int:
        new = self.facts()
        try:
            old = dict(json.loads(settings.read_text()))
        except (ValueError, TypeError) as error:
            reason = f"is damaged ({error}): restore it, or choose another --out"
            raise InputError(f"{settings} {reason}") from error
        # With the linear schedule the learning rate depends on the number of steps.
        free = FREE - ({"steps"} if self.config.lr_schedule == "linear" else set())
        changed = [k for k, value in new.items() if k not in free and old.get(k) != value]
        changes = {k: f"{k} was {old.get(k)!r}, is {new[k]!r}" for k in changed}
        if rejected := [text for k, text in changes.items() if k not in INEXACT]:
            reason = f"belongs to another configuration: {'; '.join(rejected)}"
            raise InputError(f"--out {self.path} {reason}")
        step = checkpoint.latest_valid_checkpoint(self.path)
        if step > self.config.steps:
            raise InputError(f"--steps {self.config.steps}: {self.path} is at step {step} already")
        for name in LOGS:  # before anything is changed
            last = [{"step": 0}, *read_lines(self.path / name, torn=True)][-1]["step"]
            if last < step and name != "samples.jsonl":
                raise InputError(f"{self.path / name} ends at step {last}, not {step}: restore it")
        if step and changes:
            print(f"note: {'; '.join(changes.values())}: resumes, but not bit for bit", flush=True)
        return step

    def assert_machines_agree(self) -> None:
        """Raise InputError or Fault unless all ranks have the same settings, and all machines the
        same data files and, as --out, the same directory. All ranks call it after `open`."""
        layout, machine = self.layout, socket.gethostname()
        try:
            facts = self.facts()
        except OSError as error:
            reason = f"{error.strerror}: all machines need the same files"
            raise InputError(f"{error.filename} cannot be read on {machine} ({reason})") from error
        layout.assert_replicas_equal(**facts)
        # Each time a new name: a machine may have cached that an old one does not exist.
        probe = Path(layout.on_rank_0(lambda: tempfile.mkdtemp(".tmp", dir=self.path)))
        sees = layout.gather((probe.exists(), machine))
        if layout.rank == 0:
            probe.rmdir()
        if blind := [name for visible, name in sees if not visible]:
            reason = f"{blind[0]} does not see what rank 0 writes there"
            raise InputError(f"--out {self.path}: {reason}; choose one that all machines share")

    def load(self, step: int, learners: Learners, sampler: Stateful) -> None:
        """Load checkpoint `step` (0: a new run), write config.json, and drop logs and checkpoints
        after `step`. All ranks call it. Raises Fault if they have read different models."""
        self.layout.assert_replicas_equal(**self._weights(learners))
        if step:
            folder = checkpoint.directory(self.path, step)
            checkpoint.load_learners(folder, self.layout.group, learners)
            sampler.load_state_dict(checkpoint.load_state(self.path, step))
        if self.layout.rank:
            return
        write_atomic(self.path / "config.json", json.dumps(self.facts(), indent=1) + "\n")
        for path in (self.path / name for name in LOGS):
            rows = read_lines(path, torn=True)
            write_lines(path, [row for row in rows if step and row["step"] <= step])
        # Later ones are damaged.
        checkpoint.keep_only(self.path, [n for n in checkpoint.steps(self.path) if n <= step])

    def save(self, step: int, state: dict | None, learners: Learners) -> None:
        """Write a checkpoint. All ranks call it. state: the sampler's; None if it is remote."""
        replicas, keep = self.facts() | self._weights(learners), self.config.keep
        checkpoint.save(self.path, step, self.layout, learners, state, replicas, keep)

    def export(self, learners: Learners) -> None:
        """Write the models as Hugging Face directories, student/ and teacher/."""
        for role, learner in learners.items():
            if role == "teacher" or self.layout.first:  # the teacher gathers its shards
                learner.export(self.path / role)

    def _weights(self, learners: Learners) -> dict[str, int]:
        return {f"weights of the {role}": learner.checksum() for role, learner in learners.items()}

    def log(self, name: str, rows: list[dict], mode: str = "a") -> None:
        """Append rows to a log ("a"), or replace it ("w")."""
        if self.layout.rank == 0:
            write_lines(self.path / f"{name}.jsonl", rows, mode)

    def log_groups(self, step: int, groups: list[Group], decode: Callable) -> None:
        """Log the groups of a step by round and, at the first step and at evaluations, the first
        completion of three problems."""
        rounds = 1 + max(o.round for group in groups for o in group.completions)
        rows = [selection(step, round, group) for round in range(rounds) for group in groups]
        self.log("selections", [row for row in rows if row["completions"]])
        if step in (1, self.config.steps) or step % self.config.eval_every == 0:
            for group in groups[:3]:
                first = group.completions[0]
                sample = {"step": step, "problem": group.problem, "status": first.status}
                sample["prompt"] = decode(group.prompt_ids)
                sample["completion"] = decode(first.ids)
                self.log("samples", [sample])

    def evaluation_pending(self, step: int) -> bool:
        """Return whether `step` is due for evaluation and has none. On resume it has one, unless a
        signal interrupted it or a flag changed. All student ranks call it."""
        if step % self.config.eval_every and step < self.config.steps:
            return False
        rows = read_lines(self.path / "metrics.jsonl", torn=True) if self.layout.rank == 0 else []
        done = any(row["step"] == step and "val_accuracy" in row for row in rows)
        return not self.layout.gather(done, self.layout.group)[0]

    def finish_evaluation(self, step: int, evaluation: dict) -> None:
        """Add an evaluation to the row of `step`, the last of metrics.jsonl, or as row 0."""
        if self.layout.rank == 0:
            rows = read_lines(self.path / "metrics.jsonl") or [{"step": step}]
            rows[-1] |= evaluation
            write_lines(self.path / "metrics.jsonl", rows)


def selection(step: int, round: int, group: Group) -> dict:
    """Make a row of selections.jsonl: a group, with the outcome of the completions of one round."""
    drawn = replace(group, completions=[o for o in group.completions if o.round == round])
    return {
        "step": step,
        "round": round,
        "pool": group.pool,
        "utilities": group.utilities,
        "chosen": group.problem,
        "explored": group.explored,
        "completions": len(drawn.completions),
        "successes": drawn.successes,
        "y": drawn.y if drawn.completions else None,
    }

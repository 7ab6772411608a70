"""The folder of a run: its settings, its logs, and whether it may be continued."""

import fcntl
import json
import os
import socket
import time
import uuid
from dataclasses import asdict
from pathlib import Path

import torch
import transformers

from plumbing import checkpoint
from plumbing.errors import InputError
from plumbing.files import digest, read_lines, write_atomic, write_lines

# What may differ when a run is continued; anything else would make it another experiment.
FREE = {"out", "steps", "eval_every", "checkpoint_every", "keep", "timeout_minutes"}
FREE |= {"verify_workers", "teacher_ranks"}
# With these the run goes on, but rounding or the split of random streams changes; with other
# teacher ranks also the teacher's batch, which is teacher_batch_size a rank.
INEXACT = {"world_size", "student_ranks", "device", "torch", "transformers", "noise_every"}
INEXACT |= {"per_device_batch_size", "max_rollout_tokens", "activation_checkpointing"}
LOGS = ("metrics.jsonl", "selections.jsonl", "samples.jsonl")
APPEARS = 60  # seconds that a network file system may take to show a file to another machine


class RunDir:
    """config.json, metrics.jsonl, selections.jsonl, samples.jsonl, evals/, checkpoints/.

    Rank 0 writes. Killed at any moment, the same command goes on from the newest checkpoint as if
    nothing had happened. plugins: files of one's own that the run's numbers depend on.
    """

    def __init__(self, config, layout, plugins: dict[str, Path | None]):
        self.config, self.layout, self.path = config, layout, Path(config.out)
        files = {"train_data": config.train_data, "val_data": config.val_data, **plugins}
        self.files = {name: Path(file) for name, file in files.items() if file}

    def facts(self) -> dict:
        """What a run's numbers depend on, settings first: config.json, the same on all ranks."""
        n = self.layout
        facts = asdict(self.config) | {"world_size": n.world, "student_ranks": n.n_students}
        facts |= {"device": n.device.type}
        facts |= {"torch": torch.__version__, "transformers": transformers.__version__}
        if os.environ.get("LOCAL_RANK", "0") == "0":  # one rank of each machine reads the files
            facts |= {f"{name}_crc32": digest(path)[1] for name, path in self.files.items()}
        return facts

    def assert_machines_agree(self) -> None:
        """Raises InputError or Fault unless all ranks have the same settings, and all machines the
        same data files and, as --out, the same folder. All ranks call it, once rank 0 has opened
        the folder."""
        n, machine = self.layout, socket.gethostname()
        try:
            facts = self.facts()
        except OSError as error:
            why = f"{error.strerror}: all machines need the same files"
            raise InputError(f"{error.filename} cannot be read on {machine} ({why})") from error
        n.assert_replicas_equal(**facts)
        if n.world == int(os.environ.get("LOCAL_WORLD_SIZE", n.world)):
            return
        sign, end = n.on_first(self._leave_sign), time.monotonic() + APPEARS
        while not (seen := sign.exists()) and time.monotonic() < end:
            time.sleep(0.1)
        blind = [name for name, sees in n.gather((machine, seen)) if not sees]
        if n.rank == 0:
            sign.unlink()
        if blind:
            why = f"{blind[0]} does not see what rank 0 writes there"
            raise InputError(f"--out {self.path}: {why}; choose a folder that all machines share")

    def _leave_sign(self) -> Path:
        """A file of a name that was never there: a machine may remember of others that they are
        not."""
        sign = self.path / f"{uuid.uuid4().hex}.tmp"
        sign.touch()
        return sign

    def check(self) -> int:
        """The step to continue from, 0 for a fresh start. Raises InputError where the folder holds
        something else, or a run that this one cannot continue."""
        out, path = f"--out {self.path}", self.path / "config.json"
        if not path.exists():
            if self.path.is_file():
                raise InputError(f"{out} is a file; choose a folder")
            there = self.path.iterdir() if self.path.exists() else ()
            # What a run may leave that is killed as it begins.
            if any(p.name != "lock" and p.suffix != ".tmp" for p in there):
                raise InputError(f"{out}: the folder is not empty and holds no run; choose another")
            return 0
        repair = "put it back, or choose another --out"
        try:
            old, new = dict(json.loads(path.read_text())), self.facts()
        except (ValueError, TypeError) as error:
            raise InputError(f"{path} is damaged ({error}): {repair}") from error
        if lacking := asdict(self.config).keys() - old.keys():
            why = f"was made by another version of this code ({min(lacking)} is not in it)"
            raise InputError(f"{path} {why}: choose another --out")
        # A linear rate depends on the number of steps.
        free = FREE - ({"steps"} if self.config.lr_schedule == "linear" else set())
        differ = {k: f"{k} {old.get(k)!r} there, {new[k]!r} here" for k in new if k not in free}
        differ = {k: text for k, text in differ.items() if old.get(k) != new[k]}
        if other := [text for k, text in differ.items() if k not in INEXACT]:
            raise InputError(f"{out} belongs to another configuration: {'; '.join(other)}")
        step = checkpoint.latest_valid_checkpoint(self.path)
        if step > self.config.steps:
            there = f"the run in {self.path} is at step {step} already"
            raise InputError(f"--steps {self.config.steps}: {there}")
        for name in LOGS:
            rows = read_lines(self.path / name, torn=True)
            if not all(isinstance(row, dict) and isinstance(row.get("step"), int) for row in rows):
                raise InputError(f"{self.path / name} is damaged: {repair}")
            logged = [row["step"] for row in rows][: step + 1]
            if name == "metrics.jsonl" and step and logged != list(range(step + 1)):
                raise InputError(f"{self.path / name} lacks a step before {step}: {repair}")
        if step:
            checkpoint.sampler_state(self.path, step)
        if step and differ:
            note = f"note: {'; '.join(differ.values())}: the run goes on, but not bit for bit"
            print(note, flush=True)
        return step

    def open(self) -> int:
        """Locks and checks the folder; returns the step to continue from."""
        try:
            if there := (self.path / "config.json").is_file():  # another job may be writing there
                self.lock()
            step = self.check()
            if not there:
                self.lock()
        except OSError as error:
            why = f"cannot be used ({error.strerror}): choose another"
            raise InputError(f"--out {self.path} {why}") from error
        return step

    def lock(self) -> None:
        """Makes the folder and keeps a second job out of it, until this process ends."""
        self.path.mkdir(parents=True, exist_ok=True)
        # A file, open for writing: NFS would lock a folder for this machine alone.
        self.locked = os.open(self.path / "lock", os.O_RDWR | os.O_CREAT, 0o666)
        try:
            fcntl.flock(self.locked, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            why = "another job is writing there; end it, or choose another"
            raise InputError(f"--out {self.path}: {why}") from error
        except OSError as error:  # not every network file system has locks
            why = f"cannot be locked ({error.strerror}): start no second job there"
            print(f"note: {self.path} {why}", flush=True)

    def begin(self, step: int) -> None:
        """Writes config.json, and forgets what came after `step`."""
        if self.layout.rank:
            return
        write_atomic(self.path / "config.json", json.dumps(self.facts(), indent=1) + "\n")
        for name in LOGS:
            rows = read_lines(self.path / name, torn=True)
            write_lines(self.path / name, [row for row in rows if step and row["step"] <= step])
        checkpoint.forget_after(self.path, step)

    def log(self, name: str, rows: list[dict]) -> None:
        """Adds rows to a log."""
        if self.layout.rank == 0:
            write_lines(self.path / f"{name}.jsonl", rows, "a")

    def log_outcomes(self, step: int, selections, rollouts, decode) -> None:
        """A step's selections with their outcomes and, at the first step and at evaluations, three
        completions to look at: the first of three problems."""
        G = self.config.group_size
        lines = selections.lines(step, rollouts.successes_P(G), G)
        self.log("selections", lines)
        if step in (1, self.config.steps) or step % self.config.eval_every == 0:
            samples = []
            for line, b in zip(lines[:3], range(0, len(rollouts), G), strict=False):
                sample = {"step": step, "problem": line["chosen"], "status": rollouts.statuses[b]}
                sample["prompt"] = decode(rollouts.prompt_ids[b])
                sample["completion"] = decode(rollouts.completion_ids[b])
                samples.append(sample)
            self.log("samples", samples)

    def evaluation_pending(self, step: int) -> bool:
        """Whether `step` is one to evaluate at and has not been: it is the first, SIGTERM came, or
        the run goes on with another --eval_every or --steps. A collective: rank 0 reads the log."""
        due = step % self.config.eval_every == 0 or step == self.config.steps
        rows = read_lines(self.path / "metrics.jsonl", torn=True) if self.layout.rank == 0 else []
        done = any(row["step"] == step and "val_accuracy" in row for row in rows)
        return self.layout.gather(due and not done, self.layout.group)[0]

    def complete(self, step: int, evaluation: dict) -> dict:
        """Adds an evaluation to the last row of metrics.jsonl, or as step 0, which is not trained;
        returns it."""
        if self.layout.rank == 0:
            rows = read_lines(self.path / "metrics.jsonl") or [{"step": step}]
            rows[-1] |= evaluation
            write_lines(self.path / "metrics.jsonl", rows)
        return evaluation

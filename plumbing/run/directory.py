"""The run directory: its settings, its logs, and whether a run in it may be resumed."""

import json
import socket
import tempfile
from collections.abc import Callable
from dataclasses import asdict
from functools import cached_property
from pathlib import Path

import torch
import transformers
from filelock import FileLock, Timeout
from torch.distributed.checkpoint.stateful import Stateful

from grpo import Group
from plumbing.config import Config, is_due
from plumbing.distributed.launch import lacks_launcher
from plumbing.distributed.layout import Layout
from plumbing.errors import InputError
from plumbing.files import digest, read_lines, write_atomic, write_lines
from plumbing.plugins import path_of
from plumbing.run import checkpoint
from plumbing.run.checkpoint import Learners
from plumbing.run.facts import FREE, INEXACT, differences, model_files

LOGS = ("metrics.jsonl", "selections.jsonl", "samples.jsonl")


class RunDir:
    """The files of a run, which rank 0 writes: settings, logs, evaluations, checkpoints, models.
    After a kill the same command resumes from the newest checkpoint, on CPUs bit for bit.
    sampler_file: the file of a sampler that is not in sampler.py."""

    def __init__(self, config: Config, layout: Layout, sampler_file: Path | None):
        self.config = config
        self.layout = layout
        self.path = Path(config.out)
        self.settings = self.path / "config.json"
        self.metrics = self.path / "metrics.jsonl"
        self.saved = False  # whether config.json says that there are checkpoints
        files = {
            "train_data": config.train_data,
            "val_data": config.val_data,
            "sampler": sampler_file,
            "reward": path_of(config.reward),
        }
        self.files = {name: Path(file) for name, file in files.items() if file}

    def facts(self) -> dict:
        """Return all that the run's numbers depend on, as config.json holds it. Files are read
        once: the run has loaded them, and goes on even if they are changed or removed."""
        facts = asdict(self.config)
        facts["world_size"] = self.layout.world
        facts["student_ranks"] = self.layout.n_students
        facts["device"] = self.layout.device.type
        facts["torch"] = torch.__version__
        facts["transformers"] = transformers.__version__
        return facts | self._checksums

    @cached_property
    def _checksums(self) -> dict:
        """The checksums of data, custom code and models, on one rank of each machine."""
        if self.layout.local_rank:
            return {}
        checksums = {}
        for name, path in self.files.items():
            _, checksums[f"{name}_crc32"] = digest(path)
        student, teacher = self.config.model, self.config.teacher_model
        checksums["model_files"] = self._model_files(student)
        if teacher:
            is_same = teacher == student
            files = checksums["model_files"] if is_same else self._model_files(teacher)
            checksums["teacher_model_files"] = files
        return checksums

    def _model_files(self, name: str) -> dict[str, int]:
        try:
            return model_files(name)
        except OSError:  # the first rank has loaded all models; a machine with one role needs one
            if self.layout.rank == 0:
                raise
            return {}

    def assert_machines_agree(self) -> None:
        """Raise InputError or Fault unless all ranks have the same settings, and all machines the
        same data files and, as --out, the same directory. All ranks call it after `open`."""
        machine = socket.gethostname()
        try:
            facts = self.facts()
        except OSError as error:
            raise InputError(
                f"{error.filename} cannot be read on {machine} ({error.strerror}: "
                "all machines need the same files)"
            ) from error
        # Each file of a model has an entry, as messages show values cut short.
        for key in ("model_files", "teacher_model_files"):
            for name, crc32 in facts.pop(key, {}).items():
                facts[f"{key}: {name}"] = crc32
        self.layout.assert_equal_in_world(**facts)
        # Each time a new name: a machine may have cached that an old one does not exist.
        probe = Path(self.layout.on_rank_0(lambda: tempfile.mkdtemp(".tmp", dir=self.path)))
        views = self.layout.gather_world((machine, probe.exists()))
        if self.layout.rank == 0:
            probe.rmdir()
        for name, is_visible in views:
            if not is_visible:
                raise InputError(
                    f"--out {self.path}: {name} does not see what rank 0 writes there; "
                    "choose one that all machines share"
                )

    def open(self) -> int:
        """Check the directory, create and lock it; return the step to resume from, 0 for a new run.
        Raises InputError if it holds something else, or a run that this one cannot resume."""
        try:
            is_new = not self.settings.exists()
            if is_new:
                self._check_empty()
            self.path.mkdir(parents=True, exist_ok=True)
            # Kept until this process ends. A soft lock would outlive a kill.
            self.file_lock = FileLock(self.path / "lock", mode=0o666, fallback_to_soft=False)
            self.file_lock.acquire(timeout=0)
            return 0 if is_new else self._step_to_resume()
        except Timeout as error:  # an OSError, too
            remedy = "end that job, or choose another"
            if lacks_launcher():
                remedy += (
                    "; the ranks of one run are started by torchrun, not by srun or mpirun"
                    " (docs/clusters.md)"
                )
            raise InputError(f"--out {self.path} is in use: {remedy}") from error
        except OSError as error:
            raise InputError(
                f"--out {self.path} cannot be used ({error.strerror}): choose another"
            ) from error

    def _check_empty(self) -> None:
        """Raise InputError if a directory without config.json holds anything of interest."""
        entries = self.path.iterdir() if self.path.exists() else ()
        # A run that is killed as it begins may leave a lock and unfinished files.
        names = {path.name for path in entries if path.name != "lock" and path.suffix != ".tmp"}
        if names & {*LOGS, "checkpoints"}:
            raise InputError(f"{self.settings} is missing: restore it, or choose another --out")
        if names:
            raise InputError(f"--out {self.path}: not empty, and holds no run; choose another")

    def _step_to_resume(self) -> int:
        old = self._read_settings()
        changes = self._changes(old)
        try:
            step = checkpoint.latest_valid_checkpoint(self.path)
        except InputError as error:
            raise InputError(f"--out {error}; choose another --out to restart") from error
        if step > self.config.steps:
            raise InputError(f"--steps {self.config.steps}: {self.path} is at step {step} already")
        if not step and (old.get("saved") or (self.path / "student").exists()):
            raise InputError(
                f"--out {self.path} has no checkpoint any more, and would begin again and "
                "overwrite the rest: restore checkpoints/, or choose another"
            )
        for name in LOGS:  # before anything is changed
            self._check_log(self.path / name, step)
        if step and changes:
            print(f"note: {'; '.join(changes)}: resumes, but not bit for bit", flush=True)
        return step

    def _read_settings(self) -> dict:
        try:
            return dict(json.loads(self.settings.read_text()))
        except (ValueError, TypeError) as error:
            raise InputError(
                f"{self.settings} is damaged ({error}): restore it, or choose another --out"
            ) from error

    def _changes(self, old: dict) -> list[str]:
        """List the changed settings with which a run resumes, but not bit for bit. Raises
        InputError if others have changed that are not free."""
        free = set(FREE)
        if self.config.lr_schedule == "linear":  # the learning rate depends on the number of steps
            free.remove("steps")
        texts = differences(old, self.facts())
        inexact = [text for name, text in texts.items() if name in INEXACT]
        rejected = [text for name, text in texts.items() if name not in INEXACT | free]
        if rejected:
            raise InputError(
                f"--out {self.path} belongs to another configuration: {'; '.join(rejected)}; "
                "undo that, or choose another --out"
            )
        return inexact

    def _check_log(self, path: Path, step: int) -> None:
        """Raise InputError unless each line has a step, and no step up to `step` is missing."""
        try:
            steps = {row["step"] for row in read_lines(path, torn=True)}
        except (TypeError, KeyError) as error:
            raise InputError(f"{path}: a line has no field 'step': restore the file") from error
        missing = {*range(1, step + 1)} - steps
        if missing and path.name != "samples.jsonl":  # which has few of the steps
            raise InputError(
                f"{path} lacks step {min(missing)}, and the newest checkpoint is of step {step}: "
                "restore the file, or choose another --out"
            )

    def load(self, step: int, learners: Learners, sampler: Stateful | None) -> None:
        """Load checkpoint `step` (0: a new run), write config.json, and drop logs and checkpoints
        after `step`. All ranks call it. sampler: None where it is on other ranks. Raises Fault if
        ranks have read different models, InputError if the sampler cannot be saved later."""
        self.layout.assert_equal_in_world(**_weights(learners))
        if step:
            folder = checkpoint.directory(self.path, step)
            checkpoint.load_learners(folder, self.layout.group, learners)
            if sampler:
                sampler.load_state_dict(checkpoint.load_state(self.path, step))
        elif sampler:
            checkpoint.pack(sampler.state_dict())
        if self.layout.rank:
            return
        self._write_settings(saved=step > 0)
        for name in LOGS:
            rows = read_lines(self.path / name, torn=True)
            kept = [row for row in rows if row["step"] <= step] if step else []
            write_lines(self.path / name, kept)
        for path in self.path.glob("evals/step_*.jsonl"):
            number = path.stem.removeprefix("step_")
            if number.isdecimal() and int(number) > step:
                path.unlink()
        # Later ones are damaged.
        earlier = [n for n in checkpoint.steps(self.path) if n <= step]
        checkpoint.keep_only(self.path, earlier)

    def save(self, step: int, sampler: Stateful | None, learners: Learners) -> None:
        """Write a checkpoint. All ranks call it. sampler: as `load`."""
        state = sampler.state_dict() if sampler else None
        replicas = _weights(learners)
        keep = self.config.keep
        checkpoint.save(self.path, step, self.layout, learners, state, replicas, keep)
        if self.layout.rank == 0 and not self.saved:
            self._write_settings(saved=True)

    def _write_settings(self, saved: bool) -> None:
        """Write config.json. saved: whether the run has a checkpoint: without the mark one whose
        checkpoints were deleted could not be told from one that was killed before the first."""
        text = json.dumps(self.facts() | {"saved": saved}, indent=1)
        write_atomic(self.settings, text + "\n")
        self.saved = saved

    def export(self, learners: Learners) -> None:
        """Write the models as Hugging Face directories, student/ and teacher/."""
        for role, learner in learners.items():
            if role == "teacher" or self.layout.first:  # the teacher gathers its shards
                learner.export(self.path / role)

    def log(self, name: str, rows: list[dict], mode: str = "a") -> None:
        """Append rows to a log ("a"), or replace it ("w")."""
        if self.layout.rank == 0:
            write_lines(self.path / f"{name}.jsonl", rows, mode)

    def log_groups(self, step: int, groups: list[Group], decode: Callable) -> None:
        """Log the groups of a step and, at the first step and at evaluations, the first completion
        of three problems."""
        self.log("selections", [selection(step, group) for group in groups])
        if step == 1 or is_due(step, self.config.eval_every, self.config.steps):
            self.log("samples", [sample(step, group, decode) for group in groups[:3]])

    def evaluation_pending(self, step: int) -> bool:
        """Return whether `step` is due for evaluation and has none. On resume it has one, unless a
        signal interrupted it or a flag changed. All student ranks call it."""
        if not is_due(step, self.config.eval_every, self.config.steps):
            return False
        rows = read_lines(self.metrics, torn=True) if self.layout.rank == 0 else []
        is_done = any(row["step"] == step and "val_accuracy" in row for row in rows)
        return not self.layout.gather_role(is_done)[0]

    def finish_evaluation(self, step: int, evaluation: dict) -> None:
        """Add an evaluation to the row of `step`, the last of metrics.jsonl, or as row 0."""
        if self.layout.rank == 0:
            rows = read_lines(self.metrics) or [{"step": step}]
            rows[-1] |= evaluation
            write_lines(self.metrics, rows)


def _weights(learners: Learners) -> dict[str, int]:
    return {f"weights of the {role}": learner.checksum() for role, learner in learners.items()}


def selection(step: int, group: Group) -> dict:
    """Make a row of selections.jsonl: a group and its outcome."""
    return {
        "step": step,
        "pool": group.pool,
        "utilities": group.utilities,
        "chosen": group.problem,
        "explored": group.explored,
        "completions": len(group.completions),
        "successes": group.successes,
        "y": group.y,
    }


def sample(step: int, group: Group, decode: Callable) -> dict:
    """Make a row of samples.jsonl: the first completion of a group."""
    first = group.completions[0]
    return {
        "step": step,
        "problem": group.problem,
        "status": first.status,
        "prompt": decode(group.prompt_ids),
        "completion": decode(first.ids),
    }

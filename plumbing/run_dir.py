"""The run directory: its settings, its logs, and whether a run in it may be resumed."""

import json
import os
import socket
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, replace
from functools import cached_property
from pathlib import Path

import torch
import transformers
from filelock import FileLock, Timeout
from torch.distributed.checkpoint.stateful import Stateful
from transformers.utils import cached_file

from grpo import Group
from plumbing import checkpoint
from plumbing.checkpoint import Learners
from plumbing.config import Config
from plumbing.distributed.launch import lacks_launcher
from plumbing.distributed.layout import Layout
from plumbing.errors import InputError
from plumbing.files import digest, read_lines, write_atomic, write_lines
from plumbing.plugins import path_of

# Settings that may differ when a run is resumed; any others would make it another experiment.
FREE = {"out", "steps", "eval_every", "checkpoint_every", "keep", "timeout_minutes"}
FREE |= {"verify_workers", "teacher_ranks", "saved"}
# These may differ too, but the run does not resume bit for bit: rounding changes or, with another
# number of teacher ranks, the teacher's batch.
INEXACT = {"world_size", "student_ranks", "device", "torch", "transformers"}
INEXACT |= {"per_device_batch_size", "max_rollout_tokens", "activation_checkpointing"}
# By setting that is a path: the checksums that tell whether another path has the same contents, as
# after the repository has moved.
CONTENTS = {"model": "model_files", "teacher_model": "teacher_model_files"}
CONTENTS |= {name: f"{name}_crc32" for name in ("train_data", "val_data", "sampler", "reward")}
# The files of a model that its weights, tokens, prompts and end of text depend on.
MODEL_FILES = ("*.safetensors", "*.json", "*.jinja", "*.model", "*.txt", "*.tiktoken")
LOGS = ("metrics.jsonl", "selections.jsonl", "samples.jsonl")


class RunDir:
    """The files of a run, which rank 0 writes: settings, logs, evaluations, checkpoints, models.
    After a kill the same command resumes from the newest checkpoint, on CPUs bit for bit.
    sampler_file: the file of a sampler that is not in sampler.py."""

    def __init__(self, config: Config, layout: Layout, sampler_file: Path | None):
        self.config, self.layout, self.path = config, layout, Path(config.out)
        self.saved = False  # whether config.json says that there are checkpoints
        files = {"train_data": config.train_data, "val_data": config.val_data}
        files |= {"sampler": sampler_file, "reward": path_of(config.reward)}
        self.files = {name: Path(file) for name, file in files.items() if file}

    def facts(self) -> dict:
        """Return all that the run's numbers depend on, as config.json holds it. Files are read
        once: the run has loaded them, and goes on even if they are changed or removed."""
        layout, facts = self.layout, asdict(self.config)
        facts |= {"world_size": layout.world, "student_ranks": layout.n_students}
        facts |= {"device": layout.device.type}
        facts |= {"torch": torch.__version__, "transformers": transformers.__version__}
        return facts | self._checksums

    @cached_property
    def _checksums(self) -> dict:
        """The checksums of data, custom code and models, on one rank of each machine."""
        if self.layout.local_rank:
            return {}
        checksums = {f"{name}_crc32": digest(path)[1] for name, path in self.files.items()}
        models = {"model": self.config.model, "teacher_model": self.config.teacher_model}
        files = {name: self._model_files(name) for name in {*models.values()} - {""}}
        return checksums | {CONTENTS[key]: files[name] for key, name in models.items() if name}

    def _model_files(self, name: str) -> dict[str, int]:
        try:
            return model_files(name)
        except OSError:  # the first rank has loaded all models; a machine with one role needs one
            if self.layout.rank == 0:
                raise
            return {}

    def open(self) -> int:
        """Check the directory, create and lock it; return the step to resume from, 0 for a new run.
        Raises InputError if it holds something else, or a run that this one cannot resume."""
        out, settings = f"--out {self.path}", self.path / "config.json"
        try:
            if not settings.exists():
                entries = self.path.iterdir() if self.path.exists() else ()
                # A run that is killed as it begins may leave a lock and unfinished files.
                names = {p.name for p in entries if p.name != "lock" and p.suffix != ".tmp"}
                if names & {*LOGS, "checkpoints"}:
                    raise InputError(f"{settings} is missing: restore it, or choose another --out")
                if names:
                    raise InputError(f"{out}: not empty, and holds no run; choose another")
            self.path.mkdir(parents=True, exist_ok=True)
            # Kept until this process ends. A soft lock would outlive a kill.
            self.file_lock = FileLock(self.path / "lock", mode=0o666, fallback_to_soft=False)
            self.file_lock.acquire(timeout=0)
            return self._step_to_resume(settings) if settings.exists() else 0
        except Timeout as error:  # an OSError, too
            remedy = "end that job, or choose another"
            if lacks_launcher():
                remedy += "; the ranks of one run are started by torchrun, not by srun or mpirun"
                remedy += " (docs/clusters.md)"
            raise InputError(f"{out} is in use: {remedy}") from error
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
        changes = {k: text for k, text in differences(old, new).items() if k not in free}
        if rejected := [text for k, text in changes.items() if k not in INEXACT]:
            reason = f"belongs to another configuration: {'; '.join(rejected)}"
            raise InputError(f"--out {self.path} {reason}; undo that, or choose another --out")
        step = checkpoint.latest_valid_checkpoint(self.path)
        if step > self.config.steps:
            raise InputError(f"--steps {self.config.steps}: {self.path} is at step {step} already")
        if not step and (old.get("saved") or (self.path / "student").exists()):
            reason = "has no checkpoint any more, and would begin again and overwrite the rest"
            raise InputError(f"--out {self.path} {reason}: restore checkpoints/, or choose another")
        for name in LOGS:  # before anything is changed
            self._check_log(self.path / name, step)
        if step and changes:
            print(f"note: {'; '.join(changes.values())}: resumes, but not bit for bit", flush=True)
        return step

    def _check_log(self, path: Path, step: int) -> None:
        """Raise InputError unless each line has a step, and no step up to `step` is missing."""
        try:
            steps = {row["step"] for row in read_lines(path, torn=True)}
        except (TypeError, KeyError) as error:
            raise InputError(f"{path}: a line has no field 'step': restore the file") from error
        missing = [] if path.name == "samples.jsonl" else {*range(1, step + 1)} - steps
        if missing:
            reason = f"lacks step {min(missing)}, and the newest checkpoint is of step {step}"
            raise InputError(f"{path} {reason}: restore the file, or choose another --out")

    def assert_machines_agree(self) -> None:
        """Raise InputError or Fault unless all ranks have the same settings, and all machines the
        same data files and, as --out, the same directory. All ranks call it after `open`."""
        layout, machine = self.layout, socket.gethostname()
        try:
            facts = self.facts()
        except OSError as error:
            reason = f"{error.strerror}: all machines need the same files"
            raise InputError(f"{error.filename} cannot be read on {machine} ({reason})") from error
        # Each file has an entry, as messages show values cut short.
        models = {name: facts.pop(name, {}) for name in ("model_files", "teacher_model_files")}
        files = {
            f"{key}: {name}": crc for key, crcs in models.items() for name, crc in crcs.items()
        }
        layout.assert_equal_in_world(**facts, **files)
        # Each time a new name: a machine may have cached that an old one does not exist.
        probe = Path(layout.on_rank_0(lambda: tempfile.mkdtemp(".tmp", dir=self.path)))
        sees = layout.gather_world((probe.exists(), machine))
        if layout.rank == 0:
            probe.rmdir()
        if blind := [name for visible, name in sees if not visible]:
            reason = f"{blind[0]} does not see what rank 0 writes there"
            raise InputError(f"--out {self.path}: {reason}; choose one that all machines share")

    def load(self, step: int, learners: Learners, sampler: Stateful) -> None:
        """Load checkpoint `step` (0: a new run), write config.json, and drop logs and checkpoints
        after `step`. All ranks call it. Raises Fault if they have read different models."""
        self.layout.assert_equal_in_world(**self._weights(learners))
        if step:
            folder = checkpoint.directory(self.path, step)
            checkpoint.load_learners(folder, self.layout.group, learners)
            sampler.load_state_dict(checkpoint.load_state(self.path, step))
        if self.layout.rank:
            return
        self._write_settings(saved=step > 0)
        for path in (self.path / name for name in LOGS):
            rows = read_lines(path, torn=True)
            write_lines(path, [row for row in rows if step and row["step"] <= step])
        # Later ones are damaged.
        checkpoint.keep_only(self.path, [n for n in checkpoint.steps(self.path) if n <= step])

    def save(self, step: int, state: dict | None, learners: Learners) -> None:
        """Write a checkpoint. All ranks call it. state: the sampler's; None if it is remote."""
        replicas, keep = self._weights(learners), self.config.keep
        checkpoint.save(self.path, step, self.layout, learners, state, replicas, keep)
        if self.layout.rank == 0 and not self.saved:
            self._write_settings(saved=True)

    def _write_settings(self, saved: bool) -> None:
        """Write config.json. saved: whether the run has a checkpoint: without the mark one whose
        checkpoints were deleted could not be told from one that was killed before the first."""
        text = json.dumps(self.facts() | {"saved": saved}, indent=1)
        write_atomic(self.path / "config.json", text + "\n")
        self.saved = saved

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
        return not self.layout.gather_role(done)[0]

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


def model_files(name: str) -> dict[str, int]:
    """Return the CRC-32 of a model's files, by name: of a directory, or of the copy of a hub id in
    the cache. Takes half a second a GB, less where there are several files."""
    folder = Path(name)
    if not folder.is_dir():
        folder = Path(cached_file(name, "config.json", local_files_only=True)).parent
    paths = sorted(path for pattern in MODEL_FILES for path in folder.glob(pattern))
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        return {
            path.name: crc for path, (_, crc) in zip(paths, pool.map(digest, paths), strict=True)
        }


def differences(old: dict, new: dict) -> dict[str, str]:
    """Return what the settings and checksums `new` change or lack in `old`, by name, as texts. A
    path may change if what is there is the same."""
    changed = {key for key, value in new.items() if old.get(key) != value}
    texts = {key: f"{key} was {old.get(key)!r}, is {new[key]!r}" for key in changed}
    for setting in ("model", "teacher_model"):
        fact = CONTENTS[setting]
        if fact in changed and fact in old:
            files = _changed_files(old[fact], new[fact], whole=Path(new[setting]).is_dir())
            texts[fact] = f"files of {setting} have changed: {', '.join(files)}"
            changed -= set() if files else {fact}
    for setting in changed & CONTENTS.keys():
        fact = CONTENTS[setting]
        same = fact in old and fact in new and fact not in changed
        if same and _name_in(setting, old) == _name_in(setting, new):
            changed -= {setting}
    return {key: texts[key] for key in new if key in changed}


def _changed_files(old: dict, new: dict, whole: bool) -> list[str]:
    """Name the files of a model that differ. whole: also those that only one of the two has. The
    cache of a hub id may hold more or fewer files than were loaded."""
    names = old | new if whole else old.keys() & new.keys()
    return sorted(name for name in names if old.get(name) != new.get(name))


def _name_in(setting: str, facts: dict) -> str:
    """Return the class or function that a sampler or reward names, in one spelling: `target` is
    samplers/target.py:Target."""
    if setting not in ("sampler", "reward"):
        return ""
    text = facts[setting].rpartition("/")[2]
    name = text.partition(".py")[2].removeprefix(":") if ".py" in text else text
    return (name or "compute_score").replace("_", "").lower()

"""The run directory: its settings, its logs, and whether a run in it may be resumed."""

import json
from collections.abc import Callable
from dataclasses import asdict
from functools import cached_property
from pathlib import Path

import torch
import transformers
from filelock import FileLock
from torch.distributed.checkpoint.stateful import Stateful

from grpo import Group
from plumbing.config import Config, is_due
from plumbing.distributed.layout import Layout
from plumbing.errors import InputError
from plumbing.files import file_crc32, read_lines, write_atomic, write_lines
from plumbing.plugins import path_of
from plumbing.run import checkpoint
from plumbing.run.checkpoint import Learners
from plumbing.run.facts import comparable, differences, model_files

LOGS = ("metrics.jsonl", "selections.jsonl", "samples.jsonl")


class RunDir:
    """The files of a run, which rank 0 writes: settings, logs, evaluations, checkpoints, models.
    After a kill the same command resumes from the newest checkpoint, on CPUs bit for bit. A context
    manager, which holds the directory's lock from `open` on.
    sampler_file: the file of a sampler that is not in sampler.py."""

    def __init__(self, config: Config, layout: Layout, sampler_file: Path | None):
        self.config = config
        self.layout = layout
        self.path = Path(config.out)
        self.settings = self.path / "config.json"
        self.metrics = self.path / "metrics.jsonl"
        # Kept by the system: it ends with this process. A soft lock would outlive a kill.
        self.lock = FileLock(self.path / "lock", mode=0o666, fallback_to_soft=False)
        self.files = {
            "train_data": config.train_data,
            "val_data": config.val_data,
            "sampler": sampler_file,
            "reward": path_of(config.reward),
        }

    def __enter__(self) -> "RunDir":
        return self

    def __exit__(self, *exception) -> None:
        self.lock.release()

    def facts(self) -> dict:
        """Return all that the run's numbers depend on, as config.json holds it."""
        facts = asdict(self.config)
        facts["world_size"] = self.layout.world
        facts["student_ranks"] = self.layout.n_students
        facts["device"] = self.layout.device.type
        facts["torch"] = torch.__version__
        facts["transformers"] = transformers.__version__
        return facts | self._checksums

    @cached_property
    def _checksums(self) -> dict:
        """The checksums of data, custom code and models, on one rank of each machine. Read once:
        the run has loaded the files, and goes on even if they are changed or removed."""
        if self.layout.local_rank:
            return {}
        checksums = {f"{name}_crc32": file_crc32(Path(p)) for name, p in self.files.items() if p}
        for role in ("model", "teacher_model"):
            if name := getattr(self.config, role):
                checksums[f"{role}_files"] = model_files(name)
        return checksums

    def assert_machines_agree(self) -> None:
        """Raise Fault unless all ranks have the same settings, and all machines the same files. All
        ranks call it after `open`."""
        self.layout.assert_equal_in_world(**comparable(self.facts()))

    def open(self) -> int:
        """Check the directory, create and lock it; return the step to resume from, 0 for a new run.
        Raises InputError if the directory holds something else, or a run
        that this one cannot resume."""
        if is_new := not self.settings.exists():
            entries = self.path.iterdir() if self.path.exists() else ()
            # A run that is killed as it begins may leave a lock and unfinished files.
            if any(path.name != "lock" and path.suffix != ".tmp" for path in entries):
                raise InputError(
                    f"--out {self.path}: not empty, and has no config.json: choose another"
                )
        self.path.mkdir(parents=True, exist_ok=True)
        try:
            self.lock.acquire(timeout=0)
        except OSError as error:  # filelock's Timeout is one
            raise InputError(
                f"--out {self.path} is in use by another job, or has no locks ({error})"
            ) from error
        return 0 if is_new else self._step_to_resume(self._read_settings())

    def _read_settings(self) -> dict:
        try:
            return dict(json.loads(self.settings.read_text()))
        except (ValueError, TypeError) as error:
            raise InputError(f"{self.settings} is damaged ({error}): restore it") from error

    def _step_to_resume(self, old: dict) -> int:
        """Return the step of the newest checkpoint. old: the facts in config.json."""
        if changes := differences(old, self.facts()):
            raise InputError(
                f"--out {self.path} belongs to another configuration: {'; '.join(changes)}; "
                "undo that, or choose another --out"
            )
        step = checkpoint.latest_valid_checkpoint(self.path)
        if step > self.config.steps:
            raise InputError(f"--steps {self.config.steps}: {self.path} is at step {step} already")
        # Without a checkpoint a run begins again, unless it must have had one.
        rows = read_lines(self.metrics, torn=True)
        had_one = bool(rows) and rows[-1]["step"] > old["checkpoint_every"]
        if not step and (had_one or (self.path / "student").exists()):
            raise InputError(
                f"--out {self.path} has no checkpoint any more, and would begin again and "
                "overwrite the rest: restore checkpoints/, or choose another"
            )
        return step

    def load(self, step: int, learners: Learners, sampler: Stateful | None) -> None:
        """Load checkpoint `step` (0: a new run), write config.json, and drop logs and checkpoints
        after `step`. All ranks call it. sampler: None where it is on other ranks. Raises OSError
        or Fault if machines have no common --out."""
        if step:
            folder = checkpoint.directory(self.path, step)
            checkpoint.load_learners(folder, self.layout.group, learners)
            if sampler:
                sampler.load_state_dict(checkpoint.load_state(self.path, step))
        elif sampler:
            checkpoint.pack(sampler.state_dict())
        if self.layout.rank == 0:
            self._rewind(step)
        self.layout.gather_world(None)  # config.json has been written
        self.layout.assert_equal_in_world(**{str(self.settings): file_crc32(self.settings)})

    def _rewind(self, step: int) -> None:
        """Write config.json, and drop logs and checkpoints after `step`."""
        write_atomic(self.settings, json.dumps(self.facts(), indent=1) + "\n")
        for name in LOGS:
            rows = read_lines(self.path / name, torn=True)
            kept = [row for row in rows if row["step"] <= step] if step else []
            write_lines(self.path / name, kept)
        for n in checkpoint.steps(self.path, "evals"):
            if n > step:
                (self.path / "evals" / f"step_{n}.jsonl").unlink()
        # Later ones are damaged.
        checkpoint.keep_only(self.path, [*range(1, step + 1)])

    def save(self, step: int, sampler: Stateful | None, learners: Learners) -> None:
        """Write a checkpoint. All ranks call it. sampler: as `load`."""
        state = sampler.state_dict() if sampler else None
        checkpoint.save(self.path, step, self.layout, learners, state, self.config.keep)

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

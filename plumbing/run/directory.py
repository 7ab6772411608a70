"""The run directory: its settings, its logs, and whether a run in it may be resumed."""

import json
from dataclasses import asdict
from functools import cached_property
from pathlib import Path

import torch
import transformers
from filelock import FileLock
from torch.distributed.checkpoint.stateful import Stateful

from plumbing.config import Config, is_due
from plumbing.data.problems import Problems
from plumbing.distributed.layout import Layout
from plumbing.errors import InputError, print_line
from plumbing.files import file_crc32, read_lines, write_atomic, write_lines
from plumbing.plugins import path_of
from plumbing.run import checkpoint, code
from plumbing.run.checkpoint import TrainedModels
from plumbing.run.facts import CANDIDATES, comparable, differences, model_files

LOGS = ("metrics.jsonl", "selections.jsonl", "samples.jsonl")


class RunDir:
    """The files of a run, which rank 0 writes: settings, logs, evaluations, checkpoints, models.
    After a kill the same command resumes from the newest checkpoint, on CPUs bit for bit. A context
    manager, which holds the directory's lock from `open` on.
    sampler_file: the file of a sampler that is not in sampler.py.
    Reads the run's data, `problems` to train and `val_problems` to validate on."""

    def __init__(self, config: Config, layout: Layout, sampler_file: Path | None):
        self.config = config
        self.layout = layout
        self.path = Path(config.out)
        self.settings = self.path / "config.json"
        self.metrics = self.path / "metrics.jsonl"
        # Kept by the system: it ends with this process. A soft lock would outlive a kill.
        self.lock = FileLock(self.path / "lock", mode=0o666, fallback_to_soft=False)
        # Checksums now, as files may be edited while data and models load: this process has
        # imported these.
        plugins = {"--sampler": sampler_file, "--reward": path_of(config.reward)}
        self.plugins_crc32 = {
            f"{flag.strip('-')}_crc32": file_crc32(file) for flag, file in plugins.items() if file
        }
        self.code = {} if layout.local_rank else code.checksums(plugins)
        self.problems = Problems(config.train_data, config.column)
        self.val_problems = Problems(config.val_data)

    def __enter__(self) -> "RunDir":
        return self

    def __exit__(self, *exception) -> None:
        self.lock.release()

    @cached_property
    def facts(self) -> dict:
        """All that the run's numbers depend on, as config.json holds it; the checksums of data,
        code and models on one rank of each machine. They are read once, before models load."""
        facts = asdict(self.config) | CANDIDATES
        facts |= {
            "world_size": self.layout.world,
            "student_ranks": self.layout.n_students,
            "device": self.layout.device.type,
            "torch": torch.__version__,
            "transformers": transformers.__version__,
        }
        if self.layout.local_rank:
            return facts
        facts |= {
            "code": self.code,
            "train_data_crc32": self.problems.crc32,
            "val_data_crc32": self.val_problems.crc32,
            **self.plugins_crc32,
        }
        for role in ("model", "teacher_model"):
            if name := facts[role]:
                facts[f"{role}_files"] = model_files(name)
        return facts

    def open(self) -> int:
        """Check the directory, create and lock it; return the step to resume from, 0 for a new run.
        Raises InputError if the directory holds something else, or a run that this one cannot
        resume."""
        # A run that is killed as it begins may leave a lock and unfinished files.
        files = [x for x in self.path.glob("*") if x.name != "lock" and x.suffix != ".tmp"]
        if files and self.settings not in files:
            raise InputError(f"--out {self.path}: not empty, and has no config.json")
        self.path.mkdir(parents=True, exist_ok=True)
        try:
            self.lock.acquire(timeout=0)
        except OSError as error:  # filelock's Timeout is one
            raise InputError(
                f"--out {self.path} is in use by another job, or has no locks ({error})"
            ) from error
        facts = self.facts  # checksums of models now, as their files may be edited while they load
        # `files` were listed before the lock: another job may have begun and ended since.
        return self._step_to_resume(facts) if self.settings.exists() else 0

    def _step_to_resume(self, facts: dict) -> int:
        """Return the step of the newest checkpoint. facts: of this run, not of the one in --out."""
        try:
            old = json.loads(self.settings.read_text())
        except ValueError as error:
            raise InputError(f"{self.settings} is damaged ({error})") from error
        if changes := differences(old, facts):
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
                f"--out {self.path} has lost its checkpoints, and would be overwritten: restore "
                "checkpoints/, or choose another"
            )
        if step:
            self._check_code(step, old)
        return step

    def _check_code(self, step: int, old: dict) -> None:
        """Raise InputError if the run came to `step` under other code, unless --allow_code_change
        is given: then add the change to the facts. old: the facts so far."""
        changed = code.changes(old, self.facts)
        names = ", ".join(changed)
        if changed and not self.config.allow_code_change:
            raise InputError(
                f"--out {self.path}: the code has changed since: {names}; undo that, choose "
                "another --out, or resume under the new code with --allow_code_change"
            )
        history = old.get("code_changes", [])
        if changed:
            print_line(f"warning: step {step + 1} and later are of changed code: {names}")
            history = [*history, code.change(step, old, self.facts)]
        if history:
            self.facts["code_changes"] = history

    def load(self, step: int, models: TrainedModels, sampler: Stateful | None) -> None:
        """Load checkpoint `step` (0: a new run), write config.json, and drop logs and checkpoints
        after `step`. All ranks call it after `open`. sampler: None where it is on other ranks.
        Raises Fault if machines have other files, OSError or Fault if they have no common --out."""
        self.layout.assert_equal_in_world(comparable(self.facts) | self.code)
        if step:
            folder = checkpoint.directory(self.path, step)
            checkpoint.load_models(folder, self.layout.group, models)
        if sampler:
            if step:
                state = checkpoint.load_state(self.path, step)
            else:  # its own: a state that cannot be saved or loaded fails now, not at a resume
                state = checkpoint.unpack(checkpoint.pack(sampler.state_dict()))
            sampler.load_state_dict(state)
        if self.layout.rank == 0:
            self._rewind(step)
        self.layout.gather_world(None)  # config.json has been written
        settings_crc32 = file_crc32(self.settings)
        self.layout.assert_equal_in_world({str(self.settings): settings_crc32})

    def _rewind(self, step: int) -> None:
        """Write config.json, and drop logs and checkpoints after `step`."""
        write_atomic(self.settings, json.dumps(self.facts, indent=1) + "\n")
        last = step or -1  # without a checkpoint a run begins again before its step 0
        for name in LOGS:
            rows = read_lines(self.path / name, torn=True)
            kept = [row for row in rows if row["step"] <= last]
            write_lines(self.path / name, kept)
        for n in checkpoint.steps(self.path, "evals"):
            if n > last:
                self.verdicts(n).unlink()
        # Later ones are damaged.
        checkpoint.keep_only(self.path, [*range(1, step + 1)])

    def save(self, step: int, sampler: Stateful | None, models: TrainedModels) -> None:
        """Write a checkpoint. All ranks call it. sampler: as `load`."""
        state = sampler.state_dict() if sampler else None
        checkpoint.save(self.path, step, self.layout, models, state, self.config.keep)

    def export(self, models: TrainedModels) -> None:
        """Write the models as Hugging Face directories, student/ and teacher/."""
        for role, trained in models.items():
            if role == "teacher" or self.layout.first:  # the teacher gathers its shards
                trained.export(self.path / role)

    def log(self, name: str, rows: list[dict]) -> None:
        """Append rows to a log."""
        if self.layout.rank == 0:
            write_lines(self.path / f"{name}.jsonl", rows, "a")

    def verdicts(self, step: int) -> Path:
        """Return the file of the evaluation at a step."""
        return self.path / "evals" / f"step_{step}.jsonl"

    def evaluation_pending(self, step: int) -> bool:
        """Return whether `step` is due for evaluation and has none. On resume it has one, unless a
        signal stopped it. A collective of the students."""
        if not is_due(step, self.config.eval_every, self.config.steps):
            return False
        is_done = self.verdicts(step).exists()
        return not self.layout.gather_role(is_done)[0]

    def log_evaluation(self, step: int, verdicts: list[dict], metrics: dict) -> None:
        """Log an evaluation: its metrics in the last row of metrics.jsonl, that of `step`, or as
        row 0; then its verdicts, whose file says that it is complete."""
        if self.layout.rank == 0:
            rows = read_lines(self.metrics) or [{"step": step}]
            rows[-1] |= metrics
            write_lines(self.metrics, rows)
            write_lines(self.verdicts(step), verdicts)

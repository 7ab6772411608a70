"""Checkpoints that are whole or not there: checkpoints/step_N of a run's folder.

student/ and teacher/ hold sharded weights and optimizers (torch's distributed format), sampler.pt
all other state, manifest.json size and CRC-32 of every file. `save` writes under a temporary name
and renames when everything is on disk.
"""

import io
import json
import math
import pickle
import shutil
import zlib
from pathlib import Path

import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict

from plumbing.distributed.channel import RemoteSampler
from plumbing.errors import Fault, InputError, first_lines
from plumbing.files import digest, sync, write_atomic
from plumbing.models import checksum


def save(run, step: int, sampler, student=None) -> None:
    """Writes checkpoint `step`. All ranks call it: those of the teacher at the students' word.

    Raises Fault on all of them where it cannot be written, or where copies that should be the same
    differ: settings, data, state of the sampler, weights for generation.
    """
    copies = run.facts()
    if student:
        copies["weights for generation"] = checksum(student.generator.lm)
    final, n = folder_of(run.path, step), run.layout
    temporary = final.with_suffix(".tmp")
    if elsewhere := isinstance(sampler, RemoteSampler):
        sampler.save(step)  # the teacher ranks write its state
    else:
        torch.save(sampler.state_dict(), packed := io.BytesIO())
        copies["state of the sampler"] = zlib.crc32(packed.getbuffer())
    n.assert_replicas_equal(**copies)
    manifest, failed = {}, None
    try:
        for name, held in _models(sampler, student).items():
            place = temporary / name
            dcp.save(_sharded(*held), checkpoint_id=place, process_group=n.group)
            if n.first:
                manifest |= {f"{name}/{p.name}": digest(p) for p in sorted(place.iterdir())}
        if n.first and not elsewhere:
            (temporary / "sampler.pt").write_bytes(packed.getbuffer())
            sync(temporary / "sampler.pt")
            manifest["sampler.pt"] = digest(temporary / "sampler.pt")
    except (OSError, dcp.CheckpointException) as error:
        failed = str(error).strip().splitlines()[-1]
    parts = n.gather((manifest, failed))  # nobody goes on before everything is on disk
    if failures := [failed for _, failed in parts if failed]:
        if n.rank == 0:  # what it holds is of no use, and the disk may be full
            shutil.rmtree(temporary, ignore_errors=True)
        why = f"cannot be written, maybe as the disk is full ({failures[0]})"
        raise Fault(f"checkpoint {final} {why}; the one before it is intact")
    if n.rank == 0:
        manifest = {name: value for part, _ in parts for name, value in part.items()}
        write_atomic(temporary / "manifest.json", json.dumps(manifest, indent=1) + "\n")
        for path in (temporary, *temporary.glob("*/"), *run.path.glob("*.jsonl")):
            sync(path)
        temporary.rename(final)
        sync(final.parent)
        for old in steps(run.path)[: -run.config.keep]:
            _discard(folder_of(run.path, old))


def load(run, step: int, sampler, student=None) -> None:
    """Goes on from checkpoint `step`, and forgets what came after it; 0 leaves all as it starts.
    Raises Fault where ranks have read different models: each keeps a shard of what it has read."""
    copies = {"weights of --model": checksum(student.generator.lm)} if student else {}
    if teacher := getattr(sampler, "teacher", None):
        copies["weights of --teacher_model"] = teacher.checksum
    run.layout.assert_replicas_equal(**copies)
    if step:
        load_models(folder_of(run.path, step), run.layout.group, sampler, student)
        sampler.load_state_dict(sampler_state(run.path, step))
    run.begin(step)


def load_models(folder: Path, group, sampler, student=None) -> None:
    """Weights and optimizers from a checkpoint's folder, into those that this rank shares."""
    for name, held in _models(sampler, student).items():
        sharded = _sharded(*held)
        try:
            dcp.load(sharded, checkpoint_id=folder / name, process_group=group)
        except dcp.CheckpointException as error:  # no Exception, for torch
            raise Fault(f"checkpoint {folder} cannot be loaded: {first_lines(error)}") from error
        parts = {"model_state_dict": sharded["model"], "optim_state_dict": sharded["optimizer"]}
        set_state_dict(*held, **parts)
    if student:
        student.generator.refresh(student.policy)


def export(run, sampler, student=None) -> None:
    """Writes what this role has trained as Hugging Face folders, student/ and teacher/."""
    if student and run.layout.rank == 0:
        student.generator.export(run.path / "student")
    if teacher := getattr(sampler, "teacher", None):
        teacher.export(run.path / "teacher")


def latest_valid_checkpoint(path: Path, before: float = math.inf) -> int:
    """The newest step, of those before `before`, whose checkpoint is intact; 0 if there is none at
    all. Raises InputError if all are damaged."""
    earlier = [step for step in steps(path) if step < before]
    for step in reversed(earlier):
        folder = folder_of(path, step)
        try:
            manifest = dict(json.loads((folder / "manifest.json").read_text()))
            damaged = [name for name, was in manifest.items() if digest(folder / name) != was]
        except (OSError, ValueError, TypeError) as error:
            damaged = [str(error)]
        if not damaged:
            return step
        what = f"checkpoint {folder} is damaged ({damaged[0]})"
        print(f"warning: {what}: going back to the one before it", flush=True)
    if earlier:
        advice = "to start again choose another"
        raise InputError(f"--out {path}: no checkpoint there is intact; {advice}")
    return 0


def sampler_state(path: Path, step: int) -> dict:
    """sampler.pt of checkpoint `step`. Raises InputError where it is more than data."""
    folder = folder_of(path, step)
    try:
        return torch.load(folder / "sampler.pt", weights_only=True)
    except (pickle.UnpicklingError, RuntimeError) as error:
        why = f"cannot be loaded ({first_lines(error)}): delete it to go on from the one before it"
        raise InputError(f"checkpoint {folder} {why}") from error


def forget_after(path: Path, step: int) -> None:
    """Deletes the checkpoints after `step`, which are damaged, and what a kill left unfinished."""
    for later in (n for n in steps(path) if n > step):
        _discard(folder_of(path, later))
    for unfinished in path.glob("checkpoints/*.tmp"):
        shutil.rmtree(unfinished)


def steps(path: Path) -> list[int]:
    """The steps that have a checkpoint, in order."""
    names = [p.name for p in path.glob("checkpoints/step_*[0-9]")]
    return sorted(int(name.removeprefix("step_")) for name in names)


def folder_of(path: Path, step: int) -> Path:
    return path / "checkpoints" / f"step_{step}"


def _discard(folder: Path) -> None:
    """Deletes a checkpoint, which is one until the moment that it is none."""
    shutil.rmtree(folder.rename(folder.with_suffix(".tmp")))


def _models(sampler, student) -> dict:
    """(model, optimizer) of everything that this rank holds a shard of, by name."""
    held = {"student": (student.policy, student.optimizer)} if student else {}
    if teacher := getattr(sampler, "teacher", None):
        held["teacher"] = teacher.model, teacher.optimizer
    return held


def _sharded(model, optimizer) -> dict:
    fresh = not optimizer.state
    model_state, optimizer_state = get_state_dict(model, optimizer)
    if fresh:  # get_state_dict took a step of zeros to fill an optimizer that had taken none
        optimizer.state.clear()
    return {"model": model_state, "optimizer": optimizer_state}

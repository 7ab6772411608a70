"""Atomic checkpoints: checkpoints/step_N of a run directory.

student/ and teacher/ hold sharded weights and optimizer state (torch's distributed format),
sampler.pt all other state, manifest.json the CRC-32 of every file.
"""

import io
import json
import math
import re
import shutil
import warnings
import zlib
from collections import ChainMap
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict

from plumbing.distributed.layout import Layout
from plumbing.errors import Fault, InputError, print_line
from plumbing.files import file_crc32, sync, write_atomic


@dataclass
class TrainedModel:
    """A model under training, as checkpoints see it: the student or the teacher."""

    model: nn.Module
    optimizer: torch.optim.Optimizer
    checksum: Callable[[], int]  # of weights that all ranks hold; of shards: as they were loaded
    export: Callable[[Path], None]  # writes a Hugging Face directory


TrainedModels = dict[str, TrainedModel]  # by role: those that this rank holds a shard of


def save(
    run: Path,
    step: int,
    layout: Layout,
    models: TrainedModels,
    state: dict | None,
    keep: int,
) -> None:
    """Write checkpoint `step` of the run directory `run`; delete all but the newest `keep`.

    All ranks call it. state: the sampler's, None on ranks without a sampler. Raises Fault if the
    replicas of weights or state differ between ranks, or the checkpoint cannot be written."""
    final = directory(run, step)
    temporary = final.with_suffix(".tmp")  # renamed when everything is on disk
    replicas = {f"weights of the {role}": each.checksum() for role, each in models.items()}
    files = []
    if state is not None:
        packed = pack(state)
        replicas["the sampler's state"] = zlib.crc32(packed)
    layout.assert_equal_in_world(replicas)
    with _fault(f"checkpoint {final} cannot be written; the previous one is intact"):
        for role, trained in models.items():
            place = temporary / role
            dcp.save(_sharded(trained), checkpoint_id=place, process_group=layout.group)
            files += place.glob(f"__{layout.rank_in_role}_*")  # not others': disks show them late
            if layout.first:
                files.append(place / ".metadata")
        if layout.first and state is not None:
            file = temporary / "sampler.pt"
            file.write_bytes(packed)
            sync(file)
            files.append(file)
        part = {}
        for path in files:
            part[str(path.relative_to(temporary))] = file_crc32(path)
    # Also a barrier: no rank goes on before everything is on disk.
    parts = layout.gather_world(part)
    manifest = dict(ChainMap(*parts))
    if layout.first:
        for role in models:
            if missing := shards(temporary, role) - manifest.keys():
                raise Fault(f"checkpoint {final}: no rank has written {sorted(missing)}")
    layout.gather_world(None)  # a barrier: rank 0 renames the directory that others have just read
    if layout.rank == 0:
        for path in run.glob("*.jsonl"):  # first: a resume needs the rows up to the checkpoint
            sync(path)
        _publish(temporary, final, manifest)
        # Later ones, which a resume found damaged and could not delete, take no valid one's place.
        up_to_this = [each for each in steps(run) if each <= step]
        keep_only(run, up_to_this[-keep:])


@contextmanager
def _fault(problem: str) -> Iterator[None]:
    """Raise Fault, "PROBLEM (CAUSE)", at an error of the disk or of torch's checkpoints."""
    try:
        # torch warns where a process has no other ranks.
        with warnings.catch_warnings(action="ignore", category=UserWarning):
            yield
    except (OSError, dcp.CheckpointException) as error:  # to torch the latter is no Exception
        cause = str(error).strip().splitlines()[-1]  # after the tracebacks of ranks
        raise Fault(f"{problem} ({cause})") from error


def _publish(temporary: Path, final: Path, manifest: dict) -> None:
    """Turn a directory, all of whose files are written, into a checkpoint."""
    write_atomic(temporary / "manifest.json", json.dumps(manifest, indent=1) + "\n")
    for path in (temporary, *temporary.glob("*/")):
        sync(path)
    temporary.rename(final)
    sync(final.parent)


def _sharded(trained: TrainedModel) -> dict:
    """Return the state of model and optimizer. A parameter that has had no gradient yet, as those
    of a router's bias never have, gets the state from which AdamW begins: a checkpoint and the
    optimizer that loads it must have the same entries."""
    optimizer = trained.optimizer
    for group in optimizer.param_groups:
        for p in group["params"]:
            if p not in optimizer.state:
                optimizer.state[p] = {
                    "step": torch.zeros((), device=p.device),
                    "exp_avg": torch.zeros_like(p),
                    "exp_avg_sq": torch.zeros_like(p),
                }
    model_state, optimizer_state = get_state_dict(trained.model, optimizer)
    return {"model": model_state, "optim": optimizer_state}


def pack(state: dict) -> bytes:
    """Return the bytes of sampler.pt, of a sampler's state."""
    file = io.BytesIO()
    torch.save(state, file)
    return file.getvalue()


def unpack(packed: bytes) -> dict:
    """Return the state that `pack` made the bytes of: a pickle, like torch's own files here."""
    return torch.load(io.BytesIO(packed), weights_only=False)


def load_state(run: Path, step: int) -> dict:
    """Load the sampler's state of checkpoint `step`."""
    file = directory(run, step) / "sampler.pt"
    return unpack(file.read_bytes())


def load_models(folder: Path, group, models: TrainedModels) -> None:
    """Load weights and optimizer state from a checkpoint's directory. A collective of `group`."""
    for name, trained in models.items():
        sharded = _sharded(trained)
        with _fault(f"checkpoint {folder} cannot be loaded"):
            dcp.load(sharded, checkpoint_id=folder / name, process_group=group)
        rate = trained.optimizer.param_groups[0]["lr"]  # the flag's, not that of the checkpoint
        set_state_dict(
            trained.model,
            trained.optimizer,
            model_state_dict=sharded["model"],
            optim_state_dict=sharded["optim"],
        )
        trained.optimizer.param_groups[0]["lr"] = rate


def load_weights(folder: Path, lm: nn.Module) -> None:
    """Load the student's weights, and nothing else, from a checkpoint's directory into a language
    model, in its dtype and on its device."""
    weights = {f"lm.{name}": parameter.detach() for name, parameter in lm.named_parameters()}
    with _fault(f"checkpoint {folder} cannot be loaded"):
        dcp.load({"model": weights}, checkpoint_id=folder / "student", no_dist=True)


def latest_valid_checkpoint(run: Path, before: float = math.inf) -> int:
    """Return the newest step below `before` with an intact checkpoint, 0 if there is no checkpoint.
    Raises InputError if all are damaged, OSError if a file is there but cannot be read: a network
    disk that fails for a moment must not cost the newest checkpoint."""
    earlier = [step for step in steps(run) if step < before]
    for step in reversed(earlier):
        folder = directory(run, step)
        if is_intact(folder):
            return step
        print_line(f"warning: checkpoint {folder} is damaged: going back to the previous one")
    if earlier:
        raise InputError(f"{run}: no checkpoint is intact")
    return 0


def is_intact(folder: Path) -> bool:
    """Return whether all files of a checkpoint are as its manifest says, and it has those of all
    ranks."""
    try:
        manifest = json.loads((folder / "manifest.json").read_text())
        if not all(file_crc32(folder / name) == crc for name, crc in manifest.items()):
            return False
    except (FileNotFoundError, ValueError):
        return False
    roles = [name.partition("/")[0] for name in manifest if name.endswith("/.metadata")]
    return bool(roles) and all(shards(folder, role) <= manifest.keys() for role in roles)


def shards(folder: Path, role: str) -> set[str]:
    """Return the files of a checkpoint's directory that hold a role's weights, by its .metadata."""
    metadata = dcp.FileSystemReader(folder / role).read_metadata()
    return {f"{role}/{place.relative_path}" for place in metadata.storage_data.values()}


def keep_only(run: Path, kept: list[int]) -> None:
    """Delete all other checkpoints and unfinished ones, now or the next time."""
    others = [directory(run, step) for step in steps(run) if step not in kept]
    for folder in [*others, *run.glob("checkpoints/*.tmp")]:
        shutil.rmtree(folder, ignore_errors=True)


def steps(run: Path, folder: str = "checkpoints") -> list[int]:
    """Return the steps that have a checkpoint, or a file in another folder, in order."""
    paths = (run / folder).glob("step_*")
    matches = (re.fullmatch(r"step_(\d+)(\.jsonl)?", path.name) for path in paths)
    return sorted(int(match[1]) for match in matches if match)


def directory(run: Path, step: int) -> Path:
    """Return the directory of checkpoint `step`."""
    return run / "checkpoints" / f"step_{step}"

"""The facts that a run's numbers depend on, and how those of a resumed run may differ."""

from pathlib import Path

from plumbing.files import file_crc32
from plumbing.models import SETTINGS, files_of

# The rule of the code's samplers, which no flag sets: until 56f0dc2 candidates that were not chosen
# returned in the same pass.
CANDIDATES = {"candidates_return": "in the next pass"}

# Settings that may differ when a run is resumed. Of files the checksums are facts, not the paths.
FREE = {
    "out",
    "allow_code_change",
    "code",  # compared by code.changes, which has the plug-ins, too
    "code_changes",
    "sampler_crc32",
    "reward_crc32",
    "model",
    "teacher_model",
    "train_data",
    "val_data",
    "steps",
    "eval_every",
    "checkpoint_every",
    "keep",
    "timeout_minutes",
    "verify_workers",
    # With others of these a run resumes, but not bit for bit: rounding changes or, with another
    # number of teacher ranks, the teacher's batch.
    "teacher_ranks",
    "world_size",
    "student_ranks",
    "device",
    "torch",
    "transformers",
    "per_device_batch_size",
    "max_rollout_tokens",
    "activation_checkpointing",
}


def model_files(name: str) -> dict[str, int | str]:
    """Return the CRC-32 of each file of a model's directory, or the commit of a hub id, whose files
    in the cache may be some of them. Takes half a second a GB."""
    files = files_of(name, "*.safetensors", *SETTINGS)
    if not Path(name).is_dir():
        return {"commit": files[0].parent.name}
    return {path.name: file_crc32(path) for path in files}


def comparable(facts: dict) -> dict:
    """Return the facts that must not change: not those in FREE, of a sampler's or reward's file the
    names. With another number of steps a linear learning rate is another at each step."""
    names = facts.keys() - FREE
    if facts.get("lr_schedule") == "linear":
        names.add("steps")
    compared = {name: facts[name] for name in names}
    return compared | {name: Path(facts.get(name, "")).name for name in ("sampler", "reward")}


def differences(old: dict, new: dict) -> list[str]:
    """Return what two runs' comparable facts differ in, as texts."""
    old = comparable(old)
    new = comparable(new)
    return [
        f"{name} was {old.get(name)!r:.60}, is {new.get(name)!r:.60}"
        for name in sorted(old.keys() | new.keys())
        if old.get(name) != new.get(name)
    ]

"""The facts that a run's numbers depend on, and how those of a resumed run may differ."""

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from transformers.utils import cached_file

from plumbing.files import digest

# Settings that may differ when a run is resumed; any others would make it another experiment.
FREE = {
    "out",
    "steps",
    "eval_every",
    "checkpoint_every",
    "keep",
    "timeout_minutes",
    "verify_workers",
    "teacher_ranks",
    "saved",
}
# These may differ too, but the run does not resume bit for bit: rounding changes or, with another
# number of teacher ranks, the teacher's batch.
INEXACT = {
    "world_size",
    "student_ranks",
    "device",
    "torch",
    "transformers",
    "per_device_batch_size",
    "max_rollout_tokens",
    "activation_checkpointing",
}
# By setting that is a path: the checksums that tell whether another path has the same contents, as
# after the repository has moved.
CONTENTS = {
    "model": "model_files",
    "teacher_model": "teacher_model_files",
    "train_data": "train_data_crc32",
    "val_data": "val_data_crc32",
    "sampler": "sampler_crc32",
    "reward": "reward_crc32",
}
# The files of a model that its weights, tokens, prompts and end of text depend on.
MODEL_FILES = ("*.safetensors", "*.json", "*.jinja", "*.model", "*.txt", "*.tiktoken")


def model_files(name: str) -> dict[str, int]:
    """Return the CRC-32 of a model's files, by name: of a directory, or of the copy of a hub id in
    the cache. Takes half a second a GB, less where there are several files."""
    folder = Path(name)
    if not folder.is_dir():
        folder = Path(cached_file(name, "config.json", local_files_only=True)).parent
    paths = sorted(path for pattern in MODEL_FILES for path in folder.glob(pattern))
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        digests = pool.map(digest, paths)
        return {path.name: crc32 for path, (_, crc32) in zip(paths, digests, strict=True)}


def differences(old: dict, new: dict) -> dict[str, str]:
    """Return what the settings and checksums `new` change or lack in `old`, by name, as texts. A
    path may change if what is there is the same."""
    texts = {}
    for name, value in new.items():
        if old.get(name) != value:
            texts[name] = f"{name} was {old.get(name)!r}, is {value!r}"
    for setting, fact in CONTENTS.items():
        if fact not in texts or fact not in old:
            continue
        texts[fact] = f"the file of {setting}, {new[setting]}, has changed"
        if isinstance(new[fact], dict):
            files = _changed_files(old[fact], new[fact], whole=Path(new[setting]).is_dir())
            texts[fact] = f"files of {setting} have changed: {', '.join(files)}"
            if not files:
                del texts[fact]
    moved = [setting for setting in CONTENTS if setting in texts]
    for setting in moved:
        fact = CONTENTS[setting]
        is_same = fact in old and fact in new and fact not in texts
        if is_same and _name_in(setting, old) == _name_in(setting, new):
            del texts[setting]
    return texts


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
    if ".py" in text:
        text = text.partition(".py")[2].removeprefix(":")
    name = text or "compute_score"
    return name.replace("_", "").lower()

"""The facts that a run's numbers depend on, and how those of a resumed run may differ."""

from pathlib import Path

from transformers.utils import cached_file

from plumbing.command_line import PATHS
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
# The files of a model that its weights, tokens, prompts and end of text depend on.
MODEL_FILES = ("*.safetensors", "*.json", "*.jinja", "*.model", "*.txt", "*.tiktoken")


def model_files(name: str) -> dict[str, int | str]:
    """Return the CRC-32 of each file of a model's directory, or the commit of a hub id, whose files
    in the cache may be some of them. Takes half a second a GB."""
    folder = Path(name)
    if not folder.is_dir():
        file = cached_file(name, "config.json", local_files_only=True)
        return {"commit": Path(file).parent.name}
    paths = [path for pattern in MODEL_FILES for path in folder.glob(pattern)]
    return {path.name: digest(path)[1] for path in sorted(paths)}


def flat(facts: dict) -> dict:
    """Return facts by name, those of a model by file, without paths: files have checksums. Of a
    sampler or reward, NAME or FILE.py:NAME, the last part counts, too."""
    entries = {}
    for name, value in facts.items():
        if name in PATHS:
            is_code = name in ("sampler", "reward")
            entries[name] = value.rpartition("/")[2] if is_code and value else bool(value)
        elif isinstance(value, dict):
            entries |= {f"{name}: {key}": part for key, part in value.items()}
        else:
            entries[name] = value
    return entries


def differences(old: dict, new: dict) -> dict[str, str]:
    """Return what two runs' facts differ in, by name, as texts; of a file its path, not its
    checksum."""
    paths = new
    old, new = flat(old), flat(new)
    texts = {}
    for name in old | new:
        if old.get(name) == new.get(name):
            continue
        texts[name] = f"{name} was {old.get(name)!r:.60}, is {new.get(name)!r:.60}"
        setting, is_checksum, _ = name.partition("_crc32")
        if is_checksum and paths.get(setting):
            texts[name] = f"{paths[setting]} has changed"
    return texts

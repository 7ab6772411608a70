"""Tables that the processes of a machine share: one Arrow file each, which all of them map."""

import functools
import os
from collections.abc import Callable, Iterable
from pathlib import Path

import pyarrow as pa
from filelock import FileLock
from huggingface_hub.constants import HF_HOME

from plumbing.files import sync


def cache_directory() -> Path:
    """Return where shared tables are kept: beside the caches of Hugging Face's libraries."""
    default = Path(HF_HOME) / "datasets"
    return Path(os.environ.get("HF_DATASETS_CACHE", default)).expanduser() / "goldilocks"


def shared_table(name: str, schema: pa.Schema, batches: Callable[[], Iterable]) -> pa.Table:
    """Return a table that all processes of this machine map from one file of the cache, made by the
    first that asks for this name. A cache that cannot be written is reported in a note, and this
    process then holds the table in its own memory."""
    path = cache_directory() / name
    try:
        if not path.is_absolute():
            raise OSError("the variable HOME is not set")
        return _mapped(path) or _make(path, schema, batches())
    except (OSError, NotImplementedError) as error:
        table = pa.Table.from_batches(batches(), schema)  # an error of the data file comes again
        if os.environ.get("LOCAL_RANK", "0") == "0":
            size = f"each process holds {table.nbytes / 1e9:.1f} GB of rows"
            _print_once(
                f"note: {path.parent} cannot be used ({error}): {size}; "
                "set HF_HOME to a directory with room to share them"
            )
        return table


@functools.cache
def _print_once(text: str) -> None:
    print(text, flush=True)


def _make(path: Path, schema: pa.Schema, batches: Iterable[pa.RecordBatch]) -> pa.Table:
    """Write a shared table, unless another process does; return it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    # Kept by the system: it ends with this process. A soft lock would outlive a kill.
    with FileLock(f"{path}.lock", mode=0o666, fallback_to_soft=False):
        if table := _mapped(path):  # made while this process waited
            return table
        temporary = path.with_suffix(".tmp")
        try:
            with pa.OSFile(str(temporary), "wb") as sink, pa.ipc.new_file(sink, schema) as writer:
                for batch in batches:
                    writer.write_batch(batch)
            sync(temporary)
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)
        return _mapped(path)


def _mapped(path: Path) -> pa.Table | None:
    """Return the table of a file, None if there is none or it is damaged."""
    try:
        return pa.ipc.open_file(pa.memory_map(str(path))).read_all()
    except (FileNotFoundError, pa.ArrowInvalid):
        return None

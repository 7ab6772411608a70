"""Tables in several formats; files that are changed or damaged."""

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from plumbing.files import write_lines


def write(path: Path, rows: list[dict]) -> Path:
    """Write rows in the format of the path's ending; return the path."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".parquet":
        pq.write_table(pa.Table.from_pylist(rows), path, row_group_size=5)
    elif path.suffix == ".json":
        path.write_text(json.dumps(rows))
    else:
        write_lines(path, rows)
    return path


def change(path: Path, **settings) -> None:
    """Change settings in a JSON file; None removes one."""
    new = json.loads(path.read_text()) | settings
    path.write_text(json.dumps({name: value for name, value in new.items() if value is not None}))


def flip_bit(path: Path) -> None:
    """Flip a bit of the byte in the middle."""
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)

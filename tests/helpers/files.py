"""Files that are changed or damaged."""

import json
from pathlib import Path


def change(path: Path, **settings) -> None:
    """Change settings in a JSON file; None removes one."""
    new = json.loads(path.read_text()) | settings
    path.write_text(json.dumps({name: value for name, value in new.items() if value is not None}))


def flip_bit(path: Path, place: int | None = None) -> None:
    """Flip a bit of the byte at this place; None: in the middle."""
    data = bytearray(path.read_bytes())
    data[len(data) // 2 if place is None else place] ^= 1
    path.write_bytes(data)

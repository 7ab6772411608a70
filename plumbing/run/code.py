"""The code of a run: checksums of the Python files that it loads.

A file counts if train.py, or the file of --sampler or --reward, imports it from this project or
from the folder of that file, directly or through others, at the top or in a function. Of a custom
sampler all files of its folder that are loaded count, too. Libraries do not count.
"""

import ast
import json
import os
import sys
import zlib
from collections.abc import Iterator
from pathlib import Path

from plumbing.config import ROOT
from plumbing.files import file_crc32

MAIN = ROOT / "train.py"
OWN = ("--", "samplers/", "rewards/")  # how names begin of files that not every run loads


def checksums(plugins: dict[str, Path | None]) -> dict[str, int]:
    """Return the CRC-32 of each file of the run's code by `name_of`. plugins: flag -> file, None
    without a plug-in."""
    shared = imported_files(MAIN, [ROOT])
    code = {name_of(file): file_crc32(file) for file in shared}
    for flag, plugin in plugins.items():
        if plugin:
            plugin = plugin.resolve()
            folder = plugin.parent
            files = imported_files(plugin, [ROOT, folder]) | loaded_files(folder)
            for file in files - shared:
                code[name_of(file, flag, folder)] = file_crc32(file)
    return dict(sorted(code.items()))


def name_of(file: Path, flag: str = "", folder: Path = ROOT) -> str:
    """Return the name of a file of a run's code: its path in this project or, of a plug-in
    elsewhere, the path from its folder, as plug-ins may move. The names of files that only a
    plug-in loads begin with one of OWN, most with its flag."""
    if not file.is_relative_to(ROOT):
        return f"{flag} {os.path.relpath(file, folder)}"
    name = file.relative_to(ROOT).as_posix()
    return name if name.startswith(OWN) else f"{flag} {name}".strip()


def imported_files(start: Path, folders: list[Path]) -> set[Path]:
    """Return a Python file and all that it imports from these folders."""
    files = set()
    left = [start]
    while left:
        file = left.pop()
        if file not in files:
            files.add(file)
            left += imports(file, folders)
    return files


def imports(file: Path, folders: list[Path]) -> Iterator[Path]:
    """Yield the files that one file imports from these folders or, by a relative import, from its
    own package."""
    try:
        tree = ast.parse(file.read_bytes())
    except (SyntaxError, ValueError):
        return  # Python reports it if the run comes to import this file
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield from module_files(folders, alias.name)
        elif isinstance(node, ast.ImportFrom):
            bases = [file.parents[node.level - 1]] if node.level else folders
            for alias in node.names:
                yield from module_files(bases, f"{node.module or ''}.{alias.name}".strip("."))


def module_files(folders: list[Path], name: str) -> Iterator[Path]:
    """Yield the files of a module "package.module", and of its packages, in these folders."""
    for folder in folders:
        path = folder
        for part in name.split("."):
            path = path / part
            candidates = path.with_name(f"{part}.py"), path / "__init__.py"
            yield from filter(Path.is_file, candidates)


def loaded_files(folder: Path) -> set[Path]:
    """Return the files of a folder outside this project that this process has imported, by any
    means."""
    if folder.is_relative_to(ROOT):
        return set()
    files = set()
    for name, module in list(sys.modules.items()):
        place = getattr(module, "__file__", None)
        is_inside = place and Path(place).is_relative_to(folder)
        is_plugin = os.sep in name  # plugins.load names the module by its path
        if is_inside and not is_plugin and Path(place) in module_files([folder], name):
            files.add(Path(place))
    return files


def changes(old: dict, new: dict) -> list[str]:
    """Return the names of the files that two runs share and that differ. old, new: their facts,
    which have no code in a run from before checksums: such a run is reported, but not resumed."""
    before = old.get("code", {})
    now = new.get("code", {})
    return [name for name in before if name in now and before[name] != now[name]]


def change(step: int, old: dict, new: dict) -> dict:
    """Describe a resume after `step` under other code, for the facts' `code_changes`."""
    names = changes(old, new)
    return {
        "after_step": step,
        "was": {name: old["code"][name] for name in names},
        "is": {name: new["code"][name] for name in names},
    }


def checksum(facts: dict, shared: bool) -> str | None:
    """Return a checksum of the files that every run loads or, not `shared`, of the others; joined
    by "+" where the run was resumed under other code; None of a run without checksums of files."""
    if "code" not in facts:
        return None
    versions = [facts["code"]]
    for each in reversed(facts.get("code_changes", [])):
        versions.append(versions[-1] | each["was"])
    sums = []
    for version in reversed(versions):
        part = {name: crc for name, crc in version.items() if name.startswith(OWN) != shared}
        sums.append(str(zlib.crc32(json.dumps(part).encode())))
    return "+".join(dict.fromkeys(sums))

"""docs/paper_map.md names only what exists, every page only functions that do; so does mutate."""

import re
from dataclasses import fields
from pkgutil import resolve_name

import train
from tests.helpers.models import ROOT
from tests.stress import mutation

PAGES = {path.name: path.read_text(encoding="utf-8") for path in (ROOT / "docs").glob("*.md")}
MAP = PAGES["paper_map.md"]
NAMES = re.findall(r"`([^`]+)`", MAP)
MODULES = "grpo|plumbing|rollout|sampler|teacher|train|verify"


def test_functions_of_every_page_and_tests_of_the_map_exist():
    dotted = re.findall(rf"`((?:{MODULES})(?:\.\w+)+)`", "".join(PAGES.values()))
    functions = {name for name in dotted if not name.endswith(".py")}
    tests = [name for name in NAMES if name.startswith("test_")]
    assert len(functions) > 35 and len(tests) > 20
    for name in functions:
        resolve_name(name)
    for name in tests:
        file, _, function = name.partition("::")
        text = (ROOT / "tests" / file).read_text(encoding="utf-8")
        assert not function or f"def {function}(" in text, name


def test_the_count_of_rows_is_right():
    part_1 = MAP[: MAP.index("## 2.")].splitlines()
    rows = [line for line in part_1 if line.startswith("| ") and not line.startswith("| paper")]
    not_run = [line for line in rows if "not run" in line]
    assert all("test_" in line for line in rows if line not in not_run)
    held = f"{len(rows) - len(not_run)} are held by tests"
    assert f"Of the {len(rows)} rows of part 1, {held} and **{len(not_run)} are not" in MAP


def test_flags_and_files_of_the_map_exist():
    flags = {f.name for f in fields(train.Config)} | {"keep_repeats", "x"}  # the scripts' own
    for name in NAMES:
        for flag in re.findall(r"--(\w+)", name):
            assert flag in flags, name
        for script in re.findall(r"\b(\w+)\.py\b", name):
            places = [ROOT / folder / f"{script}.py" for folder in ("", "scripts", "tests")]
            assert any(place.exists() for place in places), name


def test_every_fault_of_mutate_fits_the_code_and_has_a_test():
    """`faults` itself refuses one whose text is not in its file."""
    chosen = mutation.faults("")
    assert len(chosen) > 40
    for name, _, test, _, _ in chosen:
        file, _, function = test.partition("::")
        assert f"def {function}" in (ROOT / file).read_text(encoding="utf-8"), name

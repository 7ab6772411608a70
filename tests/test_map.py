"""docs/paper_map.md names only what exists: files, functions, flags, tests. README shows the promised commands."""

import re
from dataclasses import fields
from pathlib import Path

from named import assert_exists

import train

ROOT = Path(train.__file__).parent
MODULES = ("grpo", "rollout", "sampler", "teacher", "train", "verify")
NAMES = re.findall(r"`([^`]+)`", (ROOT / "docs/paper_map.md").read_text(encoding="utf-8"))


def test_functions_of_the_map_exist():
    named = [
        name
        for name in NAMES
        if re.fullmatch(rf"({'|'.join(MODULES)})(\.\w+)+", name) and name[-3:] != ".py"
    ]
    assert len(named) > 20
    for name in named:
        assert_exists(name)


def test_tests_of_the_map_exist():
    named = [name for name in NAMES if name.startswith("test_")]
    assert len(named) > 20
    for name in named:
        file, _, function = name.partition("::")
        text = (ROOT / "tests" / file).read_text(encoding="utf-8")
        assert not function or f"def {function}(" in text, name


def test_the_count_of_rows_is_right():
    text = (ROOT / "docs/paper_map.md").read_text(encoding="utf-8")
    part_1 = text[: text.index("## 2.")].splitlines()
    rows = [line for line in part_1 if line.startswith("| ") and not line.startswith("| paper")]
    not_run = [line for line in rows if "not run" in line]
    assert all("test_" in line for line in rows if line not in not_run)
    held = f"{len(rows) - len(not_run)} are held by tests"
    counts = f"Of the {len(rows)} rows of part 1, {held} and **{len(not_run)} are not"
    assert counts in text


def test_flags_and_files_of_the_map_exist():
    flags = {f.name for f in fields(train.Config)} | {"keep_repeats", "x"}  # the scripts' own
    for name in NAMES:
        for flag in re.findall(r"--(\w+)", name):
            assert flag in flags, name
        for script in re.findall(
            r"\b(?:scripts/)?(?:prepare_data|plot|make_demo|replay|compare)\.py", name
        ):
            assert (ROOT / "scripts" / Path(script).name).exists(), name


def test_readme_shows_the_two_commands_and_the_real_job():
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    first_screen = readme[: readme.index("## Six files")]
    install = "pip install -r requirements.txt && "
    assert f"{install}torchrun --nproc_per_node 4 train.py --preset demo\n" in first_screen
    assert f"{install}pytest\n" in first_screen
    assert "torchrun --nproc_per_node 8 train.py\n" in first_screen

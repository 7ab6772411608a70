"""pyproject.toml agrees with the requirements files and with the folders."""

import tomllib
from pathlib import Path

import pytest

from tests.helpers.models import ROOT

PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
PROJECT = PYPROJECT["project"]
EXTRAS = PROJECT["optional-dependencies"]
SETUPTOOLS = PYPROJECT["tool"]["setuptools"]


def requirements(name: str) -> list[str]:
    """Read a requirements file without its comments."""
    lines = (ROOT / name).read_text().splitlines()
    return [line for line in lines if line and not line.startswith("#")]


def test_dependencies_and_the_test_extra_are_requirements_txt():
    declared = PROJECT["dependencies"] + EXTRAS["test"]
    assert sorted(declared) == sorted(requirements("requirements.txt"))


def test_the_cuda_extra_is_requirements_cuda_txt():
    assert EXTRAS["cuda"] == requirements("requirements-cuda.txt")


def test_the_trl_extra_is_the_version_that_the_examples_name():
    [version] = EXTRAS["trl"]
    for path in ("examples/trl_demo.py", "benchmarks/trl_agreement.py"):
        assert version in (ROOT / path).read_text()


def test_the_modules_are_the_top_level_files():
    assert SETUPTOOLS["py-modules"] == sorted(path.stem for path in ROOT.glob("*.py"))


def test_the_packages_are_the_folders_with_modules():
    paths = [*ROOT.glob("*/*.py"), *ROOT.glob("plumbing/*/*.py")]
    folders = {path.parent.relative_to(ROOT) for path in paths} - {Path("tests")}
    assert SETUPTOOLS["packages"] == sorted(".".join(folder.parts) for folder in folders)


@pytest.mark.parametrize("field", ["version", "description", "license", "requires-python"])
def test_metadata_is_complete(field):
    assert PROJECT[field]


def test_ruff_targets_the_oldest_supported_python():
    oldest = PROJECT["requires-python"].removeprefix(">=")
    assert PYPROJECT["tool"]["ruff"]["target-version"] == "py" + oldest.replace(".", "")

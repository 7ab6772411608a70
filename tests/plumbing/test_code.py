"""plumbing/run/code.py: which files are a run's code, and how codes are compared."""

import sys
from types import SimpleNamespace

import pytest

from plumbing.run import code
from sampler import file_of

PROJECT = {
    "train.py": "import numpy\nimport core\nfrom part import one",
    "core.py": "def late():\n    import part.two.three",
    "unused.py": "import core",
    "part/one.py": "from .neighbour import x",
    "part/neighbour.py": "import core",
    "part/two/__init__.py": "",
    "part/two/three.py": "",
    "samplers/child.py": "from samplers.parent import Parent",
    "samplers/parent.py": "",
    "samplers/other.py": "",
}
SHARED = {"train.py", "core.py", "part/one.py", "part/neighbour.py"}
SHARED |= {"part/two/__init__.py", "part/two/three.py"}
PLUGIN = {
    "mine.py": "import core\nimport helper\nfrom package import deep, broken",
    "helper.py": "import json",
    "json.py": "never = 'loaded: the library is'",
    "package/deep.py": "from ..helper import x",
    "package/broken.py": "def (",
    "loaded.py": "",
    "unused.py": "",
}


def write(folder, files):
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)


@pytest.fixture
def project(tmp_path, monkeypatch):
    """A project of PROJECT's files in place of this one."""
    folder = tmp_path / "project"
    write(folder, PROJECT)
    monkeypatch.setattr(code, "ROOT", folder)
    monkeypatch.setattr(code, "MAIN", folder / "train.py")
    return folder


def test_the_code_is_what_train_py_imports_directly_or_not(project):
    """Also in functions, from packages without __init__.py, and relative."""
    assert code.checksums({"--sampler": None}).keys() == SHARED


def test_the_parents_of_a_sampler_are_code_and_other_samplers_are_not(project):
    names = code.checksums({"--sampler": project / "samplers/child.py"}).keys()
    assert names - SHARED == {"samplers/child.py", "samplers/parent.py"}


def test_a_sampler_beside_train_py_and_its_helper_are_not_the_code_of_all_runs(project):
    write(project, {"mine.py": "import core\nimport unused"})
    mine = code.checksums({"--sampler": project / "mine.py"})
    assert mine.keys() - SHARED == {"--sampler mine.py", "--sampler unused.py"}
    uniform = code.checksums({"--sampler": None})
    crc_of_all = [code.checksum({"code": each}, shared=True) for each in (mine, uniform)]
    assert crc_of_all[0] == crc_of_all[1]


def test_helpers_of_a_plug_in_are_code_by_names_that_do_not_move(project, tmp_path, monkeypatch):
    """Whether it imports them or only their names at run time."""
    folder = tmp_path / "mine"
    write(folder, PLUGIN)
    module = SimpleNamespace(__file__=str(folder / "loaded.py"))
    monkeypatch.setitem(sys.modules, "loaded", module)
    found = code.checksums({"--reward": folder / "mine.py"})
    used = {"mine.py", "helper.py", "json.py", "package/deep.py", "package/broken.py", "loaded.py"}
    assert found.keys() - SHARED == {f"--reward {name}" for name in used}
    (folder / "helper.py").write_text("import json  # changed")
    after = code.checksums({"--reward": folder / "mine.py"})
    assert code.changes({"code": found}, {"code": after}) == ["--reward helper.py"]


def test_the_code_of_this_project():
    names = code.checksums({"--sampler": file_of("noisy_and")}).keys()
    components = {"grpo.py", "rollout.py", "sampler.py", "teacher.py", "train.py", "verify.py"}
    assert components <= names
    assert {"grading/structure.py", "plumbing/run/code.py", "samplers/bag_of_words.py"} <= names
    folders = {name.partition("/")[0] for name in names - components}
    assert folders == {"grading", "plumbing", "records", "samplers"}


OLD = {"code": {"grpo.py": 1, "samplers/sec.py": 2, "gone.py": 3}}
NEW = {"code": {"grpo.py": 1, "samplers/sec.py": 4, "new.py": 5}}


def test_changes_are_those_of_files_that_both_runs_have():
    """A file that only one has is imported by another, which has changed."""
    assert code.changes(OLD, NEW) == ["samplers/sec.py"]
    assert code.change(7, OLD, NEW) == {
        "after_step": 7,
        "was": {"samplers/sec.py": 2},
        "is": {"samplers/sec.py": 4},
    }


def test_the_checksum_of_a_run_that_was_resumed_under_other_code_has_each_version():
    versions = [code.checksum({"code": {"grpo.py": crc}}, True) for crc in "ab"]
    resumed = {"code": {"grpo.py": "b"}, "code_changes": [{"was": {"grpo.py": "a"}}]}
    assert code.checksum(resumed, True) == "+".join(versions)

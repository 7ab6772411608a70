"""line_anchors: links to definitions get their lines."""

import pytest

from plumbing.errors import InputError
from scripts.line_anchors import anchored

CODE = """\
LIMIT: int = 3


class Student:
    def update(self):
        total = 1


def update():
    total = 2


add("--size")
"""


@pytest.fixture
def root(tmp_path):
    (tmp_path / "code.py").write_text(CODE)
    return tmp_path


@pytest.mark.parametrize(("name", "line"), [("LIMIT", 1), ("Student", 4), ("size", 13)])
def test_a_link_gets_the_line_of_its_name(root, name, line):
    assert anchored(f"[`{name}`](../code.py)", root) == f"[`{name}`](../code.py#L{line})"


def test_a_wrong_line_is_corrected_and_a_class_tells_two_names_apart(root):
    text = "[`update`](../code.py#L99) of `Student`, a step"
    assert anchored(text, root) == "[`update`](../code.py#L5) of `Student`, a step"


@pytest.mark.parametrize(("name", "count"), [("update", 2), ("total", 0), ("absent", 0)])
def test_a_name_that_is_defined_twice_or_not_at_all_is_rejected(root, name, count):
    with pytest.raises(InputError, match=f"{name}: {count} definitions in code.py"):
        anchored(f"[`{name}`](../code.py)", root)

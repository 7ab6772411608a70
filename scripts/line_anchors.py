"""Set the lines that docs/paper_map.md links to.

    python -m scripts.line_anchors

A link such as [`weigh`](../grpo.py) gets the line of the definition: [`weigh`](../grpo.py#L123). If
a file defines the name more than once, the page names the class after the link: "of `Student`".
tests/core/test_docs.py rejects a page with other lines.
"""

import re
from pathlib import Path

from plumbing.config import ROOT
from plumbing.errors import InputError
from plumbing.files import write_atomic
from scripts.command import exit_on_error, make_parser

PAGE = ROOT / "docs/paper_map.md"
LINK = re.compile(r"\[`(\w+)`\]\(\.\./([\w/]+\.py)(?:#L\d+)?\)(?: of `(\w+)`)?")


def line_of(name: str, path: Path, owner: str | None) -> int:
    """Return the line that defines a function, class, variable, attribute or flag --NAME of a
    module, in a class if one is given. Raises InputError if there is none, or more than one."""
    found = {}  # class, or "" -> first line
    inside = ""
    for number, line in enumerate(path.read_text("utf-8").splitlines(), start=1):
        if line[:1].isalpha():  # a statement of the module
            header = re.match(r"class (\w+)", line)
            inside = header[1] if header else ""
        indent = "(?:    )?" if inside else ""
        if re.match(rf'{indent}(?:(?:def|class) {name}\b|{name}(?::| =))|.*"--{name}"', line):
            found.setdefault(inside, number)
    lines = [line for of, line in found.items() if owner in (None, of)]
    if len(lines) != 1:
        place = f"{path.name} of {owner}" if owner else path.name
        raise InputError(f"{name}: {len(lines)} definitions in {place}: {lines}; name its class")
    return lines[0]


def anchored(text: str, root: Path = ROOT) -> str:
    """Return a page with the right line in each link to a name. Raises InputError, OSError."""

    def anchor(link: re.Match) -> str:
        name, file, owner = link.groups()
        after = f" of `{owner}`" if owner else ""
        return f"[`{name}`](../{file}#L{line_of(name, root / file, owner)}){after}"

    return LINK.sub(anchor, text)


def main(argv=None) -> None:
    with exit_on_error("line_anchors"):
        make_parser(__doc__).parse_args(argv)
        write_atomic(PAGE, anchored(PAGE.read_text("utf-8")))
        print(PAGE)


if __name__ == "__main__":
    main()

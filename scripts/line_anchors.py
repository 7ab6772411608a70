"""Set the lines that docs/paper_map.md links to.

    python -m scripts.line_anchors

A link such as [`weigh`](../grpo.py) gets the line of the definition: [`weigh`](../grpo.py#L123). If
a file defines the name more than once, the page names the class after the link: "of `Student`".
tests/core/test_docs.py rejects a page with other lines.
"""

import ast
import re
import sys
from pathlib import Path

from plumbing.config import ROOT
from plumbing.errors import InputError
from plumbing.files import write_atomic
from scripts.command import exit_on_error, make_parser

PAGE = ROOT / "docs/paper_map.md"
LINK = re.compile(r"\[`(\w+)`\]\(\.\./([\w/]+\.py)(?:#L\d+)?\)(?: of `(\w+)`)?")


def definitions(path: Path) -> list[tuple[str, str, int]]:
    """Return (class, name, line) of each function, class and assigned name of a module, and of each
    flag --NAME of a parser; without a class "". A name that is assigned again counts once."""
    found = {}

    def visit(node: ast.AST, owner: str) -> None:
        for child in ast.iter_child_nodes(node):
            names = []
            inside = owner
            if isinstance(child, ast.FunctionDef | ast.ClassDef):
                names = [child.name]
                inside = child.name if isinstance(child, ast.ClassDef) else "a function"
            elif isinstance(child, ast.Assign | ast.AnnAssign) and owner != "a function":
                targets = child.targets if isinstance(child, ast.Assign) else [child.target]
                names = [target.id for target in targets if isinstance(target, ast.Name)]
            elif isinstance(child, ast.Constant) and str(child.value).startswith("--"):
                names = [child.value[2:]]
            for name in names:
                found.setdefault((owner, name), child.lineno)
            visit(child, inside)

    visit(ast.parse(path.read_text("utf-8")), "")
    return [(owner, name, line) for (owner, name), line in found.items()]


def line_of(name: str, path: Path, owner: str | None) -> int:
    """Return the line that defines a name, in a class if one is given. Raises InputError if there
    is none, or more than one."""
    lines = [
        line
        for of, other, line in definitions(path)
        if other == name and (owner is None or of == owner)
    ]
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
    make_parser(__doc__).parse_args(argv)
    with exit_on_error("line_anchors"):
        write_atomic(PAGE, anchored(PAGE.read_text("utf-8")))
        print(PAGE)


if __name__ == "__main__":
    sys.exit(main())

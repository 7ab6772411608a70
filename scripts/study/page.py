"""Reports of runs and of studies: as Markdown, and as one HTML page."""

import base64
from dataclasses import dataclass, field
from datetime import datetime
from io import BytesIO
from pathlib import Path
from typing import NamedTuple

from jinja2 import Environment, StrictUndefined
from matplotlib.figure import Figure

DPI = 200  # of pictures: sharp also where a screen has two pixels for each of the page's


class Table(NamedTuple):
    """A table with a heading. rows: of texts or numbers."""

    title: str
    header: list
    rows: list[list]

    def markdown(self) -> str:
        """Format the table, with its heading above it."""
        lines = [self.header, ["---"] * len(self.header), *self.rows]
        text = "\n".join(f"| {' | '.join(map(str, line))} |" for line in lines)
        return f"## {self.title}\n\n{text}\n"


@dataclass
class Report:
    """The texts of a comparison. They are shown in this order; a page has its figures after the
    warnings."""

    warnings: list[str] = field(default_factory=list)
    tables: list[Table] = field(default_factory=list)
    sentences: list[str] = field(default_factory=list)

    def markdown(self) -> str:
        """Format the report for the terminal and a file."""
        parts = [f"{warning}\n" for warning in self.warnings]
        parts += [table.markdown() for table in self.tables]
        parts += [f"- {sentence}" for sentence in self.sentences]
        return "".join(f"{part}\n" for part in parts)

    def html(self, title: str, figures: dict[str, Figure], **values) -> str:
        """Make the page: figures by title, and the values that the template has of runs."""
        environment = Environment(autoescape=True, undefined=StrictUndefined)
        environment.filters["encode"] = encode
        template = Path(__file__).with_name("page.html").read_text(encoding="utf-8")
        return environment.from_string(template).render(
            title=title,
            written=datetime.now(),
            warnings=self.warnings,
            sentences=self.sentences,
            tables=self.tables,
            figures=figures,
            **values,
        )


def encode(figure: Figure) -> str:
    """Return a figure as a PNG in base64."""
    file = BytesIO()
    figure.savefig(file, dpi=DPI)
    return base64.b64encode(file.getvalue()).decode()

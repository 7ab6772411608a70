"""The HTML page of a report, of runs or of a study."""

import base64
from datetime import datetime
from io import BytesIO
from pathlib import Path

from jinja2 import Environment, StrictUndefined
from matplotlib.figure import Figure


def encode(figure: Figure) -> str:
    """Return a figure as a PNG in base64."""
    file = BytesIO()
    figure.savefig(file, dpi=120)
    return base64.b64encode(file.getvalue()).decode()


def render(**values) -> str:
    """Fill in the template: title, verdict (sentences), tables (as those of verdict.tables),
    figures (by title) and, of runs, those of `main`."""
    environment = Environment(autoescape=True, undefined=StrictUndefined)
    environment.filters["encode"] = encode
    template = Path(__file__).with_name("page.html").read_text(encoding="utf-8")
    return environment.from_string(template).render(written=datetime.now(), **values)

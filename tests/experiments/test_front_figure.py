"""README's figure against the scores that it draws."""

import re

import numpy as np
import pytest

from experiments import front_figure


def drawing(file) -> tuple[list[str], np.ndarray]:
    """The coordinates of an SVG file, and the text between them."""
    number = r"-?\d+\.\d+"
    # Names of clips and markers are checksums of coordinates.
    svg = re.sub(r"\b[mp][0-9a-f]{10}\b", "NAME", file.read_text("utf-8"))
    return re.split(number, svg), np.array(re.findall(number, svg), dtype=float)


@pytest.mark.parametrize("theme", front_figure.THEMES)
def test_the_committed_figure_is_that_of_the_committed_scores(theme, tmp_path):
    front_figure.main(["--out", str(tmp_path)])
    name = f"front_{theme}.svg"
    words, places = drawing(tmp_path / name)
    committed_words, committed_places = drawing(front_figure.DOCS / name)
    assert words == committed_words
    assert np.abs(places - committed_places).max() < 0.01


def test_a_directory_that_does_not_exist_gets_one_line(tmp_path, capsys):
    with pytest.raises(SystemExit, match="2"):
        front_figure.main(["--out", str(tmp_path / "none")])
    assert capsys.readouterr().err.count("\n") == 1

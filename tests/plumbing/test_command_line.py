"""plumbing/command_line.py: flags out of range, output in any encoding."""

import io
import runpy
import sys

import pytest

from plumbing.errors import print_line
from tests.helpers.checks import rejected
from tests.helpers.models import ROOT
from tests.helpers.ranks import parse

FLAGS = {  # what is wrong -> the error
    "--preset gpt": "argument --preset: invalid choice: 'gpt' (choose from ",
    "--steps 0": "argument --steps: 0: must be in [1, 1000000000]",
    "--epsilon nan": "argument --epsilon: nan: must be in [0, 1]",
    "--temperature 1e-40": "argument --temperature: 1e-40: must be in [0.001, ",
}


@pytest.mark.parametrize("flags", FLAGS)
def test_a_wrong_flag_is_rejected_with_one_line(flags):
    with rejected(FLAGS[flags]):
        parse(*flags.split())


def test_an_abbreviated_flag_ends_the_command_with_one_line_and_status_2(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["train.py", "--step", "5"])
    with pytest.raises(SystemExit, match="2"):
        runpy.run_path(str(ROOT / "train.py"), run_name="__main__")
    assert capsys.readouterr() == ("", "error: unrecognized arguments: --step 5 (see --help)\n")


def test_output_shows_characters_that_its_encoding_lacks_as_escapes(monkeypatch):
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(io.BytesIO(), encoding="ascii"))
    parse()  # every command's parser sets its output up
    print_line("√p")
    assert sys.stdout.buffer.getvalue() == b"\\u221ap\n"


@pytest.mark.parametrize(
    ("preset", "shown"),
    [
        ("demo", "AdamW, student (Table 5a) [0.0002]"),
        ("demo", "longer ones are dropped (Table 5a) [32]"),
        ("reasoning", "teacher (Section 5.1); by default --model [models/cold]"),
    ],
)
def test_help_shows_the_values_of_the_preset(preset, shown, capsys):
    with pytest.raises(SystemExit):
        parse("--preset", preset, "--help")
    assert shown in " ".join(capsys.readouterr().out.split())

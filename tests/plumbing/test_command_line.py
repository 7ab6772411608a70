"""plumbing/command_line.py: flags out of range, output in any encoding."""

import os
import subprocess
import sys

import pytest

from tests.helpers.checks import rejected
from tests.helpers.models import ROOT
from tests.helpers.ranks import parse

FLAGS = {  # what is wrong -> the error
    "--step 5": "unrecognized arguments: --step 5 (see --help)",  # abbreviated
    "--preset gpt": "argument --preset: invalid choice: 'gpt' (choose from ",
    "--steps 0": "argument --steps: 0: must be in [1, 1000000000]",
    "--epsilon nan": "argument --epsilon: nan: must be in [0, 1]",
    "--temperature 1e-40": "argument --temperature: 1e-40: must be in [0.001, ",
}


@pytest.mark.parametrize("flags", FLAGS)
def test_a_wrong_flag_is_rejected_with_one_line(flags):
    with rejected(FLAGS[flags]):
        parse(*flags.split())


def test_an_error_is_printed_in_any_encoding():
    environment = os.environ | {"PYTHONIOENCODING": "ascii"}
    line = [sys.executable, "-m", "train", "--device", "→"]
    done = subprocess.run(line, env=environment, cwd=ROOT, capture_output=True)
    assert done.returncode == 2
    assert b"\\u2192" in done.stderr
    assert b"Traceback" not in done.stderr


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

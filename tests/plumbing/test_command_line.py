"""plumbing/command_line.py: flags out of range, paths, output that nobody can take."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from plumbing.command_line import PATHS
from scripts import analysis
from tests.helpers.checks import rejected
from tests.helpers.models import ROOT
from tests.helpers.ranks import parse

FLAGS = {  # what is wrong -> the error
    "--step 5": "unrecognized arguments: --step 5 (see --help)",  # abbreviated
    "--preset gpt": "argument --preset: invalid choice: 'gpt' (choose from ",
    "--steps 0": "argument --steps: 0: must be in [1, 1000000000]",
    "--epsilon nan": "argument --epsilon: nan: must be in [0, 1]",
    "--temperature 1e-40": "argument --temperature: 1e-40: must be in [0.001, ",
    "--out a\udcff": "argument --out: invalid user_path value: 'a\\udcff'",  # not UTF-8
}


@pytest.mark.parametrize("flags", FLAGS)
def test_a_wrong_flag_is_rejected_with_one_line(flags):
    with rejected(FLAGS[flags]):
        parse(*flags.split())


@pytest.mark.parametrize("name", sorted(PATHS - {"sampler"}))
def test_a_path_may_begin_with_the_home_directory(name, monkeypatch):
    monkeypatch.setenv("HOME", "/home/me")
    assert getattr(parse(f"--{name}=~/x"), name) == "/home/me/x"


def test_the_home_directory_is_found_in_a_runs_path(monkeypatch):
    monkeypatch.setenv("HOME", "/home/me")
    assert analysis.parser("", runs=True).parse_args(["~/run"]).runs == [Path("/home/me/run")]


def shell(line, code, **environment):
    """Run Python code in a line of bash, which has $CODE; return what bash prints."""
    code = f"from plumbing.errors import survive_lost_output as survive; {code}"
    environment = os.environ | {"CODE": f"{sys.executable} -c '{code}'"} | environment
    return subprocess.run(["bash", "-c", line], cwd=ROOT, env=environment, capture_output=True)


LOST = {  # how the output is lost, as a shell writes it
    "a closed pipe": "| true",
    "a closed descriptor": ">&- 2>&-",
    "all closed": "<&- >&- 2>&-",
    "a full disk": "> /dev/full 2> /dev/full",
}


@pytest.mark.parametrize("case", LOST)
def test_output_that_nobody_takes_is_dropped(case):
    code = 'import sys, time; survive(); time.sleep(0.2); print("x" * 99999); sys.exit(7)'
    done = shell(f'eval "$CODE" {LOST[case]}; echo ${{PIPESTATUS[0]}}', code)
    assert done.stdout == b"7\n"
    assert b"Error" not in done.stderr


def test_a_command_whose_output_is_its_result_fails_if_the_disk_is_full():
    done = shell("eval $CODE > /dev/full", "survive(BrokenPipeError); print(1)")
    assert b"No space left" in done.stderr


@pytest.mark.parametrize(
    ("encoding", "text"), [("ascii", rb"\xe4\u2192"), ("latin-1", b"\xe4\\u2192")]
)
def test_characters_that_the_output_lacks_are_printed_as_escapes(encoding, text):
    code = r'survive(); print("\u00e4\u2192"); import sys; print("\u00e4\u2192", file=sys.stderr)'
    done = shell('eval "$CODE"', code, PYTHONIOENCODING=encoding)
    assert (done.stdout, done.stderr) == (text + b"\n", text + b"\n")


@pytest.mark.parametrize("command", ["scripts.study", "train"])
def test_every_command_prints_its_errors_in_any_encoding(command):
    words = ["--device", "→"] if command == "train" else ["→"]
    environment = os.environ | {"PYTHONIOENCODING": "ascii"}
    line = [sys.executable, "-m", command, *words]
    done = subprocess.run(line, env=environment, cwd=ROOT, capture_output=True)
    assert done.returncode == 2
    assert b"\\u2192" in done.stderr
    assert b"Traceback" not in done.stderr

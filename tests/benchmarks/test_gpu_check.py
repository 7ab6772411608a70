"""gpu_check: its commands' flags."""

import shlex

import pytest

import train
from benchmarks import gpu_check


@pytest.mark.parametrize("command", [x for x in gpu_check.COMMANDS if "--preset" in x])
def test_flags_of_a_command_exist(command):
    _, preset, flags = command.partition("--preset")
    train.parse(shlex.split(preset + flags))

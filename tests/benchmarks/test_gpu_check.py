"""gpu_check: its commands' flags, and statuses."""

import shlex

import pytest
import torch

import train
from benchmarks import gpu_check


@pytest.mark.parametrize("command", [x for x in gpu_check.COMMANDS if "--preset" in x])
def test_flags_of_a_command_exist(command):
    _, preset, flags = command.partition("--preset")
    train.parse(shlex.split(preset + flags))


def test_a_command_that_fails_does_not_stop_the_others(monkeypatch, capsys):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(gpu_check, "COMMANDS", ["-c 'exit(3)'", "-c 'print()'"])
    assert gpu_check.main([]) == 1
    out = capsys.readouterr().out
    assert out.endswith("status 3: python -c 'exit(3)'\nstatus 0: python -c 'print()'\n")

"""plumbing/progress.py: what the console prints."""

from types import SimpleNamespace

import torch

from plumbing import progress
from tests.helpers.ranks import one_rank, parse


def test_a_stop_before_the_first_step_is_not_reported_as_saved(tmp_path, capsys):
    run = SimpleNamespace(config=parse(), layout=one_rank(), path=tmp_path)
    console = progress.Console(run, 0, torch.nn.Linear(1, 1), 5, 100)
    console.end(finished=False)
    assert "stopped before the first step: run the same command" in capsys.readouterr().out

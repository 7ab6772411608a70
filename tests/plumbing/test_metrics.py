"""plumbing/progress.py: lines of progress without a terminal."""

import re
import time
from unittest.mock import MagicMock

from plumbing import progress
from plumbing.run.directory import RunDir
from tests.helpers.ranks import one_rank, parse


def test_without_a_terminal_progress_is_a_line_now_and_then(monkeypatch, capsys, tmp_path):
    """Also in a step or evaluation that takes long."""
    monkeypatch.setattr(progress, "LINE_S", 0.01)
    flags = ("--preset", "demo", "--steps", 9, "--out", tmp_path)
    run = RunDir(parse(*flags), one_rank(*flags), None)
    student = MagicMock()
    student.policy.parameters.return_value = []
    data = MagicMock()
    data.__len__.return_value = 20
    data.unmatched_note.return_value = ""
    console = progress.Console(run, 0, data, data)
    console.report("evaluation, 5 of 20 problems")
    time.sleep(0.1)
    console.report("")
    step = {"step": 1, "total_tokens": 8, "seconds": 2, "reward_mean": 0, "zero_variance": 1}
    console.update(step)
    time.sleep(0.1)
    console.end(finished=False)
    lines = capsys.readouterr().err.splitlines()
    assert re.fullmatch(r"step 0 of 9 \[00:00<\?, evaluation, 5 of 20 problems\]", lines[0])
    assert re.fullmatch(r"step 1 of 9 \[00:00<00:\d\d, reward .*, 4 tok/s\]", lines[-1])

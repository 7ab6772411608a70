"""plumbing/progress.py: lines of progress."""

import re
from types import SimpleNamespace

from plumbing import progress
from plumbing.run.directory import RunDir
from tests.helpers.ranks import one_rank, parse


def test_progress_is_a_line_now_and_then(monkeypatch, capsys, tmp_path):
    """Also in an evaluation that takes long."""
    clock = iter([100, 105, 111, 112, 121])
    monkeypatch.setattr(progress, "time", SimpleNamespace(monotonic=lambda: next(clock)))
    flags = ("--preset", "demo", "--steps", 9, "--out", tmp_path)
    console = progress.Console(RunDir(parse(*flags), one_rank(*flags), None), 0, 4)
    console.report("evaluation, 1 of 20 problems")  # too early
    console.report("evaluation, 5 of 20 problems")
    step = {"step": 1, "total_tokens": 8, "seconds": 2, "reward_mean": 0, "zero_variance": 1}
    console.update(step)  # too early
    console.update(step)
    console.end(finished=False)
    out, err = capsys.readouterr()
    assert "4 problems" in out
    first, second = err.splitlines()
    assert first == "step 0 of 9 [00:11<?, evaluation, 5 of 20 problems]"
    assert re.fullmatch(r"step 1 of 9 \[00:21<02:\d\d, reward .*, 4 tok/s\]", second)

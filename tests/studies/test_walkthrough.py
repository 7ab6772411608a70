"""Some numbers of docs/walkthrough.md are those of its command."""

import train
from plumbing.files import read_lines
from tests.helpers.models import ROOT
from tests.helpers.ranks import on_ranks

PAGE = (ROOT / "docs/walkthrough.md").read_text("utf-8")


def test_the_walkthroughs_step_is_what_its_command_does(halfway, tmp_path):
    """On fewer validation problems, which change nothing in a step."""
    flags = "--preset demo --seed 0 --teacher_lag 0 --steps 3"
    assert f"train.py {flags}" in PAGE
    argv = f"{flags} --val_data {halfway}/val.jsonl --out {tmp_path}/run".split()
    assert on_ranks(1, tmp_path, train.main, argv) == 0
    step = read_lines(tmp_path / "run/metrics.jsonl")[3]
    rows = read_lines(tmp_path / "run/selections.jsonl")
    [group] = [row for row in rows if row["step"] == 3 and row["chosen"] == 7502]
    for words in (
        f"p̂ = {group['successes']}/16",
        f"y = √(p̂(1 - p̂)) = {group['y']:.4f}",
        f"problem 7502 with f = {max(group['utilities']):.4f}",
        f"`forwarded_rows` is {step['forwarded_rows']} of 192",
        f"{step['zero_variance']:.4f}",
        f"{step['grad_norm']:.4f}; it is clipped",
        f"unseen: {step['teacher_mae']:.4f}",
    ):
        assert words in PAGE

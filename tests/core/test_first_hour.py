"""Every command of docs/first_hour.md, in its order, by bash: `pytest -m hour` (minutes)."""

import faulthandler
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from plumbing.files import read_lines

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "first_hour.md"
FEW = ' HOUR="$HOUR --steps 12 --eval_every 6 --verify_workers 1"'


def commands() -> str:
    """The page's blocks, on the demo and with few steps; what is installed is there already."""
    lines = [
        line[4:] for line in PAGE.read_text().splitlines() if not line.strip() or line[:4] == "    "
    ]
    left_out = ('export HOUR="--preset one-gpu"', "pip install")
    lines = [line for line in lines if not line.startswith(left_out)]
    laptop = next(
        i for i, line in enumerate(lines) if line.startswith('export HOUR="--preset demo"')
    )
    return "\n".join([*lines[: laptop + 1], FEW, *lines[laptop + 1 :]])


@pytest.mark.slow
@pytest.mark.hour
@pytest.mark.timeout(1200)
def test_every_command_of_the_first_hour(tmp_path):
    faulthandler.cancel_dump_traceback_later()  # it would come too early
    for name in ("train.py", "scripts", "demo"):
        (tmp_path / name).symlink_to(ROOT / name)
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    env = os.environ | {"PATH": path, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    bash = ["bash", "-euo", "pipefail", "-c", commands()]
    done = subprocess.run(bash, cwd=tmp_path, env=env, capture_output=True, text=True)
    print(done.stdout, done.stderr)
    assert done.returncode == 0
    assert "stopped, and saved" in done.stdout  # and went on, without a step twice or left out
    runs = sorted((tmp_path / "runs").iterdir())
    assert len(runs) == 6
    for run in runs:
        rows = read_lines(run / "metrics.jsonl")
        assert [row["step"] for row in rows] == list(range(13))
    accuracy = read_lines(tmp_path / "runs/hour-0/metrics.jsonl")[-1]["val_accuracy"]
    assert f"| pass@1, greedy | {accuracy:.2%} |" in done.stdout
    assert re.search(r"\| pass@4 \| [\d.]+% \|", done.stdout)
    assert re.search(r"\| goldilocks \| [-+]\d", done.stdout)  # less uniform
    assert "Would a teacher pay" in done.stdout
    question = read_lines(tmp_path / "data/hour/val.jsonl")[0]["problem"]
    assert f"{question}\n\nSolution:" in done.stdout.rpartition("Would a teacher pay")[2]
    assert (tmp_path / "figures/report.html").stat().st_size > 10_000

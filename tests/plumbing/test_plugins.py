"""plumbing/plugins.py: --sampler FILE.py:CLASS and --reward FILE.py[:FUNCTION]."""

import numpy as np
import pytest

import train
from plumbing.files import read_lines
from sampler import find_sampler
from tests.helpers.checks import rejected
from tests.helpers.ranks import command, torchrun
from verify import Verifier

MINE = """
from sampler import Goldilocks

class Mine(Goldilocks):
    def choose(self, pool_N_K, utilities_N_K):
        return utilities_N_K.argmin(axis=1), utilities_N_K.min(axis=1) < 0

class Half:
    def propose(self, n): ...
    def observe(self, outcomes): ...
    def metrics(self): ...
"""
EVERY_OTHER = """
from call_log import calls

def compute_score(data_source, solution_str, ground_truth, extra_info=None):
    calls.append(solution_str)
    return {"score": len(calls) % 2}
"""


def test_a_run_does_not_resume_after_its_custom_files_have_changed(tmp_path, halfway):
    def go(*flags):
        few = ("--verify_workers", 1, "--max_completion_tokens", 4, "--eval_every", 1, *flags)
        argv = command(tmp_path / "run", *few, data=halfway)
        return torchrun(1, tmp_path, lambda: train.main(argv))

    sampler, reward = tmp_path / "mine.py", tmp_path / "every_other.py"
    sampler.write_text(MINE)
    reward.write_text(EVERY_OTHER)
    (tmp_path / "call_log.py").write_text("calls = []")
    flags = ("--sampler", f"{sampler}:Mine", "--reward", reward, "--steps")
    assert go(*flags, 1).statuses == [0]
    rows = read_lines(tmp_path / "run/selections.jsonl")
    assert all(row["chosen"] == row["pool"][np.argmin(row["utilities"])] for row in rows)
    # One worker, in which every other call earns 1; reference answers are graded too.
    assert 0 < read_lines(tmp_path / "run/metrics.jsonl")[1]["reward_mean"] < 1
    for file in (reward, sampler):
        file.write_text(file.read_text() + "\n")
    ended = go(*flags, 2)
    assert ended.statuses == [2]
    assert "sampler_crc32 was " in ended.err and "reward_crc32 was " in ended.err


UNUSABLE = {
    "--sampler mine.py": "must be FILE.py:NAME",
    "--sampler gone.py:Mine": "gone.py cannot be run: FileNotFoundError",
    "--sampler mine.py:Yours": "mine.py has no class or function 'Yours'",
    "--sampler mine.py:Half": "lacks uses_teacher, needs_column, flags, settings, train_on",
    "--reward mine.py": "mine.py has no class or function 'compute_score'",
    "--reward raises.py": "raises.py cannot be run: ZeroDivisionError: division by zero",
}


@pytest.mark.parametrize("flag", UNUSABLE)
def test_a_file_that_cannot_be_used_is_rejected_with_one_line(flag, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(MINE)
    (tmp_path / "raises.py").write_text("1 / 0")
    name, spec = flag.split()
    with rejected(f"{flag}: {UNUSABLE[flag]}"):
        find_sampler(spec) if name == "--sampler" else Verifier(1, reward=spec).__enter__()

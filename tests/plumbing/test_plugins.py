"""plumbing/plugins.py: --sampler FILE.py:CLASS and --reward FILE.py[:FUNCTION]."""

import importlib
import re

import pytest

import train
from plumbing.errors import InputError
from plumbing.files import read_lines
from plumbing.plugins import load, load_by_name
from sampler import find_sampler
from tests.helpers.checks import rejected
from tests.helpers.models import ROOT
from tests.helpers.optional import need_reasoning_gym
from tests.helpers.ranks import command, torchrun
from verify import Verifier

MINE = """
from sampler import Goldilocks, Sampler, Uniform

class Mine(Goldilocks):
    def choose(self, pool_N_K, utilities_N_K):
        return utilities_N_K.argmin(axis=1), utilities_N_K.min(axis=1) < 0

class Alone:
    def propose(self, n): ...

class InRounds(Goldilocks):
    def more(self, groups):
        return []

class Idle(Sampler): ...

class Other(Uniform):
    flags = ("candidates", "temperature")

class Column(Uniform):
    needs_column = True

class Words(Uniform):
    settings = {"mode": "fast"}
"""
EVERY_OTHER = """
from call_log import calls

def compute_score(data_source, solution_str, ground_truth, extra_info=None):
    calls.append(solution_str)
    return {"score": len(calls) % 2}
"""


@pytest.fixture(scope="module")
def custom_run(tmp_path_factory, halfway):
    """A directory with the files of a custom sampler and reward, and a run of one step with them;
    a function that goes on with the run."""
    folder = tmp_path_factory.mktemp("custom")
    (folder / "mine.py").write_text(MINE)
    (folder / "every_other.py").write_text(EVERY_OTHER)
    (folder / "call_log.py").write_text("calls = []")

    def go(steps):
        files = ("--sampler", f"{folder}/mine.py:Mine", "--reward", folder / "every_other.py")
        few = ("--verify_workers", 1, "--max_completion_tokens", 4, "--eval_every", 1)
        argv = command(folder / "run", *few, *files, "--steps", steps, data=halfway)
        return torchrun(1, folder, lambda: train.main(argv))

    ended = go(1)
    assert ended.statuses == [0], ended
    return folder, go


def test_a_run_takes_the_choice_of_a_custom_sampler(custom_run):
    folder, _ = custom_run
    for row in read_lines(folder / "run/selections.jsonl"):
        worst = row["utilities"].index(min(row["utilities"]))
        assert row["chosen"] == row["pool"][worst]


def test_a_run_takes_the_rewards_of_a_custom_function(custom_run):
    """There is one worker, in which every other call earns 1; reference answers are graded too."""
    folder, _ = custom_run
    row = read_lines(folder / "run/metrics.jsonl")[1]
    assert row["reward_mean"] > 0
    assert row["reward_mean"] < 1


def test_a_run_does_not_resume_after_its_custom_files_have_changed(custom_run):
    folder, go = custom_run
    for name in ("mine.py", "every_other.py"):
        file = folder / name
        file.write_text(file.read_text() + "\n")
    ended = go(2)
    assert ended.statuses == [2]
    assert re.search(r"file of sampler, \S+mine.py:Mine, has changed", ended.err)
    assert re.search(r"file of reward, \S+every_other.py, has changed", ended.err)


def test_a_file_called_like_a_library_does_not_replace_it(tmp_path):
    """Neither in the file itself nor afterwards. No other test imports this one."""
    file = tmp_path / "this.py"
    file.write_text("import this\n\nclass Mine:\n    zen = this.s\n")
    mine = load(f"{file}:Mine", "--sampler")
    assert mine.zen == importlib.import_module("this").s


REWARDS = sorted((ROOT / "rewards").glob("*.py"))


@pytest.mark.parametrize("file", REWARDS, ids=[file.stem for file in REWARDS])
@pytest.mark.parametrize("folder", ["", "rewards"])
def test_every_reward_file_works_from_any_directory(file, folder, tmp_path, monkeypatch):
    if file.stem == "reasoning_gym":
        need_reasoning_gym()
    monkeypatch.chdir(ROOT / folder if folder else tmp_path)
    with Verifier(1, reward=str(file)) as verifier:
        verdicts = verifier.grade([r"\boxed{7}", r"\boxed{8}", "none"], ["7"] * 3)
    assert [verdict.reward for verdict in verdicts] == [1, 0, 0]


def test_the_reward_of_math_verify_gives_its_own_verdicts():
    """It takes a number without a box, and 2^-99 for 2^-98; verify.py neither."""
    cases = ["so the answer is 7", r"\boxed{1/2^{99}}"]
    golds = ["7", "1/2^{98}"]
    with Verifier(1, reward=str(ROOT / "rewards/math_verify.py")) as verifier:
        own = verifier.grade(cases, golds)
    with Verifier(1) as verifier:
        strict = verifier.grade(cases, golds)
    assert [verdict.reward for verdict in own] == [1, 1]
    assert [verdict.reward for verdict in strict] == [0, 0]


UNUSABLE = {
    "--sampler mine.py": "must be FILE.py:NAME",
    "--sampler gone.py:Mine": "gone.py cannot be run: FileNotFoundError",
    "--sampler mine.py:Yours": "mine.py has no class or function 'Yours'",
    "--sampler mine.py:Alone": "must extend sampler.Sampler, or Uniform or Pooled",
    "--sampler mine.py:InRounds": "a sampler with a teacher has no rounds of its own",
    "--sampler mine.py:Idle": "must define `propose`",
    "--sampler mine.py:Other": "`flags` may name candidates, column, epsilon, not ",
    "--sampler mine.py:Column": "needs a column, so that `flags` must name column",
    "--sampler mine.py:Words": "its settings must be numbers, not {'mode': 'fast'}",
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


def test_a_class_is_found_by_the_name_of_its_file(tmp_path):
    (tmp_path / "two_words.py").write_text("class TwoWords: ...")
    assert load_by_name("two_words", "--sampler", {}, tmp_path).__name__ == "TwoWords"


def test_an_unknown_name_is_rejected_with_the_known_ones(tmp_path):
    (tmp_path / "two_words.py").write_text("class TwoWords: ...")
    message = "--sampler mine: choose from one, two_words, or FILE.py:CLASS"
    with pytest.raises(InputError, match=message):
        load_by_name("mine", "--sampler", {"one": int}, tmp_path)

"""plumbing/plugins.py: samplers and rewards from files, their settings, and what they return."""

import importlib
import os

import numpy as np
import pytest

import train
from grpo import Group
from plumbing.config import Config
from plumbing.errors import InputError
from plumbing.files import read_lines
from plumbing.plugins import construct, load, sampler_settings
from sampler import (
    Context,
    Uniform,
    check_proposals,
    check_trained,
    check_utilities,
    find_sampler,
    join,
    sampler_class,
)
from scripts.study.runs import read_config
from tests.helpers.checks import rejected
from tests.helpers.groups import solved
from tests.helpers.models import ROOT
from tests.helpers.optional import need_reasoning_gym
from tests.helpers.ranks import command, torchrun
from tests.helpers.samplers import Numbers
from verify import Verifier

MINE = """
from sampler import Goldilocks

class Mine(Goldilocks):
    def choose(self, pool_P_K, utilities_P_K):
        return utilities_P_K.argmin(axis=1), utilities_P_K.min(axis=1) < 0

class Alone:
    def propose(self, P): ...

class InRounds(Goldilocks):
    def more(self, groups, rounds):
        return []
"""
EVERY_OTHER = """
from call_log import calls

def compute_score(data_source, solution_str, ground_truth, extra_info=None):
    calls.append(solution_str)
    return {"score": len(calls) % 2}
"""


@pytest.fixture(scope="module")
def custom_run(tmp_path_factory, halfway):
    """The directory of a run of one step with a custom sampler and reward. call_log.py is imported
    by the reward, in the workers alone."""
    folder = tmp_path_factory.mktemp("custom")
    (folder / "mine.py").write_text(MINE)
    (folder / "every_other.py").write_text(EVERY_OTHER)
    (folder / "call_log.py").write_text("calls = []")
    files = ("--sampler", f"{folder}/mine.py:Mine", "--reward", folder / "every_other.py")
    few = ("--verify_workers", 1, "--max_completion_tokens", 4, "--eval_every", 1, "--steps", 1)
    argv = command(folder / "run", *few, *files, data=halfway)
    ended = torchrun(1, folder, lambda: train.main(argv))
    assert ended.statuses == [0], ended
    return folder / "run"


def test_a_run_takes_the_choice_of_a_custom_sampler_and_the_rewards_of_a_custom_function(
    custom_run,
):
    """There is one worker, in which every other call earns 1; reference answers are graded too."""
    for row in read_lines(custom_run / "selections.jsonl"):
        worst = row["utilities"].index(min(row["utilities"]))
        assert row["chosen"] == row["pool"][worst]
    row = read_lines(custom_run / "metrics.jsonl")[1]
    assert 0 < row["reward_mean"] < 1


def test_custom_files_are_among_a_runs_code(custom_run):
    """test_run_dir.py changes the code of a run, test_code.py that of a plug-in."""
    names = {"--sampler mine.py", "--reward every_other.py", "--reward call_log.py"}
    assert names <= read_config(custom_run)["code"].keys()


def test_a_file_called_like_a_library_does_not_replace_it(tmp_path):
    """Neither in the file itself nor afterwards. No other test imports this one."""
    file = tmp_path / "this.py"
    file.write_text("import this\n\nclass Mine:\n    zen = this.s\n")
    mine = load(f"{file}:Mine", "--sampler")
    assert mine.zen == importlib.import_module("this").s


REWARDS = sorted((ROOT / "rewards").glob("*.py"))
EARNED = {"format_and_answer": [0.9, 0, 0]}  # else 1, 0, 0


@pytest.mark.parametrize("file", REWARDS, ids=[file.stem for file in REWARDS])
def test_every_reward_file_works_from_another_directory(file, tmp_path, monkeypatch):
    if "reasoning_gym" in file.stem:
        need_reasoning_gym()
    monkeypatch.chdir(tmp_path)
    with Verifier(1, reward=str(file)) as verifier:
        verdicts = verifier.grade([r"\boxed{7}", r"\boxed{8}", "none"], ["7"] * 3)
    assert [verdict.reward for verdict in verdicts] == EARNED.get(file.stem, [1, 0, 0])


UNUSABLE = {
    "--sampler mine.py:Yours": "AttributeError: module 'mine.py' has no attribute 'Yours'",
    "--sampler mine.py": "add :CLASS",
    "--sampler mine.py:Alone": "must extend sampler.Sampler, or Uniform or Pooled",
    "--sampler mine.py:InRounds": "a sampler with a teacher has no `more` or `train_on`",
    "--reward raises.py": "ZeroDivisionError: division by zero (FOLDER/raises.py, line 1: 1 / 0)",
    "--sampler torn.py:Mine": "SyntaxError: '(' was never closed (torn.py, line 1)",
}


@pytest.mark.parametrize("flag", UNUSABLE)
def test_a_file_that_cannot_be_used_is_rejected_with_one_line(flag, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(MINE)
    (tmp_path / "raises.py").write_text("1 / 0")
    (tmp_path / "torn.py").write_text("x = (")
    name, spec = flag.split()
    with rejected(f"{flag}: {UNUSABLE[flag].replace('FOLDER', str(tmp_path))}"):
        find_sampler(spec) if name == "--sampler" else Verifier(1, reward=spec).__enter__()


WRONG_SHAPES = """
import numpy as np
from sampler import Uniform

class Mine(Uniform):
    def __init__(self, context):
        super().__init__(context)
        self.weights = np.ones(3) @ np.ones(2)

def compute_score(solution_str, ground_truth, **extra):
    return np.ones(3) @ np.ones(2)
"""


def test_an_error_inside_a_plug_in_names_its_line(tmp_path, monkeypatch):
    """numpy is the innermost, and does not say what is wrong in the user's file."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "shapes.py").write_text(WRONG_SHAPES)
    spec = "shapes.py:Mine"
    error = f"--sampler {spec}: ValueError: matmul: Input .* line 8: self.weights = np.ones"
    context = Context(Numbers(9), Config(), lambda index: True)
    with pytest.raises(InputError, match=error):
        construct(find_sampler(spec), context, spec, "")
    line = "line 11: return np.ones(3) @ np.ones(2))"
    with Verifier(1, reward="shapes.py") as verifier, rejected(line):
        verifier.grade(["7"], ["7"])


# --sampler_args


class Tuned(Uniform):
    def __init__(self, context, near=0.3, rounds=4):
        super().__init__(context)


def test_settings_are_keyword_arguments_in_the_types_of_their_defaults():
    settings = sampler_settings(Tuned, "rounds=7,near=1")
    assert settings == {"rounds": 7, "near": 1.0}
    assert [type(value) for value in settings.values()] == [int, float]
    assert sampler_settings(Tuned, "") == {}


@pytest.mark.parametrize("item", ["far=1", "near=x", "rounds=2.5", "near"])
def test_a_setting_that_a_sampler_does_not_take_is_rejected_with_those_it_takes(item):
    known = "settings are keyword arguments of Tuned(context, near=0.3, rounds=4)"
    with rejected(f"--sampler_args {item}: {known}"):
        sampler_settings(Tuned, f"rounds=5,{item}")


# What a sampler returns


@pytest.mark.parametrize("scores", [[[0.1, np.nan]], [[0.1, 0.51]], [[-0.01, 0.1]], [[0.1]]])
def test_scores_must_be_a_utility_for_each_candidate(scores):
    """Of one pool of two."""
    assert check_utilities("score", [[0, 0.5]], (1, 2)).tolist() == [[0, 0.5]]
    with rejected("must be in [0, 0.5], of shape (1, 2)"):
        check_utilities("score", scores, (1, 2))


BAD_PROPOSALS = {  # among 5 problems
    "of an index below 0": [Group(-1, 16)],
    "of an index above 4": [Group(0, 16), Group(5, 16)],
    "that has completions": [solved(4, 3)],
    "of a problem twice": [Group(4, 16), Group(3, 16), Group(4, 8)],
    "of no completions": [Group(4, 0)],
}


@pytest.mark.parametrize("fault", BAD_PROPOSALS)
def test_proposals_must_be_new_groups_of_distinct_problems(fault):
    check_proposals([Group(np.int64(4), np.int32(16)), Group(0, 1)], n_problems=5)
    with rejected("distinct problems below 5"):
        check_proposals(BAD_PROPOSALS[fault], n_problems=5)


def test_groups_to_train_on_must_hold_each_completion_of_the_step_at_most_once():
    one, two = groups = [solved(7, 1, of=2), solved(7, 2, of=2)]
    for trained in (groups, join(groups), [two], []):
        check_trained(trained, groups)
    for trained in ([one, one], [*groups, *join(groups)], [solved(7, 1, of=2)]):
        with rejected("train_on returns a completion twice"):
            check_trained(trained, groups)


def test_a_file_is_run_again_after_it_has_changed(tmp_path):
    """A notebook goes on in the same process: the edited sampler must be the one that runs."""
    file = tmp_path / "edited.py"
    for modified, value in enumerate((1, 2)):
        file.write_text(f"value = {value}")
        os.utime(file, (modified, modified))
        assert load(str(file), "--sampler", "value") == value


def test_a_run_that_begins_keeps_to_the_sampler_whose_checksum_it_has_taken(tmp_path):
    """A user edits the file for the next run while models load: only a new command reads it."""
    file = tmp_path / "edited.py"
    config = Config(sampler=f"{file}:Mine")
    for modified in (1, 2):
        file.write_text(f"from sampler import Uniform\n\nclass Mine(Uniform):\n    n = {modified}")
        os.utime(file, (modified, modified))
        if modified == 1:
            assert sampler_class(config).n == 1
    assert find_sampler(config.sampler).n == 1
    assert sampler_class(config).n == find_sampler(config.sampler).n == 2

"""evaluate: the accuracy that train.py logs, pass@k by hand, files of verdicts."""

from unittest.mock import Mock

import pandas as pd
import pytest

import train
from plumbing.files import read_lines
from scripts import evaluate
from tests.helpers import ranks
from tests.helpers.groups import completion
from tests.helpers.samplers import Numbers

VERDICT = ("problem", "reward", "status", "tokens", "completion", "temperature")


def test_results_by_hand(capsys):
    """2 problems, 4 samples each, 1 and 3 right: pass@1 is (1/4 + 3/4) / 2 and pass@2 is
    (1/2 + 1) / 2. The standard error of two values is half of their difference."""
    columns = {"problem": [0] * 4 + [1] * 4, "reward": [1, 0, 0, 0, 0, 1, 1, 1]}
    rows = pd.DataFrame(columns).assign(status="wrong", truncated=False, level="level 9")
    rows.loc[1, ["status", "truncated", "level"]] = ["no_box", True, "level 10"]
    evaluate.print_results(rows, [1, 2], "level")
    words = " ".join(capsys.readouterr().out.split())
    assert "pass@1: 50.00% ± 25.00% pass@2: 75.00% ± 25.00%" in words
    assert "wrong 7 no_box 1 cut at the token limit: 1" in words
    assert "level 9 7 0.571429 level 10 1 0.000000" in words


def test_only_rewards_of_1_are_right_in_results(capsys):
    """One of four is right; the mean reward is (1 + 0.9 + 0.1) / 4."""
    rows = pd.DataFrame({"problem": range(4), "reward": [1, 0.9, 0.1, 0]})
    evaluate.print_results(rows.assign(status="partial", truncated=False), [1], "")
    output = capsys.readouterr().out
    assert "pass@1: 25.00%" in output
    assert "mean reward: 0.5000" in output


@pytest.fixture(scope="module")
def finished(tmp_path_factory, halfway):
    """A finished run of two steps. Groups of four straddled its two ranks."""
    folder = tmp_path_factory.mktemp("finished")
    flags = "--sampler uniform --steps 2 --prompts_per_step 3 --verify_workers 1"
    argv = ranks.command(folder / "run", *flags.split(), data=halfway)
    ranks.on_ranks(2, folder, lambda: train.main(argv))
    return folder / "run"


def verdicts(path):
    """Read verdicts as a run's evals/ has them."""
    return [{name: row[name] for name in VERDICT} for row in read_lines(path)]


@pytest.mark.parametrize("model", ["", "student"])
def test_a_runs_newest_checkpoint_has_the_runs_verdicts(model, finished, halfway, tmp_path, capsys):
    """Its exported student, too: with the run's settings and validation file, and the data's column
    --by in each row."""
    out = tmp_path / "verdicts.jsonl"
    evaluate.main([str(finished / model), "--out", str(out), "--by", "topic"])
    assert verdicts(out) == verdicts(finished / "evals/step_2.jsonl")
    data = read_lines(halfway / "val.jsonl")
    assert [row["topic"] for row in read_lines(out)] == [row["topic"] for row in data]
    accuracy = read_lines(finished / "metrics.jsonl")[2]["val_accuracy"]
    assert 0 < accuracy < 1
    assert f"pass@1: {accuracy:.2%} ±" in capsys.readouterr().out


def test_overlong_prompts_count_as_wrong_and_cut_completions_are_marked():
    """Two samples of each of two problems, of which the prompt of the second is too long."""

    def rollout(groups, *_):
        for i, each in enumerate(groups):
            each.completions = [completion(reward=1, status="correct", finished=i > 0)]

    actor = Mock(encode=lambda question: [5] * (3 + int(question)), rollout=rollout)
    actor.config.max_prompt_tokens = 3
    actor.generator.tokenizer.decode = str
    rows = evaluate.answer(actor, Numbers(2), samples=2, temperature=0.7)
    assert rows.problem.tolist() == [0, 0, 1, 1]
    assert rows.reward.tolist() == [1, 1, 0, 0]
    assert rows.status.tolist() == ["correct"] * 2 + ["overlong_prompt"] * 2
    assert rows.truncated.tolist() == [True, False, False, False]

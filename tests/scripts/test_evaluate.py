"""evaluate: the accuracy that train.py logs, pass@k by hand, files of verdicts."""

import pandas as pd
import pytest

import train
from plumbing.files import read_lines, write_lines
from scripts import evaluate
from tests.helpers import ranks

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
def test_a_runs_newest_checkpoint_has_the_runs_verdicts(model, finished, tmp_path, capsys):
    """Its exported student, too: with the run's settings and validation file."""
    out = tmp_path / "verdicts.jsonl"
    evaluate.main([str(finished / model), "--out", str(out)])
    assert verdicts(out) == verdicts(finished / "evals/step_2.jsonl")
    accuracy = read_lines(finished / "metrics.jsonl")[2]["val_accuracy"]
    assert 0 < accuracy < 1
    assert f"pass@1: {accuracy:.2%} ±" in capsys.readouterr().out


LIMIT = 20  # tokens of a completion: one word takes 16, two take 22


def test_overlong_prompts_and_bad_references_count_as_wrong_and_cut_ones_are_marked(
    halfway, tmp_path
):
    """Eight samples, which differ, of each of three problems: the second is too long, the third has
    an answer that cannot be verified."""
    data = read_lines(halfway / "val.jsonl")[:3]
    data[1]["problem"] += " Apply" + " lara" * 40
    data[2]["expected_answer"] = "\\frac{"
    write_lines(tmp_path / "val.jsonl", data)
    out = tmp_path / "v.jsonl"
    flags = f"--preset demo --temperature 0.7 --k 1 8 --by topic --max_completion_tokens {LIMIT}"
    paths = ["--data", str(tmp_path / "val.jsonl"), "--out", str(out)]
    evaluate.main([str(ranks.DEMO), *paths, *flags.split()])
    rows = pd.read_json(out, lines=True)
    right = rows.groupby("problem").reward.sum()
    assert 0 < right[0] < 8
    assert not right[1:].any()
    statuses = rows.groupby("problem").status.agg(set)
    assert statuses[1] == {"overlong_prompt"}
    assert statuses[2] == {"bad_gold"}
    cut = rows[rows.truncated]
    assert set(cut.problem) == {2}
    assert set(cut.tokens) == {LIMIT}
    assert [*rows.topic[::8]] == [row["topic"] for row in data]

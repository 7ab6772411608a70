"""evaluate: the accuracy that train.py logs, pass@k by hand, files of verdicts."""

import io
import shutil
from contextlib import redirect_stdout

import pandas as pd
import pytest

import train
from plumbing.files import read_lines, write_lines
from scripts import evaluate
from tests.helpers import ranks
from tests.helpers.files import change

VERDICT = ("problem", "reward", "status", "tokens", "completion", "temperature")


def test_summary_by_hand():
    """2 problems, 4 samples each, 1 and 3 right: pass@1 is (1/4 + 3/4) / 2 and pass@2 is
    (1/2 + 1) / 2. The standard error of two values is half of their difference."""
    columns = {"problem": [0] * 4 + [1] * 4, "reward": [1, 0, 0, 0, 0, 1, 1, 1]}
    rows = pd.DataFrame(columns).assign(temperature=0.7, status="wrong", truncated=False)
    rows.loc[1, ["status", "truncated"]] = ["no_box", True]
    text = evaluate.summary("m", rows, [1, 2])
    assert "m: 2 problems, 8 completions (temperature 0.7)" in text
    assert "| pass@1 | 50.00% ± 25.00% |" in text
    assert "| pass@2 | 75.00% ± 25.00% |" in text
    assert "| no_box | 1 of 8 |" in text
    assert "| cut at the token limit | 1 of 8 |" in text


@pytest.fixture(scope="module")
def finished(tmp_path_factory, halfway):
    """A finished run of two steps. Groups of four straddled its two ranks."""
    folder = tmp_path_factory.mktemp("finished")
    flags = ("--sampler", "uniform", "--steps", 2, "--prompts_per_step", 3)
    flags += ("--max_completion_tokens", 32, "--verify_workers", 1)
    argv = ranks.command(folder / "run", *flags, model=ranks.DEMO, data=halfway)
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
    assert f"| pass@1 | {accuracy:.2%} ±" in capsys.readouterr().out


def test_a_run_is_not_evaluated_with_another_reward(finished, tmp_path, capsys):
    run = shutil.copytree(finished, tmp_path / "copy")
    reward = tmp_path / "reward.py"
    reward.write_text("def compute_score(**_):\n    return 1\n")
    change(run / "config.json", reward=str(reward), reward_crc32=1)
    with pytest.raises(SystemExit, match="2"):
        evaluate.main([str(run)])
    assert f"{reward} has changed since the run; to use it, give" in capsys.readouterr().err


def test_verdicts_of_a_run_are_read_with_its_data(finished, capsys):
    evaluate.main([str(finished / "evals/step_2.jsonl"), "--by", "topic"])
    printed = capsys.readouterr().out
    assert "20 problems, 20 completions (temperature 0)" in printed
    lines = printed.partition("| topic | problems | pass@1 |")[2].splitlines()[2:]
    assert sum(int(line.split("|")[2]) for line in lines) == 20


def test_more_samples_than_the_verdicts_have_are_rejected(finished, capsys):
    with pytest.raises(SystemExit, match="2"):
        evaluate.main([str(finished / "evals/step_2.jsonl"), "--k", "2"])
    assert "--k 2: a problem has 1 samples" in capsys.readouterr().err


LIMIT = 20  # tokens of a completion: one word takes 16, two take 22


@pytest.fixture(scope="module")
def sampled(tmp_path_factory, halfway):
    """Eight samples of each of three problems: the second is too long, the third has an answer that
    cannot be verified. Returns the file written and the text printed."""
    folder = tmp_path_factory.mktemp("sampled")
    data = read_lines(halfway / "val.jsonl")[:3]
    data[1]["problem"] += " Apply" + " lara" * 40
    data[2]["expected_answer"] = "\\frac{"
    write_lines(folder / "val.jsonl", data)
    file = folder / "v.jsonl"
    flags = ["--preset", "demo", "--samples", 8, "--temperature", 0.7, "--k", 1, 8]
    flags += ["--max_completion_tokens", LIMIT]
    with redirect_stdout(io.StringIO()) as printed:
        words = [ranks.DEMO, "--data", folder / "val.jsonl", "--out", file, *flags]
        evaluate.main([str(word) for word in words])
    return file, printed.getvalue()


def test_overlong_prompts_and_bad_references_count_as_wrong_and_cut_ones_are_marked(sampled):
    rows = pd.read_json(sampled[0], lines=True)
    statuses = rows.groupby("problem").status.agg(set)
    assert statuses[1] == {"overlong_prompt"}
    assert statuses[2] == {"bad_gold"}
    assert not rows[rows.problem > 0].reward.any()
    cut = rows[rows.truncated]
    assert set(cut.problem) == {2}
    assert set(cut.tokens) == {LIMIT}


def test_pass_at_k_is_printed_over_all_problems_and_again_from_the_file(sampled, capsys):
    """Samples of a problem differ."""
    file, printed = sampled
    right = pd.read_json(file, lines=True).groupby("problem").reward.sum()
    assert 0 < right[0] < 8
    assert f"| pass@1 | {right[0] / 24:.2%} ±" in printed
    assert "| pass@8 | 33.33% ± 33.33% |" in printed
    evaluate.main([str(file), "--data", str(file.with_name("val.jsonl")), "--k", "1", "8"])
    assert capsys.readouterr().out.splitlines()[1:] == printed.splitlines()[1:]


def test_verdicts_of_other_data_of_the_same_length_are_rejected(sampled, tmp_path, capsys):
    file, _ = sampled
    rows = read_lines(file.with_name("val.jsonl"))
    write_lines(tmp_path / "val.jsonl", rows[::-1])
    with pytest.raises(SystemExit, match="2"):
        evaluate.main([str(file), "--data", str(tmp_path / "val.jsonl")])
    assert "v.jsonl: not of the problems in " in capsys.readouterr().err

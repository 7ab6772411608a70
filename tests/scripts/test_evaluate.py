"""evaluate: the accuracy that train.py logs, pass@k by hand, files of verdicts."""

import io
import json
import shutil
from contextlib import redirect_stdout

import pandas as pd
import pytest

import train
from grpo import Completion
from plumbing.files import read_lines, write_lines
from scripts import evaluate
from tests.helpers import ranks
from tests.helpers.files import change

VERDICT = ("problem", "reward", "status", "tokens", "completion", "temperature")


def rows_of(rewards, samples, **columns):
    problems = [i // samples for i in range(len(rewards))]
    rows = pd.DataFrame({"problem": problems, "reward": rewards}, dtype=float)
    return rows.assign(status="wrong", tokens=4, truncated=False, **columns)


def test_summary_of_samples_by_hand():
    """2 problems, 4 samples each, 1 and 3 right: pass@1 is 1/2, pass@2 is (1/2 + 1) / 2. In a
    quarter of resamples the first is there twice, in another the second."""
    rows = rows_of([1, 0, 0, 0, 0, 1, 1, 1], samples=4, temperature=0.7, seed=3)
    text = evaluate.summary("m", rows, [1, 2])
    assert "m: 2 problems, 8 completions (temperature 0.7, seed 3)" in text
    assert "| pass@1 | 50.00% | 25.00% to 75.00% |" in text
    assert "| pass@2 | 75.00% | 50.00% to 100.00% |" in text


def test_summary_of_answers_that_are_right_or_wrong_as_a_whole_by_hand():
    """8 of 10 are right. The interval is Wilson's, z² = 3.8415."""
    rows = rows_of([1] * 8 + [0] * 2, samples=1)
    rows.loc[9, ["status", "truncated"]] = ["no_box", True]
    text = evaluate.summary("", rows, [1])
    # (0.8 + 0.19207) / 1.38415 ± 1.96 √(0.016 + 0.0096037) / 1.38415
    assert "| pass@1 | 80.00% | 49.02% to 94.33% |" in text
    assert "| no_box | 1 of 10 |" in text
    assert "| cut at the token limit | 1 of 10 |" in text


@pytest.fixture(scope="module")
def finished(tmp_path_factory, halfway):
    """A finished run of two steps. Groups of four straddled its four ranks of three rows."""
    folder = tmp_path_factory.mktemp("finished")
    flags = ("--sampler", "uniform", "--steps", 2, "--prompts_per_step", 3)
    flags += ("--max_completion_tokens", 32, "--verify_workers", 1)
    argv = ranks.command(folder / "run", *flags, model=ranks.DEMO, data=halfway)
    ranks.on_ranks(4, folder, lambda: train.main(argv))
    return folder / "run"


def verdicts(path):
    """Read verdicts as a run's evals/ has them."""
    return [{name: row[name] for name in VERDICT} for row in read_lines(path)]


def test_verdicts_of_a_run_are_read_with_its_data(finished, capsys):
    evaluate.main([str(finished / "evals/step_2.jsonl"), "--by", "topic"])
    accuracy = read_lines(finished / "metrics.jsonl")[2]["val_accuracy"]
    printed = capsys.readouterr().out
    assert "20 problems, 20 completions (temperature 0)" in printed
    assert f"| pass@1 | {accuracy:.2%} |" in printed
    assert "| topic | problems | pass@1 |" in printed
    assert sum(int(line.split("|")[2]) for line in printed.split("\n\n")[-1].splitlines()[2:]) == 20


def test_verdicts_outside_a_run_need_their_data(finished, tmp_path, capsys):
    """Otherwise the default preset's data would be downloaded for them."""
    copy = shutil.copy(finished / "evals/step_2.jsonl", tmp_path / "verdicts.jsonl")
    with pytest.raises(SystemExit, match="2"):
        evaluate.main([str(copy), "--by", "topic"])
    assert "verdicts.jsonl is in no run directory: give --data" in capsys.readouterr().err
    evaluate.main([str(copy), "--preset", "demo"])
    assert "val.jsonl" in capsys.readouterr().out


REJECTED = {
    "verdicts of other problems": ("evals/step_2.jsonl", ["--data", "one.jsonl"], "give their --d"),
    "a flag of generation": ("evals/step_2.jsonl", ["--limit", "9"], "--limit: not used with"),
    "more than there are": ("evals/step_2.jsonl", ["--k", "2"], "--k 2: a problem has 1 samples"),
    "no verdicts": ("metrics.jsonl", [], "none of its lines has problem"),
}


@pytest.mark.parametrize("case", REJECTED)
def test_a_file_that_cannot_be_read_as_verdicts_gets_one_line(
    case, finished, tmp_path, monkeypatch, capsys
):
    file, flags, error = REJECTED[case]
    write_lines(tmp_path / "one.jsonl", [{"problem": "q", "expected_answer": "1"}])
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit, match="2"):
        evaluate.main([str(finished / file), *flags])
    assert error in capsys.readouterr().err


def test_a_run_is_not_evaluated_with_another_reward(finished, tmp_path, capsys):
    reward = tmp_path / "reward.py"
    reward.write_text("def compute_score(**_):\n    return 1\n")
    run = copy_of(finished, tmp_path, reward=str(reward), reward_crc32=1)
    with pytest.raises(SystemExit, match="2"):
        evaluate.main([str(run)])
    assert f"{reward} has changed since the run; to use it, give" in capsys.readouterr().err


def copy_of(run, tmp_path, **config):
    """Copy a run, with the base model as its student/ and changed settings."""
    copy = shutil.copytree(run, tmp_path / "copy")
    shutil.rmtree(copy / "student")
    (copy / "student").symlink_to(ranks.DEMO)
    change(copy / "config.json", **config)
    return copy


def test_a_run_has_its_own_accuracy_and_verdicts(finished, tmp_path, capsys):
    """The same verdict for every problem, with the run's lengths and validation file."""
    out = tmp_path / "verdicts.jsonl"
    evaluate.main([str(finished), "--out", str(out)])
    assert verdicts(out) == verdicts(finished / "evals/step_2.jsonl")
    accuracy = read_lines(finished / "metrics.jsonl")[2]["val_accuracy"]
    assert 0 < accuracy < 1
    printed = capsys.readouterr().out
    assert f"{finished}, step 2 on " in printed
    assert "20 problems, 20 completions (temperature 0, seed 0)" in printed
    assert f"| pass@1 | {accuracy:.2%} |" in printed


def test_a_runs_newest_checkpoint_counts_not_an_older_student(finished, tmp_path, capsys):
    """As after a further start with more steps, which was killed in step 3."""
    run = copy_of(finished, tmp_path, steps=9)
    out = tmp_path / "verdicts.jsonl"
    write_lines(run / "metrics.jsonl", [{"step": 3}], "a")
    evaluate.main([str(run), "--out", str(out)])
    assert verdicts(out) == verdicts(finished / "evals/step_2.jsonl")
    assert f"note: {run} is at step 3, without a checkpoint" in capsys.readouterr().err


def test_an_unfinished_run_without_checkpoints_is_rejected(finished, tmp_path, capsys):
    """Its student/ may be of an earlier end."""
    run = copy_of(finished, tmp_path, steps=9)
    shutil.rmtree(run / "checkpoints")
    with pytest.raises(SystemExit, match="2"):
        evaluate.main([str(run)])
    assert f"{run} is at step 2 of 9, without a checkpoint" in capsys.readouterr().err


@pytest.fixture(scope="module")
def sampled(tmp_path_factory, halfway):
    """Eight samples of each of the first three problems, of which the second is too long: the file
    written, in a folder named evals, and the text printed."""
    folder = tmp_path_factory.mktemp("sampled")
    data = read_lines(halfway / "val.jsonl")
    data[1]["problem"] += " Apply" + " lara" * 40
    write_lines(folder / "val.jsonl", data)
    file = folder / "evals/v.jsonl"
    flags = ["--preset", "demo", "--limit", 3, "--samples", 8, "--temperature", 0.7, "--k", 1, 2, 8]
    with redirect_stdout(io.StringIO()) as printed:
        words = [ranks.DEMO, "--data", folder / "val.jsonl", "--out", file, *flags]
        evaluate.main([str(word) for word in words])
    return file, printed.getvalue()


def test_overlong_prompts_count_as_wrong(sampled):
    rows = read_lines(sampled[0])[8:16]
    assert {(row["status"], row["reward"], row["tokens"]) for row in rows} == {
        ("overlong_prompt", 0.0, 0)
    }


def test_pass_at_k_is_printed_over_all_problems(sampled):
    """The problems are solved half of the time; samples of one differ."""
    file, printed = sampled
    right = pd.read_json(file, lines=True).groupby("problem").reward.sum()
    assert 0 < right.sum() < 16
    assert f"| pass@1 | {right.sum() / 24:.2%} |" in printed
    assert f"| pass@8 | {(right > 0).mean():.2%} |" in printed


def test_a_file_of_verdicts_says_how_it_was_drawn_whatever_its_folder_is_called(sampled, capsys):
    """The same table, intervals too, as when it was drawn."""
    file, printed = sampled
    data = str(file.parents[1] / "val.jsonl")
    assert {row["samples"] for row in read_lines(file)} == {8}
    evaluate.main([str(file), "--data", data, "--k", "1", "2", "8"])
    again = capsys.readouterr().out
    assert "24 completions (temperature 0.7, seed 0)" in again
    assert again.splitlines()[1:] == printed.splitlines()[1:]


def test_verdicts_of_other_data_of_the_same_length_are_rejected(sampled, tmp_path, capsys):
    file, _ = sampled
    rows = read_lines(file.parents[1] / "val.jsonl")
    write_lines(tmp_path / "val.jsonl", rows[::-1])
    with pytest.raises(SystemExit, match="2"):
        evaluate.main([str(file), "--data", str(tmp_path / "val.jsonl")])
    assert "v.jsonl: not of the problems in " in capsys.readouterr().err


STATUSES = {  # a completion -> status; the reference answer is 12
    "is $12$": "no_box",
    r"\boxed{12}": "correct",
    r"\boxed{13}": "wrong",
    "12": "bad_gold",  # its reference answer is malformed
}


def test_completions_are_graded_as_in_training(monkeypatch, tiny_model, tmp_path):
    """Without their stop token; the last one was cut off."""

    def generate(self, prompts, *_, **options):
        end = self.tokenizer.eos_token
        tokens = [
            self.tokenizer(text + end, add_special_tokens=False).input_ids for text in STATUSES
        ]
        completions = [Completion(ids, [], finished=True) for ids in tokens]
        completions[-1] = Completion(tokens[-1][:-1], [], finished=False)
        return completions

    monkeypatch.setattr(evaluate.rollout.Generator, "generate", generate)
    golds = 3 * ["12"] + ["\\frac{"]
    rows = [{"problem": f"q{i}", "expected_answer": gold} for i, gold in enumerate(golds)]
    write_lines(tmp_path / "data.jsonl", rows)
    problems = evaluate.Problems(tmp_path / "data.jsonl")
    config = train.parse(["--preset", "demo", "--model", str(tiny_model)])
    rows = evaluate.evaluate(config, problems, range(4), 1, 0.0)
    assert {row["completion"]: row["status"] for row in rows} == STATUSES
    assert [row["reward"] for row in rows] == [0, 1, 0, 0]
    assert [row["truncated"] for row in rows] == [False] * 3 + [True]
    json.dumps(rows)  # plain data

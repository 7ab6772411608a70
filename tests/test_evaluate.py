"""evaluate.py: the numbers of train.py's own evaluation, pass@k by hand, bad input in one line."""

import json
import sys
from pathlib import Path

import pytest
from ranks import on_ranks

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "scripts"))
import evaluate
from intervals import bootstrap, pass_at_k, wilson

import train

DEMO = str(Path(train.__file__).parent / "demo/model")


def rows_of(rewards, samples):
    return [
        {
            "problem": i // samples,
            "reward": float(r),
            "status": "correct" if r else "wrong",
            "tokens": 4,
            "lenient": float(r),
            "truncated": False,
        }
        for i, r in enumerate(rewards)
    ]


def test_pass_at_k_by_hand():
    """One of 4 right: of the 6 pairs 3 have it. Without a right one 0; with fewer than k wrong ones 1."""
    assert [pass_at_k(4, 1, k) for k in (1, 2, 4)] == [0.25, 0.5, 1.0]
    assert (pass_at_k(4, 0, 2), pass_at_k(4, 3, 2)) == (0.0, 1.0)
    assert pass_at_k(16, 8, 2) == pytest.approx(1 - (8 * 7) / (16 * 15))


def test_wilson_by_hand():
    """8 of 10, z² = 3.8415: centre (0.8 + 0.19207) / 1.38415, half width 1.96 √(0.016 + 0.0096037) / 1.38415."""
    assert wilson(8, 10) == pytest.approx((0.49016, 0.94332), abs=1e-5)
    assert wilson(0, 10) == pytest.approx(
        (0, 0.27754), abs=1e-5
    )  # z² / (n + z²), where Wald's would be empty
    assert wilson(10, 10) == pytest.approx((0.72246, 1), abs=1e-5)


def test_summary_by_hand():
    """Two problems, 4 samples each, 1 and 3 of them right: pass@1 is 1/2, pass@2 is (1/2 + 1) / 2."""
    lines = evaluate.summary(
        rows_of([1, 0, 0, 0, 0, 1, 1, 1], 4), 4, [1, 2], greedy=False
    ).splitlines()
    low, high = bootstrap([0.25, 0.75])
    assert (low, high) == (
        0.25,
        0.75,
    )  # each of the two problems twice in a quarter of the resamples
    assert lines[2:6] == [
        "| pass@1 | 50.00% | 25.00% to 75.00% |",
        "| pass@1, lenient | 50.00% | 25.00% to 75.00% |",
        "| pass@2 | 75.00% | 50.00% to 100.00% |",
        "| pass@2, lenient | 75.00% | 50.00% to 100.00% |",
    ]
    assert lines[6:10] == [
        "| correct | 4 of 8 | |",
        "| wrong | 4 of 8 | |",
        "| cut at the token limit | 0 of 8 | |",
        "| mean tokens of a completion | 4.0 | |",
    ]
    rows = rows_of([1] * 8 + [0] * 2, 1)
    rows[9] |= {"status": "no_box", "lenient": 1.0, "truncated": True}
    greedy = evaluate.summary(rows, 1, [1], greedy=True).splitlines()
    assert greedy[2] == "| pass@1, greedy | 80.00% | 49.02% to 94.33% |"
    # wilson(9, 10): centre (0.9 + 0.19207) / 1.38415, half width 1.96 √(0.009 + 0.0096037) / 1.38415
    assert greedy[3] == "| pass@1, greedy, lenient | 90.00% | 59.58% to 98.21% |"
    assert "| cut at the token limit | 1 of 10 | |" in greedy
    assert greedy[-1].startswith("Lenient: where a completion has no box")


def test_a_runs_student_has_the_runs_accuracy(tmp_path, halfway, capsys):
    """After two steps on two ranks: the same verdict for every problem, and so the same accuracy."""
    flags = [
        "--preset",
        "demo",
        "--sampler",
        "uniform",
        "--steps",
        "2",
        "--eval_every",
        "2",
        "--out",
        tmp_path / "run",
    ]
    flags += ["--prompts_per_step", "4", "--group_size", "4"]
    flags += ["--train_data", halfway / "train.jsonl", "--val_data", halfway / "val.jsonl"]
    on_ranks(2, tmp_path, lambda: train.main(list(map(str, flags))))
    last = json.loads((tmp_path / "run/metrics.jsonl").read_text().splitlines()[-1])
    line = [
        "--preset",
        "demo",
        "--data",
        halfway / "val.jsonl",
        "--out",
        tmp_path / "verdicts.jsonl",
    ]
    assert evaluate.main(list(map(str, [tmp_path / "run/student", *line]))) == 0
    assert (tmp_path / "verdicts.jsonl").read_text() == (
        tmp_path / "run/evals/step_2.jsonl"
    ).read_text()
    assert 0 < last["val_accuracy"] < 1
    assert f"| pass@1, greedy | {last['val_accuracy']:.2%} |" in capsys.readouterr().out


def test_samples_limit_and_overlong_prompts(tmp_path, halfway, capsys):
    """Only the first four problems; the second is made too long, and the gold answer of the fourth makes no sense."""
    data = [json.loads(line) for line in (halfway / "val.jsonl").read_text().splitlines()]
    data[1]["problem"] += " Apply" + " lara" * 40
    data[3]["expected_answer"] = "\\frac{"
    (tmp_path / "val.jsonl").write_text("".join(json.dumps(row) + "\n" for row in data))
    line = [
        "--preset",
        "demo",
        "--data",
        tmp_path / "val.jsonl",
        "--limit",
        4,
        "--out",
        tmp_path / "out.jsonl",
    ]
    line += ["--samples", 8, "--temperature", 0.7, "--k", 1, 8]
    assert evaluate.main(list(map(str, [DEMO, *line]))) == 0
    rows = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert [row["problem"] for row in rows] == [0] * 8 + [1] * 8 + [2] * 8 + [3] * 8
    assert all(
        (row["reward"], row["status"], row["tokens"]) == (0, "overlong_prompt", 0)
        for row in rows[8:16]
    )
    assert all((row["reward"], row["status"]) == (0, "bad_gold") for row in rows[24:])
    right = [sum(row["reward"] for row in rows[at : at + 8]) for at in (0, 16)]
    assert 0 < sum(right) < 16  # problems that are solved half of the time, each sample drawn anew
    printed = capsys.readouterr().out
    assert f"| pass@1 | {sum(right) / 32:.2%} |" in printed
    assert f"| pass@8 | {sum(c > 0 for c in right) / 4:.2%} |" in printed
    assert "| overlong_prompt | 8 of 32 | |" in printed


def test_a_missing_box_is_forgiven_by_the_lenient_score_alone(
    monkeypatch, tmp_path, capsys, tiny_model
):
    """Six completions in the model's stead; gold 12 but for the last, whose gold makes no sense."""
    said = {
        "is $12$": ("no_box", 0, 1),
        "so 3 * 4 = 12 eggs": ("no_box", 0, 1),
        "makes 13": ("no_box", 0, 0),
        r"\boxed{12}": ("correct", 1, 1),
        r"\boxed{13}, or rather 12": ("wrong", 0, 0),  # with a box the two scores are one
        "12": ("bad_gold", 0, 0),
    }

    def generate(self, prompts, *_):
        ids = [self.tokenizer(text, add_special_tokens=False).input_ids for text in said]
        return evaluate.rollout.Rollouts(prompts, ids, [True] * 5 + [False], [[]] * 6)

    monkeypatch.setattr(evaluate.rollout, "check_model", lambda *_: None)
    monkeypatch.setattr(evaluate.rollout.Generator, "generate", generate)
    problems = [(f"q{i}", "12") for i in range(5)] + [("q5", "\\frac{")]
    path, out = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    train.write_lines(path, [{"problem": q, "expected_answer": a} for q, a in problems])
    config = train.parse(["--preset", "demo", "--model", str(tiny_model)])
    rows = evaluate.evaluate(config, problems, 1, 0.0)
    found = [(row["status"], row["reward"], row["lenient"]) for row in rows]
    assert found == list(said.values())
    assert [row["truncated"] for row in rows] == [False] * 5 + [True]
    line = [config.model, "--preset", "demo", "--data", path, "--out", out]
    assert evaluate.main(list(map(str, line))) == 0
    printed = capsys.readouterr().out
    assert "| pass@1, greedy | 16.67% |" in printed  # 1 and 3 of 6
    assert "| pass@1, greedy, lenient | 50.00% |" in printed
    assert "| cut at the token limit | 1 of 6 | |" in printed
    assert list(train.read_lines(out)[0]) == ["problem", "reward", "status", "tokens"]


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--k", "2"], "--k 2: must be from 1 to --samples 1"),
        (["--samples", "4"], "--samples 4: greedy samples are all alike; give --temperature"),
        (["--temperature", "nan"], "--temperature at least 0"),
        (["--limit", "0"], "must be at least 1"),
        (["--data", "nowhere.jsonl"], "nowhere.jsonl: no such data file"),
        (["--preset", "gpt"], "--preset gpt: choose from"),
        (["--max_prompt_tokens", "0"], "--max_prompt_tokens 0: must be in"),
        (["--chat_template"], "--chat_template: this model's tokenizer has no chat template"),
        (["--max_completion_tokens", "100000"], "has room for"),
    ],
)
def test_bad_input_is_one_line(flags, message, capsys):
    assert (
        evaluate.main([DEMO, *(flags if "--preset" in flags else ["--preset", "demo", *flags])])
        == 2
    )
    line = capsys.readouterr().err
    assert message in line
    assert line.count("\n") == 1


def test_a_folder_that_is_no_model(tmp_path, capsys):
    assert evaluate.main([str(tmp_path), "--preset", "demo"]) == 2
    assert "is no Hugging Face model folder" in capsys.readouterr().err

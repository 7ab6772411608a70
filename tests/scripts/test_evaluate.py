"""evaluate: the accuracy that train.py logs, pass@k by hand, the lenient score."""

import pandas as pd

import train
from plumbing.files import read_lines, write_lines
from scripts import evaluate
from tests.helpers import ranks


def rows_of(rewards, samples):
    problems = [i // samples for i in range(len(rewards))]
    rows = pd.DataFrame({"problem": problems, "reward": rewards, "lenient": rewards}, dtype=float)
    return rows.assign(status="wrong", tokens=4, truncated=False)


def test_summary_by_hand():
    """2 problems, 4 samples each, 1 and 3 right: pass@1 is 1/2, pass@2 is (1/2 + 1) / 2."""
    text = evaluate.summary("", rows_of([1, 0, 0, 0, 0, 1, 1, 1], 4), 4, [1, 2], greedy=False)
    # Each of the two is there twice in a quarter of resamples.
    assert "| pass@1 | 50.00% | 25.00% to 75.00% |" in text
    assert "| pass@2, lenient | 75.00% | 50.00% to 100.00% |" in text
    rows = rows_of([1] * 8 + [0] * 2, 1)
    rows.loc[9, ["status", "lenient", "truncated"]] = ["no_box", 1.0, True]
    text = evaluate.summary("", rows, 1, [1], greedy=True)
    # Wilson, z² = 3.8415: (0.8 + 0.19207) / 1.38415 ± 1.96 √(0.016 + 0.0096037) / 1.38415
    assert "| pass@1, greedy | 80.00% | 49.02% to 94.33% |" in text
    # (0.9 + 0.19207) / 1.38415 ± 1.96 √(0.009 + 0.0096037) / 1.38415
    assert "| pass@1, greedy, lenient | 90.00% | 59.58% to 98.21% |" in text
    assert "| no_box | 1 of 10 |" in text


def test_a_runs_student_has_the_runs_accuracy(tmp_path, halfway, capsys):
    """The same verdict for every problem. Groups of four straddled its ranks of three rows."""
    run, out, few = tmp_path / "run", tmp_path / "verdicts.jsonl", ("--max_completion_tokens", 32)
    flags = ("--sampler", "uniform", "--steps", 2, "--prompts_per_step", 3, *few)
    argv = ranks.command(run, *flags, "--verify_workers", 1, model=ranks.DEMO, data=halfway)
    ranks.on_ranks(4, tmp_path, lambda: train.main(argv))
    evaluate.main([str(run), "--out", str(out)])  # with the run's lengths and validation file
    assert out.read_text() == (run / "evals/step_2.jsonl").read_text()
    accuracy = read_lines(run / "metrics.jsonl")[2]["val_accuracy"]
    assert 0 < accuracy < 1
    assert f"| pass@1, greedy | {accuracy:.2%} |" in capsys.readouterr().out


def test_samples_limit_and_overlong_prompts(tmp_path, halfway, capsys):
    """The first three problems, of which the second is too long."""
    data, path, out = read_lines(halfway / "val.jsonl"), tmp_path / "val.jsonl", tmp_path / "out"
    data[1]["problem"] += " Apply" + " lara" * 40
    write_lines(path, data)
    flags = ["--preset", "demo", "--limit", 3, "--samples", 8, "--temperature", 0.7, "--k", 1, 8]
    evaluate.main([*map(str, [ranks.DEMO, "--data", path, "--out", out, *flags])])
    rows = pd.read_json(out, lines=True)
    assert set(rows.status[8:16]) == {"overlong_prompt"}
    assert rows.reward[8:16].sum() == rows.tokens[8:16].sum() == 0
    right = rows.groupby("problem").reward.sum()
    assert 0 < right.sum() < 16  # problems that are solved half of the time, each sample drawn anew
    printed = capsys.readouterr().out
    assert f"| pass@1 | {right.sum() / 24:.2%} |" in printed
    assert f"| pass@8 | {(right > 0).mean():.2%} |" in printed


def test_only_the_lenient_score_forgives_a_missing_box(monkeypatch, tiny_model, tmp_path):
    """Six completions instead of a model's. The reference answer is 12; the last is malformed."""
    expected = {
        "is $12$": ("no_box", 0, 1),
        "so 3 * 4 = 12 eggs": ("no_box", 0, 1),
        "makes 13": ("no_box", 0, 0),
        r"\boxed{12}": ("correct", 1, 1),
        r"\boxed{13}, or rather 12": ("wrong", 0, 0),  # with a box the two scores are the same
        "12": ("bad_gold", 0, 0),
    }

    def generate(self, prompts, *_, **options):
        ids = [self.tokenizer(text, add_special_tokens=False).input_ids for text in expected]
        return evaluate.rollout.Rollouts(prompts, ids, [True] * 5 + [False], [[]] * 6)

    monkeypatch.setattr(evaluate.rollout.Generator, "generate", generate)
    golds = 5 * ["12"] + ["\\frac{"]
    rows = [{"problem": f"q{i}", "expected_answer": gold} for i, gold in enumerate(golds)]
    write_lines(tmp_path / "data.jsonl", rows)
    problems = evaluate.Problems(tmp_path / "data.jsonl")
    config = train.parse(["--preset", "demo", "--model", str(tiny_model)])
    rows = evaluate.evaluate(config, problems, range(6), 1, 0.0)
    scores = rows[["status", "reward", "lenient"]].itertuples(index=False, name=None)
    assert list(scores) == list(expected.values())
    assert rows.truncated.tolist() == [False] * 5 + [True]


ANSWERS = {
    # After "answer is" or "answer:", whatever follows it.
    "The answer is $\\frac{3}{4}$. I used $x = 9$.": "\\frac{3}{4}",
    "Answer: 12 apples, as 3 * 4 says": "12",
    "**Answer:** -2.5": "-2.5",
    "The answer is 2x + 1.": "2x + 1",
    "The answer is $18.": "$18",  # money, which the verifier reads as 18
    "The answer is:\n\\[\n x = \\sqrt{2}\n\\]": "\\sqrt{2}",
    "We get $x = 40$.\n\n### Final Answer\n42": "42",
    # The last formula.
    "First $a = 3$, and so \\(b = 4\\), in 2 ways.": "4",
    "$\\sum_{k=1}^n k$": "\\sum_{k=1}^n k",  # an "=" in brackets is none
    "\\[\\begin{aligned} x &= 2 + 3 \\\\ &= 5 \\end{aligned}\\]": "5",
    "$$\\begin{pmatrix} 1 \\\\ 2 \\end{pmatrix}$$": "\\begin{pmatrix} 1 \\\\ 2 \\end{pmatrix}",
    # The last number.
    "It costs $5 and then $6 more": "6",
    "There are 12 in the unfinished \\boxed{12": "12",
    "I do not know $$": "",
}


def test_last_answer_of_a_text():
    assert {text: evaluate.last_answer(text) for text in ANSWERS} == ANSWERS


def test_long_texts_take_no_time():
    """Thousands of unclosed marks: a pattern that tries each again would take minutes."""
    for mark in ("$", "$$ ", "\\[", "\\( ", "answer is ", "= ", "{", "1,", "1/"):
        evaluate.last_answer(mark * 3000)

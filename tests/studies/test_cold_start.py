"""Demonstrations of the cold start, and its training."""

import random
import re
from pathlib import Path

import pytest
from sympy import sympify
from transformers import pipeline

from plumbing.files import write_lines
from scripts import reasoning_tasks
from studies import cold_start
from tests.helpers.optional import need_reasoning_gym

ROW = {
    "problem": "2 + 3 =",
    "expected_answer": "5",
    "task": "chain_sum",
    "level": 1,
    "extra_info": {"expression": "2 + 3"},
}
SHOWN = [(ROW["problem"], r" 2 + 3 = 5. \boxed{5}")]
EQUATION = re.compile(r"(?:^|\. |: ) ?(-?\d+ [-+*/] -?\d+) = (-?\d+)(?=\.)")


def test_a_share_of_the_demonstrations_is_direct():
    rng = random.Random(0)
    assert cold_start.demonstrations([ROW], 0.0, rng) == SHOWN
    shown = cold_start.demonstrations([ROW] * 1000, 0.25, rng)
    direct = sum(completion == r" \boxed{5}" for _, completion in shown)
    assert 200 < direct < 300


def test_products_by_hand():
    """The places of 304, one of them 0; a single digit needs no sum."""
    assert cold_start.products({"expression": "12 * 304"}) == (
        "12 * 300 = 3600. 12 * 0 = 0. 12 * 4 = 48. 3600 + 0 + 48 = 3648."
    )
    assert cold_start.products({"expression": "12 * 4"}) == "12 * 4 = 48."


def test_easy_levels_of_all_tasks_have_steps_and_each_with_two_operands_is_right():
    need_reasoning_gym()
    rows = reasoning_tasks.rows(per_level=8, hardest=cold_start.EASY)
    rows = [row for row in rows if row["expected_answer"]]
    shown = cold_start.demonstrations(rows, 0.0, random.Random(0))
    steps = [step for _, completion in shown for step in EQUATION.findall(completion)]
    wrong = [(left, right) for left, right in steps if sympify(left) != int(right)]
    assert len(steps) > len(rows)
    assert wrong == []


def test_a_new_models_tokens_have_one_digit_at_most_and_give_the_text_back():
    tokenizer = cold_start.make_tokenizer(["12 + 34 = 46. \\boxed{46}"] * 3)
    ids = tokenizer("1234 = 46").input_ids
    assert tokenizer.decode(ids) == "1234 = 46"
    assert all(sum(map(str.isdigit, tokenizer.decode([each]))) <= 1 for each in ids)


def test_a_new_model_learns_rows_of_ones_own(tmp_path, capsys):
    """The model's greedy answer to a prompt that it was shown."""
    rows = [
        {"problem": "Reverse: kex", "solution": r"\boxed{xek}"},
        {"problem": "Hi", "solution": ""},
    ]
    write_lines(tmp_path / "shown.jsonl", rows)
    flags = f"new --rows {tmp_path}/shown.jsonl --out {tmp_path} --prompt_footer Solution:"
    flags += " --steps 30 --batch 2 --learning_rate 2e-3"
    cold_start.main(flags.split())
    assert "of 2 solutions 1 have no" in capsys.readouterr().out
    solve = pipeline("text-generation", str(tmp_path))
    [answer] = solve("Reverse: kex\n\nSolution:", max_new_tokens=20, return_full_text=False)
    assert answer["generated_text"] == r" \boxed{xek}"


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ("any --rows shown.jsonl --direct 0", "--direct: the rows of --rows are shown as they are"),
        ("any --rows shown.jsonl --demonstrations 960", "--demonstrations: with --rows, or for"),
        ("new --demonstrations 960", "--demonstrations: with --rows, or for a new model, all rows"),
        ("new --rows none.jsonl", "none.jsonl: has no rows"),  # it would look for one for ever
        ("any", "hard.jsonl: run scripts.prepare_data"),
    ],
)
def test_ignored_flags_and_data_without_demonstrations_are_rejected(
    flags, message, tmp_path, monkeypatch, capsys
):
    """Of the training data only easy rows are shown."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(cold_start, "DATA", Path("hard.jsonl"))
    write_lines(Path("hard.jsonl"), [ROW | {"level": 3}])
    Path("none.jsonl").touch()
    write_lines(Path("shown.jsonl"), [{"problem": "Hi", "solution": r"\boxed{1}"}])
    with pytest.raises(SystemExit):
        cold_start.main(flags.split())
    assert message in capsys.readouterr().err

"""Demonstrations of the cold start, and its training."""

import random
import re

import pytest
import torch
from sympy import sympify
from transformers import AutoTokenizer

from plumbing.config import DEMO
from plumbing.errors import InputError
from plumbing.files import write_lines
from rollout import Policy
from scripts import reasoning_tasks
from studies import cold_start
from tests.helpers.optional import need_reasoning_gym

ROW = {"problem": "2 + 3 - 1 =", "expected_answer": "4", "task": "chain_sum", "level": 1}
ROW |= {"extra_info": {"expression": "2 + 3 - 1"}}
SHOWN = [(ROW["problem"], r" 2 + 3 = 5. 5 - 1 = 4. \boxed{4}")]
EQUATION = re.compile(r"(?:^|\. |: ) ?(-?\d+ [-+*/] -?\d+) = (-?\d+)(?=\.)")


def test_a_share_of_the_demonstrations_is_direct():
    shown = cold_start.demonstrations([ROW] * 1000, 0.25, random.Random(0))
    direct = sum(completion == r" \boxed{4}" for _, completion in shown)
    assert 200 < direct < 300


def test_a_share_of_0_leaves_the_random_stream_as_it_is():
    rng = random.Random(0)
    assert cold_start.demonstrations([ROW], 0.0, rng) == SHOWN
    assert rng.random() == random.Random(0).random()


def test_products_by_hand():
    """The places of 304, one of them 0; a single digit needs no sum."""
    assert cold_start.products({"expression": "12 * 304"}) == (
        "12 * 300 = 3600. 12 * 0 = 0. 12 * 4 = 48. 3600 + 0 + 48 = 3648."
    )
    assert cold_start.products({"expression": "12 * 4"}) == "12 * 4 = 48."


def test_all_tasks_and_levels_have_steps_and_each_with_two_operands_is_right():
    need_reasoning_gym()
    rows = [row for row in reasoning_tasks.rows(per_level=4) if row["expected_answer"]]
    shown = cold_start.demonstrations(rows, 0.0, random.Random(0))
    steps = [step for _, completion in shown for step in EQUATION.findall(completion)]
    wrong = [(left, right) for left, right in steps if sympify(left) != int(right)]
    assert len(steps) > len(rows)
    assert wrong == []


def test_fit_lowers_the_loss_of_completions_and_their_end_token():
    torch.manual_seed(0)
    tokenizer = AutoTokenizer.from_pretrained(f"{DEMO}/model")
    policy = Policy.load(f"{DEMO}/model", torch.device("cpu"))
    [(prompt, completion)] = rows = cold_start.encoded(SHOWN, tokenizer)
    assert completion.ids[-1] == tokenizer.eos_token_id != prompt[-1]
    batch = cold_start.collate(rows, torch.device("cpu"))
    before = -policy(batch, 1.0)[0].mean()
    cold_start.fit(policy, rows, 5, 2, 1e-3, random.Random(0))
    assert -policy(batch, 1.0)[0].mean() < before


def test_data_without_easy_rows_are_rejected(tmp_path):
    """Also a file that is missing, which has no rows."""
    path = tmp_path / "train.jsonl"
    write_lines(path, [ROW | {"level": 3}])
    for name in (path, tmp_path / "none.jsonl"):
        with pytest.raises(InputError, match="no such file, or no row of levels up to 2"):
            cold_start.easy_rows(name)


def test_a_new_models_tokens_have_one_digit_at_most_and_give_the_text_back():
    tokenizer = cold_start.make_tokenizer(["12 + 34 = 46. \\boxed{46}"] * 3)
    ids = tokenizer("1234 = 46").input_ids
    assert tokenizer.decode(ids) == "1234 = 46"
    assert all(sum(map(str.isdigit, tokenizer.decode([each]))) <= 1 for each in ids)

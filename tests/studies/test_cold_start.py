"""Demonstrations of the cold start, and its training."""

import random
import re
from fractions import Fraction

import pytest
import torch
from transformers import AutoTokenizer

from plumbing.config import DEMO, Config
from plumbing.errors import InputError
from plumbing.files import write_lines
from rollout import Policy
from scripts import reasoning_tasks
from studies import cold_start
from studies.cold_start import easy_rows
from tests.helpers.optional import need_reasoning_gym
from verify import extract_boxed

ROW = {"problem": "2 + 3 - 1 =", "expected_answer": "4", "task": "chain_sum", "level": 1}
ROW |= {"extra_info": {"expression": "2 + 3 - 1"}}
SHOWN = [(ROW["problem"], cold_start.demonstration(ROW))]
EQUATION = re.compile(r"(?:^|\. |: ) ?(-?\d+) ([-+*/]) (-?\d+) = (-?\d+)(?=\.)")
OPERATIONS = {"+": Fraction.__add__, "-": Fraction.__sub__}
OPERATIONS |= {"*": Fraction.__mul__, "/": Fraction.__truediv__}


@pytest.fixture(scope="module")
def rows() -> list[dict]:
    need_reasoning_gym()
    return [row for row in reasoning_tasks.rows(per_level=4) if row["expected_answer"]]


def test_a_demonstration_is_steps_and_a_box():
    assert cold_start.demonstration(ROW) == r" 2 + 3 = 5. 5 - 1 = 4. \boxed{4}"


def test_a_direct_demonstration_is_a_box():
    assert cold_start.demonstration(ROW, direct=True) == r" \boxed{4}"


def test_a_share_of_the_demonstrations_is_direct():
    shown = cold_start.demonstrations([ROW] * 1000, 0.25, random.Random(0))
    direct = sum(completion == r" \boxed{4}" for _, completion in shown)
    assert 200 < direct < 300


def test_a_share_of_0_leaves_the_random_stream_as_it_is():
    rng = random.Random(0)
    assert cold_start.demonstrations([ROW], 0.0, rng) == SHOWN
    assert rng.random() == random.Random(0).random()


def test_every_task_has_steps():
    assert cold_start.STEPS.keys() == reasoning_tasks.LEVELS.keys()


def test_demonstrations_end_in_the_answer_at_all_levels(rows):
    answers = [extract_boxed(cold_start.demonstration(row)) for row in rows]
    assert answers == [row["expected_answer"] for row in rows]


def test_each_step_with_two_operands_is_right(rows):
    steps = [step for row in rows for step in EQUATION.findall(cold_start.demonstration(row))]
    wrong = [
        (left, sign, right, result)
        for left, sign, right, result in steps
        if OPERATIONS[sign](Fraction(left), Fraction(right)) != int(result)
    ]
    assert len(steps) > len(rows)
    assert wrong == []


def test_the_loss_covers_the_completion_and_its_end_token():
    tokenizer = AutoTokenizer.from_pretrained(f"{DEMO}/model")
    config = Config(**cold_start.FORMAT)
    [(prompt, completion)] = cold_start.supervised_rows(SHOWN, config, tokenizer, 7)
    assert completion.ids[-1] == 7
    assert prompt[-1] != 7


def test_fit_lowers_the_loss():
    torch.manual_seed(0)
    policy = Policy.load(f"{DEMO}/model", torch.device("cpu"))
    tokenizer = AutoTokenizer.from_pretrained(f"{DEMO}/model")
    rows = cold_start.supervised_rows(SHOWN, Config(**cold_start.FORMAT), tokenizer, 1)
    batch = cold_start.collate(rows, torch.device("cpu"))
    before = -policy(batch, 1.0)[0].mean()
    cold_start.fit(policy, rows, 5, 2, 1e-3, random.Random(0))
    assert -policy(batch, 1.0)[0].mean() < before


BAD_DATA = {  # the rows; the error
    "missing": (None, "no such file"),
    "of another source": ([{"problem": "1 + 1", "expected_answer": "2"}], "must have task, level"),
    "hard only": (
        [{"task": "lcm", "level": 5, "extra_info": {}}],
        "no row has a level of at most 2",
    ),
}


@pytest.mark.parametrize("case", BAD_DATA)
def test_unfit_data_are_rejected(case, tmp_path):
    rows, message = BAD_DATA[case]
    path = tmp_path / "train.jsonl"
    if rows:
        write_lines(path, rows)
    with pytest.raises(InputError, match=message):
        easy_rows(path, 2)


def test_a_new_models_tokens_have_one_digit_at_most_and_give_the_text_back():
    tokenizer = cold_start.make_tokenizer(["12 + 34 = 46. \\boxed{46}"] * 3)
    ids = tokenizer("1234 = 46").input_ids
    assert tokenizer.decode(ids) == "1234 = 46"
    assert all(sum(map(str.isdigit, tokenizer.decode([each]))) <= 1 for each in ids)

"""The shipped demo is what experiments/toy_task.py says it is, and in the paper's regime."""

import itertools
import json
import math
import re

import pandas as pd
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from experiments import toy_task
from plumbing.files import read_lines
from tests.helpers.models import ROOT
from verify import extract_boxed

DEMO = ROOT / "demo"
TASK = toy_task.Task()
SKILLS = toy_task.make_skills(TASK, seed=0)
TRAIN, VAL = read_lines(DEMO / "train.jsonl"), read_lines(DEMO / "val.jsonl")


def test_demo_data_are_the_seeds_to_the_byte_and_have_no_problem_twice():
    assert len({row["problem"] for row in TRAIN + VAL}) == 12_000 + 600 == len(TRAIN + VAL)
    rows = toy_task.make_problems(len(VAL) + len(TRAIN), TASK, SKILLS, seed=0)
    text = "".join(json.dumps(row) + "\n" for row in rows)
    assert text == (DEMO / "val.jsonl").read_text() + (DEMO / "train.jsonl").read_text()


def test_rows_follow_from_their_text_and_only_the_right_reading_gives_the_answer():
    for row in TRAIN + VAL:
        parts = re.fullmatch(r"(\w+): Start at (\d+)\. Apply (.+)\.", row["problem"])
        topic, state, words = parts[1], parts[2], parts[3].split()
        assert {topic} == {row["topic"]} == {SKILLS[word].topic for word in words}
        assert row["length"] == len(words) == len(set(words))
        # All 2^n choices of rule or habit, the right one first.
        choices = itertools.product(*((SKILLS[w].rule, SKILLS[w].habit) for w in words))
        solutions = (toy_task.solution(state, words, rules) for rules in choices)
        right, *wrong = map(extract_boxed, solutions)
        assert right == row["expected_answer"] not in wrong
        # Nonzero digits only: equal numbers are equal texts, so the verifier cannot be lenient.
        assert len(right) == 3 and set(right) <= {*"123456789"}
        p = math.prod(SKILLS[word].rate for word in words)
        assert 2 ** -row["difficulty"] == pytest.approx(p, rel=0.01)


def test_base_model_is_in_the_papers_regime():
    """Few problems are mastered, some within reach, most out of reach."""
    tokenizer = AutoTokenizer.from_pretrained(DEMO / "model")
    model = AutoModelForCausalLM.from_pretrained(DEMO / "model").eval()
    torch.manual_seed(0)
    recorded = pd.DataFrame(json.loads((DEMO / "statistics.json").read_text())["validation"]).T
    assert recorded.all_wrong["all"] + recorded.all_right["all"] >= 0.7
    # Two problems more or less: another CPU may round otherwise.
    greedy = toy_task.graded(model, tokenizer, VAL, 1, 0.0).mean().item()
    assert greedy == pytest.approx(recorded.greedy["all"], abs=0.004)
    rates = dict(zip(toy_task.TOPICS, TASK.rates, strict=True))
    for kind in set(TASK.rates):
        rows = [row for row in VAL if rates[row["topic"]] == kind][:60]
        p_hat = toy_task.graded(model, tokenizer, rows, 16, 0.7).mean().item()
        designed = sum(2 ** -row["difficulty"] for row in rows) / len(rows)
        assert p_hat == pytest.approx(designed, abs=0.05), kind
        assert kind != toy_task.OUT or p_hat == 0

"""The shipped demo is what studies/toy_task.py says it is, and in the paper's regime."""

import itertools
import json
import math
import re

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from plumbing.files import read_lines
from studies import toy_task
from tests.helpers.models import ROOT
from verify import extract_boxed

DEMO = ROOT / "demo"
TASK = toy_task.Task()
SKILLS = toy_task.make_skills(TASK, seed=0)
TRAIN = read_lines(DEMO / "train.jsonl")
VAL = read_lines(DEMO / "val.jsonl")


def test_demo_data_have_no_problem_twice():
    assert len(TRAIN) == 12_000
    assert len(VAL) == 600
    assert len({row["problem"] for row in TRAIN + VAL}) == 12_600


def test_demo_data_are_the_seeds_to_the_byte():
    rows = toy_task.make_problems(len(VAL) + len(TRAIN), TASK, SKILLS, seed=0)
    text = "".join(json.dumps(row) + "\n" for row in rows)
    assert text == (DEMO / "val.jsonl").read_text() + (DEMO / "train.jsonl").read_text()


def parts_of(row) -> tuple[str, str, list[str]]:
    """Split a problem's text into its topic, its start and its words."""
    match = re.fullmatch(r"(\w+): Start at (\d+)\. Apply (.+)\.", row["problem"])
    return match[1], match[2], match[3].split()


def test_a_problems_words_are_different_ones_of_its_topic():
    for row in TRAIN + VAL:
        topic, _, words = parts_of(row)
        assert topic == row["topic"]
        assert {SKILLS[word].topic for word in words} == {topic}
        assert len(words) == row["length"]
        assert len(set(words)) == len(words)


def test_only_the_right_reading_of_a_problem_gives_its_answer():
    for row in TRAIN + VAL:
        _, state, words = parts_of(row)
        # All 2^n choices of rule or habit, the right one first.
        choices = itertools.product(*((SKILLS[w].rule, SKILLS[w].habit) for w in words))
        solutions = (toy_task.solution(state, words, rules) for rules in choices)
        right, *wrong = map(extract_boxed, solutions)
        assert right == row["expected_answer"]
        assert right not in wrong


def test_answers_have_three_digits_other_than_0():
    """So that equal numbers are equal texts, and the verifier cannot be lenient."""
    for row in TRAIN + VAL:
        assert re.fullmatch("[1-9]{3}", row["expected_answer"])


def test_a_problems_difficulty_is_the_product_of_its_skills_rates():
    for row in TRAIN + VAL:
        _, _, words = parts_of(row)
        p = math.prod(SKILLS[word].rate for word in words)
        assert 2 ** -row["difficulty"] == pytest.approx(p, rel=0.01)


def sampled(model, tokenizer, rows: list[dict], copies: int) -> torch.Tensor:
    """Which of so many completions of each row, drawn at temperature 0.7, are right."""
    torch.manual_seed(0)
    prompts = [f"{row['problem']}\n\n{toy_task.FOOTER}" for row in rows for _ in range(copies)]
    batch = tokenizer(prompts, padding=True, padding_side="left", return_tensors="pt")
    out = model.generate(
        input_ids=batch.input_ids,
        attention_mask=batch.attention_mask,
        do_sample=True,
        temperature=toy_task.TEMPERATURE,
        top_k=0,
        max_new_tokens=64,
    )
    texts = tokenizer.batch_decode(out[:, batch.input_ids.shape[1] :], skip_special_tokens=True)
    golds = [row["expected_answer"] for row in rows for _ in range(copies)]
    right = [float(extract_boxed(t) == gold) for t, gold in zip(texts, golds, strict=True)]
    return torch.tensor(right).view(-1, copies)


@pytest.mark.parametrize("rate", sorted(set(TASK.rates)))
def test_the_base_model_solves_each_kind_of_topic_as_designed(rate):
    """Few problems are mastered, some within reach, most out of reach."""
    model = AutoModelForCausalLM.from_pretrained(DEMO / "model").eval()
    tokenizer = AutoTokenizer.from_pretrained(DEMO / "model")
    rates = dict(zip(toy_task.TOPICS, TASK.rates, strict=True))
    rows = [row for row in VAL if rates[row["topic"]] == rate][:60]
    p_hat = sampled(model, tokenizer, rows, 16).mean().item()
    designed = sum(2 ** -row["difficulty"] for row in rows) / len(rows)
    assert p_hat == pytest.approx(designed, abs=0.05)
    if rate == toy_task.OUT:
        assert p_hat == 0

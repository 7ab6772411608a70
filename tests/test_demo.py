"""The shipped demo is what scripts/make_demo.py says it is, with the statistics asked of it."""

import itertools
import json
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from plumbing.files import read_lines
from scripts import make_demo

DEMO = Path(__file__).parent.parent / "demo"
SKILLS = make_demo.make_skills(seed=0)


TRAIN, VAL = read_lines(DEMO / "train.jsonl"), read_lines(DEMO / "val.jsonl")


@pytest.fixture(scope="module")
def tokenizer():
    return AutoTokenizer.from_pretrained(DEMO / "model")


@pytest.fixture(scope="module")
def model():
    return AutoModelForCausalLM.from_pretrained(DEMO / "model").eval()


def solutions(problem):
    """The 2^n solutions with every choice of rule or habit, the right one first."""
    state, words = make_demo.parse(problem)
    choices = itertools.product(*(SKILLS[w][:2] for w in words))
    return (make_demo.solution(state, words, rules) for rules in choices)


def test_folder_is_small_and_no_problem_is_there_twice():
    assert sum(f.stat().st_size for f in DEMO.rglob("*") if f.is_file()) < 4_000_000
    assert len({row["problem"] for row in TRAIN + VAL}) == 16_000 + 360 == len(TRAIN + VAL)


def test_rows_follow_from_the_seed_and_from_their_own_text():
    assert make_demo.make_problems(len(VAL) + 50, SKILLS, seed=0) == VAL + TRAIN[:50]
    for row in TRAIN + VAL:
        state, words = make_demo.parse(row["problem"])
        assert make_demo.question(state, words) == row["problem"]
        assert make_demo.boxed(next(solutions(row["problem"]))) == row["expected_answer"]
        assert row["length"] == len(words) == len(set(words)) and set(words) <= {*make_demo.WORDS}
        p = make_demo.pass_rate(words, SKILLS)
        assert 2 ** -row["difficulty"] == pytest.approx(p, rel=0.01)
        # Nonzero digits only: equal numbers are equal texts, so the verifier cannot be lenient.
        assert len(row["expected_answer"]) == 3 and set(row["expected_answer"]) <= {*"123456789"}


def test_rules_by_hand():
    assert make_demo.apply_rule("roll", "473") == "734"
    assert make_demo.apply_rule("rise", "891") == "912"
    assert make_demo.apply_rule("fall", "124") == "913"
    assert make_demo.apply_rule("head", "715") == "115"
    text = make_demo.solution("473", ["molo", "bami"], ["roll", "rise"])
    assert text == r" 473 molo roll 734 bami rise 845 \boxed{845}"


def test_only_the_right_reading_of_every_word_gives_the_answer():
    for row in VAL[:120]:
        answers = [make_demo.boxed(text) for text in solutions(row["problem"])]
        assert answers.count(row["expected_answer"]) == 1


def test_tokenizer_returns_every_text_exactly(tokenizer):
    assert tokenizer.pad_token_id != tokenizer.eos_token_id
    rows = TRAIN[::16] + VAL
    prompts = [f"{row['problem']}\n\n{make_demo.FOOTER}" for row in rows]
    completions = [next(solutions(row["problem"])) for row in rows]
    prompt_ids, completion_ids = tokenizer(prompts).input_ids, tokenizer(completions).input_ids
    assert tokenizer.batch_decode(prompt_ids) == prompts
    assert tokenizer.batch_decode(completion_ids) == completions
    whole = tokenizer([p + c for p, c in zip(prompts, completions, strict=True)]).input_ids
    assert whole == [p + c for p, c in zip(prompt_ids, completion_ids, strict=True)]


def test_base_model_has_the_designed_rates_and_the_recorded_accuracy(model, tokenizer):
    def share_right(rows, copies, temperature):
        return make_demo.graded(model, tokenizer, rows, copies, temperature).mean().item()

    torch.manual_seed(0)
    rows = sorted(VAL, key=lambda row: row["difficulty"])
    middle = [row for row in rows if 0.5 < row["difficulty"] < 2.5]
    designed = sum(2 ** -row["difficulty"] for row in middle) / len(middle)
    assert share_right(rows[:8], 16, 0.7) > 0.9
    assert share_right(middle, 16, 0.7) == pytest.approx(designed, abs=0.08)
    assert share_right(rows[-40:], 8, 0.7) == 0
    whole = json.loads((DEMO / "statistics.json").read_text())["validation"]["all"]
    assert 0.05 <= whole["greedy"] <= 0.3 and 0.7 < whole["all_wrong"] + whole["all_right"] < 0.9
    # Two problems more or less: another CPU may round otherwise.
    assert share_right(VAL, 1, 0.0) == pytest.approx(whole["greedy"], abs=0.006)

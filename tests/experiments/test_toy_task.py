"""The shipped demo is what experiments/toy_task.py says it is, with the statistics asked of it."""

import itertools
import json
from pathlib import Path

import pandas as pd
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from experiments import toy_task
from plumbing.files import read_lines

DEMO = Path(__file__).parent.parent / "demo"
WORLD = toy_task.World()
SKILLS = toy_task.make_skills(WORLD, seed=0)
TRAIN, VAL = read_lines(DEMO / "train.jsonl"), read_lines(DEMO / "val.jsonl")


def solutions(problem):
    """The 2^n solutions with every choice of rule or habit, the right one first."""
    state, words = toy_task.parse(problem)
    choices = itertools.product(*((SKILLS[w].rule, SKILLS[w].habit) for w in words))
    return (toy_task.solution(state, words, rules) for rules in choices)


def test_folder_is_small_and_no_problem_is_there_twice():
    assert sum(f.stat().st_size for f in DEMO.rglob("*") if f.is_file()) < 4_000_000
    assert len({row["problem"] for row in TRAIN + VAL}) == 12_000 + 600 == len(TRAIN + VAL)


def test_rows_follow_from_the_seed_and_from_their_own_text():
    assert toy_task.make_problems(len(VAL) + 50, WORLD, SKILLS, seed=0) == VAL + TRAIN[:50]
    for row in TRAIN + VAL:
        state, words = toy_task.parse(row["problem"])
        text = f"{row['book']}: Start at {state}. Apply {' '.join(words)}."
        assert text == row["problem"] and {SKILLS[word].book for word in words} == {row["book"]}
        assert toy_task.boxed(next(solutions(row["problem"]))) == row["expected_answer"]
        assert row["length"] == len(words) == len(set(words))
        p = toy_task.pass_rate(words, SKILLS)
        assert 2 ** -row["difficulty"] == pytest.approx(p, rel=0.01)
        # Nonzero digits only: equal numbers are equal texts, so the verifier cannot be lenient.
        assert len(row["expected_answer"]) == 3 and set(row["expected_answer"]) <= {*"123456789"}


def test_solutions_by_hand():
    text = toy_task.solution("473", ["molo", "bami"], ["roll", "rise"])
    assert text == r" 473 molo roll 734 bami rise 845 \boxed{845}"
    wordy = toy_task.solution("473", ["molo", "bami"], ["roll", "rise"], twice=["molo"])
    assert wordy == r" 473 molo roll 734 molo roll 734 bami rise 845 \boxed{845}"


def test_only_the_right_reading_of_every_word_gives_the_answer():
    for row in VAL[:120]:
        answers = [toy_task.boxed(text) for text in solutions(row["problem"])]
        assert answers.count(row["expected_answer"]) == 1


def test_base_model_is_in_the_papers_regime():
    """Few problems are mastered, some within reach, most out of reach."""
    tokenizer = AutoTokenizer.from_pretrained(DEMO / "model")
    model = AutoModelForCausalLM.from_pretrained(DEMO / "model").eval()
    torch.manual_seed(0)
    recorded = pd.DataFrame(json.loads((DEMO / "statistics.json").read_text())["validation"]).T
    assert 0.1 <= recorded.greedy["all"] <= 0.16
    assert recorded.all_wrong["all"] + recorded.all_right["all"] >= 0.7
    # Two problems more or less: another CPU may round otherwise.
    greedy = toy_task.graded(model, tokenizer, VAL, 1, 0.0).mean().item()
    assert greedy == pytest.approx(recorded.greedy["all"], abs=0.004)
    kinds = {kind: [] for kind in WORLD.rates}
    for row in VAL:
        kinds[WORLD.rates[toy_task.BOOKS.index(row["book"])]].append(row)
    for kind, rows in kinds.items():
        p_hat = toy_task.graded(model, tokenizer, rows[:60], 16, 0.7).mean().item()
        designed = sum(2 ** -row["difficulty"] for row in rows[:60]) / len(rows[:60])
        assert p_hat == pytest.approx(designed, abs=0.05), kind
        assert kind != toy_task.OUT or p_hat == 0

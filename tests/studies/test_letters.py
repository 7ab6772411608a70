"""The letters task: its puzzles, and a base model that can spell them."""

import random
from collections import Counter

import pytest
import torch
from transformers import AutoTokenizer

from plumbing.files import read_lines
from rollout import Policy
from studies.useful import letters

PUZZLES = {  # family, size and seed: problem, answer, steps
    ("reverse", 4, 0): ("Reverse: mynb", "bnym", ""),
    ("sort", 3, 0): ("Sort: m y n", "mny", ""),
    # 7 + 10 = 17; 17 - 21 = -4, which is 96; 96 * 85 = 8160
    ("mod", 3, 2): ("Mod 100: 07 + 10 - 21 * 85", "60", "17 96 60"),
}


@pytest.mark.parametrize("puzzle", PUZZLES)
def test_puzzles_by_hand(puzzle):
    """Operations go from left to right, modulo 100."""
    family, size, seed = puzzle
    assert letters.make_puzzle(family, size, random.Random(seed)) == PUZZLES[puzzle]


def test_problems_are_distinct_and_those_to_validate_on_are_not_trained_on():
    training, validation = letters.make_problems()
    texts = [row["problem"] for row in training + validation]
    assert len(texts) == len({*texts}) == 24_400
    families = Counter(row["family"] for row in training)
    # The weight is 5%, but small sizes of the others have few distinct problems.
    assert 0.05 < families["mod"] / len(training) < 0.06
    assert {row["size"] for row in validation if row["family"] != "mod"} == {*range(6, 13)}


def test_a_folder_has_a_model_whose_tokens_spell_its_problems(monkeypatch, tmp_path):
    for name, value in (("DEMONSTRATIONS", 20), ("TRAIN", 50), ("VALIDATION", 5)):
        monkeypatch.setattr(letters, name, value)
    monkeypatch.setattr("sys.argv", ["letters", "--out", str(tmp_path)])
    letters.main()
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "untrained")
    for row in read_lines(tmp_path / "train.jsonl"):
        text = f"{row['problem']}\n\n{letters.FOOTER} \\boxed{{{row['expected_answer']}}}"
        ids = tokenizer(text).input_ids
        assert tokenizer.decode(ids) == text
        assert tokenizer.unk_token_id not in ids
    Policy.load(str(tmp_path / "untrained"), torch.device("cpu"))

"""The letters task: its puzzles, and a base model that can spell them."""

import random
from collections import Counter

import torch
from transformers import AutoTokenizer

from plumbing.files import read_lines
from rollout import Policy
from studies.useful import letters


def test_puzzles_by_hand():
    """Operations go from left to right, modulo 100."""
    rng = random.Random(0)
    for family in letters.SIZES_OF:
        for size in letters.SIZES_OF[family]:
            problem, answer, steps = letters.make_puzzle(family, size, rng)
            name, _, text = problem.partition(": ")
            if family == "reverse":
                assert (name, text, len(text)) == ("Reverse", answer[::-1], size)
            elif family == "sort":
                assert (name, sorted(text.split()), size) == ("Sort", [*answer], len(answer))
            else:
                value, *rest = text.split()
                results = []
                for operation, number in zip(rest[::2], rest[1::2], strict=True):
                    value = f"{eval(f'{int(value)} {operation} {int(number)}') % 100:02d}"
                    results.append(value)
                assert (name, answer, steps) == ("Mod 100", value, " ".join(results))
                assert len(results) == size


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


def test_demonstrations_end_with_the_answer_in_a_box():
    for row in letters.demonstrations(100):
        *steps, box = row["solution"].split(" ")
        answer = box.removeprefix("\\boxed{").removesuffix("}")
        name, _, text = row["problem"].partition(": ")
        if name == "Mod 100":
            assert steps[-1] == answer
            assert len(steps) == len(text.split()) // 2
        else:
            assert steps == []
            assert sorted(answer) == sorted(text.replace(" ", ""))

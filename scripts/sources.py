r"""The data sets that prepare_data.py knows, and how it reads a row of each.

docs/data.md says where the format of each data set was looked up.
"""

import re
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from plumbing.data.rows import check_fields, is_finite, text_of
from plumbing.errors import InputError
from scripts import reasoning_tasks
from verify import extract_boxed


@dataclass(frozen=True)
class Source:
    """The format of a data set. `prompt.0.content` names a column inside a column."""

    hub_id: str
    splits: str  # words; a file is read if its name contains one of them
    config: str = ""  # folder in which the files are
    problem: str = "problem"  # column
    cut: str = ""  # regular expression for the whole text; its group 1 is the problem
    gold: str = "answer"  # column of the reference answer
    reading: str = ""  # where it stands: "box", the last \boxed{}; "####", after it; "", all of it
    only: str = ""  # words: COLUMN=VALUE keeps such rows alone, COLUMN!=VALUE drops them
    rate: str = ""  # column with another model's success rate, written as `pass_rate`
    keep: str = ""  # column that is copied, such as a difficulty; "*" copies all others
    held_out: str = ""  # source to validate on; "" holds val_size of its own problems out
    evaluation: bool = False  # a test set: all of it is validation data
    val_size: int = 5000  # problems held out without --val_size (paper, Dataset Details)

    @property
    def is_generated(self) -> bool:
        """Whether a Python package, PACKAGE==VERSION, makes the rows."""
        return "==" in self.hub_id

    @cached_property
    def conditions(self) -> list[tuple[str, str, str]]:
        """The words of `only` as (column, "=" or "!=", value)."""
        return [re.fullmatch("(.+?)(!?=)(.+)", word).groups() for word in self.only.split()]

    @property
    def columns(self) -> list[str]:
        """The columns that must exist."""
        paths = [self.problem, self.gold, self.rate, self.keep.strip("*")]
        paths += [column for column, _, _ in self.conditions]
        return sorted({path.partition(".")[0] for path in paths if path})

    def problem_of(self, row: dict, location: str) -> str | None:
        """Return a row's problem, or None if its text does not match `cut`."""
        text = as_text(row, self.problem, location)
        if not self.cut:
            return text
        match = re.fullmatch(self.cut, text.strip(), re.DOTALL)
        return match and match[1]

    def answer_of(self, row: dict, location: str) -> str | None:
        """Return a row's reference answer, or None if it is not marked as `reading` says."""
        text = as_text(row, self.gold, location)
        if self.reading == "box":
            return extract_boxed(text)
        if self.reading == "####":
            _, mark, answer = text.rpartition("####")
            return answer.strip().replace(",", "") if mark else None
        return text.strip()

    def drop_reason(self, row: dict, problem: str | None, answer: str | None) -> str | None:
        """Return the reason to drop a row, as counted in the manifest; None to keep it."""
        for column, sign, value in self.conditions:
            equal = str(row[column]).strip().casefold() == value.casefold()
            if equal != (sign == "="):
                return f"other_{column}" if sign == "=" else f"{column}={value}"
        if problem is None:
            return "other_prompt"
        if not problem.strip():
            return "empty_problem"
        if answer is None:
            return f"no_{self.reading}"
        return None if answer else "empty_answer"

    def record(self, row: dict, problem: str, answer: str) -> dict:
        """Return the fields to write for a row."""
        record = {"problem": problem, "expected_answer": answer}
        rate = str(row.get(self.rate))  # some data sets have text, and "n/a" for an unknown rate
        if re.fullmatch(r"[01](\.\d*)?", rate):
            record["pass_rate"] = float(rate)
        names = row if self.keep == "*" else [self.keep]
        others = {name: row.get(name) for name in names if name not in record}
        # float32's 0.1 is written as 0.1.
        others = {k: float(str(x)) if isinstance(x, np.floating) else x for k, x in others.items()}
        return record | {k: x for k, x in others.items() if x is not None and is_finite(x)}


def as_text(row: dict, path: str, location: str) -> str:
    """Return the text or number at a path such as `prompt.0.content` as text; null, and a number
    that is not finite (pandas' missing value), become ""."""
    value = row
    for key in path.split("."):
        if isinstance(value, list) and key.isdecimal():
            value = value[int(key)] if int(key) < len(value) else None
        elif value is not None:
            fields = value if isinstance(value, dict) else {}
            check_fields(fields, [key], f"{location}, {path}")
            value = value[key]
    if value is None or not is_finite(value):
        return ""
    try:
        return text_of(value)
    except ValueError as error:
        raise InputError(f"{location}: {path!r} is {error}, expected text") from error


OPEN_MATH = {"gold": "expected_answer", "rate": "pass_rate_72b_tir"}
# The other problem types are proofs made into questions, and answers by a vote over solutions.
EXTRACTED = "problem_type=has_answer_extracted"
# 500 of MATH's 5,000 test problems are MATH-500; as usual, we train on the other 4,500.
MATH = {"config": "data", "gold": "solution", "reading": "box", "keep": "level"}
GSM8K = {"config": "main", "problem": "question", "reading": "####"}
DAPO_HEAD = r"Solve the following math problem step by step\. The last line of [^\n]*\n\n"
DAPO_TAIL = r'\n\nRemember to put your answer on its own line after "Answer:"\.'
DAPO = {"problem": "prompt.0.content", "gold": "reward_model.ground_truth"}
DAPO |= {"cut": f"{DAPO_HEAD}(.*){DAPO_TAIL}"}
# English only, each problem once. The instruction is removed there, or else by `cut`.
DAPO_EN = {"config": "en", "problem": "prompt", "gold": "solution"}
DAPO_EN |= {"cut": f"(?:{DAPO_HEAD})?(.*?)(?:{DAPO_TAIL})?"}
# Rows of other question types can also have "proof" or "notfound" as their answer.
NUMINA = "problem_is_valid=Yes solution_is_valid=Yes"
NUMINA += " question_type!=proof answer!=proof answer!=notfound"
DEEPMATH = {"problem": "question", "gold": "final_answer", "keep": "difficulty"}
BIG_MATH = {"rate": "llama8b_solve_rate", "keep": "source"}
TEST = {"evaluation": True}

SOURCES = {
    "openmathreasoning": Source("nvidia/OpenMathReasoning", "cot", **OPEN_MATH),
    "openmathreasoning-extracted": Source(
        "nvidia/OpenMathReasoning", "cot", only=EXTRACTED, **OPEN_MATH
    ),
    "gsm8k": Source("openai/gsm8k", "train", held_out="gsm8k-test", **GSM8K),
    "math": Source("DigitalLearningGmbH/MATH-lighteval", "train test", held_out="math500", **MATH),
    "deepscaler": Source("agentica-org/DeepScaleR-Preview-Dataset", "train"),
    "dapo": Source("BytedTsinghua-SIA/DAPO-Math-17k", "train", **DAPO),
    "dapo-en": Source("open-r1/DAPO-Math-17k-Processed", "train", **DAPO_EN),
    "big-math": Source("SynthLabsAI/Big-Math-RL-Verified", "train", **BIG_MATH),
    "numina": Source("AI-MO/NuminaMath-1.5", "train", only=NUMINA, keep="source"),
    "deepmath": Source("zwhe99/DeepMath-103K", "train", **DEEPMATH),
    "reasoning-gym": Source(
        f"reasoning-gym=={reasoning_tasks.VERSION}",
        "",
        gold="expected_answer",
        keep="*",
        val_size=480,
    ),
    "own": Source("", "train", gold="expected_answer", keep="*"),  # the format train.py reads
    "gsm8k-test": Source("openai/gsm8k", "test", **GSM8K, **TEST),
    "gsm8k-platinum": Source("madrylab/gsm8k-platinum", "test", **GSM8K, **TEST),
    "math500": Source("HuggingFaceH4/MATH-500", "test", keep="level", **TEST),
    "aime24": Source("HuggingFaceH4/aime_2024", "train", **TEST),
    "aime25": Source("math-ai/aime25", "test", **TEST),
    "amc23": Source("math-ai/amc23", "test", problem="question", **TEST),
}

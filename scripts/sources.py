"""The data sets that prepare_data.py knows, and how it reads a row of each.

docs/data.md has a table of them.
"""

import json
from dataclasses import dataclass

from plumbing.data.rows import text_of
from scripts import reasoning_tasks
from verify import extract_boxed


@dataclass(frozen=True)
class Source:
    """The format of a data set."""

    hub_id: str  # or the path of a copy
    files: tuple[str, ...]  # shell patterns; each names tables anywhere in the data set's folder
    problem: str = "problem"  # column
    gold: str = "answer"  # column of the reference answer; what follows "####" in it counts
    boxed: bool = False  # whether the answer is the last \boxed{} there
    keep: str = ""  # column that is copied, such as a difficulty; "*" copies all others
    held_out: str = ""  # source to validate on; "" holds val_size of its own problems out
    # Problems held out without --val_size (paper, Dataset Details). None: a test set, all of which
    # is validation data.
    val_size: int | None = 5000

    def parse(self, row: dict) -> tuple[dict, str]:
        """Return the fields to write for a row, and the reason to drop it, "" to keep it. Raises
        ValueError if its problem or answer is no text or number, if two fields would be either, or
        if UTF-8 cannot hold a field."""
        for name, written in ((self.problem, "problem"), (self.gold, "expected_answer")):
            if name != written and row.get(written) is not None:
                raise ValueError(
                    f"fields {name!r} and {written!r} would both be {written!r}: rename or drop one"
                )
        problem = text_or_blank(row.get(self.problem))
        answer = text_or_blank(row.get(self.gold)).strip()
        if self.boxed:
            answer = extract_boxed(answer) or ""
        elif "####" in answer:
            answer = answer.rpartition("####")[2].strip()
        reason = "" if answer else "no_answer"
        if not problem.strip():
            reason = "no_problem"
        record = {"problem": problem, "expected_answer": answer}
        taken = self.problem, self.gold, *record
        for name, value in row.items():
            if self.keep in ("*", name) and name not in taken:
                json.dumps(value, ensure_ascii=False, default=str).encode()  # as it is written
                record[name] = value
        return record, reason


def text_or_blank(value) -> str:
    """Return a text or number as text, null or no field as "". Raises ValueError for others."""
    return "" if value is None else text_of(value)


TRAIN = ("train*",)
TEST = {"files": ("test*",), "val_size": None}
GSM8K_TEST = {"files": ("main/test*",), "problem": "question", "val_size": None}

SOURCES = {
    "openmathreasoning": Source(
        "nvidia/OpenMathReasoning",
        ("cot*",),
        gold="expected_answer",
        keep="pass_rate_72b_tir",
    ),
    "gsm8k": Source(
        "openai/gsm8k",
        ("main/train*",),
        problem="question",
        held_out="gsm8k-test",
    ),
    # 500 of MATH's 5,000 test problems are MATH-500; as usual, we train on the other 4,500.
    "math": Source(
        "DigitalLearningGmbH/MATH-lighteval",
        ("data/train*", "data/test*"),
        gold="solution",
        boxed=True,
        keep="level",
        held_out="math500",
    ),
    "deepscaler": Source("agentica-org/DeepScaleR-Preview-Dataset", ("deepscaler*",)),
    "deepmath": Source(
        "zwhe99/DeepMath-103K",
        TRAIN,
        problem="question",
        gold="final_answer",
        keep="difficulty",
    ),
    "reasoning-gym": Source(
        reasoning_tasks.PACKAGE,
        (),
        gold="expected_answer",
        keep="*",
        val_size=480,
    ),
    "own": Source("", TRAIN, gold="expected_answer", keep="*"),  # the format train.py reads
    "gsm8k-test": Source("openai/gsm8k", **GSM8K_TEST),
    "gsm8k-platinum": Source("madrylab/gsm8k-platinum", **GSM8K_TEST),
    "math500": Source("HuggingFaceH4/MATH-500", keep="level", **TEST),
    "aime24": Source("HuggingFaceH4/aime_2024", TRAIN, val_size=None),
    "aime25": Source("math-ai/aime25", **TEST),
    "amc23": Source("math-ai/amc23", problem="question", **TEST),
}

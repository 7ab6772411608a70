"""The data sets that prepare_data.py knows, and how it reads a row of each.

docs/data.md says where the format of each data set was looked up.
"""

import math
from dataclasses import dataclass

from plumbing.data.rows import text_of
from scripts import reasoning_tasks
from verify import extract_boxed


def is_finite(value) -> bool:
    """Whether a value is not one of the numbers NaN, Infinity and -Infinity."""
    return not isinstance(value, float) or math.isfinite(value)


@dataclass(frozen=True)
class Source:
    """The format of a data set."""

    hub_id: str  # or the path of a copy
    files: tuple[str, ...]  # regular expressions; each names files below the data set's folder
    problem: str = "problem"  # column
    gold: str = "answer"  # column of the reference answer; what follows "####" in it counts
    mark: str = ""  # what must mark the answer there: "box", the last \boxed{}, or "####"
    keep: str = ""  # column that is copied, such as a difficulty; "*" copies all others
    held_out: str = ""  # source to validate on; "" holds val_size of its own problems out
    evaluation: bool = False  # a test set: all of it is validation data
    val_size: int = 5000  # problems held out without --val_size (paper, Dataset Details)

    def columns(self) -> list[str]:
        """Return the columns that must exist."""
        names = self.problem, self.gold, self.keep
        return [name for name in names if name not in ("", "*")]

    def parse(self, row: dict) -> tuple[str, str, str]:
        """Return a row's problem, its answer, and the reason to drop it, "" to keep it. Raises
        ValueError if one of them is no text or number."""
        problem = text_or_blank(row[self.problem])
        answer = text_or_blank(row[self.gold]).strip()
        if self.mark == "box":
            answer = extract_boxed(answer)
        elif "####" in answer:
            answer = answer.rpartition("####")[2].strip().replace(",", "")
        elif self.mark:
            answer = None
        if answer is None:
            return problem, "", f"no_{self.mark}"
        if not problem.strip():
            return problem, answer, "empty_problem"
        return problem, answer, "" if answer else "empty_answer"

    def record(self, row: dict, problem: str, answer: str) -> dict:
        """Return the fields to write for a row."""
        record = {"problem": problem, "expected_answer": answer}
        for name, value in row.items():
            is_kept = self.keep in ("*", name) and name not in (self.problem, self.gold)
            if is_kept and value is not None and is_finite(value):
                record.setdefault(name, value)
        return record


def text_or_blank(value) -> str:
    """Return a text or number as text; null, and a number that is not finite (pandas' missing
    value), become "". Raises ValueError for other values."""
    return "" if value is None or not is_finite(value) else text_of(value)


TRAIN = (r"\btrain\b",)
TEST = {"files": (r"\btest\b",), "evaluation": True}
GSM8K = {"problem": "question", "mark": "####"}
GSM8K_TEST = {"files": (r"\bmain/test\b|^test\b",), "evaluation": True} | GSM8K
# 500 of MATH's 5,000 test problems are MATH-500; as usual, we train on the other 4,500.
MATH = {"gold": "solution", "mark": "box", "keep": "level", "held_out": "math500"}
MATH_FILES = (r"\bdata/train\b", r"\bdata/test\b")
DEEPMATH = {"problem": "question", "gold": "final_answer", "keep": "difficulty"}
TASKS = {"gold": "expected_answer", "keep": "*", "val_size": 480}

SOURCES = {
    "openmathreasoning": Source(
        "nvidia/OpenMathReasoning", (r"\bcot\b",), gold="expected_answer", keep="pass_rate_72b_tir"
    ),
    "gsm8k": Source("openai/gsm8k", (r"\bmain/train\b",), held_out="gsm8k-test", **GSM8K),
    "math": Source("DigitalLearningGmbH/MATH-lighteval", MATH_FILES, **MATH),
    "deepscaler": Source("agentica-org/DeepScaleR-Preview-Dataset", (r"\bdeepscaler\b",)),
    "deepmath": Source("zwhe99/DeepMath-103K", TRAIN, **DEEPMATH),
    "reasoning-gym": Source(reasoning_tasks.PACKAGE, (), **TASKS),
    "own": Source("", (".",), gold="expected_answer", keep="*"),  # the format train.py reads
    "gsm8k-test": Source("openai/gsm8k", **GSM8K_TEST),
    "gsm8k-platinum": Source("madrylab/gsm8k-platinum", **GSM8K_TEST),
    "math500": Source("HuggingFaceH4/MATH-500", keep="level", **TEST),
    "aime24": Source("HuggingFaceH4/aime_2024", TRAIN, evaluation=True),
    "aime25": Source("math-ai/aime25", **TEST),
    "amc23": Source("math-ai/amc23", problem="question", **TEST),
}

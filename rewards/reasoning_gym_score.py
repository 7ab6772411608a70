"""reasoning-gym's own verdict, for tasks with several right answers: the row's `extra_info` is the
generator's metadata, in which source_dataset names the scorer. A row without it has one right
answer, which is compared as by default.

Do not train on two tasks of reasoning-gym 0.1.25: in game_of_life_halting any text earns 1 where
`False` is right, in coin_flip the answer 0 does."""

import functools
import json

from grading.equality import compare
from verify import extract_boxed

try:
    from reasoning_gym import get_score_answer_fn
except ImportError as error:
    raise ImportError("the library is missing: pip install reasoning-gym==0.1.25") from error

find_scorer = functools.cache(get_score_answer_fn)  # which makes a data set: up to 30 ms


def compute_score(data_source, solution_str, ground_truth, extra_info=None):
    answer = extract_boxed(solution_str)
    if answer is None:
        return 0
    if not extra_info:
        return int(compare(ground_truth, answer, accept_identical=True))
    if any(map(str.isdigit, ground_truth)) and "nan" in answer.lower():
        return 0  # complex_arithmetic's scorer gives 1: no distance from nan is large
    info = json.loads(extra_info) if isinstance(extra_info, str) else extra_info
    metadata = info.get("metadata", info)
    name = info.get("source_dataset") or metadata["source_dataset"]
    entry = {"question": "", "answer": ground_truth, "metadata": metadata}
    score = find_scorer(name)(answer, entry)
    return int(score == 1)  # partial credit, such as 0.01 for a wrong number, earns nothing

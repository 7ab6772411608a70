"""An example of a composite reward (App. B): 0.9 for the right answer, 0.1 for App. M's format.

A reward must be in [0, 1], so the weights sum to 1. With format points all completions of a group
may be wrong and still differ: such a group is live, and trains the format. Once every completion
has the format, the term is the same in all, and the advantages are those of the answers alone.
Validation accuracy counts rewards of exactly 1: right answers in this format."""

import re

from grading.equality import compare
from verify import extract_boxed

FORMAT = re.compile(
    r"\s*### Step-by-Step Reasoning\n.+\n### Final Answer\n\s*\\boxed\{.+\}\s*", re.DOTALL
)


def compute_score(data_source, solution_str, ground_truth, extra_info=None):
    answer = extract_boxed(solution_str)
    right = answer is not None and compare(ground_truth, answer, accept_identical=True)
    has_format = FORMAT.fullmatch(solution_str) is not None
    return 0.9 * right + 0.1 * has_format

"""math-verify's own verdict: to compare with numbers that it gave, not to train on. It takes some
wrong answers for right, which a student would learn (docs/extending.md)."""

import logging

import math_verify

logging.getLogger("math_verify").setLevel(logging.ERROR)  # it warns that its time limits are off


def compute_score(data_source, solution_str, ground_truth, extra_info=None):
    # Its time limits are signals; the verifier's workers have limits of their own.
    gold = math_verify.parse(rf"\boxed{{{ground_truth}}}", parsing_timeout=None)
    answer = math_verify.parse(solution_str, parsing_timeout=None)
    right = math_verify.verify(gold, answer, timeout_seconds=None)
    return int(right)

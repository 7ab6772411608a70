"""An example of a reward: the completion must end with the reference answer, letter for letter."""


def compute_score(data_source, solution_str, ground_truth, extra_info=None):
    right = solution_str.rstrip().endswith(rf"\boxed{{{ground_truth}}}")
    return 1 if right else 0  # or {"score": ...}

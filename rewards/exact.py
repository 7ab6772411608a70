"""An example of a reward: the completion must end with the reference answer, letter for letter."""


def compute_score(data_source, solution_str, ground_truth, extra_info=None):
    box = rf"\boxed{{{ground_truth}}}"
    right = solution_str.rstrip().endswith(box)
    return int(right)  # or {"score": ...}

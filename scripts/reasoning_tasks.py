r"""Problems from reasoning-gym: ten of its tasks, each with levels from easy to hard.

    python -m scripts.prepare_data --source reasoning-gym --val_size 480

`prepare_data` calls `rows`, which returns the same rows each time. Each has its `task`, its `level`
and, as `extra_info`, the library's metadata, from which `rewards/reasoning_gym_score.py` scores
answers.
"""

import zlib
from collections.abc import Iterator

PACKAGE = "reasoning-gym==0.1.25"
PER_LEVEL = 160  # rows before repeated ones are dropped

# task -> for each level, from easy to hard, (lowest, highest) of a setting, or both in one number:
# digits (1, 2) is min_digits=1, max_digits=2
LEVELS: dict[str, dict] = {
    "chain_sum": {"terms": (2, 2, 3, 3, 4, 5, 4), "digits": (1, 2, 1, 2, 2, 2, 3)},
    "products": {"digits": ((1, 1), (1, 2), (2, 2), (2, 3))},
    "simple_equations": {"value": [(1, n) for n in (5, 10, 20, 40, 80)]},
    "leg_counting": {"animals": (1, 2, 3, 4)},
    "fraction_simplification": {
        "value": [(1, n) for n in (6, 10, 20, 50)],
        "factor": [(2, n) for n in (5, 9, 12, 20)],
    },
    "lcm": {"value": [(2, n) for n in (8, 12, 20, 40)]},
    "complex_arithmetic": {name: [(-n, n) for n in (4, 10, 30, 90)] for name in ("real", "imag")},
    "number_filtering": {"numbers": (1, 2, 3, 4, 6)},
    "spell_backward": {"word_len": (3, 4, 5, 6, 7, 8)},
    "word_sequence_reversal": {"words": (2, 3, 4, 5, 6, 8)},
}
# task -> settings of all its levels
FIXED = {
    "simple_equations": {"min_terms": 2, "max_terms": 2},
    "leg_counting": {"max_instances": 5},
    "fraction_simplification": {"styles": ("plain",)},
    "complex_arithmetic": {"operations": ("+", "-"), "operations_weights": [0.5, 0.5]},
    "number_filtering": {"max_decimals": 0},
}


def levels(task: str) -> Iterator[dict]:
    """Yield the settings of the task's generator for each level."""
    for values in zip(*LEVELS[task].values(), strict=True):
        settings = dict(FIXED.get(task, {}))
        for name, value in zip(LEVELS[task], values, strict=True):
            low, high = value if isinstance(value, tuple) else (value, value)
            settings |= {f"min_{name}": low, f"max_{name}": high}
        yield settings


def rows(seed: int = 0, per_level: int = PER_LEVEL, hardest: int = 99) -> Iterator[dict]:
    """Yield so many rows for each level, up to the hardest, of each task; some are repeated, some
    answers are empty. Raises ImportError without PACKAGE."""
    from reasoning_gym import create_dataset

    for task in LEVELS:
        for level, settings in enumerate(levels(task), start=1):
            if level > hardest:
                break
            level_seed = zlib.crc32(f"{task} {level} {seed}".encode())
            for entry in create_dataset(task, size=per_level, seed=level_seed, **settings):
                yield {
                    "problem": entry["question"].strip(),
                    "expected_answer": entry["answer"],
                    "task": task,
                    "level": level,
                    "extra_info": entry["metadata"],
                }

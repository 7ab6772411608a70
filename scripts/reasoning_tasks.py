r"""Problems from reasoning-gym: ten of its tasks, each with levels from easy to hard.

    python -m scripts.prepare_data --source reasoning-gym --val_size 480

`prepare_data` calls `rows`, which returns the same rows each time. Each has its `task`, its `level`
and, as `extra_info`, the library's metadata, from which `rewards/reasoning_gym_score.py` scores
answers.
"""

import zlib
from collections.abc import Iterator

from plumbing.errors import InputError

VERSION = "0.1.25"
PER_LEVEL = 160  # rows before repeated ones are dropped


def _between(name: str, low: int, high: int) -> dict[str, int]:
    """Return the two settings of a range, such as min_terms and max_terms."""
    return {f"min_{name}": low, f"max_{name}": high}


def _sums(terms: int, digits: int) -> dict:
    return _between("terms", terms, terms) | _between("digits", digits, digits)


def _equations(largest: int) -> dict:
    return _between("terms", 2, 2) | _between("value", 1, largest)


def _fractions(value: int, factor: int) -> dict:
    sizes = _between("value", 1, value) | _between("factor", 2, factor)
    return sizes | {"styles": ("plain",)}


def _complex(largest: int) -> dict:
    sizes = _between("real", -largest, largest) | _between("imag", -largest, largest)
    return sizes | {"operations": ("+", "-"), "operations_weights": [0.5, 0.5]}


# task -> the settings of its generator for each level, from easy to hard
LEVELS: dict[str, list[dict]] = {
    "chain_sum": [_sums(*n) for n in ((2, 1), (2, 2), (3, 1), (3, 2), (4, 2), (5, 2), (4, 3))],
    "products": [_between("digits", *n) for n in ((1, 1), (1, 2), (2, 2), (2, 3))],
    "simple_equations": [_equations(n) for n in (5, 10, 20, 40, 80)],
    "leg_counting": [_between("animals", n, n) | {"max_instances": 5} for n in (1, 2, 3, 4)],
    "fraction_simplification": [_fractions(*n) for n in ((6, 5), (10, 9), (20, 12), (50, 20))],
    "lcm": [{"min_value": 2, "max_value": n} for n in (8, 12, 20, 40)],
    "complex_arithmetic": [_complex(n) for n in (4, 10, 30, 90)],
    "number_filtering": [_between("numbers", n, n) | {"max_decimals": 0} for n in (1, 2, 3, 4, 6)],
    "spell_backward": [_between("word_len", n, n) for n in (3, 4, 5, 6, 7, 8)],
    "word_sequence_reversal": [_between("words", n, n) for n in (2, 3, 4, 5, 6, 8)],
}


def rows(seed: int = 0, per_level: int = PER_LEVEL, hardest: int = 99) -> Iterator[dict]:
    """Yield so many rows for each level, up to the hardest, of each task; some are repeated, some
    answers are empty. Raises InputError if the library is missing."""
    try:
        from reasoning_gym import create_dataset
    except ImportError as error:
        remedy = f"pip install reasoning-gym=={VERSION}"
        raise InputError(f"--source reasoning-gym: the library is missing: {remedy}") from error
    for task, levels in LEVELS.items():
        for level, settings in enumerate(levels[:hardest], start=1):
            level_seed = zlib.crc32(f"{task} {level} {seed}".encode())
            for entry in create_dataset(task, size=per_level, seed=level_seed, **settings):
                yield {
                    "problem": entry["question"].strip(),
                    "expected_answer": entry["answer"],
                    "task": task,
                    "level": level,
                    "extra_info": entry["metadata"],
                }

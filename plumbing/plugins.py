"""Samplers and rewards from files: a Python file and a name in it, and checks of samplers."""

import functools
import importlib.util
import sys
from numbers import Integral
from pathlib import Path

import numpy as np

from grpo import Group
from plumbing.errors import InputError, first_lines

# Flags that a sampler's class may take, of those that not every sampler uses.
SAMPLER_FLAGS = {"candidates", "epsilon", "column"}


def path_of(spec: str) -> Path | None:
    """Return the file of FILE.py:NAME or FILE.py; None for ""."""
    if not spec:
        return None
    return Path(spec.partition(".py:")[0] + ".py" if ".py:" in spec else spec)


def load(spec: str, flag: str, default: str | None = None):
    """Load the class or function FILE.py:NAME; NAME may be left out if there is a `default`.
    Raises InputError, which names the flag, if the file or the name cannot be loaded."""
    path = path_of(spec)
    name = spec.partition(".py:")[2] or default
    if path.suffix != ".py" or not name:
        form = f"FILE.py[:NAME, else {default}]" if default else "FILE.py:NAME"
        raise InputError(f"{flag} {spec}: must be {form}")
    try:
        changed = path.stat().st_mtime_ns
        module = _run(path, changed)
    except (Exception, SystemExit) as error:  # the user's code may raise anything
        kind = type(error).__name__
        raise InputError(
            f"{flag} {spec}: {path} cannot be run: {kind}: {first_lines(error)}"
        ) from error
    loaded = getattr(module, name, None)
    if not callable(loaded):
        raise InputError(f"{flag} {spec}: {path} has no class or function {name!r}")
    return loaded


def load_by_name(spec: str, flag: str, builtin: dict, folder: Path):
    """Load a class by its key in `builtin`, by its file in the folder (bag_of_words is the class
    BagOfWords of bag_of_words.py), or as FILE.py:CLASS. Raises InputError as `load` does."""
    if spec in builtin:
        return builtin[spec]
    if ".py" in spec:
        return load(spec, flag)
    files = sorted(path.stem for path in folder.glob("*.py"))
    if spec not in files:
        names = ", ".join([*builtin, *files])
        raise InputError(f"{flag} {spec}: choose from {names}, or FILE.py:CLASS")
    camel = spec.title().replace("_", "")
    return load(f"{folder / spec}.py:{camel}", flag)


@functools.lru_cache  # a file is run once, so that there is one copy of its classes
def _run(path: Path, changed: int):
    sys.path.append(str(path.resolve().parent))  # it may import its neighbours
    # Dataclasses and pickle look a class's module up. Its name is its path, because a file may be
    # called like a library, and import it.
    spec = importlib.util.spec_from_file_location(str(path), path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[str(path)] = module
    spec.loader.exec_module(module)
    return module


def check_class(cls, base: type, spec: str) -> None:
    """Raise InputError unless --sampler names a complete subclass of `base`, sampler.Sampler."""
    if not (isinstance(cls, type) and issubclass(cls, base)):
        fault = "must extend sampler.Sampler, or Uniform or Pooled"
    elif cls.propose is base.propose:
        fault = "must define `propose`"
    elif cls.uses_teacher and cls.more is not base.more:
        fault = "a sampler with a teacher has no rounds of its own"
    elif not SAMPLER_FLAGS.issuperset(cls.flags):
        fault = f"`flags` may name {', '.join(sorted(SAMPLER_FLAGS))}, not {', '.join(cls.flags)}"
    elif cls.needs_column and "column" not in cls.flags:
        fault = "needs a column, so that `flags` must name column"
    elif any(type(value) not in (int, float) for value in cls.settings.values()):
        fault = f"its settings must be numbers, not {cls.settings}"
    else:
        return
    raise InputError(f"--sampler {spec}: {fault}")


def check_scores(utilities_N_K, shape: tuple[int, int]) -> np.ndarray:
    """Return what a sampler's `score` has returned as float64. Raises InputError unless it is a
    finite number for each candidate."""
    try:
        utilities_N_K = np.asarray(utilities_N_K, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise InputError(
            f"the sampler's `score` returns no numbers: {first_lines(error)}"
        ) from error
    if utilities_N_K.shape != shape:
        raise InputError(
            f"the sampler's `score` has shape {utilities_N_K.shape}: must have that of the pool, "
            f"{shape}"
        )
    if not np.isfinite(utilities_N_K).all():
        raise InputError("the sampler's `score` is NaN or infinite")
    return utilities_N_K


def trained_on(chosen: list[Group], groups: list[Group]) -> list[Group]:
    """Return the groups that a sampler's train_on has chosen, once and in the order of the step.
    Raises InputError if one is not of the step."""
    if any(group not in groups for group in chosen):
        raise InputError("the sampler's train_on returns a group that is not of this step")
    return [group for group in groups if group in chosen]


def check_proposals(groups: list[Group], n_problems: int) -> None:
    """Raise InputError unless the groups of a round are of distinct problems and have completions
    to draw."""
    if not (isinstance(groups, list) and all(isinstance(group, Group) for group in groups)):
        raise InputError(f"the sampler proposes {groups!r:.60}: must be a list of grpo.Group")
    for group in groups:
        problem = group.problem
        size = group.size
        drawn = len(group.completions)
        if not (isinstance(problem, Integral) and 0 <= problem < n_problems):
            raise InputError(
                f"the sampler proposes problem {problem!r}: must be an index below {n_problems}"
            )
        if not (isinstance(size, Integral) and size > drawn):
            raise InputError(
                f"the sampler proposes problem {problem} with size {size!r}: "
                f"must be a whole number above {drawn}, its completions so far"
            )
    distinct = {group.problem for group in groups}
    if len(distinct) < len(groups):
        raise InputError("the sampler proposes a problem twice in a round")

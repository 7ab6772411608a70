"""Samplers and rewards from files: a Python file and a name in it, and checks of samplers."""

import functools
import importlib.util
import inspect
import sys
from numbers import Integral
from pathlib import Path

import numpy as np

from grpo import Group
from plumbing.errors import InputError, first_lines


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
    elif cls.uses_teacher and has_rounds(cls, base):
        fault = "a sampler with a teacher has no `more` or `train_on` of its own"
    else:
        return
    raise InputError(f"--sampler {spec}: {fault}")


def has_rounds(cls, base: type) -> bool:
    """Whether a sampler decides itself about further rounds, or the groups that count."""
    return cls.more is not base.more or cls.train_on is not base.train_on


def sampler_settings(cls, text: str) -> dict[str, float]:
    """Parse --sampler_args "name=value,name=value" as keyword arguments of a sampler's __init__, in
    the types of their defaults. Raises InputError at a name or value that it does not take."""
    parameters = [*inspect.signature(cls).parameters.values()][1:]  # the first is the context
    defaults = {parameter.name: parameter.default for parameter in parameters}
    settings = {}
    for item in filter(None, text.split(",")):
        name, _, value = item.partition("=")
        try:
            settings[name] = type(defaults[name])(value)
        except (KeyError, ValueError, TypeError) as error:
            known = ", ".join(f"{name}={default}" for name, default in defaults.items())
            raise InputError(
                f"--sampler_args {item}: the settings of {cls.__name__} are: {known or 'none'}"
            ) from error
    return settings


def check_scores(utilities_P_K, shape: tuple[int, int]) -> np.ndarray:
    """Return what a sampler's `score` has returned as float64. Raises InputError unless it is a
    number in [0, 0.5] for each candidate."""
    try:
        utilities_P_K = np.asarray(utilities_P_K, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise InputError(
            f"the sampler's `score` returns no numbers: {first_lines(error)}"
        ) from error
    if utilities_P_K.shape != shape:
        raise InputError(
            f"the sampler's `score` has shape {utilities_P_K.shape}: must have that of the pool, "
            f"{shape}"
        )
    in_range_P_K = (utilities_P_K >= 0) & (utilities_P_K <= 0.5)  # not NaN
    if not in_range_P_K.all():
        outside = utilities_P_K[~in_range_P_K][0]
        raise InputError(f"the sampler's `score` is {outside:g}: must be in [0, 0.5]")
    return utilities_P_K


def check_proposals(groups: list[Group], n_problems: int) -> None:
    """Raise InputError unless the groups of a round are new ones of distinct problems."""
    if not (isinstance(groups, list) and all(isinstance(group, Group) for group in groups)):
        raise InputError(f"the sampler proposes {groups!r:.60}: must be a list of grpo.Group")
    for group in groups:
        if not (isinstance(group.problem, Integral) and 0 <= group.problem < n_problems):
            raise InputError(
                f"the sampler proposes problem {group.problem!r}: must be an index below "
                f"{n_problems}"
            )
        if not (isinstance(group.size, Integral) and group.size > 0) or group.completions:
            raise InputError(
                f"the sampler proposes problem {group.problem} with size {group.size!r} and "
                f"{len(group.completions)} completions: must be a new group of at least one"
            )
    if len({group.problem for group in groups}) < len(groups):
        raise InputError("the sampler proposes a problem twice in a round")


def check_trained(trained: list[Group], groups: list[Group]) -> None:
    """Raise InputError if the groups that a sampler's train_on has chosen hold a completion twice,
    or one that was not drawn in this step."""
    drawn = {id(completion) for group in groups for completion in group.completions}
    chosen = [id(completion) for group in trained for completion in group.completions]
    if len({*chosen}) < len(chosen) or not drawn.issuperset(chosen):
        raise InputError("the sampler's train_on returns a completion twice, or not of this step")

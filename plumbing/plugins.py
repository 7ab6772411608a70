"""Samplers and rewards from files: a Python file and a name in it, and checks of samplers."""

import functools
import importlib.util
import inspect
import sys
import sysconfig
import traceback
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from plumbing.errors import InputError, RunError, first_lines

ROOT = Path(__file__).resolve().parents[1]

if TYPE_CHECKING:  # the verifier's workers do not import torch
    from grpo import Group


def path_of(spec: str) -> Path | None:
    """Return the file of FILE.py:NAME or FILE.py; None for ""."""
    if not spec:
        return None
    file, colon, _ = spec.partition(".py:")
    return Path(file + colon.rstrip(":"))


def load(spec: str, flag: str, default: str = ""):
    """Load the class or function FILE.py:NAME; NAME may be left out if there is a `default`.
    Raises InputError, which names the flag, if Python cannot."""
    path = path_of(spec)
    name = spec.partition(".py:")[2] or default
    if not name:
        raise InputError(f"{flag} {spec}: add :CLASS")
    try:
        changed = path.stat().st_mtime_ns
        return getattr(_run(path, changed), name)
    except (Exception, SystemExit) as error:  # the user's code may raise anything
        raise InputError(f"{flag} {spec}: {describe(error)}") from error


def describe(error: BaseException) -> str:
    """Return an error's class and message in one line, and where a plug-in raised it."""
    return f"{type(error).__name__}: {first_lines(error)}{place_of(error)}"


def place_of(error: BaseException) -> str:
    """Return the innermost line of a plug-in, or of a file beside it, that an error passed:
    " (mine.py, line 7: x = y)"; "" if there is none, or if the message of a SyntaxError has it."""
    modules = list(sys.modules.items())
    plugins = {Path(module.__file__).resolve() for name, module in modules if name.endswith(".py")}
    folders = {plugin.parent for plugin in plugins} - {ROOT}
    libraries = [sysconfig.get_path("stdlib"), sysconfig.get_path("purelib")]
    frames = [] if isinstance(error, SyntaxError) else traceback.extract_tb(error.__traceback__)
    for frame in reversed(frames):
        if frame.filename.startswith("<"):  # <frozen importlib>
            continue
        file = Path(frame.filename).resolve()
        is_beside = not folders.isdisjoint(file.parents) and not any(
            file.is_relative_to(library) for library in libraries
        )
        is_ours = file.is_relative_to(ROOT) and file.parent not in folders
        if file in plugins or (is_beside and not is_ours):
            return f" ({frame.filename}, line {frame.lineno}: {frame.line})"
    return ""


def construct(cls, context, spec: str, args: str):
    """Build a sampler of the class that --sampler names, with --sampler_args. Raises InputError,
    with the line of its file, if its code fails."""
    settings = sampler_settings(cls, args)
    try:
        return cls(context, **settings)
    except RunError:
        raise
    except Exception as error:  # the user's code may raise anything
        if not place_of(error):
            raise
        raise InputError(f"--sampler {spec}: {describe(error)}") from error


@functools.cache  # a version of a file is run once, so that there is one copy of its classes
def _run(path: Path, changed: int):
    folder = path.resolve().parent
    sys.path.append(str(folder))  # it may import its neighbours
    # Dataclasses and pickle look a class's module up. Its name is its path, because a file may be
    # called like a library, and import it.
    spec = importlib.util.spec_from_file_location(str(path), path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[str(path)] = module
    spec.loader.exec_module(module)
    return module


def check_class(cls, base, spec: str) -> None:
    """Raise InputError unless --sampler names a subclass of `base`, sampler.Sampler, all of whose
    methods are called."""
    is_sampler = isinstance(cls, type) and issubclass(cls, base)
    if not is_sampler:
        raise InputError(f"--sampler {spec}: must extend sampler.Sampler, or Uniform or Pooled")
    if cls.uses_teacher and has_rounds(cls, base):
        raise InputError(
            f"--sampler {spec}: a sampler with a teacher has no `more` or `train_on` of its own"
        )


def has_rounds(cls, base) -> bool:
    """Whether a sampler decides itself about further rounds, or the groups that count."""
    own_more = cls.more is not base.more
    own_train_on = cls.train_on is not base.train_on
    return own_more or own_train_on


def sampler_settings(cls, text: str) -> dict[str, float]:
    """Parse --sampler_args "name=value,name=value" as keyword arguments of a sampler's __init__, in
    the types of their defaults. Raises InputError at a name or value that it does not take."""
    signature = inspect.signature(cls)
    settings = {}
    for item in filter(None, text.split(",")):
        name, _, value = item.partition("=")
        try:
            kind = type(signature.parameters[name].default)
            if kind not in (int, float):
                raise KeyError(name)
            settings[name] = kind(value)
        except (KeyError, ValueError) as error:
            takes = f"settings are keyword arguments of {cls.__name__}{signature}"
            raise InputError(f"--sampler_args {item}: {takes}") from error
    return settings


def check_utilities(method: str, utilities, shape: tuple[int, ...]) -> np.ndarray:
    """Return what a sampler's method has returned as float64. Raises InputError unless all are
    numbers in [0, 0.5], of this shape."""
    utilities = np.asarray(utilities, dtype=np.float64)
    is_in_range = (utilities >= 0) & (utilities <= 0.5)  # not NaN
    if utilities.shape != shape or not is_in_range.all():
        raise InputError(
            f"the sampler's `{method}` returns {utilities!r:.200}: must be in [0, 0.5], of shape "
            f"{shape}"
        )
    return utilities


def check_proposals(groups: list["Group"], n_problems: int) -> None:
    """Raise InputError unless the groups of a round are new ones of distinct problems, of at least
    one completion."""
    problems = [group.problem for group in groups]
    are_distinct = len({*problems}) == len(problems)
    are_in_data = all(0 <= problem < n_problems for problem in problems)
    are_new = all(group.size > 0 and not group.completions for group in groups)
    if not (are_distinct and are_in_data and are_new):
        raise InputError(
            f"the sampler proposes problems {problems!r:.200}: must be new groups of distinct "
            f"problems below {n_problems}"
        )


def check_trained(trained: list["Group"], groups: list["Group"]) -> None:
    """Raise InputError if a sampler proposed nothing, or if the groups that its train_on has chosen
    hold a completion twice, or one that was not drawn in this step."""
    if not groups:
        raise InputError("the sampler proposed no problem in this step")
    drawn = [id(completion) for group in groups for completion in group.completions]
    used = [id(completion) for group in trained for completion in group.completions]
    is_twice = len({*used}) < len(used)
    is_foreign = {*used} - {*drawn}
    if is_twice or is_foreign:
        raise InputError("the sampler's train_on returns a completion twice, or not of this step")

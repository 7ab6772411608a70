"""Samplers and rewards from files: a Python file and a name in it, and a sampler's settings."""

import functools
import importlib.util
import inspect
import sys
import traceback
from pathlib import Path

from plumbing.errors import InputError, RunError, first_lines

ROOT = Path(__file__).resolve().parents[1]


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
    frames = [] if isinstance(error, SyntaxError) else traceback.extract_tb(error.__traceback__)
    for frame in reversed(frames):
        if frame.filename.startswith("<"):  # <frozen importlib>
            continue
        file = Path(frame.filename).resolve()
        if file in plugins or file.parent in folders:
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
        is_called = error.__traceback__.tb_next  # not if its __init__ takes other arguments
        if is_called and not place_of(error):
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


def all_settings(cls, text: str) -> dict[str, float]:
    """Return the settings of a sampler built with --sampler_args `text`, also those by default."""
    parameters = inspect.signature(cls).parameters
    return {name: each.default for name, each in parameters.items()} | sampler_settings(cls, text)


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

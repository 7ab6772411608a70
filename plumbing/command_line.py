"""Flags from the fields of a dataclass: the command line of train.py, and parts of scripts'."""

import argparse
import shlex
from collections.abc import Callable
from dataclasses import field, fields

from plumbing.errors import InputError


def opt(default, help: str, **argument):
    """A field that is a flag. `argument`: what argparse's add_argument takes, such as a `type` that
    refuses what is out of range; the default's own type where there is none."""
    return field(default=default, metadata={"help": help, **argument})


def number(type: Callable, least: float, most: float = 10**9) -> Callable:
    """An argparse type: a number in [least, most]."""

    def parse(text: str):
        value = type(text)
        if not least <= value <= most:  # as NaN is not
            raise argparse.ArgumentTypeError(f"{text}: must be in [{least}, {most}]")
        return value

    parse.__name__ = type.__name__  # argparse names it where the text is no number
    return parse


count = number(int, 1)
natural = number(int, 0)
share = number(float, 0, 1)
from_0 = number(float, 0)


class Parser(argparse.ArgumentParser):
    """argparse, but that a bad flag is a ValueError of one line, and that flags are not guessed."""

    def __init__(self, **kwargs):
        super().__init__(allow_abbrev=False, argument_default=argparse.SUPPRESS, **kwargs)

    def error(self, message):
        raise ValueError(f"{message} (see --help)")


def add_fields(parser: argparse.ArgumentParser, config: type, names=None) -> None:
    """One flag for each field of the dataclass, or for those named."""
    for f in fields(config):
        if names is None or f.name in names:
            metadata = dict(f.metadata)
            long = isinstance(f.default, str) and len(f.default) > 60
            shown = "" if f.default == "" or long else f" [{f.default}]"
            metadata["help"] = (metadata["help"] + shown).replace("%", "%%")
            if f.type is bool:
                metadata["action"] = argparse.BooleanOptionalAction
            else:
                shown = {} if "choices" in metadata else {"metavar": f.type.__name__.upper()}
                metadata = {"type": f.type, **shown, **metadata}
            parser.add_argument(f"--{f.name}", **metadata)


def parse(config: type, presets: dict[str, str], argv: list[str] | None, description: str):
    """Command line -> (config, the flags that were given): the defaults, over them the flags of the
    preset, over them those given. Raises ValueError with one line."""
    parser = Parser(description=description)
    add_fields(parser, config)
    given = vars(parser.parse_args(argv))
    preset = given.get("preset", config.preset)
    if preset not in presets:
        raise ValueError(f"--preset {preset}: choose from {', '.join(presets)}")
    return config(**vars(parser.parse_args(shlex.split(presets[preset]))) | given), given


def recorded(config: type, facts: dict):
    """The settings among the facts of a run's config.json. Raises InputError where one lacks."""
    if lacking := [f.name for f in fields(config) if f.name not in facts]:
        what = f"made by another version of this code ({lacking[0]} is not in its config.json)"
        raise InputError(f"{facts.get('out', 'the run')} was {what}")
    return config(**{f.name: facts[f.name] for f in fields(config)})


def reject_unused(config, given: dict, sampler: type) -> None:
    """Raises ValueError at a flag that the sampler does not use, or that it needs and has not."""
    name = config.sampler
    for flag in given:
        if flag in ("candidates", "epsilon", "column") and flag not in sampler.flags:
            raise ValueError(f"--{flag}: the sampler {name} does not use it")
        if not sampler.uses_teacher and (flag.startswith("teacher_") or flag == "replay_capacity"):
            raise ValueError(f"--{flag}: the sampler {name} has no teacher")
    if "column" in sampler.flags and not config.column:
        what = "the name of a column of the training data"
        raise ValueError(f"--sampler {name} needs --column, {what}")

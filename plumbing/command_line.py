"""Command-line flags made from the fields of a dataclass."""

import argparse
from collections.abc import Callable
from dataclasses import field, fields

from plumbing.errors import escape_output


def flag(default, text: str, **argument):
    """Declare a dataclass field that is a flag. argument: keywords of argparse's add_argument, such
    as a `type` that rejects values out of range (default: the field's type, of an int `count`)."""
    return field(default=default, metadata={"help": text, **argument})


def number(kind: Callable, least: float, most: float = 10**9) -> Callable:
    """Make an argparse type: a number in [least, most]."""

    def parse(text: str):
        value = kind(text)
        if not least <= value <= most:  # false for NaN too
            raise argparse.ArgumentTypeError(f"{text}: must be in [{least}, {most}]")
        return value

    parse.__name__ = kind.__name__  # argparse prints it if the text is no number
    return parse


count = number(int, 1)
non_negative_int = number(int, 0)
fraction = number(float, 0, 1)
non_negative = number(float, 0)


def count_or_auto(text: str) -> int | str:
    """An argparse type: a count, or "auto"."""
    return text if text == "auto" else count(text)


class Parser(argparse.ArgumentParser):
    """An argparse parser without abbreviated flags that raises ValueError at a bad flag. --help
    prints a docstring as it is."""

    def __init__(self, doc: str | None, **kwargs):
        escape_output()  # also that of --help
        super().__init__(
            description=doc,
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
            **kwargs,
        )

    def error(self, message):
        raise ValueError(f"{message} (see --help)")


def add_fields(parser: argparse.ArgumentParser, config: type, names=None, shown=None) -> None:
    """Add one flag for each field of the dataclass, or for those named. A field whose flag is not
    given has no attribute in the result. shown: values by field that --help prints in place of the
    defaults."""
    for f in fields(config):
        if names is not None and f.name not in names:
            continue
        argument = {"default": argparse.SUPPRESS, **f.metadata}
        value = (shown or {}).get(f.name, f.default)
        if 0 < len(str(value)) <= 60:
            argument["help"] += f" [{value}]"
        argument["help"] = argument["help"].replace("%", "%%")
        if f.type is bool:
            argument["action"] = argparse.BooleanOptionalAction
        else:
            argument.setdefault("type", count if f.type is int else f.type)
        parser.add_argument(f"--{f.name}", **argument)

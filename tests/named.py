"""Names as the docs write them, `module.attribute.attribute`, looked up in the code."""

import importlib


def assert_exists(name: str) -> None:
    """Fails, with the name, where a part of it is gone."""
    module, *attributes = name.split(".")
    thing = importlib.import_module(module)
    for attribute in attributes:
        assert hasattr(thing, attribute), name
        thing = getattr(thing, attribute)

"""Errors of one line."""

from contextlib import contextmanager

import pytest


@contextmanager
def rejected(message: str):
    """Expect an error of one line with this message."""
    with pytest.raises((ValueError, OSError)) as error:
        yield
    assert message in str(error.value) and "\n" not in str(error.value)

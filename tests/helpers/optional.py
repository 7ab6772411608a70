"""Skips tests of optional libraries."""

from importlib.metadata import PackageNotFoundError, version

import pytest


def need_reasoning_gym() -> None:
    """Skip the test unless the library is installed."""
    try:
        version("reasoning-gym")
    except PackageNotFoundError:
        pytest.skip("needs pip install reasoning-gym==0.1.25")

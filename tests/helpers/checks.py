"""Errors of one line, and comparison in float64."""

from contextlib import contextmanager

import pytest
import torch

FLOAT64 = {"dtype": torch.float64}


@contextmanager
def rejected(message: str):
    """Expect an error of one line with this message."""
    with pytest.raises((ValueError, OSError)) as error:
        yield
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def close(actual, expected, tolerance=1e-9):
    """Assert equality to within `tolerance`, absolute and relative, in float64."""
    actual = torch.as_tensor(actual, **FLOAT64)
    expected = torch.as_tensor(expected, **FLOAT64)
    torch.testing.assert_close(actual, expected, rtol=tolerance, atol=tolerance)

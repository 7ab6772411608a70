"""Comparison in float64."""

import torch

FLOAT64 = {"dtype": torch.float64}


def close(actual, expected, tolerance=1e-9):
    """Assert equality to within `tolerance`, absolute and relative, in float64."""
    actual, expected = torch.as_tensor(actual, **FLOAT64), torch.as_tensor(expected, **FLOAT64)
    torch.testing.assert_close(actual, expected, rtol=tolerance, atol=tolerance)

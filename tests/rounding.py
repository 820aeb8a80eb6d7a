"""Comparison of float32 results of one formula, which libraries round differently."""

from typing import Any

import torch


def assert_near(actual: Any, expected: Any, rtol: float = 1e-4, atol: float = 1e-5) -> None:
    """Assert that two results differ by rounding alone. They are numbers, arrays or tensors; NaN equals NaN."""
    actual, expected = (torch.as_tensor(values).detach().double() for values in (actual, expected))
    torch.testing.assert_close(actual, expected, rtol=rtol, atol=atol, equal_nan=True)

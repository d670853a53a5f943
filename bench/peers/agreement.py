"""Whether a peer computed the same thing: its result against moetoken's, within its arithmetic."""

from __future__ import annotations

import dataclasses
import math
from typing import Any, Optional

import numpy as np

from .cases import MEAN_SQUARE, Data, Shape
from .registry import Result

__all__ = ["Agreement", "Expected", "agreement", "expected_result"]

UNIT = {"f32": 2.0**-24, "bf16": 2.0**-8, "f16": 2.0**-11}
_SUM_TOLERANCE = 1e-5  # float32 sums over some thousand terms, in whatever order
_MOST_ELEMENTS = 1 << 24  # of permuted_tokens_grad that are compared


@dataclasses.dataclass
class Expected:
    """What a result should be: some rows of permuted_tokens_grad, all of probs_grad."""

    rows_shape: tuple[int, ...]
    sample: np.ndarray  # the rows that are compared, ascending
    rows: np.ndarray  # what they should be
    probs_grad: Optional[np.ndarray]


@dataclasses.dataclass
class Agreement:
    """The largest relative errors, and what they may be."""

    rows_error: float
    rows_tolerance: float
    probs_error: float
    probs_tolerance: float
    reason: str = ""

    @property
    def same(self) -> bool:
        return not self.reason


def expected_result(data: Data) -> Expected:
    """moetoken's result, by one thread: no pool of threads is left behind in a peer's process."""
    import moetoken

    with_probs: dict[str, Any] = {
        "routing_map": data.routing_map,
        "permuted_tokens": data.rows,
        "probs": data.probs,
    }
    rows_grad, probs_grad = moetoken.unpermute_grad(
        data.tokens_grad, data.out_index, threads=1, **(with_probs if data.shape.probs else {})
    )
    assert rows_grad is not None
    sample = _sample(data.shape)
    return Expected(rows_grad.shape, sample, rows_grad[sample], probs_grad)


def _sample(shape: Shape) -> np.ndarray:
    """All rows, where they are not too many to compare; else as many as may be, at random."""
    most = max(1, _MOST_ELEMENTS // shape.hidden_size)
    if shape.rows <= most:
        return np.arange(shape.rows)
    return np.sort(np.random.default_rng(1).choice(shape.rows, most, replace=False))


def _largest(values: np.ndarray) -> float:
    """The largest number; infinity where any is NaN."""
    if not values.size:
        return 0.0
    return float(np.nan_to_num(values, nan=np.inf).max())


def _rows_error(found: np.ndarray, expected: np.ndarray) -> float:
    """The largest |found - expected| / |expected|: every element is a product of its own."""
    right = expected.astype(np.float32)
    error = np.abs(found.astype(np.float32) - right)
    with np.errstate(divide="ignore", invalid="ignore"):
        return _largest(np.where(error == 0, np.float32(0), error / np.abs(right)))


def _probs_error(found: np.ndarray, expected: np.ndarray, hidden_size: int) -> float:
    """The largest difference, relative to the size of a dot product of such data."""
    right = expected.astype(np.float64)
    usual = MEAN_SQUARE * math.sqrt(hidden_size)
    scale = max(usual, _largest(np.abs(right)))
    return _largest(np.abs(found.astype(np.float64) - right)) / scale


def _tolerances(shape: Shape, arithmetic: str) -> tuple[float, float]:
    unit = UNIT[shape.dtype]
    if arithmetic == "tokens":
        return 4 * unit, max(8 * unit, _SUM_TOLERANCE)
    return 2 * unit, _SUM_TOLERANCE


def _form_differs(found: Result, expected: Expected) -> str:
    """What is wrong with number, shape or type of the results, or ""."""
    rows_grad, probs_grad = found
    forms: list[tuple[str, Optional[np.ndarray], Any, tuple[int, ...]]]
    forms = [("permuted_tokens_grad", rows_grad, expected.rows.dtype, expected.rows_shape)]
    if expected.probs_grad is not None:
        right = expected.probs_grad
        forms.append(("probs_grad", probs_grad, right.dtype, right.shape))
    elif probs_grad is not None:
        return "probs_grad is there, expected none"
    for name, array, dtype, shape in forms:
        if array is None:
            return f"{name} is missing"
        if array.dtype != dtype or array.shape != shape:
            return f"{name} is {array.dtype} {array.shape}, expected {dtype} {shape}"
    return ""


def agreement(found: Result, expected: Expected, shape: Shape, arithmetic: str) -> Agreement:
    """`reason` says why this is not the same computation, if it is not."""
    rows_tolerance, probs_tolerance = _tolerances(shape, arithmetic)
    result = Agreement(math.inf, rows_tolerance, math.inf, probs_tolerance)
    result.reason = _form_differs(found, expected)
    if result.reason:
        return result
    result.rows_error = _rows_error(found[0][expected.sample], expected.rows)
    result.probs_error = 0.0
    if found[1] is not None and expected.probs_grad is not None:
        result.probs_error = _probs_error(found[1], expected.probs_grad, shape.hidden_size)
    if not result.rows_error <= rows_tolerance:
        result.reason = (
            f"permuted_tokens_grad is off by {result.rows_error:.1e}, "
            f"expected at most {rows_tolerance:.1e}"
        )
    elif not result.probs_error <= probs_tolerance:
        result.reason = (
            f"probs_grad is off by {result.probs_error:.1e}, expected at most {probs_tolerance:.1e}"
        )
    return result

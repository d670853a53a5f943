"""One pass over an output and its golden result: what some standard asks for.

The formulas of cli/compare/measure.c of the tool; tests compare the figures. Elements where both
are finite are compared as numbers, in binary64; a NaN or an infinity counts as right where the
golden result, rounded to the type of the output, has the same.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Optional

import numpy as np

from ._exact import round_once
from ._types import bits_type

__all__ = ["FLOAT_FORMATS", "Limits", "Measure", "Peak", "limits_of", "measure", "ulps_of"]

_RELATIVE_EPS = 1e-7  # beside |golden|, in the standards' relative error

# Bits of the exponent and of the fraction.
FLOAT_FORMATS = {"float32": (8, 23), "float16": (5, 10), "bfloat16": (8, 7), "float64": (11, 52)}


@dataclass(frozen=True)
class Limits:
    """The standards' numbers for a type."""

    rtol: float  # mixed tolerance, ecosystem-2026-07
    atol: float
    absolute: float  # of the same, or 32 ulp where that is more
    relative: float  # ecosystem-2026-04: MERE below it, MARE below ten times it


_LIMITS = {
    "float16": Limits(2.0**-9, 2.0**-9, 0.1, 2.0**-10),
    "bfloat16": Limits(2.0**-6, 2.0**-6, 1.0, 2.0**-7),
}
_FLOAT32_LIMITS = Limits(2.0**-10, 2.0**-16, 0.01, 2.0**-13)


def limits_of(dtype: str) -> Limits:
    """float64 has float32's."""
    return _LIMITS.get(dtype, _FLOAT32_LIMITS)


@dataclass(frozen=True)
class Peak:
    """The largest of something, and the first element that has it; -1: nowhere above 0."""

    size: float = 0.0
    element: int = -1


def _peak(sizes: np.ndarray, elements: np.ndarray) -> Peak:
    """A NaN, infinity minus infinity, is as bad as can be."""
    if len(sizes) == 0:
        return Peak()
    sizes = np.where(np.isnan(sizes), np.inf, sizes)
    best = int(np.argmax(sizes))
    return Peak(float(sizes[best]), int(elements[best])) if sizes[best] > 0 else Peak()


@dataclass
class Measure:
    """What was measured; elements are counted in C order."""

    is_float: bool
    elements: int
    unequal: int  # elements that are not the same bits, and the first
    first_unequal: int
    unequal_ulps: Peak
    wrong_integers: int = 0
    integer_error: Peak = Peak()
    finite: int = 0  # compared as numbers
    misplaced: int = 0  # NaN or infinity on one side alone, or another one
    first_misplaced: int = -1
    relative: Peak = Peak()
    relative_mean: float = 0.0
    intolerant: int = 0  # |x - g| > atol + rtol * |g|, and the worst of them
    intolerance: Peak = Peak()
    absolute: Peak = Peak()
    golden_at_absolute: float = 0.0
    ulps: Peak = Peak()
    cosine: float = 1.0  # against the golden result rounded to the type, as are:
    rounded_absolute: Peak = Peak()
    rounded_relative: Peak = Peak()
    within_thousandth: int = 0
    within_five_thousandths: int = 0


def ulps_of(dtype: str, values: np.ndarray) -> np.ndarray:
    """The distance between the numbers of the type around each value."""
    exponent_bits, fraction_bits = FLOAT_FORMATS[dtype]
    bias = (1 << (exponent_bits - 1)) - 1
    exponent = np.frexp(values)[1].astype(np.int64) - 1
    exponent = np.where(values == 0, 1 - bias, np.clip(exponent, 1 - bias, bias))
    found: np.ndarray = np.ldexp(1.0, exponent - fraction_bits)
    return found


def _cosine(values: np.ndarray, golden: np.ndarray) -> float:
    """1 where both are all zeros, 0 where one is. Scaled, so that no square leaves binary64."""
    peaks = [float(np.abs(array).max(initial=0.0)) for array in (values, golden)]
    if peaks[0] == 0 or peaks[1] == 0:
        return float(peaks[0] == peaks[1])
    x, g = values / peaks[0], golden / peaks[1]
    return float(np.dot(x, g) / (np.sqrt(np.dot(x, x)) * np.sqrt(np.dot(g, g))))


def _measure_integers(values: np.ndarray, golden: np.ndarray) -> Measure:
    x, g = values.astype(np.int64), golden.astype(np.int64)
    wrong = np.flatnonzero(x != g)
    other = np.zeros(len(x), bool)
    if values.dtype == golden.dtype:
        kind = bits_type(values.dtype)
        other = values.view(kind) != golden.view(kind)
    unequal = np.flatnonzero((x != g) | other)
    first = int(unequal[0]) if len(unequal) else -1
    size = np.abs(x[wrong].astype(np.float64) - g[wrong].astype(np.float64))
    error = _peak(np.maximum(size, 1), wrong)
    ulps = Peak(np.inf, first) if len(unequal) else Peak()
    return Measure(False, len(x), len(unequal), first, ulps, len(wrong), error)


def _measure_numbers(
    found: Measure, x: np.ndarray, g: np.ndarray, rounded: np.ndarray, at: np.ndarray, dtype: str
) -> None:
    """Where both are finite; `at` are the elements' places."""
    limits = limits_of(dtype)
    difference = x - g
    size = np.abs(difference)
    relative = size / (np.abs(g) + _RELATIVE_EPS)
    tolerance = limits.atol + limits.rtol * np.abs(g)
    beyond = ~(size <= tolerance)
    found.finite = len(x)
    found.relative = _peak(relative, at)
    found.relative_mean = float(relative.sum() / len(x)) if len(x) else 0.0
    found.intolerant = int(beyond.sum())
    found.intolerance = _peak((size / tolerance)[beyond], at[beyond])
    found.absolute = _peak(size, at)
    if found.absolute.element >= 0:
        found.golden_at_absolute = float(rounded[at == found.absolute.element][0])
    found.ulps = _peak(size / ulps_of(dtype, g), at)
    difference = np.abs(x - rounded)
    # Both move by the smallest step from 1 where the golden value is 0.
    relative = difference / np.where(rounded == 0, 2.0**-52, np.abs(rounded))
    found.cosine = _cosine(x, rounded)
    found.rounded_absolute = _peak(difference, at)
    found.rounded_relative = _peak(relative, at)
    found.within_thousandth = int((relative < 0.001).sum())
    found.within_five_thousandths = int((relative < 0.005).sum())


def _measure_floats(values: np.ndarray, golden: np.ndarray, wanted: np.ndarray) -> Measure:
    dtype = values.dtype.name
    x, g = values.astype(np.float64), golden.astype(np.float64)
    rounded = wanted.astype(np.float64)
    kind = bits_type(values.dtype)
    both_nan = np.isnan(x) & np.isnan(rounded)
    numbers = np.isfinite(x) & np.isfinite(g)
    is_unequal = values.view(kind) != wanted.view(kind)
    if golden.dtype != values.dtype:
        is_unequal &= ~both_nan
    unequal = np.flatnonzero(is_unequal)
    ulps = np.where(numbers, np.abs(x - g) / ulps_of(dtype, np.where(numbers, g, 1)), np.inf)
    first = int(unequal[0]) if len(unequal) else -1
    found = Measure(True, len(x), len(unequal), first, _peak(ulps[unequal], unequal))
    misplaced = np.flatnonzero(~numbers & ~both_nan & (x != rounded))
    found.misplaced = len(misplaced)
    found.first_misplaced = int(misplaced[0]) if len(misplaced) else -1
    # A golden number beyond the type's largest stays what it is.
    rounded = np.where(np.isfinite(rounded), rounded, g)
    at = np.flatnonzero(numbers)
    _measure_numbers(found, x[at], g[at], rounded[at], at, dtype)
    return found


def measure(
    values: np.ndarray, golden: np.ndarray, rounded: Optional[np.ndarray] = None
) -> Measure:
    """Both of one shape, and both of floating-point types or neither.

    `rounded` is the golden result in the type of `values`, where it is known better than by
    rounding `golden` again.
    """
    values = np.ascontiguousarray(values).reshape(-1)
    golden = np.ascontiguousarray(golden).reshape(-1)
    with np.errstate(all="ignore"):
        if values.dtype.name not in FLOAT_FORMATS:
            return _measure_integers(values, golden)
        if rounded is None and golden.dtype == values.dtype:
            rounded = golden
        elif rounded is None:
            rounded = round_once(golden.astype(np.float64), values.dtype.name)
        return _measure_floats(values, golden, np.ascontiguousarray(rounded).reshape(-1))

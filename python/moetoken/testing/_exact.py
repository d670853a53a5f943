"""Sums and products far more accurate than binary64, and one rounding at their end.

A number is a pair (high, low) of binary64 arrays whose exact sum it is. Where a product or a sum
is not finite, high says what plain arithmetic makes of it and low is 0.
"""

from __future__ import annotations

from typing import Optional

import numpy as np

from ._layout import ordinals
from ._types import bits_type, numpy_type

__all__ = ["Pair", "dots", "product", "round_once", "sums"]

Pair = tuple[np.ndarray, np.ndarray]

_SPLIT = 2.0**27 + 1


def _add(a: Pair, b: Pair) -> Pair:
    """Knuth's exact sum of the high parts; the low parts take its error."""
    high = a[0] + b[0]
    part = high - a[0]
    error = (a[0] - (high - part)) + (b[0] - part)
    low = a[1] + b[1] + error
    return high, np.where(np.isfinite(low), low, 0.0)


def _normalized(pair: Pair) -> Pair:
    high = pair[0] + pair[1]
    low = pair[1] - (high - pair[0])
    return high, np.where(np.isfinite(low), low, 0.0)


def _halves(x: np.ndarray) -> Pair:
    """Two parts of 26 bits each (Veltkamp)."""
    scaled = _SPLIT * x
    high = scaled - (scaled - x)
    return high, x - high


def product(a: np.ndarray, b: np.ndarray, exact: bool) -> Pair:
    """a * b. exact: the factors are so narrow that binary64 holds the product."""
    high = a * b
    if exact:
        return high, np.zeros_like(high)
    (a1, a2), (b1, b2) = _halves(a), _halves(b)
    low = ((a1 * b1 - high) + a1 * b2 + a2 * b1) + a2 * b2
    return high, np.where(np.isfinite(low), low, 0.0)


def dots(a: np.ndarray, b: np.ndarray, exact: bool) -> Pair:
    """The dot product of each row of a [S, H] with that of b [S, H]."""
    high, low = product(a, b, exact)
    finite = np.isfinite(high)
    special = np.where(finite, 0.0, high).sum(axis=1)
    total: Pair = (np.where(finite, high, 0.0), low)
    if total[0].shape[1] == 0:
        return special, np.zeros_like(special)
    while total[0].shape[1] > 1:
        width = total[0].shape[1]
        half = width // 2
        left, right, rest = slice(0, half), slice(half, 2 * half), slice(2 * half, width)
        high, low = _add((total[0][:, left], total[1][:, left]),
                         (total[0][:, right], total[1][:, right]))  # fmt: skip
        total = (np.concatenate([high, total[0][:, rest]], axis=1),
                 np.concatenate([low, total[1][:, rest]], axis=1))  # fmt: skip
    high, low = _normalized((total[0][:, 0], total[1][:, 0]))
    is_special = special != 0  # so is NaN
    return np.where(is_special, special, high), np.where(is_special, 0.0, low)


def sums(terms: Pair, groups: np.ndarray, count: int) -> Pair:
    """The terms [n, ...] of each of `count` groups added up, one after the other."""
    shape = (count, *terms[0].shape[1:])
    total: Pair = (np.zeros(shape), np.zeros(shape))
    place = ordinals(groups)
    for i in range(int(place.max()) + 1 if len(place) else 0):
        here = np.flatnonzero(place == i)
        into = groups[here]
        high, low = _add((total[0][into], total[1][into]), (terms[0][here], terms[1][here]))
        total[0][into], total[1][into] = high, low
    return _normalized(total)


def _odd(value: np.ndarray, lies_above: np.ndarray, lies_below: np.ndarray) -> np.ndarray:
    """The neighbour with an odd last bit where the exact number lies beside `value`.

    What is rounded to odd can be rounded again, to a format narrower by two bits or more, as if
    that were the first time.
    """
    even = value.view(bits_type(value.dtype)).astype(np.uint8) % 2 == 0
    type_ = value.dtype.type
    up, down = np.nextafter(value, type_(np.inf)), np.nextafter(value, type_(-np.inf))
    return np.where(even & lies_above, up, np.where(even & lies_below, down, value))


def round_once(high: np.ndarray, dtype: str, low: Optional[np.ndarray] = None) -> np.ndarray:
    """The nearest numbers of the type, ties to even; overflow gives infinity."""
    target = numpy_type(dtype)
    if dtype == "float64":
        return high
    if low is not None:
        finite = np.isfinite(high)
        high = np.where(finite, _odd(high, low > 0, low < 0), high)
    if dtype == "bfloat16":  # by way of float32, which has bits to spare
        narrow = high.astype(np.float32)
        finite = np.isfinite(high)
        narrow = np.where(finite, _odd(narrow, narrow < high, narrow > high), narrow)
        return narrow.astype(target)
    return high.astype(target)

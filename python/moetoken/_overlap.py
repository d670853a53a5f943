"""Whether the arrays of a call share memory, judged before any of them is copied.

The library judges the tensors it is given. Where an array goes through a copy, because of strides
that the library cannot take, the copy shares memory with nothing: the arrays themselves are judged
here, by the library's rules. Only addresses are compared; no element is touched.
"""

from __future__ import annotations

from typing import Any, NamedTuple, Optional, Sequence

import numpy as np

from . import _library

__all__ = ["Span", "check_overlap", "span_of"]

_MOST_WORK = 1_000_000  # of NumPy's search for a common byte; beyond it the answer is yes


class Span(NamedTuple):
    """The memory of an array of at most two dimensions: sizes in elements, strides in bytes."""

    name: str
    address: int
    itemsize: int
    shape: tuple[int, int]
    strides: tuple[int, int]

    @property
    def __array_interface__(self) -> dict[str, Any]:
        return {
            "version": 3,
            "typestr": f"|V{self.itemsize}",
            "data": (self.address, True),
            "shape": self.shape,
            "strides": self.strides,
        }


def span_of(name: str, array: Any, writes: bool) -> Optional[Span]:
    """The memory of any array that the operators take; None for None, empty and refused arrays."""
    found = _library.span(array, name.encode(), writes)
    if found is None:
        return None
    address, itemsize, rows, columns, row_stride, column_stride = found
    if rows * columns * itemsize == 0:
        return None
    return Span(name, address, itemsize, (rows, columns), (row_stride, column_stride))


def _shares_memory_with_itself(span: Span) -> bool:
    """Whether two elements have a byte in common: i steps one way and j the other nearly meet."""
    (few, wide), (many, narrow) = sorted(
        zip(span.shape, map(abs, span.strides)), key=lambda dim: -dim[1]
    )
    if many > 1 and narrow < span.itemsize:
        return True
    reach = narrow * (many - 1) + span.itemsize
    for steps in range(1, few):
        distance = steps * wide
        if distance >= reach:
            return False
        if many == 1:
            return True
        back = distance // narrow  # at most many - 1, or one more that is too far to count
        for j in (back, back + 1):
            if j < many and abs(distance - j * narrow) < span.itemsize:
                return True
    return False


def _share_memory(first: Span, second: Span) -> bool:
    search: Any = np.shares_memory  # whose stubs know two values of max_work alone
    try:
        return bool(search(np.asarray(first), np.asarray(second), max_work=_MOST_WORK))
    except RuntimeError:  # TooHardError: rows that interleave in a strange way count as shared
        return True


def check_overlap(
    inputs: Sequence[Optional[Span]],
    outputs: Sequence[Optional[Span]],
    replaced: Optional[Span] = None,
) -> None:
    """ValueError when an output shares memory with itself, an input or another output.

    The first output may lie exactly over `replaced`, one of the inputs.
    """
    for i, output in enumerate(outputs):
        if output is None:
            continue
        if _shares_memory_with_itself(output):
            raise ValueError(
                f"{output.name} is an output whose elements share memory: shape "
                f"{list(output.shape)}, strides {list(output.strides)} bytes"
            )
        for other in [*inputs, *outputs[:i]]:
            if other is None or (i == 0 and other is replaced and other[1:] == output[1:]):
                continue
            if _share_memory(output, other):
                raise ValueError(
                    f"{output.name} at address {output.address:#x} shares memory with "
                    f"{other.name} at {other.address:#x}"
                )

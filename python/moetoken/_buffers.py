"""Memory of large outputs, kept when it is freed.

The system clears fresh memory page by page, which can take longer than the operator that fills it.
Outputs of 1 MiB and more therefore come from a cache of buffers that earlier outputs have left: an
array or tensor holds its buffer as long as anything - a view, a storage, an exported capsule -
refers to it, and then leaves it to the next output of about its size.
"""

from __future__ import annotations

import os
from typing import Any

import numpy as np

from . import _library

__all__ = ["LEAST_BYTES", "empty_cache", "memory_stats", "numpy_empty"]

LEAST_BYTES = 1 << 20
_STATS = ("allocation", "allocated_bytes", "segment", "reserved_bytes")
_give = _library.buffer_give
_take = _library.buffer_take


class _Holder:
    """What NumPy's arrays over a buffer have as their base; frees it with the last of them."""

    __slots__ = ("__array_interface__", "_give", "_handle")

    def __init__(self, address: int, handle: int, size: int) -> None:
        self._give = _give  # the module's names may be gone before the last array is
        self._handle = handle
        self.__array_interface__ = {
            "version": 3,
            "typestr": "|u1",
            "data": (address, False),
            "shape": (size,),
        }

    def __del__(self) -> None:
        self._give(self._handle)


def numpy_empty(shape: tuple[int, ...], dtype: np.dtype, size: int) -> np.ndarray:
    """numpy.empty, of `size` bytes, over a buffer of the cache where that has one."""
    taken = _take(size)
    if taken is None:
        return np.empty(shape, dtype)
    address, handle = taken
    return np.asarray(_Holder(address, handle, size)).view(dtype).reshape(shape)


def empty_cache() -> None:
    """Returns the memory of all buffers that no array or tensor uses to the system.

    Examples
    --------
    >>> import moetoken
    >>> moetoken.empty_cache()
    >>> stats = moetoken.memory_stats()
    >>> stats["reserved_bytes.all.current"] >= stats["allocated_bytes.all.current"]
    True
    """
    _library.buffer_limit(None)


def memory_stats() -> dict[str, int]:
    """What the buffers of large outputs take, under the names that torch.cuda.memory_stats has.

    Returns
    -------
    A dictionary with ``"<quantity>.all.<number>"``, where the quantity is one of

    - ``allocation``, ``allocated_bytes``: buffers that arrays and tensors use, what they asked for
    - ``segment``, ``reserved_bytes``: buffers taken from the system, those that wait included

    and the number one of ``current``, ``peak``, ``allocated`` and ``freed`` (sums over all time).
    """
    return {
        f"{quantity}.all.{number}": value
        for quantity, values in zip(_STATS, _library.buffer_stats())
        for number, value in zip(("current", "peak", "allocated", "freed"), values)
    }


def _machine_bytes() -> int:
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, OSError, ValueError):
        return 0


def _limit() -> int:
    """The most bytes that may wait: MOETOKEN_CACHE_BYTES, else 1/16 of the machine's memory."""
    given: Any = os.environ.get("MOETOKEN_CACHE_BYTES", "").strip()
    if not given:
        return _machine_bytes() // 16
    if not given.isdecimal() or int(given) >= 2**63:
        raise ImportError(
            f"MOETOKEN_CACHE_BYTES is {given!r}, expected a number of bytes (0: no cache)"
        )
    return int(given)


_library.buffer_limit(_limit())

"""Fresh outputs in huge pages.

The system clears the memory of a large new tensor page by page when it is first written, which for
pages of 4 KiB takes longer than moving the rows does. Pages of 2 MiB are asked for, as NumPy does
for its arrays; where the system has none nothing changes.
"""

from __future__ import annotations

import ctypes
import mmap

from torch import Tensor

__all__ = ["in_huge_pages"]

_LEAST_BYTES = 4 << 20  # two pages: below, hardly a whole one lies inside
_ADVICE = getattr(mmap, "MADV_HUGEPAGE", None)
_madvise = getattr(ctypes.CDLL(None), "madvise", None) if _ADVICE is not None else None
if _madvise is not None:
    _madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]


def in_huge_pages(tensor: Tensor) -> Tensor:
    """The tensor itself, which nothing has been written to yet."""
    size = tensor.numel() * tensor.element_size()
    if _madvise is not None and size >= _LEAST_BYTES:
        start = tensor.data_ptr()
        begin = -(-start // mmap.PAGESIZE) * mmap.PAGESIZE
        _madvise(begin, start + size - begin, _ADVICE)  # advice: a refusal is none of our business
    return tensor

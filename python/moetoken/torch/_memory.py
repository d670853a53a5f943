"""Outputs of the operators: large ones over buffers that earlier outputs have left, in huge pages.

Where there are no such buffers - the cache is off, or this PyTorch makes no tensors from C - pages
of 2 MiB are asked for: the system clears the memory of a large new tensor page by page when it is
first written, which for pages of 4 KiB takes longer than moving the rows does.
"""

from __future__ import annotations

import ctypes
import mmap
from typing import Optional

from torch import Tensor
from torch.nn import Parameter

from .. import _library
from .._buffers import LEAST_BYTES

__all__ = ["empty_rows", "in_huge_pages"]

_new_tensor = _library.new_tensor
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


def empty_rows(like: Tensor, rows: int, columns: int) -> Tensor:
    """like.new_empty(rows, columns). A traced program's sizes, which are no numbers yet, and its
    tensors, which have no memory, go PyTorch's own way."""
    if type(rows) is not int or rows * columns * like.element_size() < LEAST_BYTES:
        return like.new_empty(rows, columns)
    kind = type(like)
    if not (kind is Tensor or kind is Parameter) or like.device.type != "cpu":
        return like.new_empty(rows, columns)
    found: Optional[Tensor] = _new_tensor(like, rows, columns)
    return in_huge_pages(like.new_empty(rows, columns)) if found is None else found
